"""Idle gaps of the ranks' compute streams: all of them, and the longest of each rank."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.timeline import Timeline

__all__ = ["Longest", "longest_gaps", "longest_of_ranks"]

Index = NDArray[np.int32]
Column = NDArray[np.float64]

SHORTEST = 1e-9  # part of the makespan below which a gap is rounding [1]


class Longest(NamedTuple):
    """The longest idle gap of some ranks, longest first, then by rank."""

    rank: NDArray[np.int64]
    length: Column  # [s]
    begin: Column  # [s]
    following: Index  # the span that ends it, or -1: after it the rank has nothing left to do


def longest_gaps(timeline: Timeline, only: int | None = None) -> list[tuple[float, int, float]]:
    """Length, rank and middle of every idle gap, longest first."""
    found: list[tuple[float, int, float]] = []
    ranks = range(timeline.num_ranks)
    for rank in ranks if only is None else [only]:
        mine = timeline.stream_of(rank) if rank in ranks else np.empty(0, np.int32)
        begin = np.concatenate([[0.0], np.maximum.accumulate(timeline.end[mine])])
        end = np.concatenate([timeline.start[mine], [timeline.makespan]])
        idle = end - begin > SHORTEST * timeline.makespan
        begin, end = begin[idle], end[idle]
        middle = ((begin + end) / 2).tolist()
        found += zip((end - begin).tolist(), [rank] * len(middle), middle, strict=True)
    return sorted(found, key=lambda gap: (-gap[0], gap[1], gap[2]))


def longest_of_ranks(timeline: Timeline) -> Longest:
    """The longest gap of every rank that has one, of equally long ones the first."""
    length, begin = np.zeros(timeline.num_ranks), np.zeros(timeline.num_ranks)
    following = np.full(timeline.num_ranks, -1, np.int32)
    columns = (timeline.rank, timeline.start, timeline.end, timeline.on_stream)
    _longest(*columns, timeline.makespan, length, begin, following)
    order = np.argsort(-length, kind="stable")
    order = order[: int(np.count_nonzero(length > SHORTEST * timeline.makespan))]
    return Longest(order, length[order], begin[order], following[order])


@kernel
def _longest(
    rank: Index,
    start: Column,
    end: Column,
    on_stream: Index,
    makespan: float,
    length: Column,
    begin: Column,
    following: Index,
) -> None:
    """Write each rank's longest gap."""
    at = 0
    for here in range(len(length)):
        reach = 0.0
        while at < len(on_stream) and rank[on_stream[at]] == here:
            i = on_stream[at]
            if start[i] - reach > length[here]:
                length[here], begin[here], following[here] = start[i] - reach, reach, i
            reach = max(reach, end[i])
            at += 1
        if makespan - reach > length[here]:
            length[here], begin[here], following[here] = makespan - reach, reach, -1
