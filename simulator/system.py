"""What an executor plays, as one value that can be changed: rows, costs, links, slow-downs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simulator.attribution import Path, path_of_iteration, path_of_step
from simulator.costs import Costs, estimate
from simulator.costs.estimate import host_seconds
from simulator.costs.slices import attention_share, sliced
from simulator.execution import execute_lowered, homes_of, synchronise, with_transfers
from simulator.fabric import Fabric, connect, ideal
from simulator.job import Job, Plan
from simulator.matching import Matches, match
from simulator.routes import talking
from simulator.schedule import Kind, Schedule
from simulator.schedules import build, recipe_of
from simulator.simulate import Run, _neighbour_transfer
from simulator.staleness import steady
from simulator.timeline import Timeline

__all__ = [
    "System",
    "decisive_path",
    "on_hardware",
    "played",
    "remade",
    "step_seconds",
    "system_of",
    "uniform_system",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class System:
    """A job as an executor sees it."""

    plan: Plan
    lowered: Schedule
    matches: Matches
    costs: Costs
    fabric: Fabric
    job: Job | None = None  # None with uniform costs
    homes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # ranks of each stage
    stragglers: Mapping[int, float] = field(default_factory=dict)  # slow-down of a rank [1]


def system_of(run: Run) -> System:
    """The system that a run of a job played."""
    assert run.job is not None
    job = run.job.model_copy(update={"plan": run.plan})
    return _wired(job, run.plan, run.schedule, run.costs)


def uniform_system(run: Run, latency: float) -> System:
    """The system that a run with uniform costs played."""
    lowered = with_transfers(run.schedule, run.plan)
    matches = match(lowered)
    fabric = ideal(talking(lowered, matches), latency)
    return System(plan=run.plan, lowered=lowered, matches=matches, costs=run.costs, fabric=fabric)


def on_hardware(system: System, job: Job) -> System:
    """The same rows on other hardware, with the tokens cut where they were."""
    costs = estimate(job)
    if len(system.costs.slice_tokens) > 1:
        least = max(job.layers_per_stage) * host_seconds(job) / float(costs.seconds[Kind.F].max())
        tokens = (system.costs.slice_tokens * job.model.seq_len).tolist()
        costs = sliced(costs, tokens, attention_share(job.model), least)
    fabric = connect(job, system.fabric.sends, system.homes)
    return replace(system, job=job, costs=costs, fabric=fabric, stragglers=job.cluster.stragglers)


def remade(system: System, job: Job) -> System:
    """The same plan on other hardware: schedules made for given times are made again."""
    made = on_hardware(system, job)
    takes = () if system.plan.rows is not None else recipe_of(system.plan.schedule).takes
    if "costs" not in takes and "transfer" not in takes:
        return made
    schedule = build(system.plan, made.costs, _neighbour_transfer(job, made.costs))
    return _wired(job, system.plan, schedule, made.costs)


def _wired(job: Job, plan: Plan, schedule: Schedule, costs: Costs) -> System:
    lowered = synchronise(with_transfers(schedule, plan), plan)
    matches, homes = match(lowered), homes_of(lowered)
    return System(
        plan=plan,
        lowered=lowered,
        matches=matches,
        costs=costs,
        fabric=connect(job, talking(lowered, matches), homes),
        homes=homes,
        job=job,
        stragglers=job.cluster.stragglers,
    )


def played(system: System) -> Timeline:
    """The timeline of a system."""
    rows, costs, links = system.lowered, system.costs, system.fabric
    return execute_lowered(rows, system.matches, costs, links, system.stragglers, "auto").timeline


def is_asynchronous(system: System) -> bool:
    """Whether the step is an iteration within a longer run."""
    return system.plan.rows is None and recipe_of(system.plan.schedule).weights is not None


def step_seconds(system: System, timeline: Timeline) -> float:
    """The step, as a report counts it. [s]"""
    if is_asynchronous(system):
        return steady(timeline, system.plan.num_microbatches).iteration_time
    return timeline.makespan


def decisive_path(system: System, timeline: Timeline) -> Path:
    """What the step's length hangs on."""
    if is_asynchronous(system):
        return path_of_iteration(timeline, system.plan.num_microbatches)
    return path_of_step(timeline)
