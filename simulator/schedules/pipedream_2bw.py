"""PipeDream-2BW: 1F1B without a flush, gradients applied in batches, two weight versions."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.pipedream import without_flush
from simulator.staleness import Weights


@register("pipedream-2bw", weights=Weights.DOUBLE_BUFFER)
def pipedream_2bw(pp: int, num_microbatches: int) -> Schedule:
    """1F1B's order without a flush; one update after each num_microbatches backwards.

    The rows run on until they are steady: microbatch indices continue over iterations. Batch t
    reads weight version t - 1 on every rank, so a new version waits for the next batch.

    For: no bubble once it is steady, with two weight versions whatever pp, and every gradient
    exactly one update old: W(t + 1) = W(t) - lr * grad(W(t - 1)).
    Loses: to 1F1B in weight memory, one version more; and it needs num_microbatches >= pp.

    Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021
    (arXiv 2006.09503), section 3.1.

    Raises:
        ValueError: num_microbatches is less than pp.

    >>> for row in pipedream_2bw(2, 2).rows:
    ...     print(*row[:9])
    0F0 0F1 0B0 0F2 0B1 0OPTIMIZER 0F3 0B2 0F4
    1F0 1B0 1F1 1B1 1OPTIMIZER 1F2 1B2 1F3 1B3
    """
    if num_microbatches < pp:
        raise ValueError(
            f"plan.num_microbatches is {num_microbatches}, but with two weight versions "
            f"pipedream-2bw needs at least pp = {pp}; use {pp} or more"
        )
    warmup = pp - 1 - np.arange(pp)
    return without_flush(warmup, num_microbatches, batch=num_microbatches)
