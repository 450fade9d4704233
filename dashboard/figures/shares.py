"""What fills each slice of a window of time, exactly: the overview of timelines of any size.

A category is a kind of op on a model chunk. Compute comes first: a collective counts only where
its rank computes nothing, so that shares and idle add up to 1. The two ops of an overlapped pair
share its time evenly. One pass over the spans, so that a window costs milliseconds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.colors import color
from traces.pairs import side_by_side
from traces.raster import COLLECTIVES

__all__ = ["Shares", "shares"]

DRAWN = (*COLLECTIVES, *(kind for kind in Kind if kind.is_compute))


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of each bin of each rank; idle is what is left."""

    kinds: tuple[Kind, ...]  # of each category
    chunks: tuple[int, ...]  # of each category
    num_chunks: int  # [1]
    start: float  # of the window [s]
    width: float  # of a bin [s]
    filled: NDArray[np.float32]  # shape (num_ranks, num_bins, num_categories) [1]

    @property
    def colors(self) -> list[str]:
        """The fill of each category."""
        pairs = zip(self.kinds, self.chunks, strict=True)
        return [color(kind, chunk, self.num_chunks) for kind, chunk in pairs]

    @property
    def idle(self) -> NDArray[np.float32]:
        """The share in which a rank does nothing, shape (num_ranks, num_bins). [1]"""
        return np.asarray(np.clip(1 - self.filled.sum(axis=2), 0, 1), np.float32)


def shares(timeline: Timeline, start: float, end: float, num_bins: int) -> Shares:
    """Cut a window in bins of one width and measure what fills each."""
    timeline = side_by_side(timeline)
    chunk, kinds = timeline.chunk, np.array(DRAWN, np.int64)
    num_chunks = int(chunk.max(initial=0)) + 1
    order = np.full(len(Kind), -1)
    order[kinds] = np.arange(len(kinds))
    code = np.where(order[timeline.kind] < 0, -1, order[timeline.kind] * num_chunks + chunk)
    present = np.unique(code[code >= 0])
    category = np.where(code < 0, -1, np.searchsorted(present, code)).astype(np.int64)
    filled = np.zeros((timeline.num_ranks, num_bins, len(present)), np.float32)
    stream = timeline.on_stream
    first = np.searchsorted(timeline.rank[stream], np.arange(timeline.num_ranks + 1))
    ranks, begins, ends, codes = _apart(timeline, category)
    collective = np.arange(timeline.num_spans, timeline.num_spans + len(ranks))
    spans = (
        np.append(timeline.rank, ranks).astype(np.int32),
        np.append(timeline.start, begins),
        np.append(timeline.end, ends),
        np.append(category, codes).astype(np.int64),
    )
    width = max((end - start) / num_bins, np.finfo(float).tiny)
    _fill(*spans, stream.astype(np.int64), first, collective, start, width, filled)
    return Shares(
        tuple(DRAWN[c // num_chunks] for c in present.tolist()),
        tuple((present % num_chunks).tolist()),
        num_chunks,
        start,
        width,
        filled,
    )


def _apart(timeline: Timeline, category: NDArray[np.int64]) -> list[list[float]]:
    """Ranks, starts, ends and categories of the collectives; of two at once the later one wins."""
    pieces: list[tuple[int, float, float, int]] = []
    spans = np.flatnonzero(np.isin(timeline.kind, COLLECTIVES))
    for span in spans[np.lexsort((-category[spans], timeline.rank[spans]))].tolist():
        rank, code = int(timeline.rank[span]), int(category[span])
        free = [(float(timeline.start[span]), float(timeline.end[span]))]
        for other, low, high, before in reversed(pieces):
            if other != rank:
                break
            if before != code:
                cut = [((a, min(b, low)), (max(a, high), b)) for a, b in free]
                free = [(a, b) for two in cut for a, b in two if a < b]
        pieces += [(rank, a, b, code) for a, b in free]
    return [[piece[i] for piece in pieces] for i in range(4)]


@kernel
def _fill(
    rank: NDArray[np.int32],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    category: NDArray[np.int64],
    stream: NDArray[np.int64],
    first: NDArray[np.int64],
    collective: NDArray[np.int64],
    begin: float,
    width: float,
    filled: NDArray[np.float32],
) -> None:
    """Add each compute span's parts to its bins, then each collective's where its rank is free."""
    num_bins = filled.shape[1]
    for turn in range(len(stream) + len(collective)):
        span = stream[turn] if turn < len(stream) else collective[turn - len(stream)]
        here, free_from = rank[span], start[span]
        low, high = 0, 0  # compute spans of the rank that may cover a collective
        if turn >= len(stream):
            low, high = first[here], first[here + 1]
        while True:
            free_to = end[span]  # the next part of the span that nothing covers
            while low < high and end[stream[low]] <= free_from:
                low += 1
            resume = free_to
            if low < high and start[stream[low]] < free_to:
                free_to = max(free_from, start[stream[low]])
                resume = end[stream[low]]
                low += 1
            a, b = max(free_from - begin, 0.0) / width, min((free_to - begin) / width, num_bins)
            at = int(a)
            while at < b and at < num_bins:
                filled[here, at, category[span]] += min(b, at + 1.0) - max(a, float(at))
                at += 1
            free_from = resume
            if free_from >= end[span]:
                break
