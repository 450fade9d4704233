"""Costs of a real job, from its operators, its tensor-parallel traffic and its parameters.

Megatron-LM overlaps part of a backward's tensor-parallel communication with the product next to it:
the all-reduce (reduce-scatter) of the gradient of a column-parallel product's input with that
product's weight gradient, and with sequence parallelism the all-gather of its input with its input
gradient. What is exposed is `max(0, communication - product)`. Source: Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, section 4.2.2 and the
remark on Table 4; NVIDIA/Megatron-LM, LinearWithGradAccumulationAndAsyncCommunication. A backward
cut into I and W loses that overlap, so `B = I + W - overlapped`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from simulator.costs.activations import (
    core_bytes,
    embedding_bytes,
    head_bytes,
    layer_bytes,
    saved_layer_bytes,
    weight_grad_bytes,
)
from simulator.costs.communication import Collective, p2p_seconds, tensor_parallel_seconds
from simulator.costs.compute import (
    Operator,
    core_operators,
    embedding_operators,
    head_operators,
    layer_operators,
    optimizer_seconds,
)
from simulator.costs.costs import Costs
from simulator.costs.kernels import NUM_CHANNELS
from simulator.costs.memory import stage_parameters, static_bytes
from simulator.job import Job
from simulator.schedule import Kind

__all__ = ["estimate"]

BYTES = 2  # of one fp16 or bf16 element
HOST_BACKWARD = 1.5  # host time of a layer's backward over that of its forward


@dataclass(frozen=True)
class Part:
    """Seconds of a layer, of the embedding or of the head. Compute and exposed communication."""

    forward: float = 0.0  # [s]
    forward_tensor: float = 0.0  # [s]
    input_grad: float = 0.0  # [s]
    input_tensor: float = 0.0  # communication of a lone I [s]
    weight_grad: float = 0.0  # [s]
    weight_tensor: float = 0.0  # communication of a lone W [s]
    overlapped: float = 0.0  # communication that a full backward hides behind products [s]


def _hidden(communication: float, product: float, job: Job) -> float:
    """Time that overlapping saves: what runs side by side, less the SMs' share it takes. [s]"""
    return min(communication, product) * (1 - min(1.0, NUM_CHANNELS / job.cluster.gpu.num_sms))


def _sum(operators: Iterable[Operator]) -> tuple[float, float, float]:
    forward, input_grad, weight_grad = 0.0, 0.0, 0.0
    for operator in operators:
        forward += operator.forward
        input_grad += operator.input_grad
        weight_grad += operator.weight_grad
    return forward, input_grad, weight_grad


def _tensor_parallel(job: Job, collective: Collective) -> float:
    """One collective of the residual stream, b s h elements. [s]"""
    model, plan = job.model, job.plan
    nbytes = BYTES * plan.micro_batch_size * model.seq_len * model.hidden_size
    return tensor_parallel_seconds(collective, nbytes, plan.tp, job.cluster)


def _part(job: Job, operators: tuple[Operator, ...], pairs: int, columns: tuple[str, ...]) -> Part:
    """Operators with the communication of their column-parallel products, named in `columns`.

    `pairs` is how many of them have a row-parallel product behind them, whose output is reduced.
    """
    forward, input_grad, weight_grad = _sum(operators)
    part = Part(forward=forward, input_grad=input_grad, weight_grad=weight_grad)
    if job.plan.tp == 1:
        return part
    products = [operator for operator in operators if operator.name in columns]
    if not job.plan.sequence_parallel:
        reduce = _tensor_parallel(job, Collective.ALL_REDUCE)
        return replace(
            part,
            forward_tensor=pairs * reduce,
            input_tensor=len(products) * reduce,
            overlapped=sum(_hidden(reduce, product.weight_grad, job) for product in products),
        )
    gather = _tensor_parallel(job, Collective.ALL_GATHER)
    scatter = _tensor_parallel(job, Collective.REDUCE_SCATTER)
    return replace(
        part,
        forward_tensor=len(products) * gather + pairs * scatter,
        input_tensor=pairs * gather + len(products) * scatter,
        weight_tensor=len(products) * gather,
        overlapped=sum(
            _hidden(gather, product.input_grad, job) + _hidden(scatter, product.weight_grad, job)
            for product in products
        ),
    )


def host_seconds(job: Job) -> float:
    """Time in which the host issues a layer's forward: no forward is faster. [s]"""
    return len(layer_operators(job)) * job.cluster.gpu.host_overhead


def _layer(job: Job) -> Part:
    """One transformer layer, no faster than the host can issue it.

    Kernels are queued ahead, so the host is hidden unless a whole pass of it takes longer than the
    GPU. Its backward takes 1.5 of its forward.
    Source: GPUs wait for the host in runs of small models; the overhead of an operator is fitted
    once on VIA-Research/vTrain (Bang et al., MICRO 2024), where A100 layers of hidden size 1024 to
    2048 take 3.2 to 4 ms with full recomputation whatever their size: 14 x 70 us x (1 + 1 + 1.5).
    """
    operators = layer_operators(job)
    part = _part(job, operators, 2, ("qkv", "mlp up"))
    host = host_seconds(job)
    back = part.input_grad + part.weight_grad
    busy = back + part.input_tensor + part.weight_tensor - part.overlapped
    idle = max(0.0, HOST_BACKWARD * host - busy)
    return replace(
        part,
        forward=max(part.forward, host - part.forward_tensor),
        input_grad=part.input_grad + idle / 2,
        weight_grad=part.weight_grad + idle / 2,
    )


def _embedding(job: Job) -> Part:
    """The split table's look-up ends in a reduction; its backward in a gather of the gradient."""
    forward, input_grad, weight_grad = _sum(embedding_operators(job))
    tensor = weight_tensor = 0.0
    if job.plan.sequence_parallel:
        tensor = _tensor_parallel(job, Collective.REDUCE_SCATTER)
        weight_tensor = _tensor_parallel(job, Collective.ALL_GATHER)
    else:
        tensor = _tensor_parallel(job, Collective.ALL_REDUCE)
    return Part(
        forward=forward,
        forward_tensor=tensor,
        input_grad=input_grad,
        weight_grad=weight_grad,
        weight_tensor=weight_tensor,
    )


def _recompute(job: Job, layer: Part) -> tuple[float, float]:
    """Seconds of recomputation in one layer's backward, and of the communication it repeats. [s]

    Selective repeats the attention core (nothing for flash attention, whose kernel does it), full
    the whole forward with its communication.
    """
    if job.plan.recompute == "selective":
        return _sum(core_operators(job))[0], 0.0
    if job.plan.recompute == "full":
        return layer.forward, layer.forward_tensor
    return 0.0, 0.0


def _tied_embedding_seconds(job: Job) -> float:
    """All-reduce of the tied embedding's gradient between first and last stage, once a step. [s]

    Two GPUs on different nodes, each sending the buffer once; the tensor-parallel peers of a node
    do the same at the same time and share its NICs.
    Source: NVIDIA/Megatron-LM, _allreduce_word_embedding_grads.
    """
    model, plan, cluster = job.model, job.plan, job.cluster
    if not model.tie_word_embeddings or plan.pp == 1:
        return 0.0
    width = 4 if plan.grad_dtype == "fp32" else BYTES
    nbytes = width * model.vocab_size * model.hidden_size / plan.tp
    near = plan.num_gpus <= cluster.gpus_per_node
    if near:
        return p2p_seconds(nbytes, cluster.intra_node)
    peers = min(plan.tp, cluster.gpus_per_node)
    nics = max(1.0, peers * cluster.nics_per_node / cluster.gpus_per_node)
    return p2p_seconds(nbytes * peers / nics, cluster.inter_node)


def _seconds(job: Job, parameters: tuple[float, ...]) -> dict[str, np.ndarray]:
    """The columns of times, by stage."""
    stages = job.plan.num_stages
    layer = _layer(job)
    again, again_tensor = _recompute(job, layer)
    seconds, tensor = np.zeros((len(Kind), stages)), np.zeros((len(Kind), stages))
    recompute = np.zeros(stages)
    ends = {0: _embedding(job)}, {stages - 1: _part(job, head_operators(job), 0, ("logits",))}
    tied = _tied_embedding_seconds(job)
    for stage, layers in enumerate(job.layers_per_stage):
        recompute[stage] = layers * again
        seconds[Kind.I, stage] = seconds[Kind.B, stage] = layers * (again + again_tensor)
        tensor[Kind.I, stage] = tensor[Kind.B, stage] = layers * again_tensor
        for count, part in [(layers, layer), *((1, end[stage]) for end in ends if stage in end)]:
            ahead, back, weight = part.forward_tensor, part.input_tensor, part.weight_tensor
            exposed = back + weight - part.overlapped
            tensor[Kind.F, stage] += count * ahead
            tensor[Kind.I, stage] += count * back
            tensor[Kind.W, stage] += count * weight
            tensor[Kind.B, stage] += count * exposed
            seconds[Kind.F, stage] += count * (part.forward + ahead)
            seconds[Kind.I, stage] += count * (part.input_grad + back)
            seconds[Kind.W, stage] += count * (part.weight_grad + weight)
            seconds[Kind.B, stage] += count * (part.input_grad + part.weight_grad + exposed)
        seconds[Kind.OPTIMIZER, stage] = optimizer_seconds(parameters[stage], job)
        if stage in (0, stages - 1):
            seconds[Kind.OPTIMIZER, stage] += tied
            tensor[Kind.OPTIMIZER, stage] = tied
    return {"seconds": seconds, "tensor_seconds": tensor, "recompute_seconds": recompute}


def _pair_time(seconds: np.ndarray, tensor: np.ndarray, job: Job) -> np.ndarray:
    """An overlapped pair's time over its ops', by stage: communication hides behind compute. [1]

    What one op communicates runs beside what the other computes, less the SMs that it takes.
    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1.
    """
    whole = seconds[Kind.F] + seconds[Kind.B]
    communication = tensor[Kind.F] + tensor[Kind.B]
    hidden = [_hidden(c, w - c, job) for c, w in zip(communication, whole, strict=True)]
    return np.asarray(1.0 - np.array(hidden) / whole)


def _activations(job: Job) -> dict[str, np.ndarray]:
    """The columns of activation bytes, by stage."""
    layers = np.array(job.layers_per_stage, float)
    saved = layers * saved_layer_bytes(job)
    after_input_grad = layers * weight_grad_bytes(job)
    for stage, nbytes in ((0, embedding_bytes(job)), (-1, head_bytes(job))):
        saved[stage] += nbytes
    # the head's W needs its input and the gradient of its logits, 2 bytes each
    share = job.plan.tp if job.plan.sequence_parallel else 1
    width = job.model.hidden_size / share + job.model.vocab_size / job.plan.tp
    after_input_grad[-1] += BYTES * job.plan.micro_batch_size * job.model.seq_len * width
    recomputed = {
        "none": 0.0,
        "selective": core_bytes(job),
        "full": layer_bytes(job),
    }[job.plan.recompute]
    return {
        "activation_bytes": saved,
        "input_grad_bytes": saved - after_input_grad,
        "transient_bytes": np.where(layers > 0, recomputed, 0.0),
    }


def estimate(job: Job) -> Costs:
    """What each op of a job costs on one GPU of each stage, from kernels measured one by one.

    Collectives of a tensor-parallel group are alone on their links; transfers between stages and
    reductions over dp are given in bytes, because the engine lets them contend. With full
    recomputation I frees less than W needs, so `input_grad_bytes` may be negative: memory grows
    when I ends.

    A pipeline rank runs alone at this speed; stragglers are the engine's affair.
    """
    model, plan = job.model, job.plan
    stages = plan.num_stages
    parameters = stage_parameters(job)
    weights, gradients, optimizer = (
        np.array(column) for column in zip(*(static_bytes(p, job) for p in parameters), strict=True)
    )
    boundary = BYTES * plan.micro_batch_size * model.seq_len * model.hidden_size
    gathers = plan.scatter_gather and not plan.sequence_parallel and plan.tp > 1
    split = plan.tp if plan.sequence_parallel or plan.scatter_gather else 1
    gather = _tensor_parallel(job, Collective.ALL_GATHER) if gathers else 0.0
    times = _seconds(job, parameters)
    return Costs(
        **times,
        **_activations(job),
        boundary_bytes=np.full(stages, boundary / split),
        boundary_gather=np.full(stages, gather),
        reduce_bytes=gradients.copy(),
        unshard_bytes=weights.copy(),
        weight_bytes=weights,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer,
        pair_time=_pair_time(times["seconds"], times["tensor_seconds"], job),
    )
