"""The curve of a layer's time over its size.

A layer's time is a constant, as launching its kernels takes, plus a part in proportion to its
tokens (the products), plus one in proportion to tokens x sequence length (the attention core).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curve", "fit"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Seconds of a layer: `constant + per_token x tokens + per_pair x tokens x seq_len`."""

    constant: float  # [s]
    per_token: float  # [s]
    per_pair: float  # [s]

    def seconds(self, samples: int, seq_len: int) -> float:
        """Time at one size. [s]

        >>> Curve(constant=1.0, per_token=0.5, per_pair=0.25).seconds(2, 4)
        13.0
        """
        tokens = samples * seq_len
        return self.constant + self.per_token * tokens + self.per_pair * tokens * seq_len


def fit(sizes: Sequence[tuple[int, int]], seconds: Sequence[float]) -> Curve:
    """The curve through (samples, seq_len) and their times, by least relative squares.

    No part is negative: one that would be is left out.

    Raises:
        ValueError: fewer sizes than the curve has parts.

    >>> sizes = [(1, 8), (2, 8), (1, 16), (4, 16)]
    >>> curve = fit(sizes, [1e-3 + 1e-5 * n * s + 1e-6 * n * s * s for n, s in sizes])
    >>> round(curve.per_pair, 9)
    1e-06
    """
    if len(set(sizes)) < 3:
        raise ValueError(f"{len(set(sizes))} sizes were timed; a curve needs at least 3")
    times = np.array(seconds, np.float64)
    tokens = np.array([n * s for n, s in sizes], np.float64)
    length = np.array([s for _, s in sizes], np.float64)
    columns = np.stack([np.ones_like(tokens), tokens, tokens * length], axis=1)
    best: tuple[float, NDArray[np.float64]] | None = None
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(range(3), size) for size in (3, 2, 1)
    ):
        part = columns[:, chosen] / times[:, None]
        found = np.linalg.lstsq(part, np.ones(len(times)), rcond=None)[0]
        if (found < 0).any():
            continue
        left = float(((part @ found - 1) ** 2).sum())
        if best is None or left < best[0] - 1e-15:
            values = np.zeros(3)
            values[list(chosen)] = found
            best = left, values
    assert best is not None  # one positive column alone always fits
    constant, per_token, per_pair = best[1].tolist()
    return Curve(constant=constant, per_token=per_token, per_pair=per_pair)
