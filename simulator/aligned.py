"""Data-parallel collectives beside the pipeline's compute, as Megatron-Core places them in a row.

A collective slows the compute that it runs beside, and ranks that are slowed at different moments
wait for each other. So Megatron-Core starts a chunk's reduction, and a chunk's gathering, at the
same moment on all pipeline ranks: rank r does what rank 0 does r ops later in the backward, which
reaches it r ops earlier, and r ops earlier in the forward.
Source: NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py,
forward_backward_pipelining_with_interleaving (grad_sync_func, param_sync_func), with
align_grad_reduce and align_param_gather of megatron/training/training.py.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.lower import insert, last_backward
from simulator.schedule import Kind, Schedule

__all__ = ["reduce_aligned", "unshard_ahead", "unshard_aligned"]

Index = NDArray[np.int64]

AT_ONCE = 2  # chunks whose weights are gathered when the step begins [1]


def reduce_aligned(rows: Schedule) -> Schedule:
    """Add each stage's REDUCE_GRAD as many backwards after its last as the rank's number says.

    Where fewer are left it stands at the end of the row, as what Megatron-Core has left over does.

    >>> print(reduce_aligned(Schedule.parse("0F0,2F0,2B0,0B0" + chr(10) + "1F0,3F0,3B0,1B0")))
    0F0,2F0,2B0,2REDUCE_GRAD,0B0,0REDUCE_GRAD
    1F0,3F0,3B0,1B0,3REDUCE_GRAD,1REDUCE_GRAD
    """
    backward = np.flatnonzero(np.isin(rows.kind, (Kind.B, Kind.W)))
    last = last_backward(rows)
    rank = rows.rank[last]
    place = np.searchsorted(backward, last) + rank
    later = backward[np.minimum(place, len(backward) - 1)]
    here = (place < len(backward)) & (rows.rank[later] == rank)
    at = np.where(here, later + rows.paired[later] + 1, rows.offsets[rank + 1])
    order = np.lexsort((rows.stage[last], ~here, rank))
    at, rank = at[order], rank[order]
    return insert(rows, at, rank, rows.stage[last][order], Kind.REDUCE_GRAD)


def unshard_ahead(rows: Schedule) -> Schedule:
    """Add each stage's UNSHARD before its first forward, the first of a rank as the step begins.

    >>> print(unshard_ahead(Schedule.parse("0F0,2F0,2B0,0B0" + chr(10) + "1F0,3F0,3B0,1B0")))
    0UNSHARD,0F0,2UNSHARD,2F0,2B0,0B0
    1UNSHARD,1F0,3UNSHARD,3F0,3B0,1B0
    """
    first, rank, turn = _first_forwards(rows)
    at = np.where(turn == 0, rows.offsets[rank], _before(rows, first))
    return insert(rows, at, rank, rows.stage[first], Kind.UNSHARD)


def unshard_aligned(rows: Schedule) -> Schedule:
    """Add each stage's UNSHARD, of a rank's first two chunks as the step begins.

    A later one's stands where the first forward of the chunk before it is as many forwards off as
    the rank's number says.

    >>> rows = Schedule.parse("0F0,0F1,2F0,2F1,4F0,4F1" + chr(10) + "1F0,1F1,3F0,3F1,5F0,5F1")
    >>> print(unshard_aligned(rows))
    0UNSHARD,2UNSHARD,0F0,0F1,4UNSHARD,2F0,2F1,4F0,4F1
    1UNSHARD,3UNSHARD,1F0,5UNSHARD,1F1,3F0,3F1,5F0,5F1
    """
    first, rank, turn = _first_forwards(rows)
    forward = np.flatnonzero(rows.kind == Kind.F)
    before = np.concatenate([first[:1], first[:-1]])  # the rank's chunk before, but for its first
    place = np.searchsorted(forward, before) - rank
    earliest = np.searchsorted(forward, rows.offsets[rank])
    at = _before(rows, forward[np.maximum(place, earliest)])
    at = np.where(turn < AT_ONCE, rows.offsets[rank], at)
    return insert(rows, at, rank, rows.stage[first], Kind.UNSHARD)


def _before(rows: Schedule, at: Index) -> Index:
    """Where to insert before these ops: before the pair, if one is its second."""
    return at - (rows.paired[at - 1] & (at > 0))


def _first_forwards(rows: Schedule) -> tuple[Index, Index, Index]:
    """Index of each (rank, stage)'s first F, in order; its rank; how many came before on it."""
    forward = np.flatnonzero(rows.kind == Kind.F)
    key = rows.rank[forward].astype(np.int64) * rows.num_stages + rows.stage[forward]
    first = np.sort(forward[np.unique(key, return_index=True)[1]])
    rank = rows.rank[first].astype(np.int64)
    turn = np.arange(len(first)) - np.searchsorted(rank, rank)
    return first, rank, turn
