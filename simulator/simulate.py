"""One run, from the job to its report. Read this file first.

Job -> Schedule -> Timeline -> Report, with Costs feeding the engine
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simulator.accuracy.interval import interval
from simulator.accuracy.outside import outside
from simulator.causes import causes, implied_causes
from simulator.costs import Costs, estimate, uniform
from simulator.costs.costs import MOST_SECONDS
from simulator.costs.estimate import host_seconds
from simulator.costs.flops import hardware_flops, model_flops
from simulator.costs.memory import memory_samples
from simulator.costs.slices import attention_share, slice_times, sliced
from simulator.execution import (
    EXECUTORS,
    Execution,
    Executor,
    Work,
    Worth,
    execute,
    homes_of,
    synchronise,
)
from simulator.explain import explain_longest
from simulator.fabric import connect, ideal
from simulator.frameworks import load_framework
from simulator.job import Job, Plan
from simulator.report import Report, in_flight, spans_of_ranks
from simulator.schedule import Kind, Schedule
from simulator.schedules import build, recipe_of
from simulator.schedules.terapipe import choose_slices
from simulator.split import split_by_costs
from simulator.staleness import (
    Weights,
    gradient_staleness,
    peak_versions,
    steady,
    version_bytes,
    with_versions,
)
from simulator.timeline import Timeline

__all__ = ["EXECUTORS", "Executor", "Run", "simulate", "simulate_uniform"]

MOST_GAPS = 3  # idle gaps that a report explains [1]
MOST_CUTS = 64  # places at which a sequence may be cut [1]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A simulated job: everything from the rows to the report."""

    name: str
    job: Job | None  # None with uniform costs
    plan: Plan
    schedule: Schedule  # compute-only rows
    costs: Costs
    streams: Timeline  # spans and memory samples, where they imply the messages without these
    report: Report
    messages: Callable[[], Timeline] | None = None  # the spans with those that are implied

    @cached_property
    def timeline(self) -> Timeline:
        """All spans, and memory samples. Messages that are implied become spans when asked for."""
        if self.messages is None:
            return self.streams
        samples = (self.streams.memory_rank, self.streams.memory_time, self.streams.memory_bytes)
        return self.messages().with_memory(*samples)


def simulate(job: Job, executor: Executor = "auto", worth: Worth | None = None) -> Run:
    """Simulate one training step of a job.

    The compiled longest path runs where messages do not meet on a link, the compiled events where
    they do; the report says which. `executor` chooses one: `engine` is the SimPy engine, whose
    times both have; `longest_path` lets every message have its links for itself, so that its step
    is never longer than the others'.

    `worth` is asked, with the makespan that there would be without contention [s], whether to go
    on.

    Raises:
        ValueError: the schedule does not do what the plan asks.
        Deadlock: the schedule's own rows cannot finish.
        NotWorth: `worth` says no.
    """
    costs = estimate(job)
    if job.plan.rows is None and "num_slices" in recipe_of(job.plan.schedule).takes:
        job, costs = _sliced(job, costs)
    schedule = build(job.plan, costs, _neighbour_transfer(job, costs))
    work = Work(
        schedule=schedule,
        plan=job.plan,
        costs=costs,
        wire=lambda pairs, rows: connect(job, pairs, homes_of(rows)),
        finish=synchronise,
        stragglers=job.cluster.stragglers,
        worth=worth,
    )
    played = execute(work, executor)
    timeline = memory_samples(played.timeline, costs)
    policy = _policy(job.plan)
    if policy is not None:
        timeline = with_versions(timeline, policy, costs.weight_bytes)
    played = played._replace(timeline=timeline)
    report = _report(job.name, job.plan, played, costs, job.cluster.stragglers)
    report = _throughput(job, report)
    report = _confidence(job, _memory(job, report, timeline, costs))
    return Run(
        name=job.name,
        job=job,
        plan=job.plan,
        schedule=schedule,
        costs=costs,
        streams=timeline,
        report=report,
        messages=played.whole,
    )


def simulate_uniform(
    plan: Plan,
    forward: float,
    backward: float,
    *,
    weight_grad: float | None = None,
    weight_memory: float = 1.0,
    latency: float = 0.0,
    executor: Executor = "auto",
) -> Run:
    """Simulate the textbook's pipeline: equal stages, free communication, no optimizer.

    Args:
        plan: the schedule and its sizes; sizes of the model and of other parallelism play no part.
        forward: one microbatch's forward through all chunks of one rank. [s]
        backward: the same for the full backward. [s]
        weight_grad: the part of it that is W when split; half when left out. [s]
        weight_memory: the part of the activation memory that only W frees, M_W / M_B. [1]
        latency: of every point-to-point message. [s]
        executor: see `simulate`; nothing contends here.

    >>> run = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0)
    >>> run.report.step_time, round(run.report.bubble_to_ideal, 12)
    (33.0, 0.375)
    """
    if not 0 <= latency < MOST_SECONDS:
        raise ValueError(
            f"latency is {latency:g} s; it must be at least 0, and less than {MOST_SECONDS:g}"
        )
    weight = None if weight_grad is None else weight_grad / plan.vpp
    costs = uniform(plan.num_stages, forward / plan.vpp, backward / plan.vpp, weight, weight_memory)
    costs = sliced(costs, [1] * (plan.num_slices or 1))
    schedule = build(plan, costs, latency)
    work = Work(
        schedule=schedule,
        plan=plan,
        costs=costs,
        wire=lambda pairs, _: ideal(pairs, latency),
        finish=lambda rows, _: rows,
    )
    played = execute(work, executor)
    played = played._replace(timeline=memory_samples(played.timeline, costs))
    name = f"{plan.schedule}, uniform costs"
    return Run(
        name=name,
        job=None,
        plan=plan,
        schedule=schedule,
        costs=costs,
        streams=played.timeline,
        report=_report(name, plan, played, costs, {}),
        messages=played.whole,
    )


def _sliced(job: Job, costs: Costs) -> tuple[Job, Costs]:
    """Cut each microbatch's tokens: into the plan's equal slices, or where that is fastest."""
    tokens, share = job.model.seq_len, attention_share(job.model)
    busy = float(costs.seconds[Kind.F].max())
    least = max(job.layers_per_stage) * host_seconds(job) / busy

    def cost(length: int, before: int) -> float:
        rest = tokens - before - length
        parts = slice_times([before, length, rest], share)
        return busy * max(float(parts[1]), least)

    if job.plan.num_slices is None:
        cuts = next(n for n in range(min(tokens, MOST_CUTS), 0, -1) if tokens % n == 0)
        lengths = choose_slices(tokens, job.plan.num_stages, cost, granularity=tokens // cuts)
    else:
        lengths = (1,) * job.plan.num_slices
    plan = job.plan.model_copy(update={"num_slices": len(lengths)})
    return job.model_copy(update={"plan": plan}), sliced(costs, lengths, share, least)


def _neighbour_transfer(job: Job, costs: Costs) -> float:
    """Time of one boundary tensor from the first pipeline rank to the second, on free links. [s]"""
    plan = job.plan
    if plan.pp == 1 or plan.rows is not None or "transfer" not in recipe_of(plan.schedule).takes:
        return 0.0
    fabric = connect(job, [(0, 1)])
    seconds = fabric.sends[0, 1].together(float(costs.boundary_bytes[0]), fabric.capacity)
    return seconds + float(costs.boundary_gather[0])


def _report(
    name: str, plan: Plan, played: Execution, costs: Costs, slow: Mapping[int, float]
) -> Report:
    """The figures that need no model; `slow` are the stragglers."""
    timeline = played.timeline
    cause = causes(timeline) if played.whole is None else implied_causes(timeline)
    parts = split_by_costs(timeline, costs, lone=played.lone, stragglers=slow, cause=cause)
    gaps = explain_longest(
        timeline,
        MOST_GAPS,
        lone=played.lone,
        stragglers=slow,
        activation_limit=plan.activation_limit,
        cause=cause,
    )
    idle, total = float(parts.idle.sum()), timeline.makespan * plan.pp
    span, inside = spans_of_ranks(timeline)
    largest = int(span.argmax())
    report = Report(
        name=name,
        schedule=plan.schedule,
        executor=played.executor,
        num_ranks=plan.pp,
        num_microbatches=plan.num_microbatches,
        num_gpus=None,
        step_time=timeline.makespan,
        makespan=timeline.makespan,
        bubble_fraction=idle / total,
        bubble_to_ideal=idle / (total - idle),
        span_bubble=float(inside[largest] / span[largest]),
        internal_bubble=float(inside.sum() / span.sum()),
        split=parts,
        peak_in_flight=in_flight(timeline),
        longest_gaps=tuple(map(str, gaps)),
    )
    return _asynchronous(report, plan, timeline)


def _policy(plan: Plan) -> Weights | None:
    """Which weights an asynchronous schedule reads; None for a synchronous one."""
    return recipe_of(plan.schedule).weights if plan.rows is None else None


def _asynchronous(report: Report, plan: Plan, timeline: Timeline) -> Report:
    """An asynchronous schedule's figures are those of an iteration once it is steady."""
    policy = _policy(plan)
    if policy is None:
        return report
    pace = steady(timeline, plan.num_microbatches)
    ranks = timeline.num_ranks
    stale, held = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    home = np.zeros(timeline.num_stages, np.int64)
    home[timeline.stage] = timeline.rank
    np.maximum.at(held, home, peak_versions(timeline, policy))
    np.maximum.at(stale, home, gradient_staleness(timeline, policy).max(axis=1))
    bubble = pace.bubble_fraction
    return replace(
        report,
        step_time=pace.iteration_time,
        bubble_fraction=bubble,
        bubble_to_ideal=bubble / (1 - bubble),
        weight_versions=held,
        staleness=stale,
    )


def _throughput(job: Job, report: Report) -> Report:
    """Add what the step time means for a real model."""
    sequences, gpus = job.plan.global_batch_size, job.plan.num_gpus
    peak = job.cluster.gpu.peak_flops[job.plan.dtype]
    model_rate = model_flops(job.model, sequences) / report.step_time / gpus
    hardware_rate = hardware_flops(job) / report.step_time / gpus
    return replace(
        report,
        num_gpus=gpus,
        samples_per_second=sequences / report.step_time,
        tokens_per_second=sequences * job.model.seq_len / report.step_time,
        tflops_per_gpu=model_rate / 1e12,
        hardware_tflops_per_gpu=hardware_rate / 1e12,
        mfu=model_rate / peak,
        hfu=hardware_rate / peak,
    )


def _confidence(job: Job, report: Report) -> Report:
    """Add how sure the step time is, from our errors on measured runs like this one."""
    found = interval(job, report.step_time)
    return replace(
        report,
        step_time_low=found.low,
        step_time_high=found.high,
        interval_from=f"{found.rows} runs of {found.like}",
        outside=outside(job),
    )


def _memory(job: Job, report: Report, timeline: Timeline, costs: Costs) -> Report:
    """Add each rank's peak, its parts and the GPU's capacity."""
    held = timeline.held
    peak = timeline.peak_memory()
    parts = {
        "weights": held @ costs.weight_bytes,
        "gradients": held @ costs.gradient_bytes,
        "optimizer states": held @ costs.optimizer_bytes,
    }
    if costs.fixed_bytes.any():
        parts["context and buffers"] = np.repeat(costs.fixed_bytes, len(peak))
    policy = _policy(job.plan)
    if policy is not None:
        versions = version_bytes(timeline, policy, costs.weight_bytes)
        parts["weight versions"] = versions - parts["weights"]
    parts["activations"] = peak - np.sum(list(parts.values()), axis=0)
    slack = load_framework(job.plan.framework).allocator_slack
    if slack:
        parts["allocator slack"] = slack * (peak - costs.fixed_bytes)
        peak = peak + parts["allocator slack"]
    return replace(
        report,
        peak_memory=peak,
        memory_capacity=job.cluster.gpu.memory,
        memory_parts=parts,
    )
