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
    return Schedule.of(alternate(*passes(pp, num_microbatches), pp - 1 - np.arange(pp)))


def passes(pp: int, num_microbatches: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Forwards and backwards of each rank in order, shape (pp, num_microbatches, 3) each."""
    ops = np.zeros((2, pp, num_microbatches, 3), np.int32)
    ops[..., 0] = np.arange(pp)[:, None]
    ops[1, ..., 1] = Kind.B
    ops[..., 2] = np.arange(num_microbatches)
    return ops[0], ops[1]


def alternate(
    forwards: NDArray[np.integer], backwards: NDArray[np.integer], num_warmup: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Rows: warm-up forwards, then a forward and a backward in turn, then the other backwards.

    Args:
        forwards: stage, kind and microbatch of each rank's in order, shape (num_ranks, n, 3).
        backwards: the same.
        num_warmup: of each rank, shape (num_ranks,); at most all n forwards are warm-up.

    Returns:
        Ops of shape (num_ranks, 2 n, 3).
    """
    num_ranks, n, _ = forwards.shape
    at, warmup = np.arange(n), np.minimum(num_warmup, n)[:, None]
    rank = np.arange(num_ranks)[:, None]
    rows = np.empty((num_ranks, 2 * n, 3), np.int32)
    rows[rank, np.where(at < warmup, at, 2 * at - warmup)] = forwards
    rows[rank, np.where(at < n - warmup, warmup + 2 * at + 1, at + n)] = backwards
    return rows
