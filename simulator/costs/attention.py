"""Operators of attention: projections, positions, and the core, eager or flash."""

from simulator.costs.kernels import (
    BYTES,
    FLASH_BACKWARD_SHARE,
    attention_product_seconds,
    flash_seconds,
)
from simulator.costs.operators import (
    MASK,
    Operator,
    elementwise,
    framework_of,
    linear,
    norm,
    soft_cap,
    tokens_of,
)
from simulator.job import Job, Model

__all__ = ["attention_operators", "core_operators"]

# Bytes for each element of queries and keys, at streaming speed, of rotary positions in PyTorch's
# kernels (two products, turned halves put together, a sum), forward and backward: 18 and 44 on
# A100, 27 and 44 on GH200. Source: RoPE rows of estimate-train-time (arXiv 2509.22832), queries and
# keys; benchmarks/fit_kernels.py.
PLAIN_ROTARY_BYTES = (18.0, 44.0)

# Bytes for each element of the score matrix, at streaming speed, of scale, mask and softmax in
# PyTorch's kernels, forward and backward: mask 8 and 31, softmax 7.5 and 12 on A100, 8 and 31, 10
# and 12 on GH200. Source: fillmask and softmax rows of estimate-train-time;
# benchmarks/fit_kernels.py.
PLAIN_SOFTMAX_BYTES = (15.5, 42.5)


def core_operators(job: Job) -> tuple[Operator, ...]:
    """Scores, softmax, dropout and context: what selective recomputation repeats.

    Eager attention computes the whole matrix and masks what lies outside a window. A sink is one
    score more in a row of thousands, and counts as none.
    """
    model, plan, gpu = job.model, job.plan, job.cluster.gpu
    if plan.attention == "flash":
        forward = _flash(job)
        # five products instead of two: 2.5 times the FLOPs (T. Dao, FlashAttention-2, section 3.1)
        return (Operator("flash attention", forward, 2.5 * forward / FLASH_BACKWARD_SHARE),)
    heads = plan.micro_batch_size * model.num_attention_heads / plan.tp
    queries, keys = model.seq_len / plan.cp, model.seq_len
    dtype = plan.wide_dtype
    width = _width(model)
    share = framework_of(job).product_share
    scores, context = (
        attention_product_seconds(queries, n, k, gpu, dtype=dtype, batch=heads, share=share)
        for n, k in ((keys, width), (width, keys))
    )
    matrix = heads * queries * keys
    forward, backward = (2 * BYTES, 3 * BYTES)
    fused = framework_of(job).fused_softmax
    softmax = (forward, backward) if fused else PLAIN_SOFTMAX_BYTES
    ahead, back = (nbytes * matrix for nbytes in softmax)
    cap = model.attn_logit_softcapping is not None
    operators = [
        Operator("scores", scores, 2 * context),
        *([soft_cap(job, matrix)] if cap else []),
        elementwise(job, "softmax", ahead, back, launches=1 if fused else 3),
    ]
    if model.dropout:
        drop = (2 * BYTES + MASK) * matrix
        operators.append(elementwise(job, "attention dropout", drop, drop))
    # the context's heads are put side by side again and its gradient's apart; the gradients of
    # queries, keys and values are put together
    turned = 2 * BYTES * heads * queries * width
    return (
        *operators,
        Operator("context", context, scores + context),
        elementwise(job, "transpose", turned, 4 * turned),
    )


def _width(model: Model) -> float:
    """Mean width of a head's queries and values. [1]"""
    return (model.query_width + model.value_width) / (2 * model.num_attention_heads)


def _flash(job: Job) -> float:
    """Forward of flash attention, mean over layers with and without a window. [s]

    A kernel skips the blocks outside the window and computes those at its edge whole: half a block
    a query more, beside the one at the diagonal. Source: Dao-AILab/flash-attention,
    csrc/flash_attn/src/flash_fwd_kernel.h (n_block_min and n_block_max, local attention).
    """
    model, plan, gpu = job.model, job.plan, job.cluster.gpu

    def seconds(keys: float) -> float:
        return flash_seconds(
            plan.micro_batch_size * model.num_attention_heads / plan.tp,
            model.seq_len / plan.cp,
            gpu,
            head_dim=_width(model),
            keys=keys,
            version=framework_of(job).flash_version,
            dtype=plan.wide_dtype,
            exponentials=1 if model.attn_logit_softcapping is None else 2,
        )

    whole = float(model.seq_len)
    if model.window_reach == 1:
        return seconds(whole)
    assert model.sliding_window is not None
    edge = gpu.flash_rows * (1 - model.sliding_window / whole)  # `keys` is twice the mean
    window = seconds(min(whole, whole * model.window_reach + edge))
    full = model.num_full_attention_layers / model.num_hidden_layers
    return full * seconds(whole) + (1 - full) * window


def _rotary(job: Job, elements: float) -> Operator:
    """Rotary positions of queries and keys."""
    if framework_of(job).fused_rotary:
        moved = 2 * BYTES * elements
        return elementwise(job, "rotary positions", moved, moved)
    forward, backward = (nbytes * elements for nbytes in PLAIN_ROTARY_BYTES)
    return elementwise(job, "rotary positions", forward, backward, launches=8)


def _latent(job: Job) -> list[Operator]:
    """Queries, keys and values of latent attention, down to a narrow vector and up again.

    Every tensor-parallel peer makes the narrow vectors whole.
    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.1.1.
    """
    model, tokens = job.model, tokens_of(job)
    assert model.kv_lora_rank is not None
    heads = model.num_attention_heads
    query = model.query_width / job.plan.tp
    up = (heads * model.head_dim + model.value_width) / job.plan.tp
    narrow = model.kv_lora_rank + model.qk_rope_head_dim
    operators = [
        linear(job, "key and value down", narrow, model.hidden_size),
        norm(job, "key and value norm", tokens * model.kv_lora_rank),
        linear(job, "key and value up", up, model.kv_lora_rank),
    ]
    if model.q_lora_rank is None:
        return [linear(job, "query", query, model.hidden_size), *operators]
    return [
        linear(job, "query down", model.q_lora_rank, model.hidden_size),
        norm(job, "query norm", tokens * model.q_lora_rank),
        linear(job, "query up", query, model.q_lora_rank),
        *operators,
    ]


def attention_operators(job: Job) -> tuple[Operator, ...]:
    """Everything between the norm and the residual sum, in order of the forward."""
    model, plan = job.model, job.plan
    tokens = tokens_of(job)
    query = model.query_width / plan.tp
    key = model.num_key_value_heads * model.head_dim / plan.tp
    if model.is_latent:
        operators = _latent(job)
        rotated = tokens * (model.num_attention_heads / plan.tp + 1) * model.qk_rope_head_dim
    else:
        bias = model.bias or model.qkv_bias
        operators = [linear(job, "qkv", query + 2 * key, model.hidden_size, bias=bias)]
        rotated = tokens * (query + key)
        if model.qk_norm:
            operators.append(norm(job, "query and key norm", rotated))
    if not model.learned_positions:
        operators.append(_rotary(job, rotated))
    value = model.value_width / plan.tp
    projection = linear(job, "projection", model.hidden_size, value, bias=model.bias)
    return (*operators, *core_operators(job), projection)
