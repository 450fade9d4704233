"""From the times of a lowered schedule's ops to its Timeline."""

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind, Schedule
from simulator.timeline import Timeline

__all__ = ["ordered", "reordered"]

Column = NDArray[np.float64]
Index = NDArray[np.int32]
Columns = tuple[Index, NDArray[np.int8], Index, Column, Column]


def ordered(lowered: Schedule, start: Column, end: Column) -> Timeline:
    """The Timeline of ops that started and ended then, shape (num_ops,) each. [s]

    Spans stand by rank, then start, then the order in the row; WAIT is none. Where the rows are in
    that order the columns are theirs.
    """
    if _stand(lowered.offsets, lowered.kind, start):
        return Timeline(
            rank=lowered.rank,
            stage=lowered.stage,
            kind=lowered.kind,
            microbatch=lowered.microbatch,
            start=start,
            end=end,
        )
    columns = (lowered.stage, lowered.kind, lowered.microbatch, start, end)
    total = lowered.num_ops - int(np.count_nonzero(lowered.kind == Kind.WAIT))
    kinds, times = np.empty(total, np.int8), (np.empty(total), np.empty(total))
    new = (np.empty(total, np.int32), kinds, np.empty(total, np.int32), *times)
    return _timeline(lowered, _reorder(lowered.offsets, *columns, *new), new)


def reordered(lowered: Schedule, start: Column, end: Column) -> Timeline:
    """The same in the columns of the rows and times, which are lost: a copy takes their memory."""
    columns = (lowered.stage, lowered.kind, lowered.microbatch, start, end)
    count = _reorder(lowered.offsets, *columns, *columns)
    total = int(count.sum())
    if total < len(start):
        columns = tuple(column[:total].copy() for column in columns)  # type: ignore[assignment]
    return _timeline(lowered, count, columns)


def _timeline(lowered: Schedule, count: NDArray[np.int64], columns: Columns) -> Timeline:
    """Spans of these columns, so many of each rank."""
    stage, kind, microbatch, start, end = columns
    rank = np.repeat(np.arange(lowered.num_ranks, dtype=np.int32), count)
    return Timeline(rank=rank, stage=stage, kind=kind, microbatch=microbatch, start=start, end=end)


@kernel
def _stand(offsets: NDArray[np.int64], kind: NDArray[np.int8], start: Column) -> bool:
    """Whether the ops of each row start in order, and none is WAIT."""
    for rank in range(len(offsets) - 1):
        for op in range(offsets[rank], offsets[rank + 1]):
            if kind[op] == 12 or (op > offsets[rank] and start[op] < start[op - 1]):
                return False
    return True


@kernel
def _reorder(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    start: Column,
    end: Column,
    new_stage: Index,
    new_kind: NDArray[np.int8],
    new_microbatch: Index,
    new_start: Column,
    new_end: Column,
) -> NDArray[np.int64]:
    """Put each row's ops, but for WAIT, in order of start, ties in the row's order.

    The new columns may be those that are read. Rows follow each other without gaps; returns their
    lengths. Ops are nearly in order, receives apart from the rest, so that insertion and one merge
    do it; else the row is sorted.
    """
    num_ranks = len(offsets) - 1
    longest = 0
    for rank in range(num_ranks):
        longest = max(longest, offsets[rank + 1] - offsets[rank])
    rest, received = np.empty(longest, np.int64), np.empty(longest, np.int64)
    order, count = np.empty(longest, np.int64), np.zeros(num_ranks, np.int64)
    old_stage, old_microbatch = np.empty(longest, np.int32), np.empty(longest, np.int32)
    old_kind = np.empty(longest, np.int8)
    old_start, old_end = np.empty(longest), np.empty(longest)
    fill = 0
    for rank in range(num_ranks):
        first, length = offsets[rank], offsets[rank + 1] - offsets[rank]
        num_rest = num_received = 0
        moves = 16 * length
        for at in range(length):
            op = first + at
            old_stage[at], old_kind[at], old_microbatch[at] = stage[op], kind[op], microbatch[op]
            old_start[at], old_end[at] = start[op], end[op]
            if kind[op] == 12:
                continue
            is_receive = kind[op] == 6 or kind[op] == 8
            row = received if is_receive else rest
            slot = num_received if is_receive else num_rest
            while moves > 0 and slot > 0 and old_start[row[slot - 1]] > old_start[at]:
                row[slot] = row[slot - 1]
                slot -= 1
                moves -= 1
            row[slot] = at
            if is_receive:
                num_received += 1
            else:
                num_rest += 1
        total = num_rest + num_received
        if moves == 0:
            total = 0
            for at in range(length):
                if old_kind[at] != 12:
                    rest[total] = at
                    total += 1
            sort = np.argsort(old_start[rest[:total]], kind="mergesort")
            for at in range(total):
                order[at] = rest[sort[at]]
        else:
            a = b = 0
            for at in range(total):
                if b == num_received:
                    take_rest = True
                elif a == num_rest:
                    take_rest = False
                else:
                    one, other = rest[a], received[b]
                    take_rest = old_start[one] < old_start[other] or (
                        old_start[one] == old_start[other] and one < other
                    )
                if take_rest:
                    order[at] = rest[a]
                    a += 1
                else:
                    order[at] = received[b]
                    b += 1
        for at in range(total):
            old = order[at]
            new_stage[fill], new_kind[fill] = old_stage[old], old_kind[old]
            new_microbatch[fill] = old_microbatch[old]
            new_start[fill], new_end[fill] = old_start[old], old_end[old]
            fill += 1
        count[rank] = total
    return count
