"""Figures of repeated measurements that a hiccup does not move."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simulator.job import Link

__all__ = ["Spread", "fit_link", "spread", "theil_sen", "trimmed_mean"]

NEAR = 5  # message sizes that a link is fitted to [1]


class Spread(NamedTuple):
    """Repeated measurements of one figure."""

    median: float
    low: float  # lower quartile
    high: float  # upper quartile
    size: int  # how many [1]


def spread(samples: Iterable[float]) -> Spread:
    """Median and quartiles.

    >>> spread([1.0, 2.0, 3.0, 4.0, 100.0])
    Spread(median=3.0, low=2.0, high=4.0, size=5)
    """
    values = np.fromiter(samples, np.float64)
    if not len(values):
        raise ValueError("nothing was measured; run more steps")
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return Spread(middle, low, high, len(values))


def theil_sen(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of a line through points, a few of which may lie anywhere.

    The slope is the median of all pairs' slopes, the intercept the median that is left.

    Source: P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", Journal of
    the American Statistical Association 63(324), 1968.

    >>> theil_sen([0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 5.0, 7.0, 900.0])
    (1.0, 2.0)
    """
    across, up = np.asarray(x, np.float64), np.asarray(y, np.float64)
    i, j = np.triu_indices(len(across), 1)
    apart = across[i] != across[j]
    if not apart.any():
        raise ValueError("a line needs two different places; measure more sizes")
    i, j = i[apart], j[apart]
    slope = float(np.median((up[j] - up[i]) / (across[j] - across[i])))
    return float(np.median(up - slope * across)), slope


def fit_link(samples: Iterable[tuple[float, float]], around: float) -> Link:
    """Latency and bandwidth of a link from (bytes, seconds) of lone messages.

    A line through the fastest tenth of each size, since whatever disturbs a message makes it later;
    from the sizes next to `around` bytes, the message that counts, because small and large ones
    travel by different protocols. [bytes]

    >>> fit_link([(n, 1e-5 + n / 1e9) for n in (1e3, 1e4, 1e5, 1e6)], 1e5).bandwidth / 1e9
    1.0
    """
    sizes: dict[float, list[float]] = {}
    for nbytes, seconds in samples:
        sizes.setdefault(float(nbytes), []).append(seconds)
    fast = {nbytes: float(np.percentile(each, 10)) for nbytes, each in sorted(sizes.items())}
    near = sorted(fast, key=lambda n: abs(np.log(n / around)))[:NEAR]
    latency, slope = theil_sen(near, [fast[n] for n in near])
    if slope <= 0 or latency < 0:  # noise hides one of the two: let the other explain all
        at = min(near, key=lambda n: abs(n - around))
        return Link(bandwidth=at / fast[at], latency=0.0)
    return Link(bandwidth=round(1 / slope, 3), latency=latency)


def trimmed_mean(samples: Iterable[float], share: float = 0.1) -> float:
    """Mean without the largest and the smallest `share` of the samples.

    >>> trimmed_mean([1.0, *[2.0] * 8, 900.0])
    2.0
    """
    values = np.sort(np.fromiter(samples, np.float64))
    cut = int(share * len(values))
    return float(values[cut : len(values) - cut].mean())
