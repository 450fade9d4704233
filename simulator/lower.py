"""From compute-only rows to rows with every send and receive: the same rows that PyTorch runs.

The walk runs each rank's next op as soon as its input is there, one op a rank and round. When an
op's consumer sits on another rank, SEND goes into this row and RECV into that one at the same
moment, so both ends of a pair list their transfers in one order and no pair can wait for itself.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.grid import grid
from simulator.schedule import NO_MICROBATCH, Deadlock, Kind, Op, Schedule, awaited

__all__ = [
    "block",
    "lower",
    "post_receives_early",
    "reduce_at_end",
    "reduce_when_ready",
    "step_optimizer",
    "unshard_after_step",
]

Numbers = tuple[int, int, int, int]  # stage, kind, microbatch, paired

_F, _W, _OPTIMIZER = int(Kind.F), int(Kind.W), int(Kind.OPTIMIZER)
_SEND_F, _RECV_F, _SEND_B, _RECV_B = (
    int(kind) for kind in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)
)


def lower(schedule: Schedule) -> Schedule:
    """Add the sends and receives. Equal to PyTorch's `_add_send_recv` on the same rows.

    Raises:
        ValueError: an op is missing, doubled or no compute.
        Deadlock: the rows cannot finish.

    >>> print(lower(Schedule.parse("0F0,0B0" + chr(10) + "1F0,1B0")))
    0F0,0SEND_F0,0RECV_B0,0B0
    1RECV_F0,1F0,1B0,1SEND_B0
    """
    _check(schedule)
    num_ranks, last, width = schedule.num_ranks, schedule.num_stages - 1, schedule.num_microbatches
    home_f = _home(schedule, (Kind.F,))
    home_b = _home(schedule, (Kind.B, Kind.I))
    columns = (schedule.stage, schedule.kind, schedule.microbatch, schedule.paired)
    ops = list(zip(*(column.tolist() for column in columns), strict=True))
    cursor = schedule.offsets[:-1].tolist()
    stop = schedule.offsets[1:].tolist()
    size = (last + 1) * width
    has_input = [bytearray(size), bytearray(size)]  # of F, of B or I
    has_input[0][:width] = b"\1" * width
    done_forward, done_input_grad = bytearray(size), bytearray(size)
    rows: list[list[Numbers]] = [[] for _ in range(num_ranks)]

    def ready(op: Numbers) -> int:
        stage, kind, microbatch, _ = op
        at = stage * width + microbatch
        if kind == _F:
            return has_input[0][at]
        if kind == _W:
            return done_input_grad[at]
        if kind == _OPTIMIZER:
            return 1
        return has_input[1][at] and done_forward[at]

    def send(rank: int, op: Numbers) -> None:
        """Hand the op's result on: by a transfer where the consumer sits on another rank."""
        stage, kind, microbatch, _ = op
        at = stage * width + microbatch
        if kind == _F:
            done_forward[at] = 1
            if stage == last:
                has_input[1][at] = 1
                return
            has_input[0][at + width] = 1
            peer = home_f[at + width]
            if peer != rank:
                rows[rank].append((stage, _SEND_F, microbatch, 0))
                rows[peer].append((stage + 1, _RECV_F, microbatch, 0))
        elif kind < _W:
            done_input_grad[at] = 1
            if stage == 0:
                return
            has_input[1][at - width] = 1
            peer = home_b[at - width]
            if peer != rank:
                rows[rank].append((stage, _SEND_B, microbatch, 0))
                rows[peer].append((stage - 1, _RECV_B, microbatch, 0))

    waiting = [rank for rank in range(num_ranks) if cursor[rank] < stop[rank]]
    while waiting:
        progress = False
        for rank in waiting:
            at = cursor[rank]
            op = ops[at]
            if not ready(op):
                continue
            if op[3]:
                second = ops[at + 1]
                if not ready(second):
                    continue
                rows[rank] += (op, second)
                send(rank, op)
                send(rank, second)
                cursor[rank] += 2
            else:
                rows[rank].append(op)
                send(rank, op)
                cursor[rank] += 1
            progress = True
        if not progress:
            heads = [
                (rank, schedule.op(at))
                for rank in waiting
                for at in (cursor[rank], cursor[rank] + 1)[: 1 + ops[cursor[rank]][3]]
                if not ready(ops[at])
            ]
            raise Deadlock(_stuck(heads, last), grid(schedule, cursor))
        waiting = [rank for rank in waiting if cursor[rank] < stop[rank]]
    return Schedule.of(np.array(row, np.int32).reshape(-1, 4) for row in rows)


def post_receives_early(lowered: Schedule) -> Schedule:
    """Post every receive before the row's first compute: a message leaves as soon as it is made.

    The overlapped point-to-point of the papers' simulators. With p2p latency Tc it gives 1F1B
    (m + p - 1)(tf + tb) + (2 (p - 1) m / p + 2 (p - 2)) Tc, the figure behind every 1F1B entry of
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, Table 5.

    >>> print(post_receives_early(lower(Schedule.parse("0F0,0B0" + chr(10) + "1F0,1B0"))))
    0RECV_B0,0F0,0SEND_F0,0B0
    1RECV_F0,1F0,1B0,1SEND_B0
    """
    compute = ~np.isin(lowered.kind, (Kind.RECV_F, Kind.RECV_B))
    return lowered.reordered(np.lexsort((compute, lowered.rank)))


def block(lowered: Schedule) -> Schedule:
    """Blocking point-to-point, as Megatron's non-interleaved schedules communicate.

    A rank receives an op's input right before the op and sends its result right after it, and
    stands still meanwhile. A send and the next op's receive over the same pair of ranks go
    together, Megatron's `send_forward_recv_backward`; other transfers go one after the other.

    Source: NVIDIA/Megatron-LM, core/pipeline_parallel/schedules.py and p2p_communication.py.

    >>> print(block(lower(Schedule.parse("0F0,0B0" + chr(10) + "1F0,1B0"))))
    0F0,0SEND_F0,0RECV_B0,0WAIT,0B0
    1RECV_F0,1WAIT,1F0,1B0,1SEND_B0,1WAIT
    """
    needs = awaited(lowered).tolist()
    home = dict(zip(zip(*_ids(lowered), strict=True), lowered.rank.tolist(), strict=True))
    rows = []
    for rank in range(lowered.num_ranks):
        first, stop = int(lowered.offsets[rank]), int(lowered.offsets[rank + 1])
        row: list[Numbers] = []
        open_to = -1  # the peer of sends that are posted and not yet waited for
        for at in range(first, stop):
            op = lowered.op(at)
            if op.kind.is_receive:
                continue  # posted by the op that needs it
            if op.kind.is_send:
                peer = _peer(op, home)
                if open_to not in (-1, peer):
                    row.append((op.stage, int(Kind.WAIT), NO_MICROBATCH, 0))
                row.append((*op, 0))
                open_to = peer
                continue
            needed = [needs[at]] + ([needs[at + 1]] if lowered.paired[at] else [])
            if at > first and lowered.paired[at - 1]:
                needed = []  # its partner has received for both
            for receive in (need for need in needed if need >= 0):
                message = lowered.op(receive)
                peer = _peer(message, home)
                if open_to not in (-1, peer):
                    row.append((op.stage, int(Kind.WAIT), NO_MICROBATCH, 0))
                row.append((*message, 0))
                open_to = peer
            if open_to != -1 and op.kind.is_compute:
                row.append((op.stage, int(Kind.WAIT), NO_MICROBATCH, 0))
                open_to = -1
            row.append((*op, int(lowered.paired[at])))
        if open_to != -1:
            row.append((lowered.op(stop - 1).stage, int(Kind.WAIT), NO_MICROBATCH, 0))
        rows.append(np.array(row, np.int32).reshape(-1, 4))
    return Schedule.of(rows)


def _ids(lowered: Schedule) -> tuple[list[int], list[int], list[int]]:
    return lowered.stage.tolist(), lowered.kind.tolist(), lowered.microbatch.tolist()


def _peer(transfer: Op, home: dict[tuple[int, int, int], int]) -> int:
    """The rank at the other end of a transfer."""
    other, step = {
        Kind.SEND_F: (Kind.RECV_F, 1),
        Kind.RECV_F: (Kind.SEND_F, -1),
        Kind.SEND_B: (Kind.RECV_B, -1),
        Kind.RECV_B: (Kind.SEND_B, 1),
    }[transfer.kind]
    return home[transfer.stage + step, int(other), transfer.microbatch]


def reduce_when_ready(lowered: Schedule) -> Schedule:
    """Add each stage's REDUCE_GRAD right after its last backward: overlapped with what follows."""
    last = _last_backward(lowered)
    return _insert(lowered, last, lowered.stage[last], Kind.REDUCE_GRAD)


def reduce_at_end(lowered: Schedule) -> Schedule:
    """Add every stage's REDUCE_GRAD at the end of its row: nothing is left to overlap with."""
    return _append(lowered, Kind.REDUCE_GRAD)


def step_optimizer(lowered: Schedule) -> Schedule:
    """Add each stage's OPTIMIZER at the end of its row."""
    return _append(lowered, Kind.OPTIMIZER)


def unshard_after_step(lowered: Schedule) -> Schedule:
    """Add each stage's UNSHARD, the gathering of its new weights, right after its OPTIMIZER."""
    steps = np.flatnonzero(lowered.kind == Kind.OPTIMIZER)
    return _insert(lowered, steps, lowered.stage[steps], Kind.UNSHARD)


def _check(schedule: Schedule) -> None:
    """Each stage runs each microbatch forward once, and backward once: as B, or as I and W."""
    empty = np.flatnonzero(np.diff(schedule.offsets) == 0)
    if len(empty):
        raise ValueError(f"row of rank {empty[0]} is empty; every rank holds at least one stage")
    if (schedule.kind > Kind.OPTIMIZER).any():
        at = int(np.flatnonzero(schedule.kind > Kind.OPTIMIZER)[0])
        raise ValueError(
            f"{_where(schedule, at)} is {schedule.op(at)}, but rows to lower hold only F, B, I, W "
            "and OPTIMIZER"
        )
    work = schedule.kind <= Kind.W
    if (work & (schedule.microbatch < 0)).any():
        at = int(np.flatnonzero(work & (schedule.microbatch < 0))[0])
        raise ValueError(f"{_where(schedule, at)} is {schedule.op(at)} without a microbatch")
    shape = (Kind.W + 1, schedule.num_stages, schedule.num_microbatches)
    count = np.zeros(shape, np.int64)
    np.add.at(count, (schedule.kind[work], schedule.stage[work], schedule.microbatch[work]), 1)
    if (count > 1).any():
        kind, stage, microbatch = (int(x[0]) for x in np.nonzero(count > 1))
        same = (
            (schedule.kind == kind)
            & (schedule.stage == stage)
            & (schedule.microbatch == microbatch)
        )
        at = int(np.flatnonzero(same)[1])
        raise ValueError(
            f"{_where(schedule, at)} is {schedule.op(at)} for the second time; each op runs once"
        )
    forward, whole, halves = count[Kind.F], count[Kind.B], count[Kind.I] + count[Kind.W]
    for wrong, text in (
        (forward == 0, "has no forward; add {stage}F{microbatch}"),
        ((whole == 0) & (halves == 0), "has no backward; add {stage}B{microbatch}"),
        ((whole == 0) & (halves == 1), "has half a backward; it needs both I and W"),
        ((whole == 1) & (halves > 0), "has a full and a split backward; use B, or I and W"),
    ):
        if wrong.any():
            stage, microbatch = (int(x[0]) for x in np.nonzero(wrong))
            same = (schedule.stage == stage) & (schedule.microbatch == microbatch)
            places = np.flatnonzero(same | ((schedule.stage == stage) & ~same.any()))
            raise ValueError(
                f"{_where(schedule, int(places[-1]))} is {schedule.op(int(places[-1]))}, but stage "
                f"{stage}, microbatch {microbatch} "
                + text.format(stage=stage, microbatch=microbatch)
            )
    forwards, width = np.array(_home(schedule, (Kind.F,))), schedule.num_microbatches
    backward = np.flatnonzero(np.isin(schedule.kind, (Kind.B, Kind.I, Kind.W)))
    home = forwards[schedule.stage[backward] * width + schedule.microbatch[backward]]
    astray = backward[home != schedule.rank[backward]]
    if len(astray):
        at = int(astray[0])
        made = int(forwards[schedule.stage[at] * width + schedule.microbatch[at]])
        raise ValueError(
            f"{_where(schedule, at)} is {schedule.op(at)}, but rank {made} ran its forward and "
            "holds its activations; put it there"
        )


def _where(schedule: Schedule, at: int) -> str:
    rank = int(schedule.rank[at])
    return f"row of rank {rank}, column {at - int(schedule.offsets[rank])}"


def _home(schedule: Schedule, kinds: tuple[Kind, ...]) -> list[int]:
    """The rank on which an op of these kinds stands, by stage x num_microbatches + microbatch."""
    width = schedule.num_microbatches
    home = np.full(schedule.num_stages * width, -1, np.int32)
    mask = np.isin(schedule.kind, kinds)
    home[schedule.stage[mask] * width + schedule.microbatch[mask]] = schedule.rank[mask]
    result: list[int] = home.tolist()
    return result


def _stuck(heads: list[tuple[int, Op]], last: int) -> str:
    """Each stuck rank, its op and what that waits for."""

    def needs(op: Op) -> Op:
        if op.kind == Kind.F:
            return Op(op.stage - 1, Kind.F, op.microbatch)
        if op.kind == Kind.W:
            return Op(op.stage, Kind.I, op.microbatch)
        if op.stage == last:
            return Op(op.stage, Kind.F, op.microbatch)
        return Op(op.stage + 1, op.kind, op.microbatch)

    shown = "; ".join(f"rank {rank} at {op} waits for {needs(op)}" for rank, op in heads[:8])
    more = f"; and {len(heads) - 8} more ranks" if len(heads) > 8 else ""
    return f"schedule cannot finish: {shown}{more}"


def _last_backward(lowered: Schedule) -> NDArray[np.intp]:
    """Index of each (rank, stage)'s last backward op, in order."""
    backward = np.flatnonzero(np.isin(lowered.kind, (Kind.B, Kind.W)))
    key = lowered.rank[backward].astype(np.int64) * lowered.num_stages + lowered.stage[backward]
    _, first = np.unique(key[::-1], return_index=True)
    return np.sort(backward[len(backward) - 1 - first])


def _append(lowered: Schedule, kind: Kind) -> Schedule:
    """Add an op of this kind at the end of the row for every stage on the rank."""
    held = np.unique(lowered.rank.astype(np.int64) * lowered.num_stages + lowered.stage)
    rank, stage = np.divmod(held, lowered.num_stages)
    return _insert(lowered, lowered.offsets[rank + 1] - 1, stage, kind)


def _insert(
    lowered: Schedule, after: NDArray[np.integer], stage: NDArray[np.integer], kind: Kind
) -> Schedule:
    """Add an op of this kind and these stages after each of these indices."""
    at = after + 1
    added = np.bincount(lowered.rank[after], minlength=lowered.num_ranks)
    return Schedule(
        lowered.offsets + np.concatenate([[0], np.cumsum(added)]),
        np.insert(lowered.stage, at, stage),
        np.insert(lowered.kind, at, int(kind)),
        np.insert(lowered.microbatch, at, NO_MICROBATCH),
        np.insert(lowered.paired, at, False),
    )
