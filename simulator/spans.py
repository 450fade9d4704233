"""From the times of a lowered schedule's ops to its Timeline."""

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind, Schedule
from simulator.timeline import Timeline

__all__ = ["ordered"]

Column = NDArray[np.float64]
Index = NDArray[np.int32]


def ordered(lowered: Schedule, start: Column, end: Column) -> Timeline:
    """The Timeline of ops that started and ended then, shape (num_ops,) each. [s]

    Spans stand by rank, then start, then the order in the row; WAIT is none. Where the rows are in
    that order the columns are theirs.
    """
    columns = (lowered.offsets, lowered.stage, lowered.kind, lowered.microbatch)
    if _stand(lowered.offsets, lowered.kind, start):  # share the columns
        return Timeline(
            rank=lowered.rank,
            stage=lowered.stage,
            kind=lowered.kind,
            microbatch=lowered.microbatch,
            start=start,
            end=end,
        )
    rank, stage, kind, microbatch, starts, ends, in_order = _ordered(*columns, start, end)
    if not in_order:
        order = np.lexsort((start, lowered.rank))
        order = order[lowered.kind[order] != Kind.WAIT]
        rank, stage, kind = lowered.rank[order], lowered.stage[order], lowered.kind[order]
        microbatch, starts, ends = lowered.microbatch[order], start[order], end[order]
    return Timeline(
        rank=rank, stage=stage, kind=kind, microbatch=microbatch, start=starts, end=ends
    )


@kernel
def _stand(offsets: NDArray[np.int64], kind: NDArray[np.int8], start: Column) -> bool:
    """Whether the ops of each row start in order, and none is WAIT."""
    for rank in range(len(offsets) - 1):
        for op in range(offsets[rank], offsets[rank + 1]):
            if kind[op] == 12 or (op > offsets[rank] and start[op] < start[op - 1]):
                return False
    return True


@kernel
def _ordered(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    start: Column,
    end: Column,
) -> tuple[Index, Index, NDArray[np.int8], Index, Column, Column, bool]:
    """The timed ops of each row by start, ties in the row's order: all but WAIT.

    Ops are nearly in order, receives apart from the rest, so that insertion and one merge do it;
    the last value says whether it was so.
    """
    num_ranks = len(offsets) - 1
    total = 0
    for op in range(len(kind)):
        if kind[op] != 12:
            total += 1
    new_rank, new_stage = np.empty(total, np.int32), np.empty(total, np.int32)
    new_kind, new_microbatch = np.empty(total, np.int8), np.empty(total, np.int32)
    new_start, new_end = np.empty(total), np.empty(total)
    longest = 0
    for rank in range(num_ranks):
        longest = max(longest, offsets[rank + 1] - offsets[rank])
    rest, received = np.empty(longest, np.int64), np.empty(longest, np.int64)
    fill, in_order = 0, True
    for rank in range(num_ranks):
        num_rest = num_received = 0
        moves = 16 * (offsets[rank + 1] - offsets[rank])
        for op in range(offsets[rank], offsets[rank + 1]):
            if kind[op] == 12:
                continue
            is_receive = kind[op] == 6 or kind[op] == 8
            row = received if is_receive else rest
            slot = num_received if is_receive else num_rest
            while moves > 0 and slot > 0 and start[row[slot - 1]] > start[op]:
                row[slot] = row[slot - 1]
                slot -= 1
                moves -= 1
            row[slot] = op
            if is_receive:
                num_received += 1
            else:
                num_rest += 1
        if moves == 0:
            in_order = False
            break
        a = b = 0
        while a < num_rest or b < num_received:
            if b == num_received:
                take_rest = True
            elif a == num_rest:
                take_rest = False
            else:
                one, other = rest[a], received[b]
                take_rest = start[one] < start[other] or (
                    start[one] == start[other] and one < other
                )
            op = rest[a] if take_rest else received[b]
            if take_rest:
                a += 1
            else:
                b += 1
            new_rank[fill], new_stage[fill], new_kind[fill] = rank, stage[op], kind[op]
            new_microbatch[fill], new_start[fill] = microbatch[op], start[op]
            new_end[fill] = end[op]
            fill += 1
    return new_rank, new_stage, new_kind, new_microbatch, new_start, new_end, in_order
