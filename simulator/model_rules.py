"""What a model's sizes must have in common, each rule with its one error."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.model import Model

__all__ = ["check_experts", "check_latent", "check_limit", "check_window"]


def check_experts(model: "Model") -> None:
    """Sizes of experts go with experts."""
    if model.num_experts_per_tok > model.num_experts:
        raise ValueError(
            f"model.num_experts_per_tok is {model.num_experts_per_tok}, but there are "
            f"{model.num_experts} experts (model.num_experts); use at most that many"
        )
    if model.num_dense_layers >= model.num_hidden_layers and model.is_sparse:
        raise ValueError(
            f"model.num_dense_layers is {model.num_dense_layers} of {model.num_hidden_layers} "
            "layers, so that none has experts; use fewer, or leave num_experts out"
        )
    for name in (
        "num_shared_experts",
        "moe_intermediate_size",
        "topk_group",
        "num_dense_layers",
    ):
        if not model.is_sparse and getattr(model, name):
            raise ValueError(
                f"model.{name} is {getattr(model, name)}, but model.num_experts is 1; "
                "state num_experts, or leave it out"
            )


def check_limit(model: "Model") -> None:
    """A bound of what the gated activation reads goes with one."""
    if model.swiglu_limit is not None and not model.gated_mlp:
        raise ValueError(
            f"model.swiglu_limit is {model.swiglu_limit:g}, but model.gated_mlp is false; state "
            "gated_mlp, or leave it out"
        )


def check_latent(model: "Model") -> None:
    """Sizes of latent attention go with latent attention."""
    if model.kv_lora_rank is not None:
        if model.num_key_value_heads != model.num_attention_heads:
            raise ValueError(
                f"model.kv_lora_rank is {model.kv_lora_rank}, but model.num_key_value_heads is "
                f"{model.num_key_value_heads}; latent attention has a key for each of the "
                f"{model.num_attention_heads} query heads: leave num_key_value_heads out"
            )
        return
    for name in ("q_lora_rank", "qk_rope_head_dim", "v_head_dim"):
        if getattr(model, name):
            raise ValueError(
                f"model.{name} is {getattr(model, name)}, but model.kv_lora_rank is left out; "
                "latent attention needs it"
            )


def check_window(model: "Model") -> None:
    """Layers without a window go with a window."""
    full = model.num_full_attention_layers
    if full and model.sliding_window is None:
        raise ValueError(
            f"model.num_full_attention_layers is {full}, but model.sliding_window is left "
            "out, so that all layers are full; state the window, or leave both out"
        )
    if full and full >= model.num_hidden_layers:
        raise ValueError(
            f"model.num_full_attention_layers is {full} of {model.num_hidden_layers} layers, "
            "so that none has a window; use fewer, or leave sliding_window out"
        )
