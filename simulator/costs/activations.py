"""Bytes that one microbatch's forward keeps for its backward, by operator.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys
2023, section 4 and Table 2, whose rows these functions equal for GPT with dropout and eager
attention; the same accounting by operator covers flash attention, grouped-query attention, gated
MLPs and no dropout. 16-bit activations, 1-byte masks.
"""

from simulator.job import Job

__all__ = [
    "core_bytes",
    "embedding_bytes",
    "head_bytes",
    "layer_bytes",
    "saved_layer_bytes",
    "weight_grad_bytes",
]

BYTES = 2  # of one fp16 or bf16 element
MASK = 1  # of one element of a dropout mask
FP32 = 4


def _tokens(job: Job) -> float:
    return float(job.plan.micro_batch_size * job.model.seq_len)


def _hidden_share(job: Job) -> int:
    """Over how many GPUs the residual stream is split. [1]"""
    return job.plan.tp if job.plan.sequence_parallel else 1


def _widths(job: Job) -> tuple[float, float, float]:
    """Queries, keys (or values), and feed-forward columns on one GPU. [1]"""
    model, tp = job.model, job.plan.tp
    query = model.num_attention_heads * model.head_dim / tp
    return query, model.num_key_value_heads * model.head_dim / tp, model.intermediate_size / tp


def core_bytes(job: Job) -> float:
    """What scores, softmax and dropout keep in one layer, 5 a s^2 b / t for GPT. [bytes]

    Eager: softmax output 2, dropout mask 1, dropout output 2 bytes an element of the score matrix.
    Flash attention keeps one fp32 statistic a row instead (T. Dao et al., "FlashAttention",
    NeurIPS 2022, algorithm 1).
    """
    model = job.model
    rows = _tokens(job) * model.num_attention_heads / job.plan.tp
    if job.plan.attention == "flash":
        return FP32 * rows
    return rows * model.seq_len * (2 * BYTES + MASK if model.dropout else BYTES)


def layer_bytes(job: Job) -> float:
    """Everything that one layer keeps without recomputation. [bytes]

    Per token: inputs of two norms, of the two column-parallel products and two masks, 10 h, split
    only with sequence parallelism; queries, keys, values, the projection's input and the MLP's two
    wide tensors, 24 h / t; and the attention core. Table 2: s b h (10 + 24 / t + 5 a s / (h t)).
    """
    model = job.model
    query, key, width = _widths(job)
    hidden = model.hidden_size / _hidden_share(job)
    narrow = hidden * (4 * BYTES + (2 * MASK if model.dropout else 0))
    wide = BYTES * (2 * query + 2 * key + (3 if model.gated_mlp else 2) * width)
    if model.qk_norm:
        wide += BYTES * (query + key)
    return _tokens(job) * (narrow + wide) + core_bytes(job)


def saved_layer_bytes(job: Job) -> float:
    """What one layer keeps from its forward to its backward, after recomputation. [bytes]

    Selective drops the attention core; full keeps the layer's input alone, 2 s b h.
    """
    if job.plan.recompute == "full":
        return BYTES * _tokens(job) * job.model.hidden_size / _hidden_share(job)
    return layer_bytes(job) - (core_bytes(job) if job.plan.recompute == "selective" else 0.0)


def weight_grad_bytes(job: Job) -> float:
    """What one layer still holds between its I and its W: 32 s b h for GPT. [bytes]

    The inputs of the four products, 14 h per token, and the gradients of their outputs, 18 h.
    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, Table 1.
    """
    query, key, width = _widths(job)
    gates = 2 if job.model.gated_mlp else 1
    hidden = job.model.hidden_size / _hidden_share(job)
    inputs = 2 * hidden + query + width
    outputs = (query + 2 * key) + gates * width + 2 * hidden
    return BYTES * _tokens(job) * (inputs + outputs)


def embedding_bytes(job: Job) -> float:
    """What the first stage keeps besides its layers: the dropout mask, s b h / t. [bytes]

    Source: Korthikanti et al., section 4.3.
    """
    if not job.model.dropout:
        return 0.0
    return MASK * _tokens(job) * job.model.hidden_size / _hidden_share(job)


def head_bytes(job: Job) -> float:
    """What the last stage keeps besides its layers, (4 s b h / t)(1 + V / h). [bytes]

    The final norm's input and the output layer's, 2 s b h / t each, and fp32 logits, 4 s b V / t.
    Source: Korthikanti et al., section 4.3.
    """
    hidden = 2 * BYTES * job.model.hidden_size / _hidden_share(job)
    return _tokens(job) * (hidden + FP32 * job.model.vocab_size / job.plan.tp)
