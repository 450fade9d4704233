"""Bytes on one GPU: weights, gradients and optimizer state of each stage, and memory over time."""

import numpy as np
from numpy.typing import NDArray

from simulator.costs.costs import Costs
from simulator.job import Job, Model
from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = ["layer_parameters", "memory_samples", "stage_parameters", "static_bytes"]

OPTIMIZER_BYTES = 12  # fp32 master weight and Adam's two moments


def layer_parameters(model: Model, tp: int = 1) -> float:
    """Parameters of one layer on one GPU of a tensor-parallel group. [1]

    Norms, and biases of the row-parallel products, are on every GPU; the rest is split.

    >>> gpt = Model(name="x", num_hidden_layers=1, hidden_size=8, num_attention_heads=2,
    ...     vocab_size=8, seq_len=2, bias=True, norm="layernorm")
    >>> layer_parameters(gpt) == 12 * 8**2 + 13 * 8
    True
    """
    whole = 2 * _norm_parameters(model)
    if model.bias:
        whole += 2 * model.hidden_size
    if model.qk_norm:
        whole += 2 * model.head_dim
    return (model.parameters_per_layer - whole) / tp + whole


def _norm_parameters(model: Model) -> int:
    return model.hidden_size * (2 if model.norm == "layernorm" else 1)


def stage_parameters(job: Job) -> tuple[float, ...]:
    """Parameters of each stage on one GPU, exactly. [1]

    The first stage holds the embeddings, the last the final norm and the output layer, which with
    tied embeddings is another copy of the embedding unless one stage holds both.
    """
    model, tp, stages = job.model, job.plan.tp, job.plan.num_stages
    layer = layer_parameters(model, tp)
    counts = [layer * layers for layers in job.layers_per_stage]
    table = model.vocab_size * model.hidden_size / tp
    counts[0] += table
    if model.learned_positions:
        counts[0] += model.seq_len * model.hidden_size
    counts[-1] += _norm_parameters(model)
    if not (model.tie_word_embeddings and stages == 1):
        counts[-1] += table
    return tuple(counts)


def static_bytes(parameters: float, job: Job) -> tuple[float, float, float]:
    """Weights, gradients and optimizer state of some parameters on one GPU. [bytes]

    2 + 4 + 12 = 18 bytes a parameter with fp32 gradients, 16 with 16-bit ones; zero_stage 1 splits
    the 12 over dp. Source: NVIDIA/Megatron-LM, docs/source/distrib_optimizer.md. Its table has 20
    for 16-bit gradients of the replicated optimizer, which copies them to fp32 during the step;
    that copy is no lasting state and is left out.
    """
    gradient = 4 if job.plan.grad_dtype == "fp32" else 2
    shards = job.plan.dp if job.plan.zero_stage == 1 else 1
    return 2 * parameters, gradient * parameters, OPTIMIZER_BYTES * parameters / shards


def memory_samples(timeline: Timeline, costs: Costs) -> Timeline:
    """The timeline with each rank's memory, as one sample per time at which it changes.

    F allocates its stage's activations at its start; B frees them at its end; I frees its part and
    W the rest at their ends; B and I hold the recomputed activations while they run. The base
    level, from time 0, is the weights, gradients and optimizer state of the rank's stages.

    >>> from simulator.costs import uniform
    >>> def column(*values, dtype=np.int32):
    ...     return np.array(values, dtype)
    >>> spans = Timeline(rank=column(0, 0), stage=column(0, 0), kind=column(Kind.F, Kind.B),
    ...     microbatch=column(0, 0), start=column(1, 2, dtype=float), end=column(2, 4, dtype=float))
    >>> memory_samples(spans, uniform(1, 1.0, 2.0)).memory_of(0)
    (array([0., 1., 4.]), array([0., 1., 0.]))
    """
    kind, stage = timeline.kind, timeline.stage
    if timeline.num_spans and timeline.num_stages > costs.num_stages:
        raise ValueError(
            f"the timeline has {timeline.num_stages} stages, but the costs have "
            f"{costs.num_stages}; estimate them for the same plan"
        )
    at_start = np.zeros((len(Kind), costs.num_stages))
    at_end = np.zeros_like(at_start)
    at_start[Kind.F] = costs.activation_bytes
    at_start[Kind.B] = at_start[Kind.I] = costs.transient_bytes
    at_end[Kind.B] = -costs.activation_bytes - costs.transient_bytes
    at_end[Kind.I] = -costs.input_grad_bytes - costs.transient_bytes
    at_end[Kind.W] = costs.input_grad_bytes - costs.activation_bytes
    both = np.stack([at_start, at_end])[:, kind, stage] * costs.share_of_tokens(timeline.microbatch)
    changes = both.T.ravel()  # start, end, start, end, ...
    changing = np.flatnonzero(changes)
    time = np.stack([timeline.start, timeline.end], axis=1).ravel()[changing]
    ranks = np.arange(timeline.num_ranks, dtype=np.int32)
    return timeline.with_memory(
        *_levels(
            np.concatenate([ranks, timeline.rank[changing // 2]]),
            np.concatenate([np.zeros(len(ranks)), time]),
            np.concatenate([_base_levels(timeline, costs), changes[changing]]),
        )
    )


def _base_levels(timeline: Timeline, costs: Costs) -> NDArray[np.float64]:
    """Static bytes of the stages that each rank holds, shape (num_ranks,)."""
    held = np.zeros((timeline.num_ranks, costs.num_stages), bool)
    held[timeline.rank, timeline.stage] = True
    static = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    return held @ static


def _levels(
    rank: NDArray[np.int32], time: NDArray[np.float64], change: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """Running sums of changes within each rank, at each distinct time."""
    order = np.argsort(time, kind="stable")
    order = order[np.argsort(rank[order], kind="stable")]
    rank, time, level = rank[order], time[order], np.cumsum(change[order])
    last = np.ones(len(rank), bool)  # of a rank's changes at one time
    last[:-1] = (rank[1:] != rank[:-1]) | (time[1:] != time[:-1])
    rank, time, level = rank[last], time[last], level[last]
    first = np.flatnonzero(rank[1:] != rank[:-1]) + 1  # where a rank's samples begin, but rank 0's
    carried = np.concatenate([np.zeros(1), level[first - 1]])  # sums of the ranks before
    return rank, time, level - carried[rank]
