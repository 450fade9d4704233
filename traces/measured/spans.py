"""The spans of one measured step on one clock, from time zero."""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import NO_MICROBATCH, Kind
from simulator.timeline import Timeline
from traces.measured.clocks import Clocks
from traces.measured.mapping import UNKNOWN
from traces.measured.ops import RankOps
from traces.measured.transfers import Transfers

__all__ = ["timeline_of_step"]

Column = NDArray[np.float64]


def timeline_of_step(
    ranks: list[RankOps], messages: Transfers, clocks: Clocks, step: int
) -> tuple[Timeline, Column, Column]:
    """The spans of one step from time zero, when each was posted, and exposed collectives."""
    tables = [_spans(one, rank, clocks, step) for rank, one in enumerate(ranks)]
    tables += _transfer_spans(messages, clocks, step)
    rows = np.concatenate(tables)
    rank, stage, kind, microbatch = (rows[:, at].astype(np.int64) for at in range(4))
    start, end, posted, exposed = (rows[:, at] for at in range(4, 8))
    order = np.lexsort((np.arange(len(rows)), start, rank))
    zero = float(start.min())
    timeline = Timeline(
        rank=rank[order].astype(np.int32),
        stage=stage[order].astype(np.int32),
        kind=kind[order].astype(np.int8),
        microbatch=microbatch[order].astype(np.int32),
        start=start[order] - zero,
        end=end[order] - zero,
    )
    timeline = _with_memory(timeline, ranks, clocks, zero)
    first = np.minimum(np.maximum(0.0, posted[order] - zero), timeline.start)
    return timeline, first, exposed[order]


def _spans(one: RankOps, rank: int, clocks: Clocks, step: int) -> Column:
    """One rank's ops that are no transfers: rank, stage, kind, microbatch, times, exposed."""
    ops = one.ops
    transfer = np.isin(ops.kind, (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B))
    ops = ops.where(np.flatnonzero((ops.step == step) & ~transfer & np.isfinite(ops.start)))
    ops = ops.where(np.lexsort((np.arange(len(ops.start)), ops.start)))
    start, end = clocks.common(rank, ops.start), clocks.common(rank, ops.end)
    compute = np.flatnonzero(ops.kind <= Kind.OPTIMIZER)
    alone = compute[~np.concatenate([[False], ops.paired[compute][:-1]])]
    reach = np.maximum.accumulate(end[alone]) if len(alone) else end[alone]
    start[alone[1:]] = np.maximum(start[alone[1:]], reach[:-1])  # a rank's stream is serial
    end[alone] = np.maximum(start[alone], end[alone])
    second = compute[1:][ops.paired[compute[:-1]]]
    start[second], end[second] = start[second - 1], end[second - 1]
    stage = np.where(ops.stage == UNKNOWN, rank, ops.stage)
    exposed = np.minimum(ops.exposed, end - start)
    rows = np.column_stack(
        [np.full(len(start), rank), stage, ops.kind, ops.microbatch, start, end, start, exposed]
    )
    return np.concatenate([rows, _reductions(one, rank, clocks, rows)])


def _reductions(one: RankOps, rank: int, clocks: Clocks, rows: Column) -> Column:
    """Collectives between a rank's last backward and its optimizer step, as one reduction."""
    update = rows[:, 2] == Kind.OPTIMIZER
    work = rows[rows[:, 2] < Kind.OPTIMIZER]
    named = (rows[:, 2] == Kind.REDUCE_GRAD).any()
    if not update.any() or len(work) == 0 or named or len(one.reductions.start) == 0:
        return np.empty((0, 8))
    start, end = (clocks.common(rank, c) for c in (one.reductions.start, one.reductions.end))
    low, high = work[:, 5].max(), rows[update, 4].min()
    mine = (end > low) & (start < high)
    if not mine.any():
        return np.empty((0, 8))
    begin, finish = start[mine].min(), min(end[mine].max(), high)
    stage = rows[update, 1][0]
    return np.array(
        [[rank, stage, Kind.REDUCE_GRAD, NO_MICROBATCH, begin, finish, begin, 0.0]], np.float64
    )


def _transfer_spans(messages: Transfers, clocks: Clocks, step: int) -> list[Column]:
    """Both ends of each message."""
    mine = np.flatnonzero(messages.step == step)
    sender, receiver = messages.sender[mine], messages.receiver[mine]
    sent = clocks.common(sender, messages.sent[mine])
    received = clocks.common(receiver, messages.received[mine])
    arrived = clocks.common(receiver, messages.arrived[mine])
    start = np.minimum(np.maximum(sent, received), arrived)
    arrived = _arrivals(start, arrived, messages.waiting[mine], sender, receiver)
    kind, stage = messages.kind[mine], messages.stage[mine]
    deeper = kind == Kind.RECV_F
    ends = (
        (sender, np.where(deeper, stage - 1, stage + 1), np.where(deeper, *SENDS), sent),
        (receiver, stage, kind, received),
    )
    number, none = messages.microbatch[mine], np.zeros(len(mine))
    return [
        np.column_stack([rank, at, kinds, number, start, arrived, ready, none])
        for rank, at, kinds, ready in ends
    ]


def _arrivals(
    start: Column,
    arrived: Column,
    waiting: NDArray[np.bool_],
    sender: NDArray[np.int64],
    receiver: NDArray[np.int64],
) -> Column:
    """A message that nobody waited for took as long as the fastest between the same two ranks.

    A library that runs on the host says only when its wait was over.
    """
    fastest: dict[tuple[int, int], float] = {}
    edges = list(zip(sender.tolist(), receiver.tolist(), strict=True))
    for edge, length in zip(edges, (arrived - start).tolist(), strict=True):
        fastest[edge] = min(length, fastest.get(edge, np.inf))
    least = np.array([fastest[edge] for edge in edges])
    found: Column = np.where(waiting, arrived, start + least)
    return found


SENDS = (Kind.SEND_F, Kind.SEND_B)


def _with_memory(timeline: Timeline, ranks: list[RankOps], clocks: Clocks, zero: float) -> Timeline:
    """Add the samples of the step, and at its begin the last one before it."""
    columns: list[tuple[NDArray[np.int32], Column, Column]] = []
    for rank, one in enumerate(ranks):
        time = clocks.common(rank, one.recording.memory_time) - zero
        first = max(0, int(np.searchsorted(time, 0.0, side="right")) - 1)
        last = int(np.searchsorted(time, timeline.makespan, side="right"))
        if last > first:
            mine = np.maximum(0.0, time[first:last])
            place = np.full(len(mine), rank, np.int32)
            columns.append((place, mine, one.recording.memory_bytes[first:last]))
    if not columns:
        return timeline
    rank_column, time_column, nbytes = (
        np.concatenate([one[at] for one in columns]) for at in range(3)
    )
    return timeline.with_memory(rank_column.astype(np.int32), time_column, nbytes)
