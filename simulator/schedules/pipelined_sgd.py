"""Pipelined SGD: a full pipeline, no flush, no stashed weights, an update a microbatch."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.pipedream import without_flush
from simulator.staleness import Weights


@register("pipelined-sgd", weights=Weights.LATEST)
def pipelined_sgd(pp: int, num_microbatches: int) -> Schedule:
    """In every step a rank does a forward and a backward, 2 (pp - 1 - rank) microbatches apart.

    The rows run on until they are steady: microbatch indices continue over iterations of
    num_microbatches. Forward and backward each read the newest weights.

    For: no bubble once it is steady, one weight version, and it hides messages as long as half
    of a forward and a backward.
    Loses: a gradient is 2 (pp - 1 - rank) updates old and its backward reads other weights than its
    forward did, so it needs a small learning rate or a correction; and 2 (pp - 1 - rank) + 1
    microbatches in flight, nearly twice 1F1B's.

    Source: Petrowski et al., "Performance analysis of a pipelined backpropagation parallel
    algorithm", IEEE Transactions on Neural Networks 4(6), 1993; delays as in Kosson et al.,
    "Pipelined Backpropagation at Scale", MLSys 2021 (arXiv 2003.11666).

    >>> for row in pipelined_sgd(2, 1).rows:
    ...     print(*row[:8])
    0F0 0F1 0F2 0B0 0OPTIMIZER 0F3 0B1 0OPTIMIZER
    1F0 1B0 1OPTIMIZER 1F1 1B1 1OPTIMIZER 1F2 1B2
    """
    warmup = 2 * (pp - 1 - np.arange(pp))
    return without_flush(warmup, num_microbatches, batch=1)
