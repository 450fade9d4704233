"""Interleaved 1F1B in PyTorch's form: microbatch counts that are no multiple of pp."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.interleaved import passes
from simulator.schedules.one_f_one_b import alternate


@register("interleaved-flex", chunks=2)
def interleaved_flex(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """Interleaved 1F1B in max(1, m // pp) rounds of equal size, also of fewer or more than pp.

    For: m = 10 on 4 ranks is two rounds of 5; m = 3 is one round of 3.
    Loses: to the interleaved schedule where m is a multiple of pp: rounds larger than pp hold more
    activations, rounds smaller than pp leave the ranks waiting between chunks.

    Source: PyTorch's ScheduleInterleaved1F1B, whose rows these are without its empty slots. At
    m = pp it goes on in turn after the warm-up, where Megatron does all forwards first.

    Raises:
        ValueError: the rounds are not of equal size.

    >>> print(interleaved_flex(2, 3, 2))
    0F0,0F1,0F2,2F0,2F1,2F2,2B0,2B1,2B2,0B0,0B1,0B2
    1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,1B0,1B1,1B2
    """
    if not _fits(pp, num_microbatches):
        below = next(m for m in range(num_microbatches, 0, -1) if _fits(pp, m))
        above = next(m for m in range(num_microbatches, 2 * num_microbatches) if _fits(pp, m))
        raise ValueError(
            f"plan.num_microbatches is {num_microbatches}, but it must be a multiple of the number "
            f"of rounds, {num_microbatches} // pp = {num_microbatches // pp}; "
            f"use {below} or {above}"
        )
    group = num_microbatches // max(1, num_microbatches // pp)
    warmup = 2 * (pp - 1 - np.arange(pp)) + (vpp - 1) * group
    return Schedule.of(alternate(*passes(pp, num_microbatches, vpp, group), warmup))


def _fits(pp: int, num_microbatches: int) -> bool:
    """Whether the rounds are of equal size."""
    return num_microbatches % max(1, num_microbatches // pp) == 0
