"""Bytes that one microbatch's forward keeps for its backward, by operator.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys
2023, section 4 and Table 2, whose rows these functions equal for GPT with dropout and eager
attention; the same accounting by operator covers flash attention, grouped-query attention, gated
MLPs and no dropout. 16-bit activations, 1-byte masks.
"""

from typing import NamedTuple

from simulator.frameworks import load_framework
from simulator.job import Job

__all__ = [
    "core_bytes",
    "embedding_bytes",
    "expert_load",
    "head_bytes",
    "layer_bytes",
    "loss_bytes",
    "saved_layer_bytes",
    "weight_grad_bytes",
]

BYTES = 2  # of one fp16 or bf16 element
MASK = 1  # of one element of a dropout mask
FP32 = 4


def _tokens(job: Job) -> float:
    """Tokens of one microbatch on one GPU of a context-parallel group. [1]"""
    return job.plan.micro_batch_size * job.model.seq_len / job.plan.cp


def _hidden_share(job: Job) -> int:
    """Over how many GPUs the residual stream is split. [1]"""
    return job.plan.tp if job.plan.sequence_parallel else 1


class Widths(NamedTuple):
    """Elements of one token on one GPU of a tensor-parallel group. [1]"""

    query: float
    key: float
    value: float
    context: float  # what attention hands to its projection
    latent: float  # compressed queries, keys and values, on every GPU
    ups: float  # outputs of the feed-forward's first product, all experts that the token takes
    inner: float  # inputs of its second product
    copies: float  # of the token that go to experts


def _widths(job: Job) -> Widths:
    """The widths of one layer."""
    model, plan = job.model, job.plan
    query, context = model.query_width / plan.tp, model.value_width / plan.tp
    key = value = model.num_key_value_heads * model.head_dim / plan.tp
    latent = 0.0
    if model.is_latent:
        key, value = query, context
        latent = float((model.q_lora_rank or 0) + (model.kv_lora_rank or 0))
        latent += model.qk_rope_head_dim
    inner, copies = float(model.intermediate_size), 0.0
    if model.is_sparse:
        copies = model.num_experts_per_tok * expert_load(job)
        inner = (copies + model.num_shared_experts) * model.expert_width
        copies *= plan.expert_tp / plan.tp  # of tokens that the peers split, if experts are whole
    inner /= plan.tp
    gates = 2 if model.gated_mlp else 1
    return Widths(query, key, value, context, latent, gates * inner, inner, copies)


def expert_load(job: Job) -> float:
    """Tokens that the busiest GPU's experts compute over the even share. [1]

    A capacity pads every expert to it and drops what exceeds it. Source: Lepikhin et al.,
    "GShard", ICLR 2021, section 2.2.
    """
    plan = job.plan
    return plan.expert_imbalance if plan.capacity_factor is None else plan.capacity_factor


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
    model, widths = job.model, _widths(job)
    hidden = model.hidden_size / _hidden_share(job)
    narrow = hidden * (4 * BYTES + (2 * MASK if model.dropout else 0))
    attention = widths.query + widths.key + widths.value + widths.context + widths.latent
    wide = BYTES * (attention + widths.ups + widths.inner)
    if model.qk_norm:
        wide += BYTES * (widths.query + widths.key)
    framework = load_framework(job.plan.framework)
    # tokens as they come to the experts, for the gradient of the weights, and as they leave them,
    # for that of the router's weights, unless these go into the activation
    returned = 0 if framework.weighted_activation else 1
    wide += BYTES * (1 + returned) * widths.copies * model.hidden_size
    if model.gated_mlp and not framework.fused_activation:
        wide += BYTES * widths.inner  # the gate's activation, before it meets the other half
    if not model.learned_positions and not framework.fused_rotary:
        wide += BYTES * (widths.query + widths.key)  # before they are turned
    if job.plan.dtype == "fp8" and framework.fp8_inputs:
        wide -= _spared_by_fp8(job, hidden, widths)
    return _tokens(job) * (narrow + wide) + core_bytes(job)


def _spared_by_fp8(job: Job, hidden: float, widths: Widths) -> float:
    """Bytes of one token that inputs of products in fp8 take less than in 16 bits. [bytes]

    One for each element of the two norms' outputs, of what comes to the experts and of the second
    product's input; attention's output is kept in 16 bits for its own backward, and again in fp8.
    Source: NVIDIA/TransformerEngine, pytorch/module/layernorm_linear.py and linear.py, tensors
    saved for the backward.
    """
    inputs = hidden if job.model.is_sparse else 2 * hidden
    experts = widths.copies * job.model.hidden_size
    return (BYTES - 1) * (inputs + experts + widths.inner) - widths.context


def saved_layer_bytes(job: Job) -> float:
    """What one layer keeps from its forward to its backward, after recomputation. [bytes]

    Selective drops the attention core; full keeps the layer's input alone, 2 s b h; alternate its
    input, attention, and the outputs of the first, third, fifth and seventh of its products.
    """
    if job.plan.recompute == "alternate":
        return _alternate_bytes(job)
    if job.plan.recompute == "full":
        return BYTES * _tokens(job) * job.model.hidden_size / _hidden_share(job)
    return layer_bytes(job) - (core_bytes(job) if job.plan.recompute == "selective" else 0.0)


def _alternate_bytes(job: Job) -> float:
    """Input, queries, values, attention's output, half of the wide tensors, output. [bytes]

    Source: pytorch/torchtitan, parallelize_llama.py, _get_custom_policy (selective_ac_option "op").
    """
    widths = _widths(job)
    hidden = job.model.hidden_size / _hidden_share(job)
    wide = widths.query + widths.value + widths.context + widths.latent + widths.inner
    return BYTES * _tokens(job) * (2 * hidden + wide) + core_bytes(job)


def weight_grad_bytes(job: Job) -> float:
    """What one layer still holds between its I and its W: 32 s b h for GPT. [bytes]

    The inputs of the four products, 14 h per token, and the gradients of their outputs, 18 h.
    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, Table 1.
    """
    widths = _widths(job)
    hidden = job.model.hidden_size / _hidden_share(job)
    experts = widths.copies * job.model.hidden_size
    inputs = 2 * hidden + widths.context + widths.latent + widths.inner + experts
    outputs = widths.query + widths.key + widths.value + widths.ups + 2 * hidden + experts
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

    The final norm's input and the output layer's, 2 s b h / t each, and fp32 logits, 4 s b V / t,
    or 16-bit ones where the framework's loss reads those.
    Source: Korthikanti et al., section 4.3.
    """
    hidden = 2 * BYTES * job.model.hidden_size / _hidden_share(job)
    wide = load_framework(job.plan.framework).logits_dtype == "fp32"
    logits = (FP32 if wide else BYTES) * job.model.vocab_size / job.plan.tp
    return _tokens(job) * (hidden + logits)


def loss_bytes(job: Job) -> float:
    """What the loss and its backward hold for a while besides the logits that it reads. [bytes]

    The gradient in what it reads and, of fp32, in 16 bits too; a fused loss writes the gradient
    over the logits.
    Source: NVIDIA/Megatron-LM, core/tensor_parallel/cross_entropy.py.
    """
    framework = load_framework(job.plan.framework)
    wide = framework.logits_dtype == "fp32"
    width = BYTES if wide else 0
    if not framework.fused_cross_entropy:
        width += FP32 if wide else BYTES
    return width * _tokens(job) * job.model.vocab_size / job.plan.tp
