"""Rows as text, in and out, in the dialects of those who write schedules. One line is one rank.

- `pytorch-compute`: cells `2F0`, `1B3`, `0I1`, `0W1` and pairs `(0F1;1B0)OVERLAP_F_B`, separated by
  commas; an empty cell is an idle slot. What `torch.distributed.pipelining` loads as compute_only:
  `B` is the full backward, `I` and `W` its halves for the input and for the weights.
- `pytorch-comms`: the same with `SEND_F RECV_F SEND_B RECV_B`, and where PyTorch has them
  `UNSHARD RESHARD REDUCE_GRAD`: rows as its runtime executes them, compute_comms. They are not
  lowered again.
- `zero-bubble`: the zero-bubble authors' printed rows, `f0 F0 b0 w0`, separated by blanks. `f` is
  the forward, `b` the backward for the input and `w` that for the weights; a `b` without its `w` is
  the full backward, which their code calls BW. Small letters are a rank's first chunk, capitals its
  second, on the way back of a V: stages r and 2 p - 1 - r. Rows in capitals alone have one chunk,
  as in the paper's figures. `sf rf sb rb` are sends and receives.
- `zero-bubble-interleaved`: the same letters with the chunks of interleaved 1F1B: stages r, p + r.

Source: `_Action` in PyTorch's torch/distributed/pipelining/schedules.py; `viz_node` in
sail-sg/zero-bubble-pipeline-parallelism, megatron/core/pipeline_parallel/zerobubble/scheduler.
"""

import difflib
import re
from collections.abc import Callable, Iterable

import numpy as np

from simulator.lower import lower, reduce_when_ready
from simulator.schedule import Kind, Op, Schedule

__all__ = ["DIALECTS", "check_transfers", "is_lowered", "read_rows", "write_rows"]

DIALECTS = ("pytorch-compute", "pytorch-comms", "zero-bubble", "zero-bubble-interleaved")

Words = dict[Kind, str]

TRANSFERS = (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)
LETTERS: Words = {
    Kind.F: "f",
    Kind.I: "b",
    Kind.W: "w",
    Kind.B: "b",
    Kind.SEND_F: "sf",
    Kind.RECV_F: "rf",
    Kind.SEND_B: "sb",
    Kind.RECV_B: "rb",
}
CELL = re.compile(r"([A-Za-z]+)-?(\d+)")


def is_lowered(schedule: Schedule) -> bool:
    """Whether the rows have their communication, so that they must not be lowered.

    >>> is_lowered(read_rows("0F0,0SEND_F0,0RECV_B0,0B0" + chr(10) + "1RECV_F0,1F0,1B0,1SEND_B0",
    ...                      "pytorch-comms"))
    True
    """
    return bool((schedule.kind > Kind.OPTIMIZER).any())


def read_rows(text: str, dialect: str) -> Schedule:
    """Rows from their text.

    Raises:
        ValueError: the dialect is unknown, or a cell is wrong; rank and column are named.

    >>> print(read_rows("f0 f1 b0 w0 b1 w1", "zero-bubble"))
    0F0,0F1,0I0,0W0,0I1,0W1
    """
    _known(dialect)
    if dialect.startswith("zero-bubble"):
        schedule = _read_letters(text, _stages_of(dialect))
        if is_lowered(schedule):
            check_transfers(schedule)
        return schedule
    schedule = Schedule.parse(text)
    if dialect == "pytorch-compute":
        _check_kinds(schedule, (Kind.F, Kind.B, Kind.I, Kind.W), dialect)
    else:
        kinds = (Kind.F, Kind.B, Kind.I, Kind.W, *TRANSFERS)
        _check_kinds(schedule, (*kinds, Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD), dialect)
        check_transfers(schedule)
    return schedule


def write_rows(schedule: Schedule, dialect: str) -> str:
    """The rows' text, one line a rank, ending with a newline; `pytorch-comms` lowers if need be.

    Rows that are lowered here get each stage's REDUCE_GRAD too, without which PyTorch's runtime
    would not divide the gradients by the number of microbatches.

    Raises:
        ValueError: the dialect is unknown or cannot say an op; rank and column are named.

    >>> print(write_rows(Schedule.parse("0F0,0I0,0W0"), "zero-bubble"), end="")
    f0 b0 w0
    """
    _known(dialect)
    if dialect.startswith("zero-bubble"):
        return _write_letters(schedule, dialect)
    kinds: tuple[Kind, ...] = (Kind.F, Kind.B, Kind.I, Kind.W)
    if dialect == "pytorch-comms":
        if not is_lowered(schedule):
            _check_kinds(schedule, kinds, dialect)
            schedule = reduce_when_ready(lower(schedule))
        kinds = (*kinds, *TRANSFERS, Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)
    _check_kinds(schedule, kinds, dialect)
    return f"{schedule}\n"


def _known(dialect: str) -> None:
    if dialect not in DIALECTS:
        near = difflib.get_close_matches(dialect, DIALECTS, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"dialect is {dialect!r}; {hint}use one of {', '.join(DIALECTS)}")


def _stages_of(dialect: str) -> Callable[[int, int], tuple[int, int]]:
    """The stages of a rank's first and second chunk, given the rank and the number of ranks."""
    if dialect == "zero-bubble":
        return lambda rank, pp: (rank, 2 * pp - 1 - rank)
    return lambda rank, pp: (rank, pp + rank)


def _read_letters(text: str, stages_of: Callable[[int, int], tuple[int, int]]) -> Schedule:
    lines = [line for line in text.splitlines() if line.strip()]
    cells = [line.replace(",", " ").split() for line in lines]
    one_chunk = all(cell.isupper() for row in cells for cell in row)
    kinds = {"f": Kind.F, "b": Kind.I, "w": Kind.W, "bw": Kind.B}
    kinds |= {LETTERS[kind]: kind for kind in TRANSFERS}
    rows = []
    for rank, row in enumerate(cells):
        ops = []
        for column, cell in enumerate(row):
            match = CELL.fullmatch(cell)
            word = match[1] if match else ""
            if not match or word.lower() not in kinds or not (word.islower() or word.isupper()):
                raise ValueError(
                    f"row of rank {rank}, column {column}: {cell!r} is no op; write f, b, w or bw "
                    "and the microbatch as in f0, in capitals for the second chunk"
                )
            stage = stages_of(rank, len(cells))[word.isupper() and not one_chunk]
            ops.append(Op(stage, kinds[word.lower()], int(match[2])))
        rows.append(_join_halves(ops))
    return Schedule.of(rows)


def _join_halves(row: list[Op]) -> list[Op]:
    """The input gradients whose weight gradient stands nowhere, as full backwards."""
    split = {(op.stage, op.microbatch) for op in row if op.kind is Kind.W}
    return [
        op._replace(kind=Kind.B)
        if op.kind is Kind.I and (op.stage, op.microbatch) not in split
        else op
        for op in row
    ]


def _write_letters(schedule: Schedule, dialect: str) -> str:
    _check_kinds(schedule, LETTERS, dialect)
    if schedule.paired.any():
        at = int(schedule.paired.argmax())
        raise ValueError(f"{_place(schedule, at)} starts a pair, which dialect {dialect} lacks")
    stages_of = _stages_of(dialect)
    lines = []
    for rank, row in enumerate(schedule.rows):
        stages = stages_of(rank, schedule.num_ranks)
        cells = []
        for column, op in enumerate(row):
            if op.stage not in stages:
                raise ValueError(
                    f"row of rank {rank}, column {column} is {op}, but dialect {dialect} has "
                    f"stages {stages[0]} and {stages[1]} on this rank"
                )
            word = LETTERS[op.kind]
            cells.append(f"{word.upper() if op.stage != stages[0] else word}{op.microbatch}")
        lines.append(" ".join(cells))
    return "\n".join(lines) + "\n"


def _check_kinds(schedule: Schedule, kinds: Iterable[Kind], dialect: str) -> None:
    """Every op is of one of these kinds."""
    wrong = ~np.isin(schedule.kind, list(kinds))
    if wrong.any():
        at = int(wrong.argmax())
        names = " ".join(dict.fromkeys(kind.name for kind in kinds))
        way = (
            "; rows with sends and receives are pytorch-comms"
            if schedule.kind[at] in TRANSFERS
            else ""
        )
        raise ValueError(
            f"{_place(schedule, at)} is {schedule.op(at)}, but dialect {dialect} has only "
            f"{names}{way}"
        )


def check_transfers(schedule: Schedule) -> None:
    """What an op needs stands before it in its row, and every transfer has both of its ends."""
    rows = list(schedule.rows)
    home: dict[tuple[int, bool, int], int] = {}
    sent: dict[Op, int] = {}
    for rank, row in enumerate(rows):
        for op in row:
            if op.kind <= Kind.I:
                home[op.stage, op.kind is Kind.F, op.microbatch] = rank
            elif op.kind.is_send:
                sent[op] = rank
    for rank, row in enumerate(rows):
        received, stands = set(), {op: column for column, op in enumerate(row)}
        for column, op in enumerate(row):
            forward = op.kind in (Kind.F, Kind.RECV_F)
            source = op.stage - 1 if forward else op.stage + 1
            send = Op(source, Kind.SEND_F if forward else Kind.SEND_B, op.microbatch)
            missing = ""
            if op.kind.is_receive:
                received.add(op)
                if send not in sent:
                    missing = f"{send} stands on no rank"
                sent.pop(send, None)
            elif op.kind <= Kind.I and 0 <= source < schedule.num_stages:
                receive = Op(op.stage, Kind.RECV_F if forward else Kind.RECV_B, op.microbatch)
                away = home.get((source, forward, op.microbatch), rank) != rank
                if away and receive not in received:
                    missing = f"{receive} does not stand before it"
            late = [need for need in _needs(op) if stands.get(need, column) > column]
            if late and not missing:
                missing = f"{late[0]}, which it needs, stands after it"
            if missing:
                raise ValueError(f"row of rank {rank}, column {column} is {op}, but {missing}")
    for op, rank in sent.items():
        raise ValueError(
            f"row of rank {rank}, column {rows[rank].index(op)} is {op}, but nothing receives it"
        )


def _needs(op: Op) -> list[Op]:
    """What comes before an op on its own rank, if it stands there."""
    stage, _, microbatch = op
    back = [Op(stage, kind, microbatch) for kind in (Kind.B, Kind.I)]
    if op.kind in (Kind.B, Kind.I):
        above = [Op(stage + 1, kind, microbatch) for kind in (Kind.B, Kind.I)]
        return [Op(stage, Kind.F, microbatch), *above]
    if op.kind is Kind.F:
        return [Op(stage - 1, Kind.F, microbatch)] if stage else []
    if op.kind is Kind.SEND_F:
        return [Op(stage, Kind.F, microbatch)]
    return back if op.kind in (Kind.W, Kind.SEND_B) else []


def _place(schedule: Schedule, at: int) -> str:
    rank = int(schedule.rank[at])
    return f"row of rank {rank}, column {at - int(schedule.offsets[rank])}"
