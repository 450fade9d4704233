"""TeraPipe: slices of each sequence are what is pipelined, and their lengths are chosen."""

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind, Schedule
from simulator.schedules import register

__all__ = ["choose_slices", "terapipe"]


@register("terapipe")
def terapipe(pp: int, num_microbatches: int, num_slices: int | None = None) -> Schedule:
    """Each microbatch is cut along its tokens: slice after slice forward, last slice first back.

    Causal attention lets a slice go on without the later ones, and its backward needs theirs. Op
    number m num_slices + i is slice i of microbatch m; without `num_slices` this is GPipe.

    For: long sequences of which few fit, where there are too few microbatches to fill the
    pipeline: the bubble is (pp - 1) slices instead of microbatches.
    Loses: GPipe's memory, all slices at once; small slices use a GPU badly, and equal ones take
    longer and longer, as later slices attend to more tokens. `choose_slices` weighs the two; a
    job without `num_slices` is cut by it.

    Source: Li et al., "TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language
    Models", ICML 2021, section 3.2 and Fig. 2.

    >>> print(terapipe(2, 1, 2))
    0F0,0F1,0B1,0B0
    1F0,1F1,1B1,1B0
    """
    num_units = num_microbatches * (num_slices or 1)
    forward = np.arange(num_units)
    microbatch = np.concatenate([forward, forward[::-1]])
    kind = np.repeat([Kind.F, Kind.B], num_units)
    return Schedule.of(
        np.column_stack([np.full_like(microbatch, rank), kind, microbatch]) for rank in range(pp)
    )


def choose_slices(
    seq_len: int,
    num_stages: int,
    cost: Callable[[int, int], float],
    *,
    granularity: int = 1,
    tolerance: float = 0.0,
) -> tuple[int, ...]:
    """Slice lengths that minimise one sequence's way through the pipeline. [tokens]

    Its time is the sum of the slices' times plus num_stages - 1 times the longest. For each bound
    on the longest, the least sum is a shortest path over cutting points; bounds are tried upwards
    until they alone cost more than the best time. Source: Li et al., "TeraPipe", ICML 2021,
    section 3.3, equations 4 to 6 and algorithm 1.

    Args:
        seq_len: tokens of a sequence.
        num_stages: stages of the pipeline. [1]
        cost: time on one stage of a slice, from its length and the tokens before it. [s]
        granularity: slice lengths are multiples of this. [tokens]
        tolerance: bounds closer than this to the one before are skipped, which costs at most
            (num_stages - 1) times as much; 0 is exact. [s]

    Raises:
        ValueError: seq_len is no multiple of granularity.

    >>> choose_slices(12, 3, lambda length, before: 1 + length * (before + length) / 12)
    (5, 3, 2, 2)
    """
    num_cuts, rest = divmod(seq_len, granularity)
    if rest or not num_cuts:
        raise ValueError(
            f"seq_len is {seq_len}, but slices are multiples of granularity = {granularity}; "
            "use one that divides it"
        )
    times = np.full((num_cuts, num_cuts + 1), np.inf)  # from a cut to a later one [s]
    for begin, end in itertools.combinations(range(num_cuts + 1), 2):
        times[begin, end] = cost((end - begin) * granularity, begin * granularity)
    best, chosen, tried = np.inf, [0, num_cuts], -np.inf
    for bound in np.unique(times[np.isfinite(times)]).tolist():
        if (num_stages - 1) * bound >= best:
            break
        if bound < tried + tolerance:
            continue
        tried = bound
        total, cuts = _shortest(times, bound)
        if total + (num_stages - 1) * bound < best:
            best, chosen = total + (num_stages - 1) * bound, cuts
    return tuple((end - begin) * granularity for begin, end in itertools.pairwise(chosen))


def _shortest(times: NDArray[np.float64], bound: float) -> tuple[float, list[int]]:
    """The least sum of slice times of which none is above the bound, and its cutting points."""
    num_cuts = len(times)
    allowed = np.where(times <= bound, times, np.inf)
    least = np.full(num_cuts + 1, np.inf)
    least[0] = 0.0
    before = np.zeros(num_cuts + 1, np.int64)
    for end in range(1, num_cuts + 1):
        sums = least[:end] + allowed[:end, end]
        before[end] = sums.argmin()
        least[end] = sums[before[end]]
    if np.isinf(least[-1]):
        return np.inf, []
    cuts = [num_cuts]
    while cuts[-1]:
        cuts.append(int(before[cuts[-1]]))
    return float(least[-1]), cuts[::-1]
