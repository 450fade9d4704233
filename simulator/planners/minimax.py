"""Contiguous layers on GPUs that differ: the cut whose slowest stage is fastest.

Source: Park et al., "HetPipe", USENIX ATC 2020, which cuts a model over a virtual worker's unlike
GPUs so that the slowest stage is as fast as possible and each stage fits into its GPU's memory.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["minimax_cut"]

Matrix = NDArray[np.float64]


def minimax_cut(stage_seconds: Sequence[Matrix]) -> tuple[int, ...] | None:
    """Bounds of the stages with the least largest time, or None if nothing fits.

    Of the cuts that share it, the last stage begins first, then the one before it, and so on.
    Exact, by a dynamic programme over (ranks, layers): O(ranks x layers^2).

    Args:
        stage_seconds: for each rank, entry [i, j] is its time with layers i to j - 1, infinite if
            they do not fit; shape (num_layers + 1, num_layers + 1). [s]

    Four equal layers on a GPU, and on one that is three times as slow: three and one.

    >>> count = np.arange(5.0)
    >>> layers = count[None, :] - count[:, None]
    >>> minimax_cut([layers, 3 * layers])
    (0, 3, 4)
    >>> minimax_cut([np.where(layers > 1, np.inf, layers)] * 2) is None  # room for one layer each
    True
    """
    size = len(stage_seconds[0])
    before = np.tri(size, k=-1, dtype=bool).T  # i < j: a stage holds at least one layer
    best = np.full(size, np.inf)
    best[0] = 0.0
    cuts = []
    for seconds in stage_seconds:
        worst = np.where(before, np.maximum(best[:, None], seconds), np.inf)
        cuts.append(worst.argmin(axis=0))
        best = worst.min(axis=0)
    if not np.isfinite(best[-1]):
        return None
    bounds = [size - 1]
    for cut in reversed(cuts):
        bounds.append(int(cut[bounds[-1]]))
    return tuple(reversed(bounds))
