"""Time that the host needs to issue a stage's operators: no stage is faster.

Kernels are queued ahead, so the host is hidden unless a whole forward and backward of it take
longer than the GPU's. Small models and small microbatches wait for it. Where every launch is waited
for, nothing is hidden: the host's time and the GPU's add up.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.compute import (
    core_operators,
    embedding_operators,
    head_operators,
    layer_operators,
)
from simulator.costs.modules import modules_of, repeated_operators
from simulator.costs.operators import Operator, framework_of
from simulator.job import Job
from simulator.schedule import Kind

__all__ = [
    "HostTimes",
    "host_seconds",
    "host_times",
    "lift_to_host",
    "pair_host",
    "transfer_stall",
]

Column = NDArray[np.float64]

BACKWARD = 1.5  # host time of a layer's backward over that of its forward


class HostTimes(NamedTuple):
    """Host time of the forward of one layer, of the embedding and of the head. [s]"""

    layer: float
    embedding: float
    head: float
    again: float  # of a layer's modules that selective recomputation names


def host_times(job: Job) -> HostTimes:
    """What the host takes to issue the forward of each part, one operator after the other. [s]

    Collectives count as operators; a CUDA graph costs the host nothing.
    Source: GPUs wait for the host in runs of small models; the overhead of an operator is fitted
    once on VIA-Research/vTrain (Bang et al., MICRO 2024), where A100 layers of hidden size 1024
    take 3.1 to 3.4 ms with full recomputation whatever their size: 14 x 62 us x (1 + 1 + 1.5), and
    16 operators with tensor parallelism.
    """
    return HostTimes(
        layer=_issued(job, layer_operators(job), collectives=2) + _exchanges(job),
        embedding=_issued(job, embedding_operators(job), collectives=1),
        head=_issued(job, head_operators(job), collectives=1),
        again=_again(job),
    )


def _again(job: Job) -> float:
    """Time in which the host issues the named modules of a layer once more. [s]"""
    if job.plan.recompute_modules is None:
        return 0.0
    more = repeated_operators(job, layer_operators(job), core_operators(job))
    exchanges = _exchanges(job) if "moe" in modules_of(job) else 0.0
    return _issued(job, more, collectives=0) + exchanges


def _exchanges(job: Job) -> float:
    """Time in which the host issues a layer's all-to-alls, to the experts and back. [s]"""
    framework = framework_of(job)
    if framework.cuda_graph or job.plan.ep == 1:
        return 0.0
    return 2 * job.cluster.gpu.host_overhead * framework.host_share


def host_seconds(job: Job) -> float:
    """Time in which the host issues a layer's forward. [s]"""
    return _in_pipeline(host_times(job).layer, job)


def _issued(job: Job, operators: tuple[Operator, ...], collectives: int) -> float:
    """Time in which the host issues operators and their tensor-parallel collectives. [s]"""
    framework = framework_of(job)
    if framework.cuda_graph:
        return 0.0
    count = sum(operator.launches for operator in operators)
    count += collectives if job.plan.tp > 1 else 0
    return count * job.cluster.gpu.host_overhead * framework.host_share


def _in_pipeline(layer: float, job: Job) -> float:
    """A layer's forward on the host, where a framework's pipeline over nodes is slower. [s]"""
    plan = job.plan
    if plan.pp == 1 or plan.tp == 1 or plan.num_gpus <= job.cluster.gpus_per_node:
        return layer
    return max(layer, framework_of(job).pipelined_host * plan.tp / (1 + BACKWARD))


def transfer_stall(job: Job) -> float:
    """What a framework's transfer between stages takes besides its latency and bytes. [s]

    Pipelines of many nodes, or of tensor-parallel groups over many, see the profile.
    """
    plan, framework = job.plan, framework_of(job)
    if framework.transfer_stall == 0:
        return 0.0
    node = job.cluster.gpus_per_node
    large = plan.num_gpus > framework.stall_above * node
    wide = plan.tp >= framework.stall_tensor * node
    return framework.transfer_stall if large or wide else 0.0


def _forward(job: Job, times: HostTimes, layers: Column) -> Column:
    """Time in which the host issues the forward of each stage. [s]"""
    forward = _in_pipeline(times.layer, job) * layers
    forward[0] += times.embedding
    forward[-1] += times.head
    forward[-1] += job.model.num_nextn_predict_layers * (times.embedding + times.head)
    return forward


def pair_host(job: Job, times: HostTimes, layers: Column, sparse: Column) -> Column:
    """Time in which the host issues a forward and a backward that overlap, by stage. [s]

    Layers of experts, `sparse` of them, are cut into pieces: attention, dispatch, experts, combine;
    each is its own part of the backward and waits for events of two streams.
    Source: NVIDIA/Megatron-LM, megatron/core/models/common/model_chunk_schedule_plan.py.
    """
    more = framework_of(job).overlapped_host * sparse
    return (1 + BACKWARD) * _forward(job, times, layers) + more


def lift_to_host(
    job: Job, times: HostTimes, layers: Column, repeated: Column, seconds: Column
) -> None:
    """Lengthen the ops of stages whose layers the GPU finishes before the host has issued them. [s]

    Args:
        job: the job.
        times: host time of each part.
        layers: layers of each stage, shape (num_stages,). [1]
        repeated: those of them that full recomputation computes again, same shape. [1]
        seconds: duration of each op, shape (num_kinds, num_stages); changed in place. [s]
    """
    layer = _in_pipeline(times.layer, job)
    forward = _forward(job, times, layers)
    again = layer if job.plan.recompute == "full" else times.again
    backward = BACKWARD * forward + again * repeated
    whole = forward + backward
    short = whole
    if not framework_of(job).blocking_launches:
        short = np.maximum(0.0, whole - seconds[Kind.F] - seconds[Kind.B])
    ahead = short * forward / np.maximum(whole, 1e-30)
    seconds[Kind.F] += ahead
    for kind, share in ((Kind.B, 1.0), (Kind.I, 0.5), (Kind.W, 0.5)):
        seconds[kind] += share * (short - ahead)
