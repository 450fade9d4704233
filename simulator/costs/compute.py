"""Time of every operator of a stage, forward and backward, on one GPU of a tensor-parallel group.

The backward is split as zero-bubble schedules need it: the part that makes the gradient of the
input, and the part that makes the gradient of the weights. Kernels are those of Megatron-LM:
bias with GELU, bias with dropout and residual, and scale with mask and softmax are fused.
Source of which tensors each operator moves: Korthikanti et al., "Reducing Activation Recomputation
in Large Transformer Models", MLSys 2023, Figures 2 and 3 and section 4.1.
"""

from typing import NamedTuple

from simulator.costs.kernels import (
    ACCUMULATE_BYTES,
    BYTES,
    FLASH_BACKWARD_SHARE,
    NORM_SHARE,
    flash_seconds,
    gemm_seconds,
    stream_seconds,
)
from simulator.job import Job

__all__ = [
    "Operator",
    "core_operators",
    "embedding_operators",
    "head_operators",
    "layer_operators",
    "optimizer_seconds",
]

MASK = 1  # bytes of one element of a dropout mask
FP32 = 4  # bytes

# Bytes that Megatron's mixed-precision optimizer moves for one parameter: unscale the fp32 gradient
# and look for infinities 8, norm 4, clip 8; Adam reads gradient, weight and two moments 16 and
# writes three 12; copy the weight to 16 bits 6. Source: NVIDIA/Megatron-LM, megatron/optimizer.
OPTIMIZER_BYTES = 54
ZERO_GRADIENT_BYTES = 4


class Operator(NamedTuple):
    """One operator of a stage; a backward is the sum of its two gradients."""

    name: str
    forward: float  # [s]
    input_grad: float  # [s]
    weight_grad: float = 0.0  # [s]


def _linear(job: Job, name: str, columns: float, rows: float, *, bias: bool) -> Operator:
    """A product with a weight of `rows` x `columns` on this GPU, and its two gradients.

    The bias's gradient reads the output's gradient once; the bias itself is added by the next
    fused kernel.
    """
    gpu, plan = job.cluster.gpu, job.plan
    tokens = plan.micro_batch_size * job.model.seq_len
    grad_bias = stream_seconds(BYTES * tokens * columns, gpu) if bias else 0.0
    accumulate = ACCUMULATE_BYTES * rows * columns / (1 if plan.grad_dtype == "fp32" else 2)
    speed = gpu.memory_bandwidth * gpu.memory_efficiency
    return Operator(
        name,
        gemm_seconds(tokens, columns, rows, gpu, dtype=plan.dtype),
        gemm_seconds(tokens, rows, columns, gpu, dtype=plan.dtype),
        gemm_seconds(rows, columns, tokens, gpu, dtype=plan.dtype) + accumulate / speed + grad_bias,
    )


def _norm(job: Job, name: str, elements: float) -> Operator:
    """A normalisation: forward reads and writes; backward reads two tensors and writes one."""
    gpu = job.cluster.gpu
    return Operator(
        name,
        stream_seconds(2 * BYTES * elements, gpu, share=NORM_SHARE),
        stream_seconds(3 * BYTES * elements, gpu, share=NORM_SHARE),
    )


def _elementwise(job: Job, name: str, forward: float, backward: float) -> Operator:
    """A fused elementwise kernel, by the bytes that each of its passes moves."""
    gpu = job.cluster.gpu
    return Operator(name, stream_seconds(forward, gpu), stream_seconds(backward, gpu))


def _residual(job: Job, name: str, elements: float) -> Operator:
    """Bias, dropout and residual in one kernel; its backward, and the sum of two gradients.

    Forward: two reads, one write and the mask. Backward: read the gradient and the mask and write
    with dropout, nothing without; then add the residual's gradient, two reads and a write.
    """
    mask = MASK * elements if job.model.dropout else 0.0
    back = 2 * BYTES * elements + mask if job.model.dropout else 0.0
    return _elementwise(job, name, 3 * BYTES * elements + mask, back + 3 * BYTES * elements)


def core_operators(job: Job) -> tuple[Operator, ...]:
    """Scores, softmax, dropout and context: what selective recomputation repeats."""
    model, plan, gpu = job.model, job.plan, job.cluster.gpu
    heads = plan.micro_batch_size * model.num_attention_heads / plan.tp
    s, d = model.seq_len, model.head_dim
    if plan.attention == "flash":
        forward = flash_seconds(heads, s, d, gpu, dtype=plan.dtype)
        # five products instead of two: 2.5 times the FLOPs (T. Dao, FlashAttention-2, section 3.1)
        return (Operator("flash attention", forward, 2.5 * forward / FLASH_BACKWARD_SHARE),)
    share = gpu.batched_gemm_share
    scores = gemm_seconds(s, s, d, gpu, dtype=plan.dtype, batch=heads) / share
    context = gemm_seconds(s, d, s, gpu, dtype=plan.dtype, batch=heads) / share
    matrix = heads * s * s
    return (
        Operator("scores", scores, 2 * context),
        _elementwise(job, "softmax", 2 * BYTES * matrix, 3 * BYTES * matrix),
        _elementwise(
            job, "attention dropout", *(2 * ((2 * BYTES + MASK) * matrix * model.dropout,))
        ),
        Operator("context", context, scores + context),
        # the context's heads are put side by side again, and its gradient's apart
        _elementwise(job, "transpose", *(2 * (2 * BYTES * heads * s * d,))),
    )


def _attention(job: Job) -> tuple[Operator, ...]:
    model, plan = job.model, job.plan
    tokens = plan.micro_batch_size * model.seq_len
    query = model.num_attention_heads * model.head_dim / plan.tp
    key = model.num_key_value_heads * model.head_dim / plan.tp
    operators = [
        _linear(job, "qkv", query + 2 * key, model.hidden_size, bias=model.bias or model.qkv_bias)
    ]
    if model.qk_norm:
        operators.append(_norm(job, "query and key norm", tokens * (query + key)))
    if not model.learned_positions:
        rotated = 2 * BYTES * tokens * (query + key)
        operators.append(_elementwise(job, "rotary positions", rotated, rotated))
    return (
        *operators,
        *core_operators(job),
        _linear(job, "projection", model.hidden_size, query, bias=model.bias),
    )


def _mlp(job: Job) -> tuple[Operator, ...]:
    """Up, activation, down. GELU reads one and writes one; SwiGLU reads two and writes one."""
    model, plan = job.model, job.plan
    width = model.intermediate_size / plan.tp
    elements = BYTES * plan.micro_batch_size * model.seq_len * width
    gates = 2 if model.gated_mlp else 1
    return (
        _linear(job, "mlp up", gates * width, model.hidden_size, bias=model.bias),
        _elementwise(job, "activation", (gates + 1) * elements, (2 * gates + 1) * elements),
        _linear(job, "mlp down", model.hidden_size, width, bias=model.bias),
    )


def _hidden_elements(job: Job) -> float:
    """Elements of the residual stream that this GPU normalises and drops out. [1]"""
    elements = float(job.plan.micro_batch_size * job.model.seq_len * job.model.hidden_size)
    return elements / job.plan.tp if job.plan.sequence_parallel else elements


def layer_operators(job: Job) -> tuple[Operator, ...]:
    """One transformer layer, in order of the forward, without its communication."""
    elements = _hidden_elements(job)
    return (
        _norm(job, "attention norm", elements),
        *_attention(job),
        _residual(job, "attention residual", elements),
        _norm(job, "mlp norm", elements),
        *_mlp(job),
        _residual(job, "mlp residual", elements),
    )


def embedding_operators(job: Job) -> tuple[Operator, ...]:
    """Look-up, positions and dropout on the first stage; no gradient of the input.

    The weight's gradient is dense: zeroed, scattered into, and added to the fp32 gradient.
    """
    model, plan, gpu = job.model, job.plan, job.cluster.gpu
    elements = float(plan.micro_batch_size * model.seq_len * model.hidden_size)
    forward = 2 * BYTES * elements
    if model.learned_positions:
        forward += 3 * BYTES * elements
    if model.dropout:
        forward += (2 * BYTES + MASK) * _hidden_elements(job)
    table = model.vocab_size * model.hidden_size / plan.tp
    backward = 3 * BYTES * elements + (2 * BYTES + 2 * FP32) * table
    return (
        Operator("embedding", stream_seconds(forward, gpu), 0.0, stream_seconds(backward, gpu)),
    )


def head_operators(job: Job) -> tuple[Operator, ...]:
    """Final norm, logits and cross-entropy over the split vocabulary, on the last stage.

    Cross-entropy on fp32 logits in plain kernels: convert 6 bytes an element, maximum 4, subtract
    8, exponentiate 8, sum 4, divide 8; backward 8 and convert 6.
    Source: NVIDIA/Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py.
    """
    model, plan = job.model, job.plan
    columns = model.vocab_size / plan.tp
    logits = plan.micro_batch_size * model.seq_len * columns
    return (
        _norm(job, "final norm", _hidden_elements(job)),
        _linear(job, "logits", columns, model.hidden_size, bias=False),
        _elementwise(job, "cross-entropy", 38 * logits, 14 * logits),
    )


def optimizer_seconds(parameters: float, job: Job) -> float:
    """Adam's step, gradient clipping and zeroing for the parameters of one GPU. [s]

    54 bytes a parameter, over the data-parallel group with zero_stage 1; 4 more to zero its
    gradient; 16-bit gradients are first copied to fp32, 6 bytes. At 58e12 bytes/s, 1e12 parameters
    take a second.
    """
    nbytes = OPTIMIZER_BYTES + (0 if job.plan.grad_dtype == "fp32" else BYTES + FP32)
    shards = job.plan.dp if job.plan.zero_stage == 1 else 1
    return stream_seconds(parameters * (nbytes / shards + ZERO_GRADIENT_BYTES), job.cluster.gpu)
