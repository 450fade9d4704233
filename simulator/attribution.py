"""The critical path, second by second: which rank, op, cost part and physical quantity each is of.

Every second of the path is attributed to exactly one entry of each of these four families, so each
family adds up to the step. A span's seconds are split over the physical quantities by the costs'
own derivatives: scaling every rate up and every latency down scales all times alike, so by Euler's
theorem the derivatives add up to the whole; what they leave are constants of the communication
library. A message that shares its links is stretched by that; the stretch goes to the same links.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.causes import causes
from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = ["Path", "Pieces", "path_of_iteration", "path_of_step", "pieces"]

Column = NDArray[np.float64]
Index = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Path:
    """Spans that the step's length hangs on; columns of shape (num_spans_on_path,)."""

    rank: Index
    stage: Index
    kind: Index
    microbatch: Index
    seconds: Column  # how long the span lasts [s]
    weight: Column  # 1, or -1 for what happens before the window that is measured [1]
    second_stage: Index  # of the op that runs beside it, or -1
    second_kind: Index
    source: Index  # of a message: the sending rank
    target: Index
    waiting: float  # seconds on the path in which nothing that is known runs [s]

    @property
    def total(self) -> float:
        """The time that it explains. [s]"""
        return float(self.weight @ self.seconds) + self.waiting

    @property
    def ops(self) -> tuple[tuple[int, ...], ...]:
        """What runs on it, without times."""
        columns = (self.rank, self.stage, self.kind, self.microbatch, self.weight.astype(int))
        return tuple(zip(*(column.tolist() for column in columns), strict=True))


class Pieces(NamedTuple):
    """What each span of a path consists of; columns of shape (num_spans_on_path,). [s]

    A compute span is the first three; a message, a reduction or a gathering the last two.
    """

    work: Column
    recompute: Column
    tensor: Column  # exposed tensor-parallel communication
    latency: Column  # and, of a message, its all-gather at the receiver
    wire: Column  # bytes over links; on free links unless `stretched`
    second: Column  # what of the first three is of the op that runs beside

    def stretched(self, path: Path, free: "Pieces") -> "Pieces":
        """The same with the wire's time as it was among other traffic on the path.

        `free` are the pieces that the path's run had, by the same costs.
        """
        known = free.wire > 0
        had = path.seconds - free.latency
        factor = np.divide(had, free.wire, out=np.ones_like(had), where=known)
        return self._replace(wire=self.wire * factor)

    @property
    def total(self) -> Column:
        """Each span's length. [s]"""
        return self.work + self.recompute + self.tensor + self.latency + self.wire


def path_of_step(timeline: Timeline) -> Path:
    """The critical path of a step, from time 0 to the last end."""
    at = int(np.argmax(timeline.end))
    cause = causes(timeline).astype(np.int64)
    spans, waiting = _chain(timeline, cause, at)
    return _path(timeline, np.array([at, *spans]), np.ones(1 + len(spans)), waiting)


def path_of_iteration(timeline: Timeline, num_microbatches: int) -> Path:
    """What decides a steady iteration of an asynchronous schedule: two paths' difference.

    The iteration lasts from one forward of the slowest rank to the one `num_microbatches` later;
    what the paths to both have in common cancels.
    """
    best, ends = -np.inf, (0, 0)
    for rank in range(timeline.num_ranks):
        forward = np.flatnonzero((timeline.rank == rank) & (timeline.kind == Kind.F))
        forward = forward[timeline.stage[forward] == timeline.stage[forward].min()]
        since, until = int(forward[-1 - num_microbatches]), int(forward[-1])
        pace = float(timeline.start[until] - timeline.start[since])
        if pace > best:
            best, ends = pace, (since, until)
    cause = causes(timeline).astype(np.int64)
    before, early = _chain(timeline, cause, ends[0])
    whole, late = _chain(timeline, cause, ends[1])
    shared = set(before) & set(whole)
    plus = [span for span in whole if span not in shared]
    minus = [span for span in before if span not in shared]
    weight = np.repeat([1.0, -1.0], [len(plus), len(minus)])
    return _path(timeline, np.array(plus + minus, np.int64), weight, late - early)


def pieces(path: Path, costs: Costs, fabric: Fabric, stragglers: Mapping[int, float]) -> Pieces:
    """What each span of a path takes by these costs, on free links."""
    factor = np.array([stragglers.get(rank, 1.0) for rank in range(int(path.rank.max()) + 1)])
    work, again, tensor = _compute(path.kind, path.stage, path, costs, factor)
    paired = path.second_kind >= 0
    more = _compute(path.second_kind, path.second_stage, path, costs, factor)
    share = np.where(paired, costs.pair_time[path.stage], 1.0)
    beside = [np.where(paired, share * column, 0.0) for column in more]
    latency, wire = _transfers(path, costs, fabric)
    return Pieces(
        work=share * work + beside[0],
        recompute=share * again + beside[1],
        tensor=share * tensor + beside[2],
        latency=latency,
        wire=wire,
        second=np.sum(beside, axis=0),
    )


def _compute(
    kind: Index, stage: Index, path: Path, costs: Costs, factor: Column
) -> tuple[Column, Column, Column]:
    """Work, recomputation and communication of compute ops; zero of others. [s]"""
    is_compute = (kind >= 0) & (kind <= Kind.OPTIMIZER)
    share = np.where(is_compute, costs.share_of_time(path.microbatch), 0.0)
    tensor = costs.tensor_seconds[kind, stage] * share
    backward = (kind == Kind.B) | (kind == Kind.I)
    slow = factor[path.rank] * share
    again = np.where(backward, costs.recompute_seconds[stage] * slow, 0.0)
    alone = (costs.seconds[kind, stage] - costs.tensor_seconds[kind, stage]) * slow
    return alone - again, again, tensor


def _transfers(path: Path, costs: Costs, fabric: Fabric) -> tuple[Column, Column]:
    """Latency, and time of the bytes on free links, of messages and collectives. [s]"""
    latency, wire = np.zeros(len(path.kind)), np.zeros(len(path.kind))
    tokens = costs.share_of_tokens(path.microbatch)
    for at in np.flatnonzero(path.kind > Kind.OPTIMIZER).tolist():
        kind, stage = Kind(path.kind[at]), int(path.stage[at])
        if kind in (Kind.REDUCE_GRAD, Kind.UNSHARD):
            reduces = kind == Kind.REDUCE_GRAD
            ring = (fabric.reduces if reduces else fabric.gathers)[stage]
            buffer = (costs.reduce_bytes if reduces else costs.unshard_bytes)[stage]
            route, nbytes, gather = ring.route, ring.share * float(buffer), 0.0
        else:
            boundary = stage - (kind in (Kind.RECV_F, Kind.SEND_B))
            route = fabric.sends[int(path.source[at]), int(path.target[at])]
            nbytes = float(tokens[at] * costs.boundary_bytes[boundary])
            gather = float(tokens[at] * costs.boundary_gather[boundary])
        latency[at] = route.latency + gather
        wire[at] = route.together(nbytes, fabric.capacity) - route.latency
    return latency, wire


def _chain(timeline: Timeline, cause: Index, at: int) -> tuple[list[int], float]:
    """The spans that let a span start, latest first, and the time between them. [s]"""
    order = np.argsort(timeline.end, kind="stable")
    ends = timeline.end[order]
    chain: list[int] = []
    waiting, here = 0.0, at
    while timeline.start[here] > 0:
        before = _before(timeline, cause, here, order, ends)
        if before == NONE:
            return chain, waiting + float(timeline.start[here])
        waiting += float(timeline.start[here] - timeline.end[before])
        chain.append(before)
        here = before
    return chain, waiting


def _before(timeline: Timeline, cause: Index, here: int, order: Index, ends: Column) -> int:
    """The span that let one start: its cause, or what else ended then.

    A collective starts with the last of its members, and a rank that stood still at a transfer
    posts the next one when that has ended.
    """
    start, found = float(timeline.start[here]), int(cause[here])
    if found != NONE and timeline.end[found] >= start:
        return found
    first, stop = np.searchsorted(ends, start, "left"), np.searchsorted(ends, start, "right")
    then = [i for i in order[first:stop].tolist() if timeline.start[i] < start]
    same = (timeline.kind == timeline.kind[here]) & (timeline.start == start)
    ranks = set(timeline.rank[same].tolist())
    near = [i for i in then if int(timeline.rank[i]) in ranks] or then
    return near[0] if near else found


def _path(timeline: Timeline, spans: Index, weight: Column, waiting: float) -> Path:
    """The columns of a path."""
    second = np.full(timeline.num_spans, NONE, np.int64)
    first = timeline.pairs()
    second[first] = first + 1
    before = np.full(timeline.num_spans, NONE, np.int64)
    before[first + 1] = first
    spans = np.where(before[spans] >= 0, before[spans], spans)  # the first of a pair stands for it
    beside = second[spans]
    source, target = _ends(timeline, spans)
    return Path(
        rank=timeline.rank[spans].astype(np.int64),
        stage=timeline.stage[spans].astype(np.int64),
        kind=timeline.kind[spans].astype(np.int64),
        microbatch=timeline.microbatch[spans].astype(np.int64),
        seconds=timeline.end[spans] - timeline.start[spans],
        weight=weight,
        second_stage=np.where(beside >= 0, timeline.stage[beside], NONE).astype(np.int64),
        second_kind=np.where(beside >= 0, timeline.kind[beside], NONE).astype(np.int64),
        source=source,
        target=target,
        waiting=waiting,
    )


def _ends(timeline: Timeline, spans: Index) -> tuple[Index, Index]:
    """Sending and receiving rank of each span that is an end of a message, else its own rank."""
    source = timeline.rank[spans].astype(np.int64)
    target = source.copy()
    for mine, other, step, column in (
        (Kind.RECV_F, Kind.SEND_F, -1, source),
        (Kind.RECV_B, Kind.SEND_B, 1, source),
        (Kind.SEND_F, Kind.RECV_F, 1, target),
        (Kind.SEND_B, Kind.RECV_B, -1, target),
    ):
        peers = np.flatnonzero(timeline.kind == other)
        at = np.flatnonzero(timeline.kind[spans] == mine)
        width = int(timeline.microbatch.max(initial=0)) + 1
        key = timeline.stage[peers].astype(np.int64) * width + timeline.microbatch[peers]
        order = np.argsort(key)
        wanted = (timeline.stage[spans[at]].astype(np.int64) + step) * width
        wanted += timeline.microbatch[spans[at]]
        column[at] = timeline.rank[peers[order[np.searchsorted(key[order], wanted)]]]
    return source, target
