"""Breadth-first, or looped BFS: every microbatch through one chunk before the next chunk."""

import numpy as np

from simulator.schedule import Kind, Schedule
from simulator.schedules import register


@register("bfs", chunks=2)
def bfs(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """All forwards chunk by chunk, then all backwards chunk by chunk, each in the other order.

    For: the interleaved schedule's bubble, (pp - 1) / (vpp m) of the ideal time, for any m >= pp,
    and one contiguous use of each chunk's weights: with sharded data parallelism they are gathered
    once a chunk, and each chunk's gradients are reduced under the next chunk's backward. At m near
    pp it beats 1F1B vpp times.
    Loses: memory, all m vpp chunk-forwards at once, as GPipe; with many microbatches that buys
    nothing over the interleaved schedule.

    Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023, section 3 and Fig. 4.
    The rows are those of PyTorch's ScheduleLoopedBFS.

    >>> print(bfs(2, 2, 2))
    0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0
    1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0
    """
    chunk, microbatch = np.divmod(np.arange(num_microbatches * vpp), num_microbatches)
    rows = []
    for rank in range(pp):
        forwards = np.column_stack([chunk * pp + rank, np.full_like(chunk, Kind.F), microbatch])
        backwards = forwards[::-1].copy()
        backwards[:, 1] = Kind.B
        rows.append(np.concatenate([forwards, backwards]))
    return Schedule.of(rows)
