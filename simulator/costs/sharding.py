"""Weights and gradients that cross the network beside the compute: ZeRO, FSDP and buckets.

A framework gathers and reduces unit by unit, a layer or a bucket at a time, while the layers before
or behind it compute. What shows is the first gather, the last reduction, and of each unit between
what its neighbour's compute does not hide; kernels that run beside it are slower by the SMs that
it takes. The network is the data-parallel group's alone, with all peers of a node at work.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.buckets import Held, in_buckets
from simulator.costs.communication import Collective, group_of, group_seconds
from simulator.costs.expert_rings import expert_pace, expert_ring_seconds
from simulator.costs.kernels import stream_seconds
from simulator.costs.layers import hidden_share
from simulator.costs.offload import copied_bytes, copy_seconds
from simulator.costs.owners import owner_pace, sums_everywhere
from simulator.costs.parameters import (
    equal_split,
    expert_parameters,
    layer_parameters,
    stage_parameters,
)
from simulator.frameworks import load_framework
from simulator.job import Job, Plan
from simulator.schedule import Kind

__all__ = [
    "add_sharding",
    "expert_reduction_seconds",
    "gathers_ahead",
    "is_aligned",
    "reduce_width",
    "slow_beside",
    "synchronised_bytes",
    "whole_buffers",
]

Column = NDArray[np.float64]
Seconds = Callable[[float], float]  # of some parameters

BYTES, FP32 = 2, 4


class Unit(NamedTuple):
    """A stage's units: its layers, and what else it holds, gathered and reduced as one more."""

    layers: int
    layer: float  # parameters of a layer [1]
    rest: float  # of embedding, head and final norm [1]
    forward: float  # of one layer [s]
    backward: float  # of one layer, recomputation included [s]


def overlap_share(job: Job) -> float:
    """What running such a collective beside compute saves of the shorter of the two. [1]

    It takes SMs, and memory bandwidth: a byte on the wire is read, written and read again, a third
    of the bandwidth at the port's speed on A100 and H100, and about a third of a layer's time is
    bound by memory, so a ninth of the time more.
    """
    return hidden_share(job) - 1 / 9


def is_aligned(plan: Plan) -> bool:
    """Whether all ranks start a chunk's collectives at the same moment, between its ops."""
    return plan.vpp > 1 and load_framework(plan.framework).align_collectives


def gathers_ahead(plan: Plan) -> bool:
    """Whether a step begins with gathering the weights that the one before has made.

    An offloaded optimizer's weights are all there before.
    """
    return plan.overlap_param_gather and plan.offload == "none"


def reduce_width(job: Job) -> int:
    """Bytes of one gradient on the network. [bytes]"""
    kept = FP32 if job.plan.grad_dtype == "fp32" else BYTES
    dtype = load_framework(job.plan.framework).reduce_dtype
    return {"gradients": kept, "weights": BYTES, "fp32": FP32}[dtype]


def _gather(parameters: float, job: Job) -> float:
    """Weights of some parameters, to every GPU that holds a part of them. [s]"""
    if parameters == 0:
        return 0.0
    plan = job.plan
    group = group_of(plan.shards, plan.tp, job.cluster)
    nbytes = load_framework(plan.framework).weight_bytes * parameters
    seconds = group_seconds(Collective.ALL_GATHER, nbytes, group, job.cluster)
    return seconds * owner_pace(parameters, job)


def _reduce(parameters: float, job: Job) -> float:
    """Gradients of some parameters, to the GPU that keeps each, and over all copies. [s]"""
    if parameters == 0:
        return 0.0
    plan, cluster = job.plan, job.cluster
    nbytes = reduce_width(job) * parameters
    if sums_everywhere(job):
        whole = group_of(plan.replicas, plan.tp, cluster)
        return group_seconds(Collective.ALL_REDUCE, nbytes, whole, cluster)
    inner = group_of(plan.shards, plan.tp, cluster)
    seconds = group_seconds(Collective.REDUCE_SCATTER, nbytes, inner, cluster)
    if plan.shards < plan.replicas:
        outer = group_of(plan.replicas // plan.shards, plan.tp * plan.shards, cluster)
        part = nbytes / plan.shards
        seconds += group_seconds(Collective.ALL_REDUCE, part, outer, cluster)
    return seconds


def _handed_over(parameters: float, job: Job) -> float:
    """Gradients of some parameters, reduced and, offloaded, copied to the host beside that. [s]"""
    seconds = _reduce(parameters, job)
    return seconds if job.plan.offload == "none" else max(seconds, copy_seconds(parameters, job))


def _experts_handed_over(experts: float, job: Job) -> float:
    """The same of experts, in rings of their own. [s]"""
    plan = job.plan
    kind = Collective.REDUCE_SCATTER if plan.zero_stage else Collective.ALL_REDUCE
    seconds = expert_ring_seconds(kind, reduce_width(job) * experts, job)
    if plan.offload == "none":
        return seconds
    return max(seconds, copy_seconds(equal_split(experts, experts, plan), job))


def _gather_experts(experts: float, job: Job) -> float:
    """Weights of experts, to every GPU that holds a part of them. [s]"""
    nbytes = load_framework(job.plan.framework).weight_bytes * experts
    return expert_ring_seconds(Collective.ALL_GATHER, nbytes, job)


def _sharded(unit: Unit, job: Job, gather_of: Seconds, reduce_of: Seconds) -> tuple[float, float]:
    """What zero_stage 2 or 3 adds to a stage's forward and backward of one microbatch. [s]

    Stage 3 gathers each layer's weights before its forward, one layer ahead, and again before its
    backward; gradients are reduced after every microbatch, one layer behind.
    Sources: Rajbhandari et al., "ZeRO", SC'20, sections 5 and 7; Zhao et al., "PyTorch FSDP", VLDB
    2023, sections 3.3 and 4 (prefetching; both collectives wait for each other in one stream).
    """
    gather = rest_gather = 0.0
    if job.plan.zero_stage == 3:
        gather, rest_gather = gather_of(unit.layer), gather_of(unit.rest)
    reduce, rest_reduce = reduce_of(unit.layer), reduce_of(unit.rest)
    again = gather if job.plan.reshard_after_forward else 0.0
    share, between = overlap_share(job), max(0, unit.layers - 1)
    forward = gather - share * min(gather, unit.forward)
    backward = again + reduce - share * min(again + reduce, unit.backward)
    return (
        rest_gather + gather + between * forward,
        again + between * backward + reduce + rest_reduce,
    )


def add_sharding(seconds: Column, tensor: Column, job: Job) -> None:
    """Add what zero_stage 2 or 3 gathers and reduces to each stage's ops."""
    model, plan = job.model, job.plan
    layer = alone = layer_parameters(model, plan.tp, plan.ep, plan.expert_tp)
    if plan.splits_experts:  # as many bytes as take their time
        layer += expert_parameters(model, plan.expert_tp, plan.ep) * (expert_pace(job) - 1)
    counts = job.layers_per_stage
    rests = [
        whole - alone * layers for whole, layers in zip(stage_parameters(job), counts, strict=True)
    ]
    known: dict[Unit, tuple[float, ...]] = {}  # stages are alike but for the ends
    each = seconds[[Kind.F, Kind.B]] / np.maximum(1, counts)
    units = [
        Unit(layers, layer, max(0.0, rest), ahead, back)
        for layers, rest, ahead, back in zip(counts, rests, *each.tolist(), strict=True)
    ]
    gather_of, reduce_of = (cache(partial(one, job=job)) for one in (_gather, _reduce))
    for unit in units:
        if unit not in known:
            held = layer * unit.layers + unit.rest
            known[unit] = *_sharded(unit, job, gather_of, reduce_of), *_cast_seconds(held, job)
    forward, backward, *casts = np.array([known[unit] for unit in units]).T
    seconds[Kind.F] += casts[0]
    seconds[[Kind.B, Kind.W]] += casts[1]
    for table in (seconds, tensor):
        table[Kind.F] += forward
        table[Kind.B] += backward
        table[Kind.I] += forward
        table[Kind.W] += backward - forward


def _cast_seconds(parameters: float, job: Job) -> tuple[float, float]:
    """Kernels over gathered weights and whole gradients, of a forward and a backward. [s]

    Weights gathered in fp32 are cast to 16 bits for the products, 6 bytes a parameter, their
    gradients back, 6, and again where they are reduced in 16 bits, 6; each gradient is divided by
    the number of GPUs before it is reduced, twice its width. Source: PyTorch, torch/amp (autocast)
    and torch/distributed/fsdp/_runtime_utils.py, _reduce_grad and _div_if_needed.
    """
    width, whole = reduce_width(job), load_framework(job.plan.framework).weight_bytes
    forward, backward = 0.0, 2.0 * width
    if whole > BYTES:
        forward, backward = whole + BYTES, backward + whole + BYTES
        if width < whole:
            backward += whole + width
    gpu = job.cluster.gpu
    return stream_seconds(forward * parameters, gpu), stream_seconds(backward * parameters, gpu)


def expert_reduction_seconds(experts: float, job: Job) -> float:
    """All-reduce of experts' gradients where the rest of a layer has no other copy. [s]

    Whole experts within a tensor-parallel group may have copies in it, at tp > etp x ep.
    """
    if job.plan.replicas > 1:
        return 0.0
    return expert_ring_seconds(Collective.ALL_REDUCE, reduce_width(job) * experts, job)


def whole_buffers(parameters: Column, experts: Column | None, job: Job) -> tuple[Column, Column]:
    """Gradients to reduce and weights to gather at the end of a step, hidden or not. [bytes]

    What an offloaded optimizer alone asks for: as much as each GPU and its host exchange.
    """
    plan = job.plan
    crossed = parameters
    if experts is not None and plan.zero_stage < 2 and plan.replicas > 1:
        crossed = parameters + experts * (expert_pace(job) - 1)
    reduce, unshard = reduce_width(job) * crossed, BYTES * crossed
    alone = np.zeros(len(parameters))
    if plan.offload != "none":
        alone = copied_bytes(parameters, job, experts)
    return (
        reduce if plan.zero_stage < 2 else alone,
        unshard * owner_pace(float(crossed.max()), job) if plan.zero_stage in (1, 2) else alone,
    )


def synchronised_bytes(
    parameters: Column, experts: Column | None, seconds: Column, job: Job
) -> tuple[Column, Column]:
    """Gradients to reduce and weights to gather once a step, by stage. [bytes]

    What is hidden beside the stage's own last backward, or first forward, is left out. Aligned, a
    stage's reduction starts after that backward, whole; and the weights of a rank's first chunk
    alone arrive beside their forward.
    """
    plan, aligned = job.plan, is_aligned(job.plan)
    reduce, unshard = whole_buffers(parameters, experts, job)
    if plan.zero_stage >= 2 or not (plan.overlap_grad_reduce or plan.overlap_param_gather):
        return reduce, unshard
    own = np.zeros(len(parameters)) if experts is None else experts
    shown: dict[tuple[float, ...], float] = {}  # stages are alike but for the ends
    table = job.model.vocab_size * job.model.hidden_size / plan.tp
    for stage, count in enumerate((parameters - own).tolist()):
        if count == 0:
            continue
        held = Held(count, float(own[stage]))
        if plan.overlap_grad_reduce and not aligned:
            last, window = table if stage == 0 else 0.0, float(seconds[Kind.B, stage])
            key = (*held, last, window)
            if key not in shown:
                whole = _handed_over(count, job) + _experts_handed_over(held.experts, job)
                shown[key] = _bucketed(held, last, window, job) / whole
            reduce[stage] *= shown[key]
        if gathers_ahead(plan) and (stage < plan.pp or not aligned):
            ahead = (*held, float(seconds[Kind.F, stage]))
            if ahead not in shown:
                whole = _gather(count, job) + _gather_experts(held.experts, job)
                shown[ahead] = _gathered_ahead(held, ahead[-1], job) / whole
            unshard[stage] *= shown[ahead]
    return reduce, unshard


def slow_beside(seconds: Column, tensor: Column, reduce: Column, unshard: Column, job: Job) -> None:
    """Add to ops what aligned collectives cost the compute that they run beside, once a step.

    Those of a rank's first chunk run alone: its reduction comes last, its gathering first. A
    chunk's others run beside as many ops as it takes microbatches in a row; `reduce` and `unshard`
    are the `synchronised_bytes`.
    """
    plan = job.plan
    ops = plan.microbatch_group_size or plan.pp
    cost = (1 - overlap_share(job)) / plan.num_microbatches
    sides: list[tuple[bool, tuple[Kind, ...], Column, Seconds]] = [
        (
            plan.overlap_grad_reduce,
            (Kind.B, Kind.W),
            reduce / reduce_width(job),
            cache(partial(_reduce, job=job)),
        ),
        (gathers_ahead(plan), (Kind.F,), unshard / BYTES, cache(partial(_gather, job=job))),
    ]
    for runs, kinds, crossed, seconds_of in sides:
        for stage in range(plan.pp, len(crossed) if runs else 0):
            room = ops * float(seconds[kinds[0], stage])
            beside = min(seconds_of(float(crossed[stage])), room)
            for kind in kinds:
                seconds[kind, stage] += cost * beside
                tensor[kind, stage] += cost * beside


def _bucketed(held: Held, last: float, backward: float, job: Job) -> float:
    """Time of a stage's reduction that shows after its last backward, and that it costs it. [s]

    n buckets are ready one after the other during the backward, T_b; together they take T_r. The
    last is ready at its end: max(T_r / n, T_r - T_b (n - 1) / n) shows. `last` are the parameters
    whose gradient comes last of all and whole, as those of an embedding. [1]
    Source: Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3 (bucketing and overlap).
    """
    reduce, own = partial(_handed_over, job=job), partial(_experts_handed_over, job=job)
    num_buckets, total, rest = in_buckets(held, job, reduce, own)
    final = max(total / num_buckets, rest * last / held.rest)
    shown = max(final, total - backward * (1 - 1 / num_buckets))
    return shown + (total - shown) * (1 - overlap_share(job))


def _gathered_ahead(held: Held, forward: float, job: Job) -> float:
    """Time of gathering a stage's updated weights that shows besides a first forward. [s]"""
    gather, own = partial(_gather, job=job), partial(_gather_experts, job=job)
    num_buckets, total, _ = in_buckets(held, job, gather, own)
    shown = max(total / num_buckets, total - forward * (1 - 1 / num_buckets))
    return shown + (total - shown) * (1 - overlap_share(job))
