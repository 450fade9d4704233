"""Measured steps: the rows of events that the ranks wrote, on one clock, as a Timeline."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from simulator.schedule import NO_MICROBATCH, Kind
from simulator.timeline import Timeline
from validator.events import Measured
from validator.lone import LONE_REPEATS, lone_rows
from validator.session import Play

__all__ = [
    "OPS",
    "QUIET",
    "Mark",
    "Step",
    "incomplete",
    "is_whole",
    "message_times",
    "op_times",
    "quiet",
    "steps_of",
]

OPS = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.OPTIMIZER)
QUIET = 0.03  # share of its ranks' time that something else may take of a step that counts [1]
WAITS = 1e-4  # a receiver that is ready this late after the post has waited [s]
LONG = 0.05  # share of an op's time; a transfer beside it takes less [1]
FEWEST = 3  # steps that count even if none is quiet: the quietest [1]


class Mark(NamedTuple):
    """One op of a rank, or the posting of one end of a transfer."""

    kind: Kind
    stage: int
    microbatch: int
    begin: float  # [s]
    end: float  # [s]
    own: float | None  # what the rank's thread worked in it, None on a GPU [s]

    @property
    def interrupted(self) -> float:
        """What something else took of the op. [s]"""
        return 0.0 if self.own is None else max(0.0, self.end - self.begin - self.own)


@dataclass(frozen=True)
class Step:
    """One step of all ranks."""

    rows: Mapping[int, list[Mark]]  # by rank, in order

    @property
    def disturbed(self) -> float:
        """Share of the ranks' time in which something else had their cores. [1]"""
        marks = [mark for row in self.rows.values() for mark in row if mark.kind in OPS]
        length = max(mark.end for mark in marks) - min(mark.begin for mark in marks)
        return sum(mark.interrupted for mark in marks) / (length * len(self.rows))

    def timeline(self, lost: Mapping[tuple[Kind, int], float]) -> Timeline:
        """Ops with the launch overhead that is theirs, transfers from the post of both ends.

        `lost` is that overhead, by kind and stage; where less lies before an op, it has less. [s]
        Time zero is the begin of the first op. A transfer ends when the receiver's next op of that
        microbatch begins, if the rank waited for it, else before: there is no telling when, so it
        ends where the rank's waiting could have begun.
        """
        spans: list[tuple[int, int, int, int, float, float]] = []
        for rank, row in self.rows.items():
            before = -np.inf
            for mark in row:
                if mark.kind in OPS:
                    early = max(before, mark.begin - lost.get((mark.kind, mark.stage), 0.0))
                    spans.append((rank, mark.stage, mark.kind, mark.microbatch, early, mark.end))
                    before = mark.end
        spans += _transfers(self.rows)
        zero = min(span[4] for span in spans if span[2] in OPS)
        spans.sort(key=lambda span: (span[0], span[4]))
        ranks, stage, kind, microbatch, start, end = zip(*spans, strict=True)
        return Timeline(
            rank=np.array(ranks, np.int32),
            stage=np.array(stage, np.int32),
            kind=np.array(kind, np.int8),
            microbatch=np.array(microbatch, np.int32),
            start=np.array(start) - zero,
            end=np.array(end) - zero,
        )


def steps_of(
    measured: Measured,
    part: str,
    play: Play,
    **wanted: Any,  # noqa: ANN401
) -> Iterator[Step]:
    """Steps that all ranks wrote down whole; `part` is "step", or "lone" for a cut's lone ops."""
    for rows in _rows_of(measured, part, play, **wanted):
        if len(rows) == len(measured.ranks):
            yield Step(rows)


def incomplete(measured: Measured, play: Play) -> int:
    """Steps of a play that some rank wrote down, but not all ranks, or not whole. [1]"""
    begun = {(record["round"], record["step"]) for record in measured.of("step", play=play.name)}
    return len(begun) - len(list(steps_of(measured, "step", play)))


def is_whole(record: Mapping[str, Any], play: Play, *, lone: bool) -> bool:
    """Whether a record holds every compute op of its rank's row, and none twice."""
    split = bool(record["split"]) if lone else None
    found = sorted((e[0], e[1], e[2]) for e in record["events"] if e[0] in OPS)
    return found == _ops_of(play, int(record["rank"]), split)


@lru_cache(maxsize=1024)
def _ops_of(play: Play, rank: int, split: bool | None) -> list[tuple[int, int, int]]:
    """Compute ops of a rank's row, sorted; with `split`, of the lone rows of its cut."""
    asked = play.schedule if split is None else lone_rows(play.held, LONE_REPEATS, split=split)
    ops = [(int(o.kind), o.stage, o.microbatch) for o in asked.row(rank) if o.kind.is_compute]
    return sorted([*ops, *((int(Kind.OPTIMIZER), s, NO_MICROBATCH) for s in play.held[rank])])


def _rows_of(
    measured: Measured,
    part: str,
    play: Play,
    **wanted: Any,  # noqa: ANN401
) -> Iterator[dict[int, list[Mark]]]:
    """Whole rows of each step by rank, of the ranks that wrote one."""
    offsets = {
        (int(r["peer"]), int(r.get("round", 0))): float(r["seconds"]) for r in measured.of("offset")
    }
    turns: dict[tuple[int, int, bool], dict[int, list[Mark]]] = defaultdict(dict)
    for record in measured.of(part, **wanted):
        names = record.get("plays", [record.get("play")])
        if play.name not in names or not is_whole(record, play, lone=part == "lone"):
            continue
        rank = int(record["rank"])
        late = offsets.get((rank, record["round"]), offsets.get((rank, 0), 0.0))
        turns[record["round"], record.get("step", 0), record.get("split", False)][rank] = [
            Mark(Kind(kind), stage, microbatch, begin + late, end + late, own)
            for kind, stage, microbatch, begin, end, own in record["events"]
        ]
    for _, rows in sorted(turns.items()):
        yield dict(sorted(rows.items()))


def quiet(steps: Iterable[Step]) -> list[Step]:
    """The steps in which nothing else took much of the cores; the quietest few if there are none.

    Chosen by what the ranks' threads worked, not by how long the steps took.
    """
    ordered = sorted(steps, key=lambda step: step.disturbed)
    count = sum(step.disturbed <= QUIET for step in ordered)
    return ordered[: max(count, min(FEWEST, len(ordered)))]


def op_times(step: Step) -> dict[tuple[Kind, int], list[float]]:
    """Times of the step's ops by kind and stage, (kind, stage): [s].

    One that something else interrupted for long counts what it worked.
    """
    found: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for row in step.rows.values():
        for mark in row:
            if mark.kind in OPS:
                length, lost = mark.end - mark.begin, mark.interrupted
                found[mark.kind, mark.stage].append(length - (lost if lost > LONG * length else 0))
    return found


def message_times(step: Step) -> list[float]:
    """Times of messages that their receiver stood waiting for: the others' arrival is unknown. [s]

    From the later post to the begin of the op that needed it.
    """
    free: dict[tuple[int, Kind, int, int], float] = {}  # when the rank was ready for the op
    for rank, row in step.rows.items():
        for before, after in pairwise(row):
            free[rank, after.kind, after.stage, after.microbatch] = before.end
    found = []
    for rank, stage, kind, microbatch, start, end in _transfers(step.rows):
        takers = (Kind.F,) if kind == Kind.RECV_F else (Kind.B, Kind.I)
        ready = [free.get((rank, taker, stage, microbatch), np.inf) for taker in takers]
        if Kind(kind).is_receive and min(ready) < start + WAITS:
            found.append(end - start)
    return found


def _transfers(
    rows: Mapping[int, list[Mark]],
) -> list[tuple[int, int, int, int, float, float]]:
    """Both ends of every transfer: from the later post to the arrival, as far as that is known."""
    posts: dict[tuple[Kind, int, int], tuple[int, float]] = {}
    needs: dict[tuple[Kind, int, int], float] = {}
    for rank, row in rows.items():
        for mark in row:
            key = (mark.kind, mark.stage, mark.microbatch)
            if mark.kind not in OPS:
                posts[key] = rank, mark.begin
                continue
            received = {Kind.F: Kind.RECV_F, Kind.B: Kind.RECV_B, Kind.I: Kind.RECV_B}.get(
                mark.kind
            )
            if received is not None:
                needs[received, mark.stage, mark.microbatch] = mark.begin
    spans = []
    for (kind, stage, microbatch), (rank, posted) in posts.items():
        if not kind.is_send:
            continue
        other, step = (Kind.RECV_F, 1) if kind is Kind.SEND_F else (Kind.RECV_B, -1)
        key = (other, stage + step, microbatch)
        if key not in posts or key not in needs:
            continue
        target, ready = posts[key]
        start = max(posted, ready)
        end = max(start, needs[key])
        spans.append((rank, stage, int(kind), microbatch, start, end))
        spans.append((target, stage + step, int(other), microbatch, start, end))
    return spans
