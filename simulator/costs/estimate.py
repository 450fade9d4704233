"""Costs of a real job: what its layers cost, put together by stage."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.activations import layer_bytes, loss_bytes
from simulator.costs.communication import p2p_seconds
from simulator.costs.compute import optimizer_seconds
from simulator.costs.context import NO_EXCHANGE, context_exchange, expert_exchange
from simulator.costs.costs import Costs
from simulator.costs.host import host_seconds, lift_to_host, transfer_stall
from simulator.costs.layers import LayerCosts, Part, hidden_share, layer_costs
from simulator.costs.memory import fixed_bytes, static_bytes
from simulator.costs.offload import offload_activations, offloaded_optimizer
from simulator.costs.parameters import sparse_layers, stage_experts, stage_parameters
from simulator.costs.sharding import add_sharding, synchronised_bytes
from simulator.job import Job
from simulator.schedule import Kind

__all__ = ["StageBytes", "estimate", "host_seconds", "stage_bytes", "stage_costs"]

Column = NDArray[np.float64]

BYTES = 2  # of one fp16 or bf16 element
ONE = np.array(1.0)


def estimate(job: Job) -> Costs:
    """What each op of a job costs on one GPU of each stage, from kernels measured one by one.

    Collectives of a tensor-parallel group are alone on their links; transfers between stages and
    reductions over dp are given in bytes, because the engine lets them contend. With full
    recomputation I frees less than W needs, so `input_grad_bytes` may be negative: memory grows
    when I ends.

    A pipeline rank runs alone at this speed; stragglers are the engine's affair.
    """
    return stage_costs(layer_costs(job), job)


def stage_costs(layers: LayerCosts, job: Job) -> Costs:
    """The same, of a job whose `layer_costs` are known: those of any job that shares them."""
    parameters, experts = _parameters(job)
    seconds, tensor, recompute = _seconds(job, layers, parameters, experts)
    if job.plan.zero_stage >= 2:
        add_sharding(seconds, tensor, job)
    held = stage_bytes(layers, job)._asdict()
    if job.plan.offload_activations:
        offload_activations(seconds, tensor, held, job)
    reduce, unshard = synchronised_bytes(parameters, experts, seconds, job)
    stages = job.plan.num_stages
    return Costs(
        seconds=seconds,
        tensor_seconds=tensor,
        recompute_seconds=recompute,
        boundary_bytes=np.full(stages, layers.boundary),
        boundary_gather=np.full(stages, layers.gather + transfer_stall(job)),
        reduce_bytes=reduce,
        unshard_bytes=unshard,
        pair_time=_pair_time(seconds, tensor, job),
        **held,
    )


class StageBytes(NamedTuple):
    """The columns of Costs that say what each stage holds. [bytes]"""

    weight_bytes: Column
    gradient_bytes: Column
    optimizer_bytes: Column
    activation_bytes: Column
    input_grad_bytes: Column
    transient_bytes: Column
    fixed_bytes: Column  # shape (1,)


def stage_bytes(layers: LayerCosts, job: Job) -> StageBytes:
    """What the stages hold where no activations are offloaded, for callers that need no times."""
    parameters, experts = _parameters(job)
    return StageBytes(
        *static_bytes(parameters, job, experts),
        **_activations(job, layers),
        fixed_bytes=fixed_bytes(job),
    )


def _parameters(job: Job) -> tuple[Column, Column | None]:
    """Parameters of each stage on one GPU, and those of its experts where they are spread. [1]"""
    experts = np.array(stage_experts(job)) if job.plan.ep > 1 else None
    return np.array(stage_parameters(job)), experts


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


def _by_kind(part: Part) -> tuple[Column, Column]:
    """Seconds, and the communication in them, of F, B, I and W, in that order. [s]"""
    ahead, back, weight = part.forward_tensor, part.input_tensor, part.weight_tensor
    exposed = back + weight - part.overlapped
    seconds = (
        part.forward + ahead,
        part.input_grad + part.weight_grad + exposed,
        part.input_grad + back,
        part.weight_grad + weight,
    )
    return np.array(seconds), np.array((ahead, exposed, back, weight))


def _seconds(
    job: Job, shared: LayerCosts, parameters: Column, experts: Column | None
) -> tuple[Column, Column, Column]:
    """Time of each op, its communication and its recomputation, as the Costs have them. [s]"""
    stages = job.plan.num_stages
    layers = np.array(job.layers_per_stage, float)
    repeated = _repeated(job, layers)
    seconds, tensor = np.zeros((len(Kind), stages)), np.zeros((len(Kind), stages))
    seconds[Kind.B] = seconds[Kind.I] = repeated * (shared.again + shared.again_tensor)
    tensor[Kind.B] = tensor[Kind.I] = repeated * shared.again_tensor
    work = slice(Kind.F, Kind.W + 1)
    parts: list[tuple[slice | int, Column, Part]] = [(slice(None), layers, shared.layer)]
    if shared.dense_layer is not None:
        sparse = np.array(sparse_layers(job), float)
        parts = [(slice(None), sparse, shared.layer)]
        parts.append((slice(None), layers - sparse, shared.dense_layer))
    parts += [(0, ONE, shared.embedding), (-1, ONE, shared.head)]
    for at, count, part in parts:
        whole, communication = _by_kind(part)
        seconds[work, at] += np.multiply.outer(whole, count)
        tensor[work, at] += np.multiply.outer(communication, count)
    lift_to_host(job, shared.host, layers, repeated, seconds)
    if job.plan.cp > 1 or job.model.is_sparse:
        _add_exchange(job, layers, repeated, seconds, tensor)
    if job.plan.zero_stage and experts is not None:
        parameters = parameters + (job.plan.ep - 1) * experts  # split over fewer GPUs
    how = optimizer_seconds if job.plan.offload == "none" else offloaded_optimizer
    step = {one: how(one, job) for one in set(parameters.tolist())}
    seconds[Kind.OPTIMIZER] = [step[one] for one in parameters.tolist()]
    ends = [0, stages - 1] if stages > 1 else [0]
    tied = _tied_embedding_seconds(job)
    seconds[Kind.OPTIMIZER, ends] += tied
    tensor[Kind.OPTIMIZER, ends] = tied
    return seconds, tensor, repeated * shared.again


def _repeated(job: Job, layers: Column) -> Column:
    """Layers of each stage that the backward computes again. [1]"""
    if job.plan.recompute_method == "uniform":
        return layers
    return np.minimum(layers, job.plan.recompute_num_layers or layers)


def _add_exchange(
    job: Job, layers: Column, repeated: Column, seconds: Column, tensor: Column
) -> None:
    """Add what layers exchange over cp and ep to their ops."""
    sparse = np.array(sparse_layers(job), float)
    full = job.plan.recompute == "full"
    for count, exchange in (
        (layers, context_exchange(job) if job.plan.cp > 1 else NO_EXCHANGE),
        (sparse, expert_exchange(job) if job.model.is_sparse else NO_EXCHANGE),
    ):
        forward, backward = count * exchange.forward, count * exchange.backward
        if full:
            backward = backward + np.minimum(repeated, count) * exchange.forward
        for table in (seconds, tensor):
            table[Kind.F] += forward
            table[Kind.B] += backward
            table[Kind.I] += backward


def _pair_time(seconds: Column, tensor: Column, job: Job) -> Column:
    """An overlapped pair's time over its ops', by stage: communication hides behind compute. [1]

    What one op communicates runs beside what the other computes, less the SMs that it takes.
    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1.
    """
    whole = seconds[Kind.F] + seconds[Kind.B]
    communication = tensor[Kind.F] + tensor[Kind.B]
    hidden = np.minimum(communication, whole - communication) * hidden_share(job)
    part = np.divide(hidden, whole, out=np.zeros_like(whole), where=whole > 0)
    return np.asarray(1.0 - part)


def _activations(job: Job, shared: LayerCosts) -> dict[str, Column]:
    """The columns of activation bytes, by stage."""
    layers = np.array(job.layers_per_stage, float)
    saved = layers * shared.layer_saved
    after_input_grad = layers * shared.layer_after_input_grad
    recomputed = np.full(len(layers), shared.layer_recomputed)
    if job.plan.recompute_num_layers is not None:
        saved, recomputed = _chunked(job, layers, shared)
    recomputed[-1] = max(recomputed[-1], loss_bytes(job))  # the loss comes before the layers
    saved[0] += shared.embedding_saved
    saved[-1] += shared.head_saved
    after_input_grad[-1] += shared.head_after_input_grad
    return {
        "activation_bytes": saved,
        "input_grad_bytes": saved - after_input_grad,
        "transient_bytes": recomputed,
    }


def _chunked(job: Job, layers: Column, shared: LayerCosts) -> tuple[Column, Column]:
    """Kept and recomputed bytes with recompute_num_layers = n, by stage. [bytes]

    Uniform keeps one input for n layers, which are live together when they are computed again;
    block keeps all of the layers after the first n. Source: NVIDIA/Megatron-LM, --recompute-method.
    """
    count = job.plan.recompute_num_layers
    assert count is not None
    if job.plan.recompute_method == "block":
        repeated = np.minimum(layers, count)
        kept = (layers - repeated) * layer_bytes(job)
        return repeated * shared.layer_saved + kept, np.full(len(layers), shared.layer_recomputed)
    chunks = np.ceil(layers / count)
    return chunks * shared.layer_saved, np.minimum(layers, count) * shared.layer_recomputed
