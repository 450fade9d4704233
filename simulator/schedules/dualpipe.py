"""DualPipe: two pipelines in opposite directions whose forwards and backwards overlap in pairs."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.dualpipe_v import arms


@register("dualpipe")
def dualpipe(pp: int, num_microbatches: int) -> Schedule:
    """Stage s stands on ranks s and pp - 1 - s; half of the microbatches go down, half go up.

    In the steady state each rank runs a forward of one direction together with a backward of the
    other, so that one's communication hides under the other's computation. Backwards are split
    into I and W where W can fill a wait.

    For: expert parallelism over slow links: all of its exchanges are hidden, with a bubble of
    (pp / 2 - 1) (F&B + B - 3 W), where F&B is an overlapped pair's time (`Costs.pair_time`). With
    F = I that is the idle time of the ranks that idle most; others idle less when F&B < F + B.
    Loses: twice the weights, gradients and optimizer states, pp + 1 microbatches' activations, and
    an all-reduce between the two copies at the end. DualPipeV does the same with one copy.

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1, Table 2 and Fig. 5;
    the order of a rank is that of the reference, github.com/deepseek-ai/DualPipe. PyTorch's runtime
    cannot run it: there each stage stands on one rank.

    Raises:
        ValueError: pp or num_microbatches is odd, or there are fewer than 2 pp microbatches.

    >>> print(dualpipe(2, 4))
    0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1
    0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3
    """
    if pp % 2:
        below = f"{pp - 1} or " if pp > 1 else ""
        raise ValueError(
            f"plan.pp is {pp}, but dualpipe needs an even number of ranks: two pipelines meet in "
            f"the middle; use {below}{pp + 1}"
        )
    if num_microbatches % 2 or num_microbatches < 2 * pp:
        least = max(2 * pp, num_microbatches + num_microbatches % 2)
        raise ValueError(
            f"plan.num_microbatches is {num_microbatches}, but dualpipe needs an even number of at "
            f"least 2 pp = {2 * pp}; use {least}"
        )
    half = num_microbatches // 2
    rows = []
    for rank in range(pp):
        near = min(rank, pp - 1 - rank)  # the mirror image of the other half's rank
        row = arms(pp // 2, half, near)
        up = (row[:, 0] == 1) != (rank != near)
        row[:, 2] += half * up
        row[:, 0] = np.where(row[:, 0], pp - 1 - near, near)
        rows.append(row)
    return Schedule.of(rows)
