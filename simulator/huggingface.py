"""Reads a Hugging Face `config.json`. Sizes must be stated; what transformers fills in, this does.

Source of the key names and of the values of absent keys: huggingface/transformers,
src/transformers/models/*/configuration_*.py and configuration_utils.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

from simulator.attention_windows import text_of, window_of
from simulator.errors import validated
from simulator.job import Model

__all__ = ["SUPPORTED", "model_from_config"]

Config = Mapping[str, Any]
Fields = dict[str, Any]

SPARSE = ("deepseek_v2", "deepseek_v3", "gpt_oss", "mixtral", "qwen3_moe")
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def model_from_config(config: Config, name: str, seq_len: int | None = None) -> Model:
    """The model of a `config.json`; sequences are as long as its positions unless stated.

    >>> gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
    ...         "n_positions": 1024, "vocab_size": 50257}
    >>> model_from_config(gpt2, "GPT-2").num_parameters
    124439808
    """
    model_type = _model_type(config)
    for key in EXPERT_KEYS:
        if config.get(key) and model_type not in SPARSE:
            raise ValueError(
                f"config.json's {key} is {config[key]}, but experts of model_type {model_type} are "
                f"not read yet; use one of {', '.join(SPARSE)}, or write a [model] table"
            )
    if model_type not in SUPPORTED:
        raise ValueError(
            f"config.json's model_type is {model_type}, which is not read yet; use one of "
            f"{', '.join(sorted(SUPPORTED))}, or write a [model] table"
        )
    fields = SUPPORTED[model_type](config)
    if seq_len is not None:
        fields["seq_len"] = seq_len
    return validated(Model, {"name": name, **fields, **window_of(config, model_type)}, "model")


def _model_type(config: Config) -> str:
    """The model type, or else what the first architecture's class name says."""
    if "model_type" in config:
        return str(config["model_type"])
    architectures = config.get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    stem = first.partition("For")[0].removesuffix("LMHeadModel")
    names = {name.replace("_", ""): name for name in SUPPORTED}
    if stem.lower() in names:
        return names[stem.lower()]
    if first:
        return first
    raise ValueError(
        f"config.json has no model_type and no architectures; it must state model_type, one of "
        f"{', '.join(sorted(SUPPORTED))}; is it a model's config.json?"
    )


def _require(config: Config, key: str) -> Any:  # noqa: ANN401 - any JSON value; Model checks it
    """The value of a key that must be there."""
    if config.get(key) is None:
        raise ValueError(f"config.json has no {key}; the model's sizes must be stated; add {key}")
    return config[key]


def _drops(config: Config, default: float, *keys: str) -> bool:
    """Whether any of the dropout probabilities is not zero."""
    return any(config.get(key, default) for key in keys)


def _bias(config: Config, attention: bool, mlp: bool) -> bool:
    """The one bias switch of a Model; architectures with two must agree on it."""
    if attention != mlp:
        raise ValueError(
            f"config.json (model_type {_model_type(config)}) has attention_bias = {attention} but "
            f"feed-forward biases = {mlp}; a model has biases on all linear layers or on none; "
            f"make the two agree"
        )
    return attention


def _rotary(config: Config) -> Fields:
    """What every model with rotary positions states under the same keys."""
    return {
        "num_hidden_layers": _require(config, "num_hidden_layers"),
        "hidden_size": _require(config, "hidden_size"),
        "num_attention_heads": _require(config, "num_attention_heads"),
        "intermediate_size": _require(config, "intermediate_size"),
        "vocab_size": _require(config, "vocab_size"),
        "seq_len": _require(config, "max_position_embeddings"),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        "source": "a Hugging Face config.json",
    }


def _gated(config: Config, num_key_value_heads: int | None, head_dim: int | None) -> Fields:
    """A Llama-like model; the defaults are those of its key-value heads and head width."""
    heads = config.get("num_key_value_heads", num_key_value_heads)
    width = config.get("head_dim", head_dim)
    return {
        **_rotary(config),
        "num_key_value_heads": config["num_attention_heads"] if heads is None else heads,
        **({} if width is None else {"head_dim": width}),
        "gated_mlp": True,
        "norm": "rmsnorm",
        "dropout": _drops(config, 0.0, "attention_dropout"),
    }


def _llama(config: Config) -> Fields:
    biases = bool(config.get("attention_bias", False)), bool(config.get("mlp_bias", False))
    return {**_gated(config, None, None), "bias": _bias(config, *biases)}


def _mistral(config: Config) -> Fields:
    return _gated(config, 8, None)


def _mixtral(config: Config) -> Fields:
    """Every layer's feed-forward is experts of the dense layer's width."""
    return {
        **_gated(config, 8, None),
        "num_experts": config.get("num_local_experts", 8),
        "num_experts_per_tok": config.get("num_experts_per_tok", 2),
    }


def _qwen3_moe(config: Config) -> Fields:
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        raise ValueError(
            "config.json's decoder_sparse_step or mlp_only_layers puts dense layers between those "
            "with experts, which is not read yet; write a [model] table"
        )
    return {
        **_qwen3(config),
        "num_experts": config.get("num_experts", 128),
        "num_experts_per_tok": config.get("num_experts_per_tok", 8),
        "moe_intermediate_size": config.get("moe_intermediate_size", 768),
    }


def _deepseek(config: Config) -> Fields:
    """Latent attention, some dense layers first, then experts, some of them for all tokens."""
    if config.get("moe_layer_freq", 1) != 1:
        raise ValueError(
            f"config.json's moe_layer_freq is {config['moe_layer_freq']}: dense layers between "
            "those with experts are not read yet; write a [model] table"
        )
    fields = _gated(config, None, None)
    del fields["num_key_value_heads"]
    return {
        **fields,
        "head_dim": _require(config, "qk_nope_head_dim"),
        "num_experts": _require(config, "n_routed_experts"),
        "num_experts_per_tok": _require(config, "num_experts_per_tok"),
        "num_shared_experts": config.get("n_shared_experts") or 0,
        "moe_intermediate_size": _require(config, "moe_intermediate_size"),
        "num_dense_layers": config.get("first_k_dense_replace", 0),
        **({"topk_group": groups} if (groups := config.get("topk_group", 1)) > 1 else {}),
        "q_lora_rank": config.get("q_lora_rank"),
        "kv_lora_rank": _require(config, "kv_lora_rank"),
        "qk_rope_head_dim": _require(config, "qk_rope_head_dim"),
        "v_head_dim": _require(config, "v_head_dim"),
        "num_nextn_predict_layers": config.get("num_nextn_predict_layers") or 0,
    }


def _qwen2(config: Config) -> Fields:
    return {**_gated(config, 32, None), "qkv_bias": True}


def _qwen3(config: Config) -> Fields:
    bias = _bias(config, bool(config.get("attention_bias", False)), mlp=False)
    return {**_gated(config, 32, 128), "bias": bias, "qk_norm": True}


def _gemma(config: Config) -> Fields:
    bias = _bias(config, bool(config.get("attention_bias", False)), mlp=False)
    tied = config.get("tie_word_embeddings", True)
    return {**_gated(config, 16, 256), "bias": bias, "tie_word_embeddings": tied}


def _phi3(config: Config) -> Fields:
    dropout = _drops(config, 0.0, "resid_pdrop", "embd_pdrop", "attention_dropout")
    return {**_gated(config, None, None), "dropout": dropout}


def _gpt_neox(config: Config) -> Fields:
    return {
        **_rotary(config),
        "bias": _bias(config, bool(config.get("attention_bias", True)), mlp=True),
        "norm": "layernorm",
        "dropout": _drops(config, 0.0, "attention_dropout", "hidden_dropout"),
    }


def _gpt2(config: Config) -> Fields:
    hidden, inner = _require(config, "n_embd"), config.get("n_inner")
    return {
        "num_hidden_layers": _require(config, "n_layer"),
        "hidden_size": hidden,
        "num_attention_heads": _require(config, "n_head"),
        "vocab_size": _require(config, "vocab_size"),
        "seq_len": _require(config, "n_positions"),
        **({} if inner is None else {"intermediate_size": inner}),
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
        "learned_positions": True,
        "bias": True,
        "norm": "layernorm",
        "dropout": _drops(config, 0.1, "resid_pdrop", "embd_pdrop", "attn_pdrop"),
        "source": "a Hugging Face config.json",
    }


def _gemma2(config: Config) -> Fields:
    """Norms behind attention and feed-forward too; scores and logits are bounded by a tanh."""
    if config.get("use_bidirectional_attention"):
        raise ValueError(
            "config.json's use_bidirectional_attention is true, but attention is causal here; "
            "leave it out, or use another model"
        )
    whole = _gemma({"num_key_value_heads": 4, "max_position_embeddings": 8192} | dict(config))
    caps = {
        "attn_logit_softcapping": config.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": config.get("final_logit_softcapping", 30.0),
    }
    return {**whole, **caps, "post_norm": True}


def _gemma3(config: Config) -> Fields:
    """The text of a model with pictures, or one of text alone; queries and keys are normalised."""
    absent = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    return {**_gemma2(absent | dict(text_of(config))), "qk_norm": True}


def _gpt_oss(config: Config) -> Fields:
    """Experts with biases, and a trained score a head beside the tokens'."""
    return {
        **_gated(config, 8, 64),
        "bias": _bias(config, bool(config.get("attention_bias", True)), mlp=True),
        "num_experts": config.get("num_local_experts", 128),
        "num_experts_per_tok": config.get("num_experts_per_tok", 4),
        "attention_sinks": True,
        "swiglu_limit": config.get("swiglu_limit", 7.0),
    }


SUPPORTED: dict[str, Callable[[Config], Fields]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
