"""DualPipeV: DualPipe cut in half, so that its two directions are the two arms of a V."""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind, Schedule
from simulator.schedules import register

Numbers = tuple[int, int, int, int]  # arm, kind, microbatch, paired

F, B, I, W = int(Kind.F), int(Kind.B), int(Kind.I), int(Kind.W)


@register("dualpipe-v", chunks=2)
def dualpipe_v(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """Rank r holds stages r and 2 pp - 1 - r; forwards of one arm overlap backwards of the other.

    For: DualPipe's bubble and overlap on half the ranks and with each stage held once: for PP = 2
    pp stages (PP / 2 - 1) (F&B + B - 3 W), where F&B is an overlapped pair's time, and at most
    PP + 1 chunks' activations on a rank.
    Loses: when pairs save nothing: ZB-V has no bubble at equal F, I and W with less memory.

    Source: DeepSeek-AI, DualPipe (README, "DualPipeV"), after Sea AI Lab's "Cut-in-half"; the order
    of a rank is the reference's eight steps. The rows are those of PyTorch's ScheduleDualPipeV.

    Raises:
        ValueError: vpp is not 2, or there are fewer than 2 pp microbatches.

    >>> print(dualpipe_v(1, 2, 2))
    0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1
    """
    if vpp != 2:
        raise ValueError(f"plan.vpp is {vpp}, but dualpipe-v needs two chunks a rank; use 2")
    if num_microbatches < 2 * pp:
        raise ValueError(
            f"plan.num_microbatches is {num_microbatches}, but dualpipe-v needs at least one for "
            f"each stage, 2 pp; use {2 * pp} or more"
        )
    rows = []
    for rank in range(pp):
        row = arms(pp, num_microbatches, rank)
        row[:, 0] = np.where(row[:, 0], 2 * pp - 1 - rank, rank)
        rows.append(row)
    return Schedule.of(rows)


def arms(pp: int, num_microbatches: int, rank: int) -> NDArray[np.int32]:
    """A rank's row of DualPipeV: arm (0 down, 1 up), kind, microbatch and paired, shape (n, 4).

    The names of the steps are the reference's: 0 and 1 are the arms, B a full backward.
    """
    done_forward, done_backward = [0, 0], [0, 0]
    late: list[tuple[int, int]] = []  # arm and microbatch of each W still to do
    num_late = 0
    row: list[Numbers] = []

    def forward(arm: int, paired: int = 0) -> None:
        row.append((arm, F, done_forward[arm], paired))
        done_forward[arm] += 1

    def backward(arm: int, *, split: bool = False) -> None:
        row.append((arm, I if split else B, done_backward[arm], 0))
        if split:
            late.append((arm, done_backward[arm]))
        done_backward[arm] += 1

    def weight() -> None:
        nonlocal num_late
        arm, microbatch = late[num_late]
        row.append((arm, W, microbatch, 0))
        num_late += 1

    after = pp - 1 - rank  # ranks between this one and the turn of the V
    for _ in range(2 * after):  # F0
        forward(0)
    for _ in range(rank + 1):  # F0 F1
        forward(0)
        forward(1)
    for _ in range(after):  # I1 W1 F1
        backward(1, split=True)
        weight()
        forward(1)
    for turn in range(num_microbatches - 2 * pp + rank + 1):  # F0&B1 F1&B0
        forward(0, paired=int(turn > 0 or after > 0))  # the first at the turn is not worth a pair
        backward(1)
        forward(1, paired=1)
        backward(0)
    for _ in range(after):  # B1 F1&B0
        backward(1)
        forward(1, paired=1)
        backward(0)
    num_whole = rank + 1  # backwards of the next step before its I
    for turn in range(2 * (rank + 1)):  # B1 B0, the second half as I1 I0
        backward(1 - turn % 2, split=turn >= num_whole)
    for _ in range(after):  # W I0
        weight()
        backward(0, split=True)
    while num_late < len(late):  # W
        weight()
    return np.array(row, np.int32)
