"""Costs of token slices: what of a microbatch's time and bytes each of its slices takes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.costs.costs import Costs
from simulator.job import Model

__all__ = ["attention_share", "slice_times", "sliced"]


def sliced(
    costs: Costs, lengths: Sequence[int], attention: float = 0.0, least: float = 0.0
) -> Costs:
    """The same costs for microbatches cut into slices of these lengths. [tokens]

    Args:
        costs: of whole microbatches.
        lengths: tokens of each slice.
        attention: share of the time that causal attention takes, 0 to 1. [1]
        least: share of the time that a slice takes however short it is, as the host does. [1]
    """
    tokens = np.asarray(lengths, float) / sum(lengths)
    times = np.maximum(slice_times(lengths, attention), least)
    return replace(costs, slice_time=times, slice_tokens=tokens)


def slice_times(lengths: Sequence[int], attention: float) -> NDArray[np.float64]:
    """Each slice's share of its microbatch's time, shape (num_slices,). [1]

    Linear layers take as long as the slice has tokens; a token of causal attention looks at all
    tokens up to itself, so the slice from a to b takes b^2 - a^2 of it.
    Source: Li et al., "TeraPipe", ICML 2021, section 3.1 and Fig. 3.

    >>> slice_times([2, 2], 0.0), slice_times([2, 2], 1.0)
    (array([0.5, 0.5]), array([0.25, 0.75]))
    """
    ends = np.cumsum(np.asarray(lengths, float)) / sum(lengths)
    starts = np.concatenate([[0.0], ends[:-1]])
    return np.asarray((1 - attention) * (ends - starts) + attention * (ends**2 - starts**2))


def attention_share(model: Model) -> float:
    """Causal attention's share of a layer's FLOPs, all products at one speed. [1]

    Raises:
        ValueError: attention looks at a window, whose slices do not grow along the sequence.

    Per token 2 FLOPs for each of the layer's parameters, and 4 for each of the s / 2 tokens that it
    looks at on average and each of the heads' elements: scores and weighted sum.
    Source: Narayanan et al., SC'21, appendix, 24 B s h^2 + 4 B s^2 h a layer, half of the latter.

    >>> gpt = Model(name="x", num_hidden_layers=1, hidden_size=1024, num_attention_heads=16,
    ...     vocab_size=8, seq_len=12 * 1024, norm="layernorm")
    >>> round(attention_share(gpt), 2)  # s h / (12 h^2 + s h)
    0.5
    """
    if model.attention_reach < 1:
        raise ValueError(
            f"model.sliding_window is {model.sliding_window}, but slices of attention in a window "
            "are not costed yet; use a schedule of whole microbatches, or leave it out"
        )
    core = model.seq_len * model.num_attention_heads * model.head_dim
    return core / (model.parameters_per_layer + core)
