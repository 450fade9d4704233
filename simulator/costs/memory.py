"""Bytes on one GPU: weights, gradients and optimizer state of each stage, and memory over time."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.costs.costs import Costs
from simulator.costs.kernels import ELEMENT_BYTES
from simulator.costs.parameters import equal_split, layer_parameters, stage_parameters
from simulator.frameworks import load_framework
from simulator.job import Job
from simulator.kernel import kernel
from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = [
    "fixed_bytes",
    "layer_parameters",
    "memory_samples",
    "stage_parameters",
    "static_bytes",
]

Size = TypeVar("Size", float, NDArray[np.float64])
Statics = tuple[Size, Size, Size]

ACTIVATION_BYTES = 2


def static_bytes(parameters: Size, job: Job, experts: Size | None = None) -> Statics[Size]:
    """Weights, gradients and optimizer state of some parameters on one GPU. [bytes]

    2 + 4 + 12 = 18 bytes a parameter with fp32 gradients, 16 with 16-bit ones. zero_stage splits
    over the plan's shards: 1 the 12, 2 the gradients too, 3 the weights too. A framework may keep
    other copies, as 2 bytes more of gradients that its products do not add up; products in nvfp4
    need their weights cast, both ways, from the first microbatch on. `experts` are split over the
    GPUs that hold the same ones. An offloaded optimizer takes nothing.
    Sources: NVIDIA/Megatron-LM, docs/source/distrib_optimizer.md; Rajbhandari et al., "ZeRO",
    SC'20, section 3. The former's table has 20 for 16-bit gradients of the replicated optimizer,
    which copies them to fp32 during the step; that copy is no lasting state and is left out.
    """
    plan, framework = job.plan, load_framework(job.plan.framework)
    weight = framework.weight_bytes
    weight += 2 * ELEMENT_BYTES["nvfp4"] if plan.dtype == "nvfp4" else 0.0
    gradient = 4 if plan.grad_dtype == "fp32" else 2
    beside = gradient == 4 and weight == 2 and not framework.fused_accumulation
    if beside and plan.zero_stage < 2:
        gradient = 6  # the product's own 16-bit gradient lies beside the sum
    master = framework.optimizer_bytes if plan.offload == "none" else 0.0
    if plan.zero_stage == 0:
        return weight * parameters, gradient * parameters, master * parameters
    split = equal_split(parameters, experts, plan) / plan.shards
    return (
        weight * (split if plan.zero_stage == 3 else parameters),
        gradient * (split if plan.zero_stage >= 2 else parameters),
        master * split,
    )


def fixed_bytes(job: Job) -> NDArray[np.float64]:
    """What every rank holds besides its model and its activations, shape (1,). [bytes]

    The CUDA context, libraries and NCCL's buffers; with sequence parallelism a tensor of the whole
    sequence, gathered before a product and one not yet scattered behind it; with zero_stage 3 the
    weights of the layer at work and the next one's, and a layer's gradients.
    Source: PyTorch, FullyShardedDataParallel (prefetching limits itself to two units).
    """
    model, plan = job.model, job.plan
    framework = load_framework(plan.framework)
    nbytes = framework.context_bytes
    if plan.sequence_parallel:
        tokens = plan.micro_batch_size * model.seq_len / plan.cp
        nbytes += 2 * ACTIVATION_BYTES * tokens * model.hidden_size
    if plan.zero_stage == 3:
        layer = layer_parameters(model, plan.tp, plan.ep, plan.expert_tp)
        table = model.vocab_size * model.hidden_size / plan.tp
        nbytes += framework.weight_bytes * (2 * layer + table) + ACTIVATION_BYTES * layer
    return np.array([nbytes])


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
    base = timeline.held @ static[: timeline.num_stages] + costs.fixed_bytes
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
