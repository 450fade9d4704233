"""Why anything started when it did: causes, the critical path, and every bubble in words.

A span starts when the last thing that it needed ended: the op before it on its rank, its message,
or, with blocking point-to-point, a transfer at which its rank stood still. Following these causes
back from the end gives the critical path; following them from a bubble gives the chain that made
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind, Op, awaited
from simulator.timeline import Timeline

__all__ = [
    "Bubble",
    "causes",
    "critical_line",
    "critical_path",
    "explain",
    "longest_gaps",
    "shortest",
]

NONE = -1
MOST_STEPS = 7  # of a chain in words [1]


def causes(timeline: Timeline) -> NDArray[np.int64]:
    """For each span, the one whose end let it start, or -1; shape (num_spans,).

    Of several that ended at that moment, the one before it on its own rank counts.
    """
    previous = _previous_compute(timeline)
    message = awaited(timeline)
    local = _local_input(timeline)
    cause = previous.copy()
    ends = np.concatenate([timeline.end, [-np.inf]])  # of span -1
    is_compute = timeline.kind <= Kind.OPTIMIZER
    for candidate in (local, message, _standing(timeline, previous)):
        later = ends[candidate] > ends[cause]
        cause = np.where(is_compute & (candidate >= 0) & later, candidate, cause)
    pair = timeline.pairs()
    late = ends[cause[pair]] < np.minimum(ends[cause[pair + 1]], timeline.start[pair])
    cause[pair[late]] = cause[pair[late] + 1]  # an overlapped pair starts when both can
    for send, receive in _ends(timeline):
        # it started when the sender had the tensor, or, later, when the receiver was there
        maker = local[send]
        there = previous[receive]
        late = ends[there] > ends[maker]
        cause[send] = cause[receive] = np.where(late & (there >= 0), there, maker)
    return cause


def critical_path(timeline: Timeline) -> NDArray[np.int64]:
    """Indices of the spans that the step's length hangs on, from first to last.

    Each but the first starts when the one before it ends, so none can be late without the step
    being late.
    """
    cause = causes(timeline)
    path = [int(np.argmax(timeline.end))]
    while cause[path[-1]] != NONE:
        path.append(int(cause[path[-1]]))
    return np.array(path[::-1])


def critical_line(timeline: Timeline) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """The critical path as a line to draw over a Gantt chart: times [s] and ranks.

    Along a rank while its op runs, from rank to rank with a message.
    """
    path = critical_path(timeline)
    compute = path[timeline.kind[path] <= Kind.OPTIMIZER]
    time = np.column_stack([timeline.start[compute], timeline.end[compute]]).ravel()
    return time, np.repeat(timeline.rank[compute], 2)


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
            steps = [f"{op} (rank {rank})" for rank, op, _, _ in self.chain]
            if len(steps) > MOST_STEPS:
                steps[3:-3] = [f"{len(steps) - 6} more"]
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
    cause: NDArray[np.int64] | None = None,
) -> Bubble:
    """Explain the idle gap of a rank at a time.

    Args:
        timeline: the run.
        rank: pipeline rank.
        time: any moment within the gap. [s]
        lone: time of each span's transfer on free links, shape (num_spans,); left out, the
            shortest transfer over the same boundary stands for it. [s]
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
    mine = np.flatnonzero((timeline.rank == rank) & (timeline.kind <= Kind.OPTIMIZER))
    start, end = timeline.start[mine], timeline.end[mine]
    running = mine[(start <= time) & (time < end)]
    if len(running):
        raise ValueError(
            f"rank {rank} runs {_op(timeline, int(running[0]))} at {time:g} s; give the time of a "
            "gap"
        )
    before, after = mine[end <= time], mine[start > time]
    begin = float(timeline.end[before].max(initial=0.0))
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
    following = int(after[0])
    cause = causes(timeline) if cause is None else cause
    chain = _chain(timeline, cause, following, begin)
    last = chain[-1] if chain else None
    alone = shortest(timeline) if lone is None else lone
    return Bubble(
        rank=rank,
        start=begin,
        end=float(timeline.start[following]),
        kind=_kind(timeline, following, begin, chain, alone, stragglers or {}, activation_limit),
        next_op=_op(timeline, following),
        waits_for=None if last is None else _op(timeline, last),
        waits_on=None if last is None else _maker(timeline, last),
        chain=tuple(
            (
                int(timeline.rank[i]),
                _op(timeline, i),
                float(timeline.start[i]),
                float(timeline.end[i]),
            )
            for i in chain
        ),
    )


def longest_gaps(timeline: Timeline, only: int | None = None) -> list[tuple[float, int, float]]:
    """Length, rank and middle of every idle gap, longest first."""
    compute = timeline.compute
    found = []
    for rank in range(timeline.num_ranks) if only is None else [only]:
        mine = compute.rank == rank
        ends = np.concatenate([[0.0], np.maximum.accumulate(compute.end[mine])])
        starts = np.concatenate([compute.start[mine], [timeline.makespan]])
        for begin, end in zip(ends.tolist(), starts.tolist(), strict=True):
            if end - begin > 1e-9 * timeline.makespan:
                found.append((end - begin, rank, (begin + end) / 2))
    return sorted(found, key=lambda gap: (-gap[0], gap[1], gap[2]))


def _chain(timeline: Timeline, cause: NDArray[np.int64], at: int, begin: float) -> list[int]:
    """The spans, first to last, whose ends led to the end of a gap that began at `begin`."""
    chain: list[int] = []
    here = int(cause[at])
    while here != NONE and timeline.end[here] > begin:
        chain.append(here)
        here = int(cause[here])
    return chain[::-1]


def _kind(
    timeline: Timeline,
    following: int,
    begin: float,
    chain: list[int],
    lone: NDArray[np.float64],
    stragglers: Mapping[int, float],
    activation_limit: float | None,
) -> str:
    """The class of a gap: what most of it is due to."""
    gap = float(timeline.start[following]) - begin
    link = transit = slow = 0.0
    for index in chain:
        inside = float(timeline.end[index]) - max(begin, float(timeline.start[index]))
        if Kind(timeline.kind[index]).is_compute:
            factor = stragglers.get(int(timeline.rank[index]), 1.0)
            slow += inside * (1 - 1 / factor)
        elif index == chain[-1]:
            busy = float(timeline.end[index] - timeline.start[index]) - float(lone[index])
            link = min(inside, max(0.0, busy))
            transit = inside - link
    if link > gap / 2:
        return "link busy"
    if transit > gap / 2:
        return "transfer"
    if slow > gap / 2:
        return "straggler"
    if activation_limit is not None and _held_back(timeline, following, begin, activation_limit):
        return "memory limit"
    rank = timeline.rank == timeline.rank[following]
    backward = rank & np.isin(timeline.kind, (Kind.B, Kind.I))
    forward = rank & (timeline.kind == Kind.F)
    if timeline.start[following] <= timeline.start[backward].min(initial=np.inf):
        return "warm-up"
    if timeline.start[following] > timeline.start[forward].max(initial=-np.inf):
        return "drain"
    return "dependency"


def _held_back(timeline: Timeline, following: int, begin: float, limit: float) -> bool:
    """Whether a forward had its input when the gap began, and no room for its activations."""
    rank = int(timeline.rank[following])
    late = (timeline.rank == rank) & (timeline.kind == Kind.F) & (timeline.start > begin)
    message, local = awaited(timeline), _local_input(timeline)
    source = np.where(message >= 0, message, local)
    ready = late & ((source < 0) | (timeline.end[source] <= begin))
    times, nbytes = timeline.memory_of(rank)
    if not ready.any() or len(times) == 0:
        return False
    base = float(nbytes[-1])  # what stays: weights, gradients, optimizer states
    level = float(nbytes[np.searchsorted(times, begin, side="right") - 1]) - base
    steps = np.diff(nbytes)
    least = float(steps[steps > 0].min(initial=np.inf))  # what another forward takes at least
    return level + least > limit


def _op(timeline: Timeline, index: int) -> Op:
    columns = (timeline.stage, timeline.kind, timeline.microbatch)
    stage, kind, microbatch = (int(column[index]) for column in columns)
    return Op(stage, Kind(kind), microbatch)


def _maker(timeline: Timeline, index: int) -> int:
    """The rank that a span's end depends on: of a transfer, the sender."""
    op = _op(timeline, index)
    if not op.kind.is_receive:
        return int(timeline.rank[index])
    kind, stage = (
        (Kind.SEND_F, op.stage - 1) if op.kind == Kind.RECV_F else (Kind.SEND_B, op.stage + 1)
    )
    same = (timeline.kind == kind) & (timeline.stage == stage)
    same &= timeline.microbatch == op.microbatch
    return int(timeline.rank[np.flatnonzero(same)[0]])


def _previous_compute(timeline: Timeline) -> NDArray[np.int64]:
    """The compute span of the same rank that ended last before each span starts, or -1."""
    previous = np.full(timeline.num_spans, NONE, np.int64)
    bounds = np.searchsorted(timeline.rank, np.arange(timeline.num_ranks + 1))
    for first, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        mine = np.arange(first, stop)
        compute = mine[timeline.kind[mine] <= Kind.OPTIMIZER]
        if len(compute) == 0:
            continue
        before = np.concatenate([[NONE], compute[:-1]])
        second = 1 + np.flatnonzero(timeline.start[compute[1:]] < timeline.end[compute[:-1]])
        before[second] = before[second - 1]  # the two of an overlapped pair start together
        order = compute[np.argsort(timeline.end[compute], kind="stable")]
        place = np.searchsorted(timeline.end[order], timeline.start[mine], side="right") - 1
        previous[mine] = np.where(place >= 0, order[place], NONE)
        previous[compute] = before
    return previous


def _local_input(timeline: Timeline) -> NDArray[np.int64]:
    """The compute span that made each span's input on the same rank, or -1.

    For SEND the op whose result it sends; for F and B of a stage whose neighbour is on the same
    rank that neighbour's; for W its I; for the last stage's backward its own forward.
    """
    width = int(timeline.microbatch.max(initial=0)) + 2
    depth = timeline.num_stages + 2
    key = (timeline.stage.astype(np.int64) + 1) * width + timeline.microbatch + 1
    table = {kind: _table(timeline, kind, key, depth * width) for kind in (Kind.F, Kind.B, Kind.I)}
    backward = np.maximum(table[Kind.B], table[Kind.I])
    found = np.full(timeline.num_spans, NONE, np.int64)
    for kinds, source, step in (
        ((Kind.F,), table[Kind.F], -1),
        ((Kind.B, Kind.I), backward, 1),
        ((Kind.W,), table[Kind.I], 0),
        ((Kind.SEND_F,), table[Kind.F], 0),
        ((Kind.SEND_B,), backward, 0),
    ):
        users = np.flatnonzero(np.isin(timeline.kind, kinds))
        found[users] = source[key[users] + step * width]
    deepest = timeline.num_stages - 1
    turn = np.isin(timeline.kind, (Kind.B, Kind.I)) & (timeline.stage == deepest)
    found[turn] = table[Kind.F][key[turn]]
    same = timeline.rank[found] == timeline.rank
    return np.where((found >= 0) & same, found, NONE)


def _table(timeline: Timeline, kind: Kind, key: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    table = np.full(size, NONE, np.int64)
    index = np.flatnonzero(timeline.kind == kind)
    table[key[index]] = index
    return table


def _standing(timeline: Timeline, previous: NDArray[np.int64]) -> NDArray[np.int64]:
    """The transfer at which a rank stood still until a compute span started, or -1."""
    found = np.full(timeline.num_spans, NONE, np.int64)
    transfer = np.isin(timeline.kind, (Kind.SEND_F, Kind.SEND_B, Kind.RECV_F, Kind.RECV_B))
    ends = np.concatenate([timeline.end, [0.0]])
    gaps = (timeline.kind <= Kind.OPTIMIZER) & (timeline.start > ends[previous])
    by_end = {
        (rank, end): index
        for index, rank, end in zip(
            np.flatnonzero(transfer).tolist(),
            timeline.rank[transfer].tolist(),
            timeline.end[transfer].tolist(),
            strict=True,
        )
    }
    for index in np.flatnonzero(gaps).tolist():
        key = (int(timeline.rank[index]), float(timeline.start[index]))
        found[index] = by_end.get(key, NONE)
    return found


def _ends(timeline: Timeline) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Indices of the SEND and the RECV span of every transfer, per direction."""
    width = int(timeline.microbatch.max(initial=0)) + 1
    pairs = []
    for sends, receives, step in ((Kind.SEND_F, Kind.RECV_F, 1), (Kind.SEND_B, Kind.RECV_B, -1)):
        send = np.flatnonzero(timeline.kind == sends)
        receive = np.flatnonzero(timeline.kind == receives)
        left = (timeline.stage[send].astype(np.int64) + step) * width + timeline.microbatch[send]
        right = timeline.stage[receive].astype(np.int64) * width + timeline.microbatch[receive]
        _, a, b = np.intersect1d(left, right, return_indices=True)
        pairs.append((send[a], receive[b]))
    return pairs


def shortest(timeline: Timeline) -> NDArray[np.float64]:
    """The shortest span of each span's kind and stage, shape (num_spans,). [s]"""
    least = np.full((len(Kind), timeline.num_stages), np.inf)
    np.minimum.at(least, (timeline.kind, timeline.stage), timeline.end - timeline.start)
    result: NDArray[np.float64] = least[timeline.kind, timeline.stage]
    return result
