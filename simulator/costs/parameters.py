"""Parameters that one GPU holds, by layer and by stage."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.job import Job, Model, Plan

Size = TypeVar("Size", float, NDArray[np.float64])

__all__ = [
    "computed_layers",
    "dense_layers",
    "equal_split",
    "expert_parameters",
    "layer_parameters",
    "sparse_layers",
    "stage_experts",
    "stage_parameters",
]


def layer_parameters(model: Model, tp: int = 1, ep: int = 1, etp: int | None = None) -> float:
    """Parameters of one layer on one GPU of a tensor- and an expert-parallel group. [1]

    Norms, the router, the projections to latent vectors and biases of the row-parallel products are
    on every GPU; the rest is split over tp, and experts over ep and over etp, tp when left out.

    >>> gpt = Model(name="x", num_hidden_layers=1, hidden_size=8, num_attention_heads=2,
    ...     vocab_size=8, seq_len=2, bias=True, norm="layernorm")
    >>> layer_parameters(gpt) == 12 * 8**2 + 13 * 8
    True
    """
    whole = _whole_parameters(model)
    if not model.is_sparse:
        return (model.parameters_per_layer - whole) / tp + whole
    whole += model.router_parameters
    routed = model.num_experts * model.expert_parameters
    rest = (model.parameters_per_layer - routed - whole) / tp
    return rest + whole + expert_parameters(model, tp if etp is None else etp, ep)


def expert_parameters(model: Model, etp: int = 1, ep: int = 1) -> float:
    """Parameters of one layer's routed experts on one GPU. [1]"""
    return model.num_experts * model.expert_parameters / (etp * ep)


def equal_split(parameters: Size, experts: Size | None, plan: Plan) -> Size:
    """Parameters that, split over `plan.shards`, leave each GPU as many as zero_stage leaves. [1]

    The `experts` among them are split over the GPUs that hold the same ones. Source:
    NVIDIA/Megatron-LM, megatron/core/optimizer/__init__.py (expert_data_parallel group).
    """
    if experts is None or not plan.splits_experts:
        return parameters
    return parameters + (plan.shards / plan.expert_replicas - 1) * experts


def _dense_parameters(model: Model, tp: int) -> float:
    """A layer without experts on one GPU. [1]"""
    whole = _whole_parameters(model)
    return (model.dense_layer_parameters - whole) / tp + whole


def _whole_parameters(model: Model) -> int:
    """Parameters of a layer that every GPU of a tensor-parallel group holds. [1]"""
    whole = (4 if model.post_norm else 2) * _norm_parameters(model)
    if model.bias:
        whole += 2 * model.hidden_size
    if model.qk_norm:
        whole += 2 * model.head_dim
    if model.kv_lora_rank is not None:
        down = model.kv_lora_rank + model.qk_rope_head_dim
        whole += model.hidden_size * down + model.kv_lora_rank
        if model.q_lora_rank is not None:
            whole += (model.hidden_size + 1) * model.q_lora_rank
    return whole


def _norm_parameters(model: Model) -> int:
    return model.hidden_size * (2 if model.norm == "layernorm" else 1)


def stage_parameters(job: Job) -> tuple[float, ...]:
    """Parameters of each stage on one GPU, exactly. [1]

    The first stage holds the embeddings, the last the final norm and the output layer, which with
    tied embeddings is another copy of the embedding unless one stage holds both. Modules of
    multi-token prediction lie on the last stage, which needs the embedding too.
    """
    model, tp, stages = job.model, job.plan.tp, job.plan.num_stages
    layer = layer_parameters(model, tp, job.plan.ep, job.plan.expert_tp)
    counts = [layer * layers for layers in computed_layers(job)]
    if model.num_dense_layers:
        less = layer - _dense_parameters(model, tp)
        for stage, layers in enumerate(dense_layers(job)):
            counts[stage] -= layers * less
    table = model.vocab_size * model.hidden_size / tp
    counts[0] += table
    if model.learned_positions:
        counts[0] += model.seq_len * model.hidden_size
    counts[-1] += _norm_parameters(model)
    if not (model.tie_word_embeddings and stages == 1):
        counts[-1] += table
    modules = model.num_nextn_predict_layers
    if modules:
        norms = 3 * _norm_parameters(model)
        counts[-1] += modules * (2 * model.hidden_size**2 / tp + norms)
        if stages > 1 and not model.tie_word_embeddings:
            counts[-1] += table
    return tuple(counts)


def stage_experts(job: Job) -> tuple[float, ...]:
    """Parameters of routed experts among them, by stage. [1]"""
    one = expert_parameters(job.model, job.plan.expert_tp, job.plan.ep)
    return tuple(one * layers for layers in sparse_layers(job))


def computed_layers(job: Job) -> tuple[int, ...]:
    """Layers of each stage, with those of multi-token prediction on the last. [1]"""
    layers = job.layers_per_stage
    return (*layers[:-1], layers[-1] + job.model.num_nextn_predict_layers)


def sparse_layers(job: Job) -> tuple[int, ...]:
    """The same of layers that have experts. [1]"""
    if not job.model.is_sparse:
        return (0,) * job.plan.num_stages
    both = zip(computed_layers(job), dense_layers(job), strict=True)
    return tuple(layers - dense for layers, dense in both)


def dense_layers(job: Job) -> tuple[int, ...]:
    """Layers without experts on each stage of a model that has some with; all others' are 0. [1]"""
    left, found = job.model.num_dense_layers, []
    for layers in job.layers_per_stage:
        found.append(min(left, layers))
        left -= found[-1]
    return tuple(found)
