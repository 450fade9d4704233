"""ZB-H1: a third of 1F1B's bubble, at 1F1B's memory."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.split_backward import alternate_thirds


@register("zb-h1")
def zb_h1(pp: int, num_microbatches: int) -> Schedule:
    """1F1B whose rank r keeps the weight gradients of r microbatches for the drain.

    For: a bubble of (pp - 1)(F + I - W) against 1F1B's (pp - 1)(F + I + W) in the largest
    single-rank span, with 1F1B's peak memory: stage i (from 1) keeps (pp - i + 1) M_B and
    (i - 1) M_W.
    Loses: to ZB-H2 where memory is free; to 1F1B where splitting the backward slows the kernels
    or the optimizer step waits for all ranks, since ranks end one after the other.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1, Fig. 3 (top) and
    Table 2. The same rows as interleaved-zb with vpp = 1.

    >>> print(zb_h1(2, 3))
    0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2
    1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2
    """
    microbatch = np.arange(num_microbatches)
    rows = []
    for rank in range(pp):
        ops = np.column_stack([np.full_like(microbatch, rank), microbatch])
        rows.append(alternate_thirds(ops, ops, pp - 1 - rank, rank))
    return Schedule.of(rows)
