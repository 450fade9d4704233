"""1F1B, also called PipeDream-Flush: one forward, one backward, in turn."""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind, Schedule
from simulator.schedules import register


@register("1f1b")
def one_f_one_b(pp: int, num_microbatches: int) -> Schedule:
    """After min(pp - 1 - rank, m) warm-up forwards, one forward and one backward in turn.

    For: GPipe's bubble, (pp - 1) / (m + pp - 1), with at most pp - rank microbatches in flight.
    Loses: to the interleaved schedule, whose bubble is vpp times smaller, when m is small.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC'21, Fig. 4 (top).

    >>> print(one_f_one_b(2, 3))
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    """
    microbatch = np.arange(num_microbatches)
    rows = []
    for rank in range(pp):
        stage = np.full(num_microbatches, rank)
        forwards = np.column_stack([stage, np.full_like(stage, Kind.F), microbatch])
        backwards = np.column_stack([stage, np.full_like(stage, Kind.B), microbatch])
        rows.append(alternate(forwards, backwards, pp - 1 - rank))
    return Schedule.of(rows)


def alternate(
    forwards: NDArray[np.integer], backwards: NDArray[np.integer], num_warmup: int
) -> NDArray[np.integer]:
    """A row: warm-up forwards, then a forward and a backward in turn, then the other backwards.

    Both arguments are ops in order, shape (n, 3); at most all n forwards are warm-up.
    """
    n = len(forwards)
    num_warmup = min(num_warmup, n)
    steady = n - num_warmup
    row = np.empty((2 * n, 3), np.int32)
    row[:num_warmup] = forwards[:num_warmup]
    row[num_warmup : num_warmup + 2 * steady : 2] = forwards[num_warmup:]
    row[num_warmup + 1 : num_warmup + 2 * steady : 2] = backwards[:steady]
    row[num_warmup + 2 * steady :] = backwards[steady:]
    return row
