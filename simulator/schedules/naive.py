"""No pipelining: one microbatch at a time through all stages and back."""

import numpy as np

from simulator.schedule import Kind, Schedule
from simulator.schedules import register


@register("naive")
def naive(pp: int, num_microbatches: int) -> Schedule:
    """Each rank does a microbatch's forward, then its backward, before the next microbatch.

    For: the picture that every lecture starts from, and the least memory: one microbatch in flight.
    Loses: always in time; one rank works while pp - 1 wait, a bubble of (pp - 1) / pp.

    Source: Huang et al., "GPipe", NeurIPS 2019, Fig. 2b.

    >>> print(naive(2, 2))
    0F0,0B0,0F1,0B1
    1F0,1B0,1F1,1B1
    """
    rows = []
    for rank in range(pp):
        row = np.empty((2 * num_microbatches, 3), np.int32)
        row[:, 0] = rank
        row[:, 1] = np.tile([Kind.F, Kind.B], num_microbatches)
        row[:, 2] = np.repeat(np.arange(num_microbatches), 2)
        rows.append(row)
    return Schedule.of(rows)
