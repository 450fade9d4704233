"""What a schedule's rows say before any time is known: homes of the stages, and what ranks hold.

A rank runs its row one op after the other, so the activations that it holds follow from the order
alone, and with them its peak memory. Building and reading the rows is most of the work of judging a
plan, and all plans of one schedule, pp, vpp and num_microbatches share it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.costs.estimate import StageBytes
from simulator.job import Plan
from simulator.kernel import kernel
from simulator.schedule import Kind, Schedule
from simulator.schedules import build, recipe_of

__all__ = ["Shape", "is_made_for_times", "least_peaks", "shape_of"]

Column = NDArray[np.float64]
Index = NDArray[np.int32]

# Bytes that wait for a W over those that wait for an I, for which the fullest moment is noted. With
# full recomputation they are many times more.
HALVES = (0.0, 0.5, 1.0, 8.0)
PARTS = ("weights", "gradients", "optimizer states", "activations")


@dataclass(frozen=True, eq=False)
class Shape:
    """A schedule's rows in short. A rank's chunks stand deepest first."""

    stage: NDArray[np.int64]  # of each chunk, shape (pp, num_chunks)
    count: NDArray[np.int64]  # microbatches that the chunk takes there, same shape [1]
    alone: NDArray[np.int64]  # its F, and its B and I, not in a pair, shape (2, pp, num_chunks) [1]
    most: NDArray[np.int64]  # of them, most in flight at once: from F's start to B's or I's end [1]
    most_of_all: NDArray[np.int64]  # the same of all of a rank's chunks together, shape (pp,) [1]
    has_whole: bool  # backwards in one op, B
    has_halves: bool  # backwards in two ops, I and W
    has_pairs: bool  # ops that run at the same time
    digest: bytes  # equal for equal rows
    # Moments of a rank's row, shape (num_moments, pp, num_chunks): forwards whose I or B has not
    # ended, and I whose W has not [1]; and the chunk whose backward runs, shape (num_moments, pp)
    held: Index
    waiting: Index
    running: Index  # column of the chunk, or -1

    @cached_property
    def homes(self) -> Mapping[int, tuple[int, ...]]:
        """The ranks that hold each stage."""
        found: dict[int, set[int]] = {}
        for rank, chunks in enumerate(self.stage.tolist()):
            for stage in chunks:
                found.setdefault(stage, set()).add(rank)
        return {stage: tuple(sorted(found[stage])) for stage in sorted(found)}

    @cached_property
    def has_replicas(self) -> bool:
        """Whether a stage stands on several ranks."""
        return any(len(ranks) > 1 for ranks in self.homes.values())

    @cached_property
    def of_homes(self) -> bytes:
        """Equal where the stages stand on the same ranks."""
        return self.stage.tobytes()

    @cached_property
    def of_bound(self) -> bytes:
        """Equal where all that a bound on the step reads is equal."""
        kinds = bytes((self.has_whole, self.has_halves, self.has_pairs))
        columns = (self.stage, self.count, self.alone, self.most, self.most_of_all)
        return kinds + b"".join(column.tobytes() for column in columns)


def is_made_for_times(schedule: str) -> bool:
    """Whether a schedule's rows depend on the costs, so that plans cannot share them."""
    return "costs" in recipe_of(schedule).takes


def shape_of(plan: Plan) -> Shape:
    """The shape of a plan's rows.

    Rows that depend on the costs are not built, because that takes longer than all else. Their
    homes and kinds are those of one microbatch's rows, as for every schedule here whose stages have
    one home, and they hold at least one microbatch's activations.

    Raises:
        ValueError: the schedule does not do what the plan asks.
    """
    if not is_made_for_times(plan.schedule):
        return _shape(build(plan))
    least = plan.model_copy(update={"num_microbatches": 1, "activation_limit": None})
    one = _shape(build(least))
    return Shape(
        one.stage,
        one.count * plan.num_microbatches,
        one.alone * plan.num_microbatches,
        one.count * plan.num_microbatches,  # any number may be in flight
        one.count.sum(axis=1) * plan.num_microbatches,
        one.has_whole,
        one.has_halves,
        one.has_pairs,
        plan.schedule.encode(),
        one.held,
        one.waiting,
        one.running,
    )


def least_peaks(shape: Shape, costs: Costs | StageBytes, slack: float = 0.0) -> dict[str, Column]:
    """Bytes that each rank holds at the fullest of the noted moments, by part, shape (pp,).

    `slack` is what the allocator holds beside what is in use, part of that [1].

    A rank holds this at some moment of its row, so its peak is at least the parts' sum: F takes its
    stage's activations when it starts, B and I take what they recompute, and a rank's ops run one
    after the other, whatever their times. The two of a pair start together, which only adds.
    """
    columns = np.stack(
        (
            costs.weight_bytes,
            costs.gradient_bytes,
            costs.optimizer_bytes,
            costs.activation_bytes,
            costs.activation_bytes - costs.input_grad_bytes,
            costs.transient_bytes,
        )
    )
    held = _held(shape.stage, shape.count, shape.held, shape.waiting, shape.running, columns)
    parts = dict(zip(PARTS, held, strict=True))
    if slack:
        parts["allocator slack"] = slack * held.sum(axis=0)
    return parts | {"context and buffers": np.repeat(costs.fixed_bytes, len(shape.stage))}


@kernel
def _held(
    stage: NDArray[np.int64],
    count: NDArray[np.int64],
    held: Index,
    waiting: Index,
    running: Index,
    columns: Column,
) -> Column:
    """Each rank's weights, gradients, optimizer states and most activations, shape (4, pp)."""
    num_moments, num_ranks, num_chunks = held.shape
    found = np.zeros((4, num_ranks))
    for rank in range(num_ranks):
        for chunk in range(num_chunks):
            if count[rank, chunk] > 0:
                for part in range(3):
                    found[part, rank] += columns[part, stage[rank, chunk]]
        for moment in range(num_moments):
            level = 0.0
            for chunk in range(num_chunks):
                at = stage[rank, chunk]
                level += held[moment, rank, chunk] * columns[3, at]
                level += waiting[moment, rank, chunk] * columns[4, at]
            if running[moment, rank] >= 0:
                level += columns[5, stage[rank, running[moment, rank]]]
            found[3, rank] = max(found[3, rank], level)
    return found


def _shape(rows: Schedule) -> Shape:
    """Read the rows."""
    stages = rows.num_stages
    forwards = rows.kind == Kind.F
    key = rows.rank[forwards].astype(np.int64) * stages + rows.stage[forwards]
    number = np.bincount(key, minlength=rows.num_ranks * stages).reshape(-1, stages)
    chunks = int((number > 0).sum(axis=1).max())
    # deepest first; a rank with fewer chunks repeats its shallowest, with no microbatches
    order = np.argsort(np.where(number > 0, -np.arange(stages), stages), axis=1, kind="stable")
    stage = order[:, :chunks]
    count = np.take_along_axis(number, stage, axis=1)
    least = np.where(number > 0, np.arange(stages), stages).min(axis=1)
    stage = np.where(count > 0, stage, least[:, None])
    column = np.zeros((rows.num_ranks, stages), np.int32)
    np.put_along_axis(
        column, stage[:, ::-1], np.arange(chunks - 1, -1, -1, dtype=np.int32)[None, :], axis=1
    )
    held, waiting, running, most = _moments(
        rows.offsets, rows.stage, rows.kind, column, np.array(HALVES), chunks
    )
    kinds = np.bincount(rows.kind, minlength=len(Kind))
    halves = bool(kinds[Kind.I])
    keep = slice(None) if halves else slice(0, 2)  # with B alone nothing waits for its W
    return Shape(
        stage.astype(np.int64),
        count.astype(np.int64),
        _alone(rows, stage),
        most.astype(np.int64),
        held[0].sum(axis=1, dtype=np.int64),
        bool(kinds[Kind.B]),
        halves,
        bool(rows.paired.any()),
        _digest(rows),
        held[keep],
        waiting[keep],
        running[keep],
    )


def _alone(rows: Schedule, stage: NDArray[np.integer]) -> NDArray[np.int64]:
    """How many forwards, and backwards that others wait for, run by themselves."""
    alone = ~rows.paired
    alone[1:] &= ~rows.paired[:-1]
    key = rows.rank.astype(np.int64) * rows.num_stages + rows.stage
    found = []
    for ops in (rows.kind == Kind.F, (rows.kind == Kind.B) | (rows.kind == Kind.I)):
        number = np.bincount(key[alone & ops], minlength=rows.num_ranks * rows.num_stages)
        found.append(np.take_along_axis(number.reshape(rows.num_ranks, -1), stage, axis=1))
    return np.stack(found)


def _digest(rows: Schedule) -> bytes:
    """Equal for equal rows."""
    digest = blake2b(digest_size=16)
    for column in (rows.offsets, rows.stage, rows.kind, rows.microbatch, rows.paired):
        digest.update(column.tobytes())
    return digest.digest()


@kernel
def _moments(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    column: Index,
    weights: Column,
    num_chunks: int,
) -> tuple[Index, Index, Index, Index]:
    """The fullest moments of each rank: for each weight, of all ops and of backwards alone.

    And the most that each chunk holds at any moment.
    """
    num_ranks, num_moments = len(offsets) - 1, 2 * len(weights)
    held = np.zeros((num_moments, num_ranks, num_chunks), np.int32)
    waiting = np.zeros((num_moments, num_ranks, num_chunks), np.int32)
    running = np.full((num_moments, num_ranks), -1, np.int32)
    most_held = np.zeros((num_ranks, num_chunks), np.int32)
    for rank in range(num_ranks):
        now_held = np.zeros(num_chunks, np.int32)
        now_waiting = np.zeros(num_chunks, np.int32)
        total_held = total_waiting = 0
        most = np.full(num_moments, -1.0)
        for op in range(offsets[rank], offsets[rank + 1]):
            what, chunk = kind[op], column[rank, stage[op]]
            if what == 0:
                now_held[chunk] += 1
                total_held += 1
                most_held[rank, chunk] = max(most_held[rank, chunk], now_held[chunk])
            is_back = what == 1 or what == 2
            for moment in range(num_moments):
                if moment % 2 == 1 and not is_back:
                    continue
                level = total_held + weights[moment // 2] * total_waiting
                if level > most[moment]:
                    most[moment] = level
                    for one in range(num_chunks):
                        held[moment, rank, one] = now_held[one]
                        waiting[moment, rank, one] = now_waiting[one]
                    running[moment, rank] = chunk if is_back else -1
            if is_back:
                now_held[chunk] -= 1
                total_held -= 1
            if what == 2:
                now_waiting[chunk] += 1
                total_waiting += 1
            if what == 3:
                now_waiting[chunk] -= 1
                total_waiting -= 1
    return held, waiting, running, most_held
