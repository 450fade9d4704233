"""Floating-point operations of a transformer, exactly, by operator. A multiply-add counts as two.

Attention counts the full score matrix, the convention of the papers that these formulas come from;
a causal kernel does half of it.
"""

from simulator.job import Job, Model, Plan

__all__ = [
    "attention_core_flops",
    "hardware_flops",
    "layer_flops",
    "layers_flops",
    "logits_flops",
    "model_flops",
    "multi_token_flops",
    "recomputed_layers",
]


def layer_flops(model: Model) -> dict[str, float]:
    """Forward FLOP of one layer for one sequence, by operator. [FLOP]

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC'21, appendix: 24 s h^2 + 4 s^2 h for GPT; grouped-query attention shrinks the
    key and value columns (Ainslie et al., "GQA", EMNLP 2023), a gated MLP has a third matrix
    (Shazeer, "GLU Variants Improve Transformer", 2020).

    >>> gpt = Model(name="x", num_hidden_layers=1, hidden_size=4, num_attention_heads=2,
    ...     vocab_size=8, seq_len=2)
    >>> layer_flops(gpt)
    {'qkv': 192.0, 'core': 64.0, 'projection': 64.0, 'mlp': 512.0}
    >>> 24 * 2 * 4**2 + 4 * 2**2 * 4
    832
    """
    tokens, hidden = float(model.seq_len), model.hidden_size
    flops = {
        "qkv": 2 * tokens * _qkv_weights(model),
        "core": attention_core_flops(model),
        "projection": 2 * tokens * model.value_width * hidden,
        "mlp": _mlp_flops(model, model.intermediate_size),
    }
    if model.is_sparse:
        met = model.num_experts_per_tok + model.num_shared_experts
        flops["mlp"] = _mlp_flops(model, met * model.expert_width)
        flops["router"] = 2 * tokens * hidden * model.num_experts
    return flops


def layers_flops(model: Model) -> float:
    """Forward FLOP of all layers for one sequence. [FLOP]"""
    one = sum(layer_flops(model).values())
    if not model.num_dense_layers:
        return model.num_hidden_layers * one
    dense = model.model_copy(update={"num_experts": 1})
    less = one - sum(layer_flops(dense).values())
    return model.num_hidden_layers * one - model.num_dense_layers * less


def _qkv_weights(model: Model) -> int:
    """Weights of the projections to queries, keys and values. [1]

    Latent attention goes down to a narrow vector and up again. Source: DeepSeek-AI, "DeepSeek-V3
    Technical Report", 2024, section 2.1.1.
    """
    hidden, rank = model.hidden_size, model.q_lora_rank
    if model.kv_lora_rank is None:
        return hidden * (model.query_width + 2 * model.num_key_value_heads * model.head_dim)
    down = hidden * (model.kv_lora_rank + model.qk_rope_head_dim + (rank or 0))
    return down + _up_weights(model)


def _up_weights(model: Model) -> int:
    """Weights from narrow vectors to queries, keys and values, or from the state itself. [1]"""
    if model.kv_lora_rank is None:
        return 0
    rank = model.hidden_size if model.q_lora_rank is None else model.q_lora_rank
    up = model.num_attention_heads * model.head_dim + model.value_width
    return rank * model.query_width + model.kv_lora_rank * up


def _mlp_flops(model: Model, width: int) -> float:
    """Forward FLOP of a feed-forward layer of this width for one sequence. [FLOP]"""
    return 2.0 * model.seq_len * (3 if model.gated_mlp else 2) * model.hidden_size * width


def attention_core_flops(model: Model) -> float:
    """Forward FLOP of scores and context of one layer and sequence, mean over layers. [FLOP]

    Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    MLSys 2023, appendix A: 4 s^2 h, half of it for scores and half for context. A window leaves
    as large a part of it as of the causal half.
    """
    whole = 2.0 * model.seq_len**2 * (model.query_width + model.value_width)
    return whole * model.attention_reach


def logits_flops(model: Model) -> float:
    """Forward FLOP of the output layer for one sequence, 2 s h V. [FLOP]

    Source: Korthikanti et al., MLSys 2023, appendix A. The embedding is a table look-up: none.
    """
    return 2.0 * model.seq_len * model.hidden_size * model.vocab_size


def multi_token_flops(model: Model) -> float:
    """Forward FLOP of multi-token prediction for one sequence: layer, projection, logits. [FLOP]

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2: two states of width h
    are projected to one, 4 s h^2.
    """
    join = 4.0 * model.seq_len * model.hidden_size**2
    one = sum(layer_flops(model).values()) + join + logits_flops(model)
    return model.num_nextn_predict_layers * one


def model_flops(model: Model, num_sequences: int) -> float:
    """Forward and backward FLOP of a step without recomputation, the numerator of MFU. [FLOP]

    The backward is twice the forward. Equal to Eq. 7 of Korthikanti et al., MLSys 2023, for GPT:
    72 B L s h^2 (1 + s / 6h + V / 12hL).

    >>> gpt = Model(name="175B", num_hidden_layers=96, hidden_size=12288, num_attention_heads=96,
    ...     vocab_size=51200, seq_len=2048)
    >>> B, L, s, h, V = 64, 96, 2048, 12288, 51200
    >>> equation_7 = 72 * B * L * s * h**2 + 12 * B * L * s**2 * h + 6 * B * s * h * V
    >>> model_flops(gpt, B) == equation_7
    True
    """
    if num_sequences < 1:
        raise ValueError(f"num_sequences is {num_sequences}; it must be at least 1")
    once = layers_flops(model) + logits_flops(model) + multi_token_flops(model)
    return 3.0 * num_sequences * once


def hardware_flops(job: Job) -> float:
    """FLOP that all GPUs execute in one step, recomputation included, the numerator of HFU. [FLOP]

    Selective recomputation repeats the attention core's forward, 4 s^2 h a layer and sequence.
    (Korthikanti et al., Eq. 8, print three times that, as if its backward were repeated too.) Full
    recomputation repeats every layer's forward: Eq. 3 of Narayanan et al., SC'21,
    96 B s l h^2 (1 + s / 6h + V / 16lh), for GPT.

    >>> from simulator.job import GPU, Cluster, Link, Plan
    >>> gpu = GPU(name="x", peak_flops={"bf16": 1e12}, memory=1e9, memory_bandwidth=1e12,
    ...     num_sms=1, gemm_efficiency=1, gemm_half_k=0, memory_efficiency=1, launch_overhead=0,
    ...     source="")
    >>> link = Link(bandwidth=1e9, latency=0)
    >>> node = Cluster(name="x", gpu=gpu, gpus_per_node=1, intra_node=link, inter_node=link,
    ...     nics_per_node=1)
    >>> gpt = Model(name="x", num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
    ...     vocab_size=512, seq_len=32)
    >>> job = Job(model=gpt, cluster=node, plan=Plan(recompute="full", num_microbatches=8))
    >>> B, l, s, h, V = 8, 2, 32, 64, 512
    >>> equation_3 = 96 * B * s * l * h**2 + 16 * B * s**2 * l * h + 6 * B * s * h * V
    >>> hardware_flops(job) == equation_3
    True
    """
    model, plan = job.model, job.plan
    again = 0.0
    if plan.recompute == "selective":
        again = _modules_flops(job)
    elif plan.recompute == "alternate":
        again = model.num_hidden_layers * _alternate_flops(model)
    elif plan.recompute == "full":
        repeated = sum(recomputed_layers(plan, layers) for layers in job.layers_per_stage)
        again = layers_flops(model) * repeated / model.num_hidden_layers
        again += model.num_nextn_predict_layers * sum(layer_flops(model).values())
    sequences = plan.global_batch_size
    return model_flops(model, sequences) + sequences * again


def _modules_flops(job: Job) -> float:
    """What selective recomputation repeats of all layers for one sequence. [FLOP]

    Norms and activations count as none.
    """
    model, modules = job.model, job.plan.recompute_modules or ("core_attn",)
    dense = model.num_dense_layers if model.is_sparse else model.num_hidden_layers
    layers = model.num_hidden_layers + model.num_nextn_predict_layers
    sparse = layers - dense if model.is_sparse else 0
    dense = layers - sparse
    per = layer_flops(model)
    flops = {
        "core_attn": layers * attention_core_flops(model),
        "mla_up_proj": layers * 2.0 * model.seq_len * _up_weights(model),
        "mlp": dense * _mlp_flops(model, model.intermediate_size),
        "moe": sparse * (per["mlp"] + per.get("router", 0.0)),
        "shared_experts": sparse * _mlp_flops(model, model.num_shared_experts * model.expert_width),
    }
    return sum(flops.get(module, 0.0) for module in modules)


def _alternate_flops(model: Model) -> float:
    """Keys, projection and one of a gated layer's two ways up, for one sequence. [FLOP]"""
    key = 2.0 * model.seq_len * model.hidden_size * model.num_key_value_heads * model.head_dim
    up = _mlp_flops(model, model.intermediate_size) / 3 if model.gated_mlp else 0.0
    return key + layer_flops(model)["projection"] + up


def recomputed_layers(plan: Plan, layers: int) -> int:
    """Layers of a stage of so many that full recomputation repeats. [1]

    >>> from simulator.job import Plan
    >>> recomputed_layers(Plan(recompute="full", recompute_method="block",
    ...     recompute_num_layers=3), 12)
    3
    """
    if plan.recompute_method == "uniform":
        return layers
    return min(layers, plan.recompute_num_layers or layers)
