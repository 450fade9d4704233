"""ZB-V: no bubble where F = I = W, at 1F1B's memory."""

import numpy as np

from simulator.schedule import Kind, Schedule
from simulator.schedules import register
from simulator.schedules.v_shape import require_two_chunks

DOWN, UP = 0, 1  # the arms of the V
STEP = len(Kind)


@register("zb-v", chunks=2)
def zb_v(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """Rank r holds stages r and 2 pp - 1 - r; a microbatch goes down the V and up again.

    For: no bubble in any rank's span where F = I = W and m >= 2 pp - 1, with the activations of
    2 pp chunks on every rank: 1F1B's memory on the first rank. The loss and the first layers sit on
    one rank.
    Loses: where F, I and W differ, since the order does not; to ZB-H1 on slow links, since it sends
    twice as much; every rank holds what in 1F1B only the first does.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6. The rows are equal
    to those of PyTorch's ScheduleZBVZeroBubble: the order for at least 2 pp - 1 microbatches,
    without the microbatches that there are not.

    Raises:
        ValueError: vpp is not 2.

    >>> print(zb_v(2, 3, 2))
    0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2
    1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2
    """
    require_two_chunks("zb-v", vpp)
    count = max(2 * pp - 1, num_microbatches)
    rows = []
    for rank in range(pp):
        arm, kind = np.divmod(_steps(pp, count, rank), STEP)
        microbatch = np.zeros_like(kind)
        for one in (DOWN, UP):
            for what in (Kind.F, Kind.I, Kind.W):
                same = (arm == one) & (kind == what)
                microbatch[same] = np.arange(count)
        stage = np.where(arm == DOWN, rank, 2 * pp - 1 - rank)
        row = np.column_stack([stage, kind, microbatch])
        rows.append(row[microbatch < num_microbatches])
    return Schedule.of(rows)


def _steps(pp: int, count: int, rank: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Arm and kind of a rank's ops in order, as arm * STEP + kind."""
    f0, i0, w0 = (DOWN * STEP + kind for kind in (Kind.F, Kind.I, Kind.W))
    f1, i1, w1 = (UP * STEP + kind for kind in (Kind.F, Kind.I, Kind.W))
    after = pp - 1 - rank  # ranks between this one and the turn of the V
    parts = (
        ([f0], 2 * after + 1),
        ([f1, f0], rank),
        ([f1, i1, w1], after + 1),
        ([f0, i0, w0, f1, i1, w1], count - pp - after),
        ([i0, w0, f1, i1, w1], after),
        ([i0, i1], rank),
        ([i0, w0], after + 1),
        ([w1], rank),
        ([w0], rank),
    )
    return np.concatenate([np.tile(np.array(ops, np.int64), times) for ops, times in parts])
