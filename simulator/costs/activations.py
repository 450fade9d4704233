"""Bytes that one microbatch's forward keeps for its backward, by operator.

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys
2023, section 4 and Table 2, whose rows these functions equal for GPT with dropout and eager
attention; the same accounting by operator covers flash attention, grouped-query attention, gated
MLPs and no dropout. 16-bit activations, 1-byte masks.
"""

from typing import NamedTuple

from simulator.costs.kernels import ELEMENT_BYTES
from simulator.costs.modules import DROPPED, modules_of
from simulator.frameworks import load_framework
from simulator.job import Job

__all__ = [
    "core_bytes",
    "dropped_bytes",
    "embedding_bytes",
    "expert_load",
    "head_bytes",
    "layer_bytes",
    "layer_parts",
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
    routed: float  # those of routed experts, or of a layer without experts
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
    inner = routed = float(model.intermediate_size)
    copies = 0.0
    if model.is_sparse:
        copies = model.num_experts_per_tok * expert_load(job)
        routed = copies * model.expert_width
        inner = routed + model.num_shared_experts * model.expert_width
        copies *= plan.expert_tp / plan.tp  # of tokens that the peers split, if experts are whole
    inner, routed = inner / plan.tp, routed / plan.tp
    gates = 2 if model.gated_mlp else 1
    return Widths(query, key, value, context, latent, gates * inner, inner, routed, copies)


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
    width = 2 * BYTES + MASK if model.dropout else BYTES
    if model.attn_logit_softcapping is not None:
        width += BYTES  # the tanh
    return rows * model.seq_len * width


def layer_bytes(job: Job) -> float:
    """Everything that one layer keeps without recomputation. [bytes]

    Per token: inputs of two norms, of the two column-parallel products and two masks, 10 h, split
    only with sequence parallelism; queries, keys, values, the projection's input and the MLP's two
    wide tensors, 24 h / t; and the attention core. Table 2: s b h (10 + 24 / t + 5 a s / (h t)).
    """
    return sum(layer_parts(job).values())


def layer_parts(job: Job) -> dict[str, float]:
    """The same by what it is. [bytes]"""
    model, widths = job.model, _widths(job)
    framework = load_framework(job.plan.framework)
    hidden = model.hidden_size / _hidden_share(job)
    # Products in fp8 and nvfp4 keep their inputs as narrow; attention's output is kept in 16 bits
    # for its own backward, and again. Source: NVIDIA/TransformerEngine, pytorch/module/
    # layernorm_linear.py and linear.py, tensors saved for the backward.
    narrow = ELEMENT_BYTES.get(job.plan.dtype) if framework.fp8_inputs else None
    cast = BYTES if narrow is None else narrow
    # the router reads the second norm's output in 16 bits
    outputs = hidden * (cast + (BYTES if model.is_sparse else cast))
    apart = model.gated_mlp and not framework.fused_activation
    inner = cast + (BYTES if apart else 0)  # the gate's activation, before it meets the other half
    both = BYTES * (widths.query + widths.key)
    unfused = not model.learned_positions and not framework.fused_rotary
    routed = widths.routed / widths.inner
    clamped = framework.loose_experts and model.is_sparse and model.swiglu_limit is not None
    returned = 0 if framework.weighted_activation else BYTES
    parts = {
        "norm inputs": (4 if model.post_norm else 2) * BYTES * hidden,
        "norm outputs": outputs,
        "masks": 2 * MASK * hidden if model.dropout else 0.0,
        "queries, keys, values": BYTES * (widths.query + widths.key + widths.value),
        "before their norm": both if model.qk_norm else 0.0,
        "before their turn": both if unfused else 0.0,
        "compressed": BYTES * widths.latent,
        "context": (BYTES + (narrow or 0)) * widths.context,
        # tokens as they come to the experts, and as they leave for the gradient of the router's
        # weights, unless these go into the activation
        "sent": cast * widths.copies * model.hidden_size,
        "returned": returned * widths.copies * model.hidden_size,
        "ups": BYTES * widths.ups * routed,
        "clamped": BYTES * widths.ups * routed if clamped else 0.0,  # read by the activation's own
        "inner": inner * widths.inner * routed,
        "shared ups": BYTES * widths.ups * (1 - routed),
        "shared inner": inner * widths.inner * (1 - routed),
    }
    tokens = _tokens(job)
    return {name: tokens * each for name, each in parts.items()} | {"core": core_bytes(job)}


def dropped_bytes(job: Job) -> float:
    """What one layer drops with selective recomputation, and makes again in its backward. [bytes]

    Modules whose output alone is dropped keep their input, and the others are kept by the product
    before them. Source: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py,
    recompute_modules; transformer_layer.py, moe/experts.py, multi_latent_attention.py.
    """
    parts = layer_parts(job)
    dropped = {name for module in modules_of(job) for name in DROPPED[module]}
    return sum(parts[name] for name in sorted(dropped))


def saved_layer_bytes(job: Job) -> float:
    """What one layer keeps from its forward to its backward, after recomputation. [bytes]

    Selective drops the attention core, or what its modules say; full keeps the layer's input alone,
    2 s b h; alternate its input, attention, and the outputs of the first, third, fifth and seventh
    of its products.
    """
    if job.plan.recompute == "alternate":
        return _alternate_bytes(job)
    if job.plan.recompute == "full":
        return BYTES * _tokens(job) * job.model.hidden_size / _hidden_share(job)
    return layer_bytes(job) - dropped_bytes(job)


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
    width = FP32 if wide else BYTES
    if job.model.final_logit_softcapping is not None:
        width += BYTES  # the tanh
    logits = width * job.model.vocab_size / job.plan.tp
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
