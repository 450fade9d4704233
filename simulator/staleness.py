"""Asynchronous training: weight versions held, how stale each gradient is, and the steady pace.

Everything is counted from a Timeline whose OPTIMIZER spans are the weight updates. Version v of a
stage's weights is what its first v updates made; version 0 is there from the start. An update
applies the gradients of all microbatches whose backward ended since the update before.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = [
    "Steady",
    "Versions",
    "Weights",
    "gradient_staleness",
    "peak_versions",
    "steady",
    "version_bytes",
    "weight_mismatch",
    "weight_versions",
    "with_versions",
]

Column = NDArray[np.float64]
Number = TypeVar("Number", np.int64, np.float64)


class Weights(Enum):
    """Which version of its weights an asynchronous schedule's op reads."""

    LATEST = "latest"  # forward and backward each read the newest: one version, two may differ
    STASH = "stash"  # forward reads the newest and keeps it for its backward: PipeDream
    DOUBLE_BUFFER = "double buffer"  # batch t reads version t - 1, or 0: PipeDream-2BW


@dataclass(frozen=True, kw_only=True, eq=False)
class Versions:
    """Per stage and microbatch, which weights were read and which update took the gradient.

    Arrays of shape (num_stages, num_microbatches). [1]
    """

    forward: NDArray[np.int64]  # version that the forward read
    backward: NDArray[np.int64]  # version that the backward read
    applied: NDArray[np.int64]  # version that the gradient was added to


@dataclass(frozen=True, kw_only=True, eq=False)
class Steady:
    """An asynchronous run's pace once it is steady: the last iteration before it drains."""

    iteration_time: float  # of num_microbatches microbatches [s]
    microbatch_time: float  # [s]
    bubble_fraction: float  # idle share, mean over ranks [1]
    idle: Column  # of each rank in one iteration, shape (num_ranks,) [s]


def weight_versions(timeline: Timeline, weights: Weights) -> Versions:
    """Count the updates before each op of each microbatch.

    Raises:
        ValueError: a gradient is never applied, or a version is read before it is there.
    """
    shape = (timeline.num_stages, int(timeline.microbatch.max(initial=-1)) + 1)
    newest, updates = _updates_before(timeline)
    forward, backward, applied = (np.full(shape, -1, np.int64) for _ in range(3))
    first = timeline.kind == Kind.F
    second = np.isin(timeline.kind, (Kind.B, Kind.I))
    last = np.isin(timeline.kind, (Kind.B, Kind.W))
    for table, mask in ((forward, first), (backward, second), (applied, last)):
        table[timeline.stage[mask], timeline.microbatch[mask]] = newest[mask]
    late = np.argwhere(applied >= updates[:, None])
    if len(late):
        stage, microbatch = late[0].tolist()
        raise ValueError(
            f"the gradient of stage {stage}, microbatch {microbatch} is never applied; end the row "
            f"with {stage}OPTIMIZER"
        )
    if weights is Weights.STASH:
        backward = forward
    elif weights is Weights.DOUBLE_BUFFER:
        wanted = np.maximum(applied - 1, 0)
        early = np.argwhere(wanted > forward)
        if len(early):
            stage, microbatch = early[0].tolist()
            raise ValueError(
                f"stage {stage} forwards microbatch {microbatch} before version "
                f"{wanted[stage, microbatch]} of its weights is there; two buffers need at least "
                "pp microbatches in a batch"
            )
        forward = backward = wanted
    return Versions(forward=forward, backward=backward, applied=applied)


def gradient_staleness(timeline: Timeline, weights: Weights) -> NDArray[np.int64]:
    """Updates between the weights that a gradient's forward read and those that it is added to.

    0 is synchronous training. Shape (num_stages, num_microbatches). [1]

    Source: Yang et al., "PipeMare: Asynchronous Pipeline Parallel DNN Training", MLSys 2021,
    section 2: the forward delay.
    """
    versions = weight_versions(timeline, weights)
    return versions.applied - versions.forward


def weight_mismatch(timeline: Timeline, weights: Weights) -> NDArray[np.int64]:
    """Updates between the weights of a microbatch's forward and of its backward; 0 with stashes.

    Shape (num_stages, num_microbatches). [1]
    """
    versions = weight_versions(timeline, weights)
    return versions.backward - versions.forward


def peak_versions(timeline: Timeline, weights: Weights) -> NDArray[np.int64]:
    """Most versions of a stage's weights that are held at once, shape (num_stages,). [1]"""
    stage, comes, goes = _lifetimes(timeline, weights)
    stage, time = np.tile(stage, 2), np.concatenate([comes, goes])
    change = np.repeat(np.array([1, -1]), len(comes))
    order = np.lexsort((change, time, stage))  # at one time, the old goes before the new comes
    stage, held = stage[order], np.cumsum(change[order])
    peak = np.zeros(timeline.num_stages, np.int64)
    np.maximum.at(peak, stage, held)  # every stage ends at zero
    return peak


def version_bytes(timeline: Timeline, weights: Weights, weight_bytes: Column) -> Column:
    """Most bytes of all weight versions on each rank, shape (num_ranks,). [bytes]

    Args:
        timeline: the run.
        weights: which version an op reads.
        weight_bytes: one version of each stage, shape (num_stages,). [bytes]
    """
    empty = timeline.with_memory(
        np.empty(0, np.int32), np.empty(0, np.float64), np.empty(0, np.float64)
    )
    once = np.zeros(timeline.num_ranks)
    held = _held(timeline)
    np.add.at(once, held[0], weight_bytes[held[1]])
    return once + with_versions(empty, weights, weight_bytes).peak_memory()


def with_versions(timeline: Timeline, weights: Weights, weight_bytes: Column) -> Timeline:
    """The timeline with every weight version but the first added to its memory samples.

    Args:
        timeline: the run, with samples that count each stage's weights once, or without samples.
        weights: which version an op reads.
        weight_bytes: one version of each stage, shape (num_stages,). [bytes]
    """
    stage, comes, goes = _lifetimes(timeline, weights)
    later = np.concatenate([[False], stage[1:] == stage[:-1]])  # all versions of a stage but the
    sooner = np.concatenate([stage[1:] == stage[:-1], [False]])  # first, and all but the last
    ranks, stages = _held(timeline)
    rank = np.full(timeline.num_stages, -1, np.int32)
    rank[stages] = ranks
    nbytes = weight_bytes[stage]
    new = (
        rank[np.concatenate([stage[later], stage[sooner]])],
        np.concatenate([comes[later], goes[sooner]]),
        np.concatenate([nbytes[later], -nbytes[sooner]]),
    )
    old = _steps(timeline)
    rank_of, at, step = (
        np.concatenate([old[0], new[0]]),
        np.concatenate([old[1], new[1]]),
        np.concatenate([old[2], new[2]]),
    )
    order = np.lexsort((at, rank_of))
    rank_of, at, total = rank_of[order], at[order], np.cumsum(step[order])
    level = total - _before(rank_of, total)
    ends = np.ones(len(at), bool)  # the last of a rank's samples at one time
    ends[:-1] = (rank_of[1:] != rank_of[:-1]) | (at[1:] != at[:-1])
    return timeline.with_memory(rank_of[ends].astype(np.int32), at[ends], level[ends])


def steady(timeline: Timeline, num_microbatches: int) -> Steady:
    """The pace of an iteration: on each rank, from one forward to the one an iteration later.

    The later forward is the rank's last: after it the pipeline drains.

    Args:
        timeline: a run of several iterations.
        num_microbatches: of one iteration. [1]

    Raises:
        ValueError: the run is too short to have become steady.
    """
    pace, idle = np.empty(timeline.num_ranks), np.empty(timeline.num_ranks)
    compute = timeline.compute
    for rank in range(timeline.num_ranks):
        row = compute.where(compute.rank == rank)
        forward = row.of(Kind.F)
        starts = forward.start[forward.stage == forward.stage.min()]
        backward = row.of(Kind.B, Kind.I).start.min(initial=np.inf)
        if len(starts) <= num_microbatches or starts[-1 - num_microbatches] < backward:
            raise ValueError(
                f"rank {rank} has {len(starts)} microbatches, too few to become steady with "
                f"{num_microbatches} in an iteration; run more iterations"
            )
        since, until = starts[-1 - num_microbatches], starts[-1]
        busy = np.minimum(row.end, until) - np.maximum(row.start, since)
        pace[rank] = until - since
        idle[rank] = pace[rank] - np.maximum(busy, 0.0).sum()
    return Steady(
        iteration_time=float(pace.max()),
        microbatch_time=float(pace.max()) / num_microbatches,
        bubble_fraction=float(idle.sum() / pace.sum()),
        idle=idle,
    )


def _updates_before(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Updates of its stage before each span, shape (num_spans,), and in all, (num_stages,)."""
    order = np.argsort(timeline.stage, kind="stable")  # within a stage: by start, then by row
    update = (timeline.kind == Kind.OPTIMIZER)[order]
    total = np.cumsum(update)
    before = np.empty(timeline.num_spans, np.int64)
    before[order] = total - update - _before(timeline.stage[order], total)
    stage = timeline.stage[timeline.kind == Kind.OPTIMIZER]
    return before, np.bincount(stage, minlength=timeline.num_stages)


def _lifetimes(timeline: Timeline, weights: Weights) -> tuple[NDArray[np.int32], Column, Column]:
    """Each version of each stage, in order: the stage, when it comes and when it goes. [s]

    It goes when a newer one is there and its last reader is done.
    """
    updates = timeline.of(Kind.OPTIMIZER)
    number = np.bincount(updates.stage, minlength=timeline.num_stages) + 1
    first = np.cumsum(number) - number  # version 0 of each stage
    stage = np.repeat(np.arange(timeline.num_stages, dtype=np.int32), number)
    comes, goes = np.zeros(len(stage)), np.full(len(stage), timeline.makespan)
    made = np.ones(len(stage), bool)
    made[first] = False
    comes[made] = updates.end[np.argsort(updates.stage, kind="stable")]
    goes[:-1][made[1:]] = comes[1:][made[1:]]
    if weights is not Weights.LATEST:
        versions = weight_versions(timeline, weights)
        done = timeline.of(Kind.B, Kind.W)
        version = versions.forward[done.stage, done.microbatch]
        np.maximum.at(goes, first[done.stage] + version, done.end)
    return stage, comes, goes


def _before(group: NDArray[np.int32], total: NDArray[Number]) -> NDArray[Number]:
    """The running total at the end of the groups before; rows of a group stand together."""
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]])[: len(group)])
    lengths = np.diff(np.append(starts, len(group)))
    carried = np.concatenate([np.zeros(1, total.dtype), total])[starts]
    return np.repeat(carried, lengths)


def _held(timeline: Timeline) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Each stage's rank: (ranks, stages), by stage."""
    stages, first = np.unique(timeline.stage, return_index=True)
    return timeline.rank[first], stages.astype(np.int32)


def _steps(timeline: Timeline) -> tuple[NDArray[np.int32], Column, Column]:
    """The memory samples as changes: rank, time and bytes; a zero for a rank without samples."""
    rank, time, level = timeline.memory_rank, timeline.memory_time, timeline.memory_bytes
    change = level.copy()
    same = rank[1:] == rank[:-1]
    change[1:][same] -= level[:-1][same]
    missing = np.setdiff1d(np.arange(timeline.num_ranks, dtype=np.int32), rank)
    nothing = np.zeros(len(missing))
    return (
        np.concatenate([missing, rank]),
        np.concatenate([nothing, time]),
        np.concatenate([nothing, change]),
    )
