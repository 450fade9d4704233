"""What fills each slice of time, for timelines with more spans than a picture has pixels.

Time is cut in bins of one width. A category is a kind of op on a model chunk. Compute comes
first: a collective counts only where its rank computes nothing, so shares and idle add up to 1.
The two ops of an overlapped pair share its time evenly.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.colors import IDLE, color, rgb
from traces.pairs import side_by_side

__all__ = ["COLLECTIVES", "Raster", "chunks_of", "idle_shares", "raster"]

COLLECTIVES = (Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)
_PRECEDENCE = (*COLLECTIVES, *(kind for kind in Kind if kind.is_compute))  # the later one wins


@dataclass(frozen=True, eq=False)
class Raster:
    """Shares of each bin of each rank that the categories fill; idle is the last category."""

    kinds: tuple[Kind, ...]  # of each category but idle
    chunks: tuple[int, ...]  # of each category but idle
    num_chunks: int  # [1]
    edges: NDArray[np.float64]  # shape (num_bins + 1,) [s]
    shares: NDArray[np.float32]  # shape (num_ranks, num_bins, num_categories) [1]

    @property
    def colors(self) -> list[str]:
        """The fill of each category, idle included."""
        pairs = zip(self.kinds, self.chunks, strict=True)
        return [*(color(kind, chunk, self.num_chunks) for kind, chunk in pairs), IDLE]

    @property
    def main(self) -> NDArray[np.uint8]:
        """The category that fills most of each bin, shape (num_ranks, num_bins)."""
        return np.asarray(self.shares.argmax(axis=2), np.uint8)

    @property
    def image(self) -> NDArray[np.uint8]:
        """The colours mixed by their shares, shape (num_ranks, num_bins, 3)."""
        palette = np.stack([rgb(c) for c in self.colors]).astype(np.float32)
        return np.asarray(np.rint(self.shares @ palette), np.uint8)


def raster(timeline: Timeline, num_bins: int) -> Raster:
    """Cut `[0, makespan]` in bins and measure, exactly, what fills each."""
    timeline = side_by_side(timeline)
    edges = np.linspace(0.0, timeline.makespan, num_bins + 1)
    chunk = timeline.chunk
    num_chunks = int(chunk.max(initial=0)) + 1
    drawn = np.isin(timeline.kind, _PRECEDENCE)
    order = np.full(len(Kind), -1)
    order[list(_PRECEDENCE)] = np.arange(len(_PRECEDENCE))
    code = (order[timeline.kind] * num_chunks + chunk).astype(np.int64)
    codes = np.unique(code[drawn])
    shares = np.zeros((timeline.num_ranks, num_bins, len(codes) + 1), np.float32)
    for rank in range(timeline.num_ranks):
        mine = drawn & (timeline.rank == rank)
        knots, owner = _owners(timeline.start[mine], timeline.end[mine], code[mine], codes)
        for category in range(len(codes)):
            filled = np.concatenate([[0.0], np.cumsum(np.diff(knots) * (owner == category))])
            shares[rank, :, category] = np.diff(np.interp(edges, knots, filled))
    shares /= max(timeline.makespan / num_bins, np.finfo(float).tiny)
    shares[..., -1] = np.clip(1 - shares[..., :-1].sum(axis=2), 0, 1)
    kinds = tuple(_PRECEDENCE[c // num_chunks] for c in codes.tolist())
    return Raster(kinds, tuple((codes % num_chunks).tolist()), num_chunks, edges, shares)


def _owners(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    code: NDArray[np.int64],
    codes: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Moments where something starts or ends, and the category between each two, -1 = idle."""
    knots = np.unique(np.concatenate([[0.0], start, end]))
    owner = np.full(len(knots) - 1, -1)
    first, last = np.searchsorted(knots, start), np.searchsorted(knots, end)
    for category, wanted in enumerate(codes):
        mine = code == wanted
        steps = np.bincount(first[mine], minlength=len(knots)).astype(np.int64)
        steps -= np.bincount(last[mine], minlength=len(knots))
        owner[np.cumsum(steps)[:-1] > 0] = category
    return knots, owner


def idle_shares(timeline: Timeline) -> NDArray[np.float64]:
    """The part of the step in which each rank computes nothing, shape (num_ranks,). [1]"""
    compute = side_by_side(timeline).compute
    busy = np.bincount(compute.rank, compute.end - compute.start, timeline.num_ranks)
    return 1 - busy / timeline.makespan


def chunks_of(spans: Timeline, whole: Timeline) -> tuple[NDArray[np.int32], int]:
    """The chunk of each span as the whole timeline counts them, and how many chunks it has."""
    held = np.zeros((whole.num_ranks, whole.num_stages), np.int32)
    held[whole.rank, whole.stage] = whole.chunk
    return held[spans.rank, spans.stage], int(whole.chunk.max(initial=0)) + 1
