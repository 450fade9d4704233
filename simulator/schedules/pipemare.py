"""PipeMare: a full pipeline, no flush, no stashed weights, an update a batch."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.pipedream import without_flush
from simulator.staleness import Weights


@register("pipemare", weights=Weights.LATEST)
def pipemare(pp: int, num_microbatches: int) -> Schedule:
    """Pipelined SGD's order; one update after each num_microbatches backwards.

    The rows run on until they are steady: microbatch indices continue over iterations. Forward and
    backward each read the newest weights.

    For: no bubble once it is steady and one weight version; a gradient is 2 (pp - 1 - rank) / m
    updates old in the mean, m times fresher than pipelined SGD's.
    Loses: PipeDream's consistency: a backward may read newer weights than its forward did. The
    authors mend it with a learning rate by stage and a discrepancy correction; the correction's
    running mean of the weights is one more copy of them, which is not counted here.

    Source: Yang et al., "PipeMare: Asynchronous Pipeline Parallel DNN Training", MLSys 2021 (arXiv
    1910.05124), section 2. Its forward delay (2 (P - i) + 1) / N, stages from i = 1, also counts
    the microbatch's own step, 1 / N.

    >>> for row in pipemare(2, 2).rows:
    ...     print(*row[:9])
    0F0 0F1 0F2 0B0 0F3 0B1 0OPTIMIZER 0F4 0B2
    1F0 1B0 1F1 1B1 1OPTIMIZER 1F2 1B2 1F3 1B3
    """
    warmup = 2 * (pp - 1 - np.arange(pp))
    return without_flush(warmup, num_microbatches, batch=num_microbatches)
