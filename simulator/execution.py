"""From compute-only rows to times: which executor runs them, with or without the messages as ops.

Where receives are posted early and no two messages meet on a link, the compute streams alone give
all times, and messages become spans when somebody asks for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator import engine, events, streams
from simulator.aligned import reduce_aligned, unshard_ahead, unshard_aligned
from simulator.batches import batch
from simulator.blocking import block
from simulator.costs import Costs
from simulator.costs.sharding import gathers_ahead, is_aligned
from simulator.dialects import check_transfers, is_lowered
from simulator.fabric import Fabric
from simulator.homes import checked_homes, stages_held
from simulator.job import Plan
from simulator.longest_path import contends, play
from simulator.lower import (
    lower,
    post_receives_early,
    reduce_at_end,
    reduce_when_ready,
    step_optimizer,
    unshard_after_step,
    without,
)
from simulator.matching import Matches, match
from simulator.messages import meet, with_messages
from simulator.routes import Routes, lone_seconds, routes_of, talking
from simulator.schedule import Kind, Schedule
from simulator.spans import ordered, reordered
from simulator.streams import Streamed
from simulator.timeline import Timeline
from simulator.turns import take_turns

__all__ = [
    "EXECUTORS",
    "Execution",
    "Executor",
    "NotWorth",
    "Work",
    "Worth",
    "execute",
    "execute_lowered",
    "homes_of",
    "synchronise",
    "with_transfers",
]

Executor = Literal["auto", "longest_path", "events", "engine"]
EXECUTORS: tuple[Executor, ...] = ("auto", "longest_path", "events", "engine")

Pairs = set[tuple[int, int]]  # of pipeline ranks: (sender, receiver)
Worth = Callable[[float], bool]  # of a makespan [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """What is to run, and on which links."""

    schedule: Schedule  # compute-only rows
    plan: Plan
    costs: Costs
    wire: Callable[[Pairs, Schedule], Fabric]  # by who talks to whom, and the rows of the step
    finish: Callable[[Schedule, Plan], Schedule]  # adds what ends a step
    stragglers: Mapping[int, float] = field(default_factory=dict)  # slow-down of a rank [1]
    worth: Worth | None = (
        None  # whether the rest is worth while, by the makespan without contention
    )


class NotWorth(Exception):
    """Nobody wants the times of rows that take at least so long."""


class Execution(NamedTuple):
    """What an executor made of the rows."""

    executor: str
    timeline: Timeline  # without messages where `whole` has them
    lone: NDArray[np.float64]  # longest transfer on free links, shape (num_kinds, num_stages) [s]
    whole: Callable[[], Timeline] | None = None  # the timeline with the messages that are implied


def execute(work: Work, executor: Executor) -> Execution:
    """Run the rows on the chosen executor, or on the fastest one that is exact.

    Raises:
        ValueError: the schedule does not do what the plan asks.
        Deadlock: the rows cannot finish.
        NotWorth: `work.worth` says so.
    """
    if executor in ("auto", "longest_path") and _implies_messages(work):
        streamed = _stream(work, executor)
        if streamed is not None:
            return streamed
        if executor == "auto":
            executor = "events"
    lowered = work.finish(with_transfers(work.schedule, work.plan), work.plan)
    matches = match(lowered)
    fabric = work.wire(talking(lowered, matches), lowered)
    slow, worth = work.stragglers, work.worth
    return execute_lowered(lowered, matches, work.costs, fabric, slow, executor, worth)


def execute_lowered(
    lowered: Schedule,
    matches: Matches,
    costs: Costs,
    fabric: Fabric,
    stragglers: Mapping[int, float],
    executor: Executor,
    worth: Worth | None = None,
) -> Execution:
    """The same of rows that have their messages."""
    routes = routes_of(fabric, lowered.num_ranks)
    lone = lone_seconds(lowered, matches, costs, routes)
    if executor in ("auto", "longest_path"):
        played = play(lowered, matches, costs, fabric, routes, stragglers)
        if played.finished:
            _ask(worth, played.end)
            meets = contends(lowered, matches, fabric, routes, played)
            if not meets or executor == "longest_path":
                return Execution(_path(meets), ordered(lowered, played.start, played.end), lone)
        del played
    if executor in ("auto", "events"):
        start, end, finished = events.run(lowered, matches, costs, fabric, routes, stragglers)
        if finished:
            return Execution("events", ordered(lowered, start, end), lone)
    return Execution("engine", engine.run(lowered, costs, fabric, stragglers), lone)


def _ask(worth: Worth | None, end: NDArray[np.float64]) -> None:
    """Raise NotWorth if nobody wants what takes so long even where nothing contends. [s]"""
    if worth is not None and not worth(float(np.nanmax(end))):
        raise NotWorth


def _path(meets: bool) -> str:
    return "longest_path, contention ignored" if meets else "longest_path"


def _implies_messages(work: Work) -> bool:
    """Whether when a message comes follows from its sender alone, and nobody asks when it came."""
    schedule, plan = work.schedule, work.plan
    early = plan.p2p == "overlapped" and plan.activation_limit is None
    return early and not schedule.paired.any() and not is_lowered(schedule)


def _stream(work: Work, executor: Executor) -> Execution | None:
    """The compute streams alone; None where the rows cannot finish, or events must say when."""
    home, costs = checked_homes(work.schedule)[0], work.costs
    rows = work.finish(work.schedule, work.plan)
    sizes = (rows.num_stages, rows.num_ranks)
    fabric = work.wire(streams.talking(home, *sizes), rows)
    routes = routes_of(fabric, rows.num_ranks)
    streamed = streams.stream(rows, home, costs, fabric, routes, work.stragglers)
    if not streamed.finished:
        return None
    _ask(work.worth, streamed.end)
    meets = meet(rows, home, costs, fabric, routes, streamed)
    if meets and executor == "auto":
        return None
    lone = streams.lone_seconds(home, rows.num_stages, costs, routes)
    timeline = ordered(rows, streamed.start, streamed.end)
    whole = partial(_with_messages, work, rows, streamed, routes)
    return Execution(_path(meets), timeline, lone, whole)


def _with_messages(work: Work, rows: Schedule, streamed: Streamed, routes: Routes) -> Timeline:
    """The timeline with a span for each end of each message."""
    home = checked_homes(work.schedule)[0]
    lowered = work.finish(with_transfers(work.schedule, work.plan), work.plan)
    times = with_messages(lowered, rows, streamed, home, work.costs, routes)
    return reordered(lowered, *times)


def with_transfers(schedule: Schedule, plan: Plan) -> Schedule:
    """The rows with their sends and receives, as the plan's point-to-point does them.

    Rows of one's own may come with both, and with the collectives of PyTorch's runtime, which are
    left out here: the plan says which there are.
    """
    blocking = batch if plan.schedule == "interleaved" else block
    how = {"blocking": blocking, "in_turn": take_turns, "overlapped": post_receives_early}[plan.p2p]
    if not is_lowered(schedule):
        return how(lower(schedule))
    rows = without(schedule, Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)
    check_transfers(rows)
    return how(rows)


def synchronise(rows: Schedule, plan: Plan) -> Schedule:
    """Add the data-parallel synchronisation and the optimizer step, with messages or without.

    An offloaded optimizer's gradients and weights go to and fro in the same two ops.

    Raises:
        ValueError: the schedule cannot be run with this data parallelism.
    """
    if (rows.kind == Kind.OPTIMIZER).any():
        if plan.dp * plan.cp > 1:
            raise ValueError(
                f"plan.dp is {plan.dp}, but the gradient reductions of an asynchronous schedule, "
                f"as {plan.schedule}, are not costed yet; use dp = 1"
            )
        return rows  # it updates its weights in its own rows
    copies = max(map(len, homes_of(rows).values()))
    if copies > 1 and plan.zero_stage >= 2:
        raise ValueError(
            f"plan.zero_stage is {plan.zero_stage}, but {plan.schedule} holds every stage on "
            f"{copies} ranks, whose gradients are reduced at the end of a step; use zero_stage 1"
        )
    shared, offloaded = plan.replicas * copies > 1, plan.offload != "none"
    if offloaded or (shared and plan.zero_stage < 2):  # later stages reduce in every backward
        rows = _reductions(rows, plan)
    gathers = offloaded or (shared and plan.zero_stage in (1, 2))
    ahead = gathers and gathers_ahead(plan)
    if ahead:  # of the weights that the step before has made
        rows = unshard_aligned(rows) if is_aligned(plan) else unshard_ahead(rows)
    rows = step_optimizer(rows)
    return unshard_after_step(rows) if gathers and not ahead else rows


def _reductions(rows: Schedule, plan: Plan) -> Schedule:
    """Add each stage's reduction where the plan and its framework have it."""
    if not plan.overlap_grad_reduce:
        return reduce_at_end(rows)
    return reduce_aligned(rows) if is_aligned(plan) else reduce_when_ready(rows)


def homes_of(rows: Schedule) -> dict[int, tuple[int, ...]]:
    """The ranks that hold each stage."""
    homes: dict[int, list[int]] = {stage: [] for stage in range(rows.num_stages)}
    for rank, stage in np.argwhere(stages_held(rows)).tolist():
        homes[stage].append(rank)
    return {stage: tuple(ranks) for stage, ranks in homes.items()}
