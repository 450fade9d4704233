"""Why a rank idles: every bubble in words.

A span starts when the last thing that it needed ended; following these causes back from the end of
a bubble gives the chain that made it, from the end of the step the critical path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.causes import causes
from simulator.critical_path import critical_line, critical_path
from simulator.excerpt import excerpt
from simulator.gaps import longest_gaps, longest_of_ranks
from simulator.schedule import Kind, Op
from simulator.split import by_kind_and_stage, shortest
from simulator.timeline import Timeline

__all__ = [
    "Bubble",
    "causes",
    "critical_line",
    "critical_path",
    "explain",
    "explain_longest",
    "longest_gaps",
]

NONE = -1
KINDS = tuple(Kind)  # by value
_F, _B, _I, _OPTIMIZER = (int(kind) for kind in (Kind.F, Kind.B, Kind.I, Kind.OPTIMIZER))
MOST_STEPS = 7  # of a chain in words [1]


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """One idle gap on a rank's compute stream, explained."""

    rank: int
    start: float  # [s]
    end: float  # [s]
    kind: str  # warm-up, drain, dependency, link busy, memory limit, straggler or transfer
    next_op: Op | None  # the op after the gap; None after the rank's last
    waits_for: Op | None  # the op whose end closed the gap
    waits_on: int | None  # the rank of that op
    chain: tuple[tuple[int, Op, float, float], ...]  # (rank, op, start, end), first to last

    def __str__(self) -> str:
        """A paragraph: what, for whom, why."""
        length = self.end - self.start
        head = f"rank {self.rank} idles {length:.6g} s from {self.start:.6g} to {self.end:.6g}"
        if self.next_op is None:
            return f"{head} ({self.kind}): it has nothing left to do until the step ends"
        text = f"{head} ({self.kind}): {self.next_op} waits for"
        text += f" {self.waits_for}" if self.waits_for else " its turn"
        if self.waits_on is not None and self.waits_on != self.rank:
            text += f" of rank {self.waits_on}"
        if self.chain:
            first, rest = self.chain, self.chain[:0]
            if len(self.chain) > MOST_STEPS:
                first, rest = self.chain[:3], self.chain[-3:]
            steps = [f"{op} (rank {rank})" for rank, op, _, _ in first + rest]
            if rest:
                steps[3:3] = [f"{len(self.chain) - 6} more"]
            text += f"; late because of {' -> '.join(steps)}"
        return text


def explain(
    timeline: Timeline,
    rank: int,
    time: float,
    *,
    lone: NDArray[np.float64] | None = None,
    stragglers: Mapping[int, float] | None = None,
    activation_limit: float | None = None,
    cause: NDArray[np.int32] | None = None,
) -> Bubble:
    """Explain the idle gap of a rank at a time.

    Args:
        timeline: the run.
        rank: pipeline rank.
        time: any moment within the gap. [s]
        lone: time of each span's transfer on free links, shape (num_spans,), one for all spans of
            a kind and stage; left out, the shortest of them stands for it. [s]
        stragglers: slow-down of a rank's compute, to tell its share. [1]
        activation_limit: most activation memory of a rank, where the schedule obeyed one. [bytes]
        cause: what `causes` says of the timeline, to explain several gaps without its cost.

    Raises:
        ValueError: there is no such rank, or it works at that time.
    """
    if not 0 <= rank < timeline.num_ranks:
        raise ValueError(
            f"rank is {rank}, but the timeline has ranks 0 to {timeline.num_ranks - 1}"
        )
    if not 0 <= time <= timeline.makespan:
        raise ValueError(
            f"time is {time:g} s, but the step lasts from 0 to {timeline.makespan:g} s"
        )
    mine = timeline.stream_of(rank)
    start, end = timeline.start[mine], timeline.end[mine]
    running = mine[(start <= time) & (time < end)]
    if len(running):
        raise ValueError(
            f"rank {rank} runs {_op(timeline, int(running[0]))} at {time:g} s; give the time of a "
            "gap"
        )
    begin = float(end[end <= time].max(initial=0.0))
    after = mine[start > time]
    if len(after) == 0:
        return Bubble(
            rank=rank,
            start=begin,
            end=timeline.makespan,
            kind="drain",
            next_op=None,
            waits_for=None,
            waits_on=None,
            chain=(),
        )
    known = _Known(
        timeline,
        causes(timeline) if cause is None else cause,
        shortest(timeline) if lone is None else by_kind_and_stage(timeline, lone),
        stragglers or {},
        activation_limit,
    )
    return _bubble(known, int(after[0]), begin)


def explain_longest(
    timeline: Timeline,
    most: int,
    *,
    lone: NDArray[np.float64],
    stragglers: Mapping[int, float],
    activation_limit: float | None,
    cause: NDArray[np.int32],
) -> tuple[Bubble, ...]:
    """The longest gaps that an op ends, longest first, one a rank.

    A rank whose longest gap comes after its last op has none. The arguments are those of `explain`,
    but `lone` is by kind and stage of either end, shape (num_kinds, num_stages) [s], and `cause`
    may be that of `implied_causes`, if there is no limit.
    """
    gaps = longest_of_ranks(timeline)
    inner = np.flatnonzero(gaps.following >= 0)[:most]
    following, begin = gaps.following[inner].tolist(), gaps.begin[inner].tolist()
    if len(cause) and cause.min() < NONE:
        assert activation_limit is None, "a limit asks when messages came that nothing waited for"
        timeline, cause, following = excerpt(timeline, cause, following, begin)
    known = _Known(timeline, cause, lone, stragglers, activation_limit)
    return tuple(map(partial(_bubble, known), following, begin))


class _Known(NamedTuple):
    """What explains a gap."""

    timeline: Timeline
    cause: NDArray[np.int32]
    lone: NDArray[np.float64]
    stragglers: Mapping[int, float]
    activation_limit: float | None


def _bubble(known: _Known, following: int, begin: float) -> Bubble:
    """Explain the gap from a time to the start of a span."""
    timeline = known.timeline
    chain = _chain(timeline, known.cause, following, begin)
    last = int(chain[-1]) if len(chain) else None
    columns = (timeline.rank, timeline.stage, timeline.kind, timeline.microbatch)
    ranks, stages, kinds, microbatches = (column[chain].tolist() for column in columns)
    ops = map(Op, stages, (KINDS[kind] for kind in kinds), microbatches)
    times = (timeline.start[chain].tolist(), timeline.end[chain].tolist())
    return Bubble(
        rank=int(timeline.rank[following]),
        start=begin,
        end=float(timeline.start[following]),
        kind=_kind(known, following, begin, chain),
        next_op=_op(timeline, following),
        waits_for=None if last is None else _op(timeline, last),
        waits_on=None if last is None else _maker(timeline, last),
        chain=tuple(zip(ranks, ops, *times, strict=True)),
    )


def _chain(
    timeline: Timeline, cause: NDArray[np.int32], at: int, begin: float
) -> NDArray[np.int64]:
    """The spans, first to last, whose ends led to the end of a gap that began at `begin`."""
    chain: dict[int, None] = {}
    here = int(cause[at])
    while here != NONE and timeline.end[here] > begin and here not in chain:
        chain[here] = None
        here = int(cause[here])
    return np.array(list(chain)[::-1], np.int64)


def _kind(known: _Known, following: int, begin: float, chain: NDArray[np.int64]) -> str:
    """The class of a gap: what most of it is due to."""
    timeline, limit = known.timeline, known.activation_limit
    gap = float(timeline.start[following]) - begin
    if len(chain):
        last = int(chain[-1])
        left, arrived = float(timeline.start[last]), float(timeline.end[last])
        kind = int(timeline.kind[last])
        if kind > _OPTIMIZER:
            inside = arrived - max(begin, left)
            busy = arrived - left - float(known.lone[kind, timeline.stage[last]])
            link = min(inside, max(0.0, busy))
            if link > gap / 2:
                return "link busy"
            if inside - link > gap / 2:
                return "transfer"
    if known.stragglers and _slow(known, begin, chain) > gap / 2:
        return "straggler"
    if limit is not None and _held_back(timeline, following, begin, limit):
        return "memory limit"
    mine = timeline.stream_of(int(timeline.rank[following]))
    kinds, starts = timeline.kind[mine], timeline.start[mine]
    start = float(timeline.start[following])
    if start <= starts[(kinds == _B) | (kinds == _I)].min(initial=np.inf):
        return "warm-up"
    if start > starts[kinds == _F].max(initial=-np.inf):
        return "drain"
    return "dependency"


def _slow(known: _Known, begin: float, chain: NDArray[np.int64]) -> float:
    """By how much stragglers lengthened the part of a chain that lies in its gap. [s]"""
    timeline, slow = known.timeline, 0.0
    for at in chain[timeline.kind[chain] <= _OPTIMIZER].tolist():
        inside = float(timeline.end[at]) - max(begin, float(timeline.start[at]))
        slow += inside * (1 - 1 / known.stragglers.get(int(timeline.rank[at]), 1.0))
    return slow


def _held_back(timeline: Timeline, following: int, begin: float, limit: float) -> bool:
    """Whether a forward had its input when the gap began, and no room for its activations."""
    rank = int(timeline.rank[following])
    times, nbytes = timeline.memory_of(rank)
    if len(times) == 0 or not _ready(timeline, rank, begin):
        return False
    base = float(nbytes[-1])  # what stays: weights, gradients, optimizer states
    level = float(nbytes[np.searchsorted(times, begin, side="right") - 1]) - base
    steps = np.diff(nbytes)
    least = float(steps[steps > 0].min(initial=np.inf))  # what another forward takes at least
    return level + least > limit


def _ready(timeline: Timeline, rank: int, time: float) -> bool:
    """Whether a forward that a rank started after a time had its input then."""
    mine = np.flatnonzero(timeline.rank == rank)
    stage, kind = timeline.stage[mine], timeline.kind[mine]
    ids = list(zip(stage.tolist(), timeline.microbatch[mine].tolist(), strict=True))
    start, end = timeline.start[mine].tolist(), timeline.end[mine].tolist()
    made = {ids[at]: end[at] for at in np.flatnonzero(kind == _F).tolist()}
    received = {ids[at]: end[at] for at in np.flatnonzero(kind == Kind.RECV_F).tolist()}
    for at in np.flatnonzero(kind == _F).tolist():
        stage_, microbatch = ids[at]
        local = made.get((stage_ - 1, microbatch), -np.inf)
        if start[at] > time and received.get((stage_, microbatch), local) <= time:
            return True
    return False


def _op(timeline: Timeline, index: int) -> Op:
    columns = (timeline.stage, timeline.kind, timeline.microbatch)
    stage, kind, microbatch = (int(column[index]) for column in columns)
    return Op(stage, KINDS[kind], microbatch)


def _maker(timeline: Timeline, index: int) -> int:
    """The rank that a span's end depends on: of a transfer, the sender if it is there."""
    rank, op = int(timeline.rank[index]), _op(timeline, index)
    if not op.kind.is_receive:
        return rank
    kind, stage = (
        (Kind.SEND_F, op.stage - 1) if op.kind == Kind.RECV_F else (Kind.SEND_B, op.stage + 1)
    )
    same = np.flatnonzero(timeline.microbatch == op.microbatch)
    same = same[(timeline.kind[same] == int(kind)) & (timeline.stage[same] == stage)]
    return int(timeline.rank[same[0]]) if len(same) else rank
