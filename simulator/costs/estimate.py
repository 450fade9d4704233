"""Costs of a real job: what its layers cost, put together by stage."""

import numpy as np
from numpy.typing import NDArray

from simulator.costs.communication import p2p_seconds
from simulator.costs.compute import optimizer_seconds
from simulator.costs.costs import Costs
from simulator.costs.layers import LayerCosts, Part, hidden_share, host_seconds, layer_costs
from simulator.costs.memory import stage_parameters, static_bytes
from simulator.job import Job
from simulator.schedule import Kind

__all__ = ["estimate", "host_seconds", "stage_costs"]

Column = NDArray[np.float64]

BYTES = 2  # of one fp16 or bf16 element


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
    parameters = np.array(stage_parameters(job))
    weights, gradients, optimizer = static_bytes(parameters, job)
    seconds, tensor, recompute = _seconds(job, layers, parameters)
    stages = job.plan.num_stages
    return Costs(
        seconds=seconds,
        tensor_seconds=tensor,
        recompute_seconds=recompute,
        **_activations(job, layers),
        boundary_bytes=np.full(stages, layers.boundary),
        boundary_gather=np.full(stages, layers.gather),
        reduce_bytes=gradients.copy(),
        unshard_bytes=weights.copy(),
        weight_bytes=weights,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer,
        pair_time=_pair_time(seconds, tensor, job),
    )


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


def _seconds(job: Job, shared: LayerCosts, parameters: Column) -> tuple[Column, Column, Column]:
    """Time of each op, its communication and its recomputation, as the Costs have them. [s]"""
    stages = job.plan.num_stages
    layers = np.array(job.layers_per_stage, float)
    seconds, tensor = np.zeros((len(Kind), stages)), np.zeros((len(Kind), stages))
    seconds[Kind.B] = seconds[Kind.I] = layers * (shared.again + shared.again_tensor)
    tensor[Kind.B] = tensor[Kind.I] = layers * shared.again_tensor
    work = slice(Kind.F, Kind.W + 1)
    for at, count, part in (
        (slice(None), layers, shared.layer),
        (0, 1.0, shared.embedding),
        (-1, 1.0, shared.head),
    ):
        whole, communication = _by_kind(part)
        seconds[work, at] += np.multiply.outer(whole, count)
        tensor[work, at] += np.multiply.outer(communication, count)
    step = {one: optimizer_seconds(one, job) for one in set(parameters.tolist())}
    seconds[Kind.OPTIMIZER] = [step[one] for one in parameters.tolist()]
    ends = [0, stages - 1] if stages > 1 else [0]
    tied = _tied_embedding_seconds(job)
    seconds[Kind.OPTIMIZER, ends] += tied
    tensor[Kind.OPTIMIZER, ends] = tied
    return seconds, tensor, layers * shared.again


def _pair_time(seconds: Column, tensor: Column, job: Job) -> Column:
    """An overlapped pair's time over its ops', by stage: communication hides behind compute. [1]

    What one op communicates runs beside what the other computes, less the SMs that it takes.
    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1.
    """
    whole = seconds[Kind.F] + seconds[Kind.B]
    communication = tensor[Kind.F] + tensor[Kind.B]
    hidden = np.minimum(communication, whole - communication) * hidden_share(job)
    return np.asarray(1.0 - hidden / whole)


def _activations(job: Job, shared: LayerCosts) -> dict[str, Column]:
    """The columns of activation bytes, by stage."""
    layers = np.array(job.layers_per_stage, float)
    saved = layers * shared.layer_saved
    after_input_grad = layers * shared.layer_after_input_grad
    saved[0] += shared.embedding_saved
    saved[-1] += shared.head_saved
    after_input_grad[-1] += shared.head_after_input_grad
    return {
        "activation_bytes": saved,
        "input_grad_bytes": saved - after_input_grad,
        "transient_bytes": np.full(len(layers), shared.layer_recomputed),
    }
