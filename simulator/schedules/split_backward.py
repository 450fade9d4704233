"""1F1B with the backward in two halves: I at once, W later. Registers nothing.

Only I is on the way of another rank; W may fill a bubble at any later time.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind

__all__ = ["alternate_thirds"]


def alternate_thirds(
    forwards: NDArray[np.integer],
    backwards: NDArray[np.integer],
    num_warmup: int,
    num_deferred: int,
) -> NDArray[np.integer]:
    """A row: warm-up forwards, then F, I and W in turn, W staying `num_deferred` behind its I.

    Where the forwards have run out, I and W alternate; the W that are left end the row.

    Args:
        forwards: stage and microbatch of each forward in order, shape (n, 2).
        backwards: the same of each backward.
        num_warmup: forwards before the first F, I pair; at most all n. [1]
        num_deferred: I that run before the first W. [1]

    >>> one = np.array([[0, 0], [0, 1], [0, 2]])
    >>> alternate_thirds(one, one, 1, 1)[:, 1:].tolist()  # F0 F1 I0 F2 I1 W0 I2 W1 W2
    [[0, 0], [0, 1], [2, 0], [0, 2], [2, 1], [3, 0], [2, 2], [3, 1], [3, 2]]
    """
    n = len(forwards)
    at = np.arange(n)
    turn = 3 * np.concatenate([at - min(num_warmup, n), at, at + num_deferred])
    kinds = np.repeat([Kind.F, Kind.I, Kind.W], n)
    order = np.argsort(turn + np.repeat([0, 1, 2], n), kind="stable")
    ops = np.concatenate([forwards, backwards, backwards])[order]
    return np.column_stack([ops[:, 0], kinds[order], ops[:, 1]])
