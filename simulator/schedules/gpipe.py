"""GPipe: all forwards, then all backwards."""

import numpy as np

from simulator.schedule import Kind, Schedule
from simulator.schedules import register


@register("gpipe")
def gpipe(pp: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards, newest first.

    For: a bubble of (pp - 1) / (m + pp - 1) from the simplest order.
    Loses: memory; every rank holds all m microbatches at once. 1F1B has the same bubble with pp.

    Source: Huang et al., "GPipe", NeurIPS 2019, Fig. 2c. PyTorch's ScheduleGPipe runs the backwards
    oldest first; with equal costs the times are the same.

    >>> print(gpipe(2, 2))
    0F0,0F1,0B1,0B0
    1F0,1F1,1B1,1B0
    """
    forward = np.arange(num_microbatches)
    microbatch = np.concatenate([forward, forward[::-1]])
    kind = np.repeat([Kind.F, Kind.B], num_microbatches)
    return Schedule.of(
        np.column_stack([np.full_like(microbatch, rank), kind, microbatch]) for rank in range(pp)
    )
