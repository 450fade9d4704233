"""One run, from the job to its report. Read this file first.

Job -> Schedule -> Timeline -> Report, with Costs feeding the engine
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator import engine
from simulator.costs import Costs, estimate, uniform
from simulator.costs.flops import hardware_flops, model_flops
from simulator.costs.memory import memory_samples
from simulator.fabric import Fabric, connect, ideal
from simulator.job import Job, Plan
from simulator.lower import (
    lower,
    post_receives_early,
    reduce_at_end,
    reduce_when_ready,
    step_optimizer,
    unshard_after_step,
)
from simulator.report import Report, Split, in_flight, split
from simulator.schedule import Kind, Schedule
from simulator.schedules import build
from simulator.timeline import Timeline

__all__ = ["Run", "simulate", "simulate_uniform"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A simulated job: everything from the rows to the report."""

    name: str
    job: Job | None  # None with uniform costs
    plan: Plan
    schedule: Schedule  # compute-only rows
    costs: Costs
    timeline: Timeline
    report: Report


def simulate(job: Job) -> Run:
    """Simulate one training step of a job.

    Raises:
        ValueError: the schedule does not do what the plan asks.
        Deadlock: the schedule's own rows cannot finish.
    """
    costs = estimate(job)
    schedule = build(job.plan, costs, _neighbour_transfer(job, costs))
    lowered = _whole_step(schedule, job.plan)
    fabric = connect(job, _pairs(lowered))
    timeline = engine.run(lowered, costs, fabric, job.cluster.stragglers)
    timeline = memory_samples(timeline, costs)
    parts = _split(timeline, lowered, costs, fabric)
    report = _throughput(job, _report(job.name, job.plan, timeline, parts))
    report = _memory(job, report, timeline, costs)
    return Run(
        name=job.name,
        job=job,
        plan=job.plan,
        schedule=schedule,
        costs=costs,
        timeline=timeline,
        report=report,
    )


def simulate_uniform(
    plan: Plan,
    forward: float,
    backward: float,
    *,
    weight_grad: float | None = None,
    latency: float = 0.0,
) -> Run:
    """Simulate the textbook's pipeline: equal stages, free communication, no optimizer.

    Args:
        plan: the schedule and its sizes; sizes of the model and of other parallelism play no part.
        forward: one microbatch's forward through all chunks of one rank. [s]
        backward: the same for the full backward. [s]
        weight_grad: the part of it that is W when split; half when left out. [s]
        latency: of every point-to-point message. [s]

    >>> run = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0)
    >>> run.report.step_time, round(run.report.bubble_to_ideal, 12)
    (33.0, 0.375)
    """
    weight = None if weight_grad is None else weight_grad / plan.vpp
    costs = uniform(plan.num_stages, forward / plan.vpp, backward / plan.vpp, weight)
    schedule = build(plan, costs, latency)
    lowered = post_receives_early(lower(schedule))
    fabric = ideal(plan.pp, _pairs(lowered), latency)
    timeline = memory_samples(engine.run(lowered, costs, fabric), costs)
    name = f"{plan.schedule}, uniform costs"
    parts = _split(timeline, lowered, costs, fabric)
    return Run(
        name=name,
        job=None,
        plan=plan,
        schedule=schedule,
        costs=costs,
        timeline=timeline,
        report=_report(name, plan, timeline, parts),
    )


def _neighbour_transfer(job: Job, costs: Costs) -> float:
    """Time of one boundary tensor from the first pipeline rank to the second, on free links. [s]"""
    if job.plan.pp == 1:
        return 0.0
    fabric = connect(job, [(0, 1)])
    alone = fabric.sends[0, 1].alone(float(costs.boundary_bytes[0]), fabric.capacity)
    return alone + float(costs.boundary_gather[0])


def _whole_step(schedule: Schedule, plan: Plan) -> Schedule:
    """Lower the rows and add the data-parallel synchronisation and the optimizer step."""
    lowered = post_receives_early(lower(schedule))
    if plan.dp * plan.cp > 1:
        reduce = reduce_when_ready if plan.overlap_grad_reduce else reduce_at_end
        lowered = reduce(lowered)
    lowered = step_optimizer(lowered)
    if plan.zero_stage > 0 and plan.dp * plan.cp > 1:
        lowered = unshard_after_step(lowered)
    return lowered


def _pairs(lowered: Schedule) -> set[tuple[int, int]]:
    """Pipeline ranks that talk to each other: (sender, receiver)."""
    moves = engine.transfers(lowered)
    return set(zip(moves.source.tolist(), moves.target.tolist(), strict=True))


def _split(timeline: Timeline, lowered: Schedule, costs: Costs, fabric: Fabric) -> Split:
    """The step by cause, with what the costs know of each span."""
    at = (timeline.kind, timeline.stage)
    backward = np.isin(timeline.kind, (Kind.B, Kind.I))
    recompute = np.where(backward, costs.recompute_seconds[timeline.stage], 0.0)
    return split(
        timeline,
        recompute=recompute,
        tensor=costs.tensor_seconds[at],
        lone=_lone(timeline, lowered, costs, fabric),
    )


def _lone(
    timeline: Timeline, lowered: Schedule, costs: Costs, fabric: Fabric
) -> NDArray[np.float64]:
    """Time of each span's transfer on free links, shape (num_spans,); zero where there is none."""
    moves = engine.transfers(lowered)
    table = np.zeros((2, costs.num_stages))  # forward, backward; by receiving stage
    seconds = engine.lone_transfers(moves, costs, fabric)
    way = (lowered.kind[moves.receive] == Kind.RECV_B).astype(np.int64)
    np.maximum.at(table, (way, lowered.stage[moves.receive]), seconds)
    lone = np.zeros(timeline.num_spans)
    for way_index, kind in enumerate((Kind.RECV_F, Kind.RECV_B)):
        mask = timeline.kind == kind
        lone[mask] = table[way_index, timeline.stage[mask]]
    return lone


def _report(name: str, plan: Plan, timeline: Timeline, parts: Split) -> Report:
    """The figures that need no model."""
    idle, total = float(parts.idle.sum()), timeline.makespan * plan.pp
    return Report(
        name=name,
        schedule=plan.schedule,
        executor="engine",
        num_ranks=plan.pp,
        num_microbatches=plan.num_microbatches,
        num_gpus=None,
        step_time=timeline.makespan,
        bubble_fraction=idle / total,
        bubble_to_ideal=idle / (total - idle),
        split=parts,
        peak_in_flight=in_flight(timeline),
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


def _memory(job: Job, report: Report, timeline: Timeline, costs: Costs) -> Report:
    """Add each rank's peak, its parts and the GPU's capacity."""
    held = np.zeros((report.num_ranks, costs.num_stages), bool)
    held[timeline.rank, timeline.stage] = True
    peak = timeline.peak_memory()
    parts = {
        "weights": held @ costs.weight_bytes,
        "gradients": held @ costs.gradient_bytes,
        "optimizer states": held @ costs.optimizer_bytes,
    }
    parts["activations"] = peak - np.sum(list(parts.values()), axis=0)
    return replace(
        report,
        peak_memory=peak,
        memory_capacity=job.cluster.gpu.memory,
        memory_parts=parts,
    )
