"""Chimera: two copies of the model, one pipeline down the ranks and one up."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.hanayo import in_slots


@register("chimera")
def chimera(pp: int, num_microbatches: int) -> Schedule:
    """Stage s stands on ranks s and pp - 1 - s; half of the microbatches go down, half go up.

    Microbatches go in units of pp / 2 in each direction. A rank's even and odd slots belong to the
    forwards of different directions, so merging the two pipelines makes no op wait.

    For: half of 1F1B's bubble. With F = B it is (pp - 2) / (2 m + pp - 2) of the step for m
    microbatches a rank, a multiple of pp: the paper's figure. With B = 2F a unit of m = pp has
    (pp - 2) / (3 m / 2 + pp - 2), and each further unit adds pp - 2 forwards, which the paper's
    forward doubling and backward halving would remove.
    Loses: twice the weights, gradients and optimizer states, and an all-reduce between the two
    copies at the end; with F far from B and many units, time to 1F1B.

    Source: Li and Hoefler, "Chimera: Efficiently Training Large-Scale Neural Networks with
    Bidirectional Pipelines", SC'21, section 3.1 and Fig. 3, direct concatenation. PyTorch's
    runtime cannot run it: there each stage stands on one rank.

    Raises:
        ValueError: pp or num_microbatches is odd.

    >>> print(chimera(2, 2))
    0F0,1F1,1B1,0B0
    0F1,1F0,1B0,0B1
    """
    if pp % 2:
        below = f"{pp - 1} or " if pp > 1 else ""
        raise ValueError(
            f"plan.pp is {pp}, but chimera needs an even number of ranks: two pipelines meet in "
            f"the middle; use {below}{pp + 1}"
        )
    if num_microbatches % 2:
        below = f"{num_microbatches - 1} or " if num_microbatches > 1 else ""
        raise ValueError(
            f"plan.num_microbatches is {num_microbatches}, but chimera needs an even number: half "
            f"go down the ranks and half up; use {below}{num_microbatches + 1}"
        )
    down, up = np.split(np.arange(num_microbatches), 2)
    rows = []
    for rank in range(pp):
        both = [
            in_slots(np.array([stage]), pp, microbatches, pp // 2)
            for stage, microbatches in ((rank, down), (pp - 1 - rank, up))
        ]
        slot, row = (np.concatenate(parts) for parts in zip(*both, strict=True))
        rows.append(row[np.argsort(slot)])
    return Schedule.of(rows)
