"""Which layers of a `config.json` look back on a window of their sequence.

Source of the keys and of the values of absent ones: huggingface/transformers,
src/transformers/models/*/configuration_*.py.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["text_of", "window_of"]

Config = Mapping[str, Any]

DEFAULTS: dict[str, int | None] = {  # of sliding_window
    "gemma2": 4096,
    "gemma3": 4096,
    "gemma3_text": 4096,
    "gpt_oss": 128,
    "mistral": 4096,
    "mixtral": None,
    "phi3": None,
    "qwen2": 4096,
    "qwen3": 4096,
    "qwen3_moe": 4096,
}
PERIODS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2}  # the last of so many is full
GEMMA3 = {  # sizes that its text may leave out
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}


def text_of(config: Config) -> dict[str, Any]:
    """The sizes of Gemma 3's text, which lie beside those of its pictures or alone.

    >>> text_of({"text_config": {"head_dim": 128}})["head_dim"]
    128
    """
    return GEMMA3 | dict(config.get("text_config", config))


def window_of(config: Config, model_type: str) -> dict[str, Any]:
    """The window, and how many layers look at the whole sequence beside those with it.

    Qwen has a window in the layers after its first so many alone; Gemma and gpt-oss take turns.

    >>> window_of({"num_hidden_layers": 26, "sliding_window": 512}, "gemma3_text")
    {'sliding_window': 512, 'num_full_attention_layers': 4}
    """
    if model_type not in DEFAULTS:
        return {}
    if model_type.startswith("gemma3"):
        config = text_of(config)
    window = config.get("sliding_window", DEFAULTS[model_type])
    if window is None:
        return {}
    layers = config.get("num_hidden_layers", 0)
    if model_type.startswith("qwen"):
        full = config.get("max_window_layers", 28)
        used = config.get("use_sliding_window", False) and full < layers
        return {"sliding_window": window, "num_full_attention_layers": full} if used else {}
    full = 0
    if model_type in PERIODS:
        period = config.get("sliding_window_pattern", PERIODS[model_type])
        full = layers // period
        if config.get("layer_types"):
            full = list(config["layer_types"]).count("full_attention")
    if full == 0:
        return {"sliding_window": window}
    return {"sliding_window": window, "num_full_attention_layers": full} if full < layers else {}
