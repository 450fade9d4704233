"""Bytes on one GPU: weights, gradients and optimizer state of each stage, and memory over time."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.costs.costs import Costs
from simulator.job import Job, Model
from simulator.kernel import kernel
from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = ["layer_parameters", "memory_samples", "stage_parameters", "static_bytes"]

Size = TypeVar("Size", float, NDArray[np.float64])

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


def static_bytes(parameters: Size, job: Job) -> tuple[Size, Size, Size]:
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
    static = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    base = timeline.held @ static[: timeline.num_stages]
    most = timeline.num_ranks + sum(
        np.count_nonzero(timeline.kind == kind)
        for kind in range(Kind.W + 1)
        for table in (at_start, at_end)
        if table[kind].any()
    )
    rank, time, nbytes = np.empty(most, np.int32), np.empty(most), np.empty(most)
    columns = (timeline.rank, timeline.stage, timeline.kind, timeline.microbatch)
    size = _sample(
        *columns,
        timeline.start,
        timeline.end,
        timeline.on_stream,
        timeline.by_end,
        at_start,
        at_end,
        costs.slice_tokens,
        base,
        rank,
        time,
        nbytes,
    )
    for column in (rank, time, nbytes):
        column.resize(size, refcheck=False)  # in place: a copy would double the peak
    return timeline.with_memory(rank, time, nbytes)


@kernel
def _sample(
    rank: NDArray[np.int32],
    stage: NDArray[np.int32],
    kind: NDArray[np.int8],
    microbatch: NDArray[np.int32],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    on_stream: NDArray[np.int32],
    by_end: NDArray[np.int32],
    at_start: NDArray[np.float64],
    at_end: NDArray[np.float64],
    share: NDArray[np.float64],
    base: NDArray[np.float64],
    sample_rank: NDArray[np.int32],
    sample_time: NDArray[np.float64],
    sample_bytes: NDArray[np.float64],
) -> int:
    """Merge each rank's starts and ends into samples, one for each time; return their number."""
    size, starting, ending, total = 0, 0, 0, len(on_stream)
    for here in range(len(base)):
        level, now = base[here], 0.0
        sample_rank[size], sample_time[size], sample_bytes[size] = here, now, level
        size += 1
        while True:
            starts = starting < total and rank[on_stream[starting]] == here
            ends = ending < total and rank[by_end[ending]] == here
            if starts and not (ends and end[by_end[ending]] < start[on_stream[starting]]):
                i = on_stream[starting]
                time, change = start[i], at_start[kind[i], stage[i]]
                starting += 1
            elif ends:
                i = by_end[ending]
                time, change = end[i], at_end[kind[i], stage[i]]
                ending += 1
            else:
                break
            if change == 0.0:
                continue
            if microbatch[i] >= 0:
                change *= share[microbatch[i] % len(share)]
            level += change
            if time != now:
                now = time
                sample_rank[size], sample_time[size] = here, now
                size += 1
            sample_bytes[size - 1] = level
    return size
