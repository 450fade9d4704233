"""ZB-H2: no bubble where F = I = W, at twice 1F1B's memory."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.split_backward import alternate_thirds


@register("zb-h2")
def zb_h2(pp: int, num_microbatches: int) -> Schedule:
    """Twice 1F1B's warm-up; rank r keeps the weight gradients of 2r microbatches for the drain.

    For: a bubble of (pp - 1)(F + I - 2 W) in the largest single-rank span, none when F = I = W
    and m >= 2 pp - 1.
    Loses: memory, (2 pp - 2 i + 1) M_B + (2 i - 2) M_W on stage i (from 1), so 2 pp - 1
    microbatches on the first rank; and the wall time keeps the stagger of the ranks' starts, so
    the step gains only if the optimizer does not wait for all ranks.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.2, Fig. 3 (bottom)
    and Table 2.

    >>> print(zb_h2(2, 4))
    0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3
    1F0,1I0,1F1,1I1,1F2,1I2,1W0,1F3,1I3,1W1,1W2,1W3
    """
    microbatch = np.arange(num_microbatches)
    rows = []
    for rank in range(pp):
        ops = np.column_stack([np.full_like(microbatch, rank), microbatch])
        rows.append(alternate_thirds(ops, ops, 2 * (pp - 1 - rank), 2 * rank))
    return Schedule.of(rows)
