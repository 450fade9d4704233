"""PipeDream: 1F1B without a flush, every microbatch's gradient applied at once."""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import NO_MICROBATCH, Kind, Schedule
from simulator.schedules import register
from simulator.schedules.one_f_one_b import alternate, passes
from simulator.staleness import Weights


@register("pipedream", weights=Weights.STASH)
def pipedream(pp: int, num_microbatches: int) -> Schedule:
    """1F1B's order, an update after each backward, and no flush between iterations.

    The rows run on until they are steady: microbatch indices continue over iterations of
    num_microbatches. A forward reads the newest weights and stashes them for its backward.

    For: no bubble at all once it is steady, with 1F1B's activations.
    Loses: memory, pp - rank weight versions; and a gradient is pp - 1 - rank updates old. With slow
    links its pp microbatches in flight are too few: rank 0 waits 2 (pp - 1) / pp of a message's
    time for each. An update after every microbatch costs time too.

    Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training",
    SOSP'19, sections 3.2 and 3.3, without vertical sync.

    >>> for row in pipedream(2, 1).rows:
    ...     print(*row[:9])
    0F0 0F1 0B0 0OPTIMIZER 0F2 0B1 0OPTIMIZER 0F3 0B2
    1F0 1B0 1OPTIMIZER 1F1 1B1 1OPTIMIZER 1F2 1B2 1OPTIMIZER
    """
    warmup = pp - 1 - np.arange(pp)
    return without_flush(warmup, num_microbatches, batch=1)


def without_flush(warmup: NDArray[np.integer], num_microbatches: int, batch: int) -> Schedule:
    """Forwards and backwards in turn over several iterations, an update after each batch.

    Args:
        warmup: forwards of each rank before its first forward and backward in turn. [1]
        num_microbatches: of one iteration. [1]
        batch: microbatches whose gradients an update adds; divides num_microbatches. [1]

    """
    pp = len(warmup)
    steady = 3 * max(num_microbatches, pp)  # unequal stages take some time to find their pace
    total = -(-(int(warmup.max()) + steady) // num_microbatches) * num_microbatches
    rows = []
    for rank, row in enumerate(alternate(*passes(pp, total), warmup)):
        applied = np.flatnonzero((row[:, 1] == Kind.B) & (row[:, 2] % batch == batch - 1))
        rows.append(np.insert(row, applied + 1, [rank, Kind.OPTIMIZER, NO_MICROBATCH], axis=0))
    return Schedule.of(rows)
