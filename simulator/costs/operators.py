"""The operators that layers are made of, fused or not as the framework does it.

The backward is split as zero-bubble schedules need it: the part that makes the gradient of the
input, and the part that makes the gradient of the weights. A memory-bound operator costs the bytes
that its kernels move. Source of which tensors each operator moves: Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models", MLSys 2023, Figures 2 and 3 and section 4.1.
"""

from typing import NamedTuple

from simulator.costs.kernels import (
    ACCUMULATE_BYTES,
    BYTES,
    ELEMENT_BYTES,
    LOOSE_NORM_SHARE,
    NORM_SHARE,
    gemm_seconds,
    stream_seconds,
)
from simulator.frameworks import Framework, load_framework
from simulator.job import Job

__all__ = [
    "FP32",
    "MASK",
    "Operator",
    "activation",
    "elementwise",
    "framework_of",
    "hidden_elements",
    "linear",
    "norm",
    "residual",
    "soft_cap",
    "tokens_of",
]

MASK = 1  # bytes of one element of a dropout mask
FP32 = 4  # bytes

# Bytes for each element, at streaming speed, of a normalisation that is no kernel of its own but
# some of PyTorch's (convert, square, mean, root, product, convert), forward and backward: 20.5 and
# 96 on A100, 24 and 97 on GH200. Source: RMSlayernorm rows of estimate-train-time (arXiv
# 2509.22832); benchmarks/fit_kernels.py.
PLAIN_NORM_BYTES = (22.0, 97.0)

# fp8: the input of a product is cast, and laid down once more turned, for the weight gradient:
# read 2 bytes, write 1 and 1. The gradient of its output likewise. Source:
# NVIDIA/TransformerEngine, cast_transpose kernels of its linear layers.
# nvfp4: read for its largest element, before and after the random Hadamard transform; read, scaled
# and written; read, transformed, scaled and written turned. Sources: "Pretraining Large Language
# Models with NVFP4", 2025 (arXiv 2509.25149), section 4; NVIDIA/TransformerEngine,
# common/hadamard_transform (amax, and transform fused with the turned cast).
CAST_BYTES = {
    "fp8": BYTES + 2 * ELEMENT_BYTES["fp8"],
    "nvfp4": 3 * BYTES + 2 * ELEMENT_BYTES["nvfp4"],
}


class Operator(NamedTuple):
    """One operator of a stage; a backward is the sum of its two gradients."""

    name: str
    forward: float  # [s]
    input_grad: float  # [s]
    weight_grad: float = 0.0  # [s]
    launches: float = 1  # operators that the host issues in a forward [1]


def framework_of(job: Job) -> Framework:
    """What the plan's framework does by default."""
    return load_framework(job.plan.framework)


def tokens_of(job: Job) -> float:
    """Tokens of one microbatch on one GPU. [1]"""
    return job.plan.micro_batch_size * job.model.seq_len / job.plan.cp


def hidden_elements(job: Job) -> float:
    """Elements of the residual stream that this GPU normalises and drops out. [1]"""
    elements = tokens_of(job) * job.model.hidden_size
    return elements / job.plan.tp if job.plan.sequence_parallel else elements


def elementwise(
    job: Job, name: str, forward: float, backward: float, *, launches: int = 1
) -> Operator:
    """A memory-bound operator of `launches` kernels, by the bytes that its passes move."""
    gpu = job.cluster.gpu
    more = (launches - 1) * gpu.launch_overhead
    return Operator(
        name,
        stream_seconds(forward, gpu) + more,
        stream_seconds(backward, gpu) + more,
        launches=launches,
    )


def _accumulate_bytes(job: Job) -> float:
    """Bytes, for a parameter, of adding a microbatch's gradient to the step's. [bytes]

    Fused into the product, 3 (of 8, half hidden) in fp32. Else a kernel reads the new gradient and
    reads and writes the old. Gradients that are split are added up after their reduction, shard by
    shard. Source: NVIDIA/Megatron-LM, --no-gradient-accumulation-fusion; PyTorch, FSDP.
    """
    plan = job.plan
    width = FP32 if plan.grad_dtype == "fp32" else BYTES
    if plan.zero_stage == 3:
        return 0.0
    if framework_of(job).fused_accumulation:
        return ACCUMULATE_BYTES * width / FP32
    return BYTES + 2 * width


def linear(
    job: Job,
    name: str,
    columns: float,
    rows: float,
    *,
    bias: bool = False,
    tokens: float | None = None,
    experts: float = 1,
) -> Operator:
    """A product with a weight of `rows` x `columns` on this GPU, and its two gradients.

    `tokens` go to each of `experts` such weights in one grouped product; in fp8 or nvfp4 the host
    casts and issues it expert by expert (NVIDIA/TransformerEngine, grouped_linear.py). The bias's
    gradient reads the output's gradient once; the bias itself is added by the product or the next
    fused kernel.
    """
    gpu, plan = job.cluster.gpu, job.plan
    tokens = tokens_of(job) if tokens is None else tokens
    sizes = ((tokens, columns, rows), (tokens, rows, columns), (rows, columns, tokens))
    share = framework_of(job).product_share
    forward, input_grad, weight_grad = (
        gemm_seconds(m, n, k, gpu, dtype=plan.dtype, batch=experts, share=share)
        for m, n, k in sizes
    )
    weight_grad += stream_seconds(_accumulate_bytes(job) * rows * columns * experts, gpu)
    if bias:
        weight_grad += stream_seconds(BYTES * tokens * columns * experts, gpu)
    launches = 1.0
    if plan.dtype in CAST_BYTES:
        cast = CAST_BYTES[plan.dtype] * tokens * experts
        forward += stream_seconds(cast * rows, gpu)
        input_grad += stream_seconds(cast * columns, gpu)
        launches = experts
    return Operator(name, forward, input_grad, weight_grad, launches)


def norm(job: Job, name: str, elements: float) -> Operator:
    """A normalisation: forward reads and writes; backward reads two tensors and writes one."""
    gpu, framework = job.cluster.gpu, framework_of(job)
    if not framework.fused_norm:
        forward, backward = (nbytes * elements for nbytes in PLAIN_NORM_BYTES)
        return elementwise(job, name, forward, backward, launches=6)
    return Operator(
        name,
        stream_seconds(2 * BYTES * elements, gpu, share=NORM_SHARE),
        stream_seconds(
            3 * BYTES * elements,
            gpu,
            share=NORM_SHARE if framework.persistent_norm else LOOSE_NORM_SHARE,
        ),
    )


def residual(job: Job, name: str, elements: float) -> Operator:
    """Bias, dropout and residual; its backward, and the sum of two gradients.

    Fused, forward: two reads, one write and the mask; apart, dropout writes what the sum reads.
    Backward: read the gradient and the mask and write with dropout, nothing without; then add the
    residual's gradient, two reads and a write.
    """
    add = 3 * BYTES * elements
    if not job.model.dropout:
        return elementwise(job, name, add, add)
    drop = (2 * BYTES + MASK) * elements
    if framework_of(job).fused_residual:
        return elementwise(job, name, add + MASK * elements, drop + add)
    return elementwise(job, name, drop + add, drop + add, launches=2)


def soft_cap(job: Job, elements: float) -> Operator:
    """Values divided, through a tanh and multiplied: three kernels, or one of a compiler.

    Source: Gemma Team, "Gemma 2", 2024 (arXiv 2408.00118), section 2: logit soft-capping.
    """
    if framework_of(job).compiled:
        return elementwise(job, "soft cap", 2 * BYTES * elements, 3 * BYTES * elements)
    ahead, back = 3 * 2 * BYTES * elements, 7 * BYTES * elements
    return elementwise(job, "soft cap", ahead, back, launches=3)


def activation(job: Job, elements: float) -> Operator:
    """The feed-forward layer's activation of `elements` columns times tokens.

    GELU reads one and writes one; SwiGLU reads two and writes one. Apart, SwiGLU is a SiLU and a
    product, and its backward three products, the SiLU's own and the two halves put together.
    """
    nbytes = BYTES * elements
    if not job.model.gated_mlp:
        return elementwise(job, "activation", 2 * nbytes, 3 * nbytes)
    if framework_of(job).fused_activation:
        return elementwise(job, "activation", 3 * nbytes, 5 * nbytes)
    return elementwise(job, "activation", 5 * nbytes, 13 * nbytes, launches=2)
