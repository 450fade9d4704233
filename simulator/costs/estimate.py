"""Costs of a real job: what its layers cost, put together by stage."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.activations import layer_bytes, loss_bytes
from simulator.costs.communication import p2p_seconds
from simulator.costs.compute import optimizer_seconds
from simulator.costs.context import NO_EXCHANGE, context_exchange, expert_exchange
from simulator.costs.costs import Costs
from simulator.costs.host import host_seconds, lift_to_host, pair_host, transfer_stall
from simulator.costs.layers import LayerCosts, Part, hidden_share, layer_costs
from simulator.costs.memory import fixed_bytes, static_bytes
from simulator.costs.modules import dense_of, modules_of
from simulator.costs.offload import offload_activations, offloaded_optimizer
from simulator.costs.parameters import (
    computed_layers,
    dense_layers,
    equal_split,
    sparse_layers,
    stage_experts,
    stage_parameters,
)
from simulator.costs.sharding import (
    add_sharding,
    expert_reduction_seconds,
    is_aligned,
    slow_beside,
    synchronised_bytes,
)
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
    if is_aligned(job.plan) and job.plan.zero_stage < 2:
        slow_beside(seconds, tensor, reduce, unshard, job)
    stages = job.plan.num_stages
    return Costs(
        seconds=seconds,
        tensor_seconds=tensor,
        recompute_seconds=recompute,
        boundary_bytes=np.full(stages, layers.boundary),
        boundary_gather=np.full(stages, layers.gather + transfer_stall(job)),
        reduce_bytes=reduce,
        unshard_bytes=unshard,
        pair_time=_pair_time(seconds, tensor, layers, job),
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
    experts = np.array(stage_experts(job)) if job.plan.splits_experts else None
    return np.array(stage_parameters(job)), experts


def _tied_embedding_seconds(job: Job) -> float:
    """All-reduce of the tied embedding's gradient between first and last stage, once a step. [s]

    Multi-token prediction reads the embedding on the last stage, and shares it like tied logits.
    Two GPUs on different nodes, each sending the buffer once; the tensor-parallel peers of a node
    do the same at the same time and share its NICs.
    Source: NVIDIA/Megatron-LM, _allreduce_word_embedding_grads.
    """
    model, plan, cluster = job.model, job.plan, job.cluster
    if not (model.tie_word_embeddings or model.num_nextn_predict_layers) or plan.pp == 1:
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
    seconds, tensor = np.zeros((len(Kind), stages)), np.zeros((len(Kind), stages))
    recomputed = np.zeros(stages)
    work = slice(Kind.F, Kind.W + 1)
    modules = np.array(float(job.model.num_nextn_predict_layers))
    ends = [(0, ONE, shared.embedding), (-1, ONE, shared.head)]
    if modules:
        ends += [(-1, modules, part) for part in (shared.embedding, shared.join, shared.head)]
    kinds = _kinds(job, shared)
    for _, repeated, part in kinds:
        again = repeated * (part.again + part.again_tensor)
        seconds[[Kind.B, Kind.I]] += again
        tensor[[Kind.B, Kind.I]] += repeated * part.again_tensor
        recomputed += repeated * part.again
    parts: list[tuple[slice | int, Column, Part]] = [
        (slice(None), count, part) for count, _, part in kinds
    ]
    for at, count, part in [*parts, *ends]:
        whole, communication = _by_kind(part)
        seconds[work, at] += np.multiply.outer(whole, count)
        tensor[work, at] += np.multiply.outer(communication, count)
    layers = np.sum([count for count, _, _ in kinds], axis=0)
    repeated = np.sum([again for _, again, _ in kinds], axis=0)
    lift_to_host(job, shared.host, layers, repeated, seconds)
    if job.plan.cp > 1 or job.model.is_sparse:
        _add_exchange(job, layers, repeated, seconds, tensor)
    if job.plan.zero_stage:
        parameters = equal_split(parameters, experts, job.plan)
    how = optimizer_seconds if job.plan.offload == "none" else offloaded_optimizer
    step = {one: how(one, job) for one in set(parameters.tolist())}
    seconds[Kind.OPTIMIZER] = [step[one] for one in parameters.tolist()]
    if experts is not None:
        tensor[Kind.OPTIMIZER] = [expert_reduction_seconds(one, job) for one in experts.tolist()]
        seconds[Kind.OPTIMIZER] += tensor[Kind.OPTIMIZER]
    both = [0, stages - 1] if stages > 1 else [0]
    tied = _tied_embedding_seconds(job)
    seconds[Kind.OPTIMIZER, both] += tied
    tensor[Kind.OPTIMIZER, both] += tied
    return seconds, tensor, recomputed


def _kinds(job: Job, shared: LayerCosts) -> list[tuple[Column, Column, Part]]:
    """Layers of each stage by kind, those of them that the backward computes again, and costs.

    A stage's dense layers are its first, and those that block recomputation repeats. [1, 1, s]
    """
    plan, layers = job.plan, np.array(computed_layers(job), float)
    repeated = layers
    if plan.recompute_method == "block":
        repeated = np.minimum(layers, plan.recompute_num_layers or layers)
    if shared.dense_layer is None:
        return [(layers, repeated, shared.layer)]
    dense = np.array(dense_layers(job), float)
    first = np.minimum(dense, repeated)
    return [
        (layers - dense, repeated - first, shared.layer),
        (dense, first, shared.dense_layer),
    ]


def _add_exchange(
    job: Job, layers: Column, repeated: Column, seconds: Column, tensor: Column
) -> None:
    """Add what layers exchange over cp and ep to their ops."""
    sparse = np.array(sparse_layers(job), float)
    full = job.plan.recompute == "full"
    modules = modules_of(job)
    for count, exchange, again in (
        (
            layers,
            context_exchange(job) if job.plan.cp > 1 else NO_EXCHANGE,
            full or ("core_attn" in modules and job.plan.recompute_modules is not None),
        ),
        (
            sparse,
            expert_exchange(job) if job.model.is_sparse else NO_EXCHANGE,
            full or "moe" in modules,
        ),
    ):
        forward, backward = count * exchange.forward, count * exchange.backward
        if again:
            backward = backward + np.minimum(repeated, count) * exchange.forward
        for table in (seconds, tensor):
            table[Kind.F] += forward
            table[Kind.B] += backward
            table[Kind.I] += backward


def _pair_time(seconds: Column, tensor: Column, shared: LayerCosts, job: Job) -> Column:
    """An overlapped pair's time over its ops', by stage: communication hides behind compute. [1]

    What one op communicates runs beside what the other computes, less the SMs that it takes; no
    pair is faster than the host issues it, which may be slower than one op after the other.
    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1.
    """
    whole = seconds[Kind.F] + seconds[Kind.B]
    communication = tensor[Kind.F] + tensor[Kind.B]
    hidden = np.minimum(communication, whole - communication) * hidden_share(job)
    part = np.divide(hidden, whole, out=np.zeros_like(whole), where=whole > 0)
    layers, sparse = np.array(computed_layers(job), float), np.array(sparse_layers(job), float)
    issued = pair_host(job, shared.host, layers, sparse)
    floor = np.divide(issued, whole, out=np.zeros_like(whole), where=whole > 0)
    return np.asarray(np.maximum(1.0 - part, floor))


def _activations(job: Job, shared: LayerCosts) -> dict[str, Column]:
    """The columns of activation bytes, by stage."""
    kinds = _kinds(job, shared)
    after_input_grad = np.sum([count * part.after_input_grad for count, _, part in kinds], axis=0)
    if job.plan.recompute_num_layers is None:
        saved = np.sum([count * part.saved for count, _, part in kinds], axis=0)
        recomputed = np.max([(count > 0) * part.recomputed for count, _, part in kinds], axis=0)
    else:
        saved, recomputed = _chunked(job, kinds)
    recomputed[-1] = max(recomputed[-1], loss_bytes(job))  # the loss comes before the layers
    modules = job.model.num_nextn_predict_layers
    saved[0] += shared.embedding_saved
    saved[-1] += shared.head_saved
    after_input_grad[-1] += (1 + modules) * shared.head_after_input_grad
    if modules:
        saved[-1] += modules * (shared.embedding_saved + shared.join.saved + shared.head_saved)
        after_input_grad[-1] += modules * shared.join.after_input_grad
    return {
        "activation_bytes": saved,
        "input_grad_bytes": saved - after_input_grad,
        "transient_bytes": recomputed,
    }


def _chunked(job: Job, kinds: list[tuple[Column, Column, Part]]) -> tuple[Column, Column]:
    """Kept and recomputed bytes with recompute_num_layers = n, by stage. [bytes]

    Uniform keeps one input for n layers, which are live together when they are computed again;
    block keeps all of the layers after the first n. Source: NVIDIA/Megatron-LM, --recompute-method.
    """
    number = job.plan.recompute_num_layers
    assert number is not None
    layers = np.sum([count for count, _, _ in kinds], axis=0)
    largest = np.max([(count > 0) * part.recomputed for count, _, part in kinds], axis=0)
    input_bytes = kinds[0][2].saved
    if job.plan.recompute_method == "uniform":
        return np.ceil(layers / number) * input_bytes, np.minimum(layers, number) * largest
    saved = np.zeros(len(layers))
    for (count, repeated, part), of_kind in zip(kinds, (job, dense_of(job)), strict=False):
        saved += repeated * part.saved + (count - repeated) * layer_bytes(of_kind)
    return saved, largest
