"""How much of a timeline a window shows: op by op where they fit, an exact overview where not."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.layout import LANES, MOST_STRIP_RANKS
from traces.raster import COLLECTIVES

__all__ = ["MARGIN", "Window", "numbered", "spans_in", "strips_in", "whole"]

PLOT, NARROW = 920, 680  # of the rows on a common screen; on one of 1280 [pixel]
MOST_BARS = 1_300  # more nodes than this make a page slow [1]
NARROWEST = 1.6  # an op that can be seen [pixel]
MARGIN = 0.5  # windows drawn beyond each side, for panning [1]
DIGIT, PAD = 7.0, 4.0  # of a number in a bar [pixel]
MOST_NUMBERS = 700
LOWEST_ROW = 13.0  # that has room for numbers [pixel]


class Window(NamedTuple):
    """A part of the step, and of its rows. [s], [rank]"""

    start: float
    end: float
    top: float = -0.5  # of the rows in view [rank]
    bottom: float = float("inf")

    @property
    def length(self) -> float:
        """[s]"""
        return self.end - self.start


def whole(timeline: Timeline) -> Window:
    """All of the step."""
    return Window(0.0, timeline.makespan)


def around(window: Window, timeline: Timeline) -> Window:
    """A window with what panning may bring into view."""
    more = MARGIN * window.length
    start, end = max(0.0, window.start - more), min(timeline.makespan, window.end + more)
    rows = MARGIN * (min(window.bottom, timeline.num_ranks - 0.5) - window.top)
    return Window(start, end, window.top - rows, window.bottom + rows)


def spans_in(timeline: Timeline, window: Window) -> NDArray[np.int64] | None:
    """Indices of the compute spans to draw op by op; None if they are too many or too narrow."""
    inside = _inside(timeline, around(window, timeline))
    if len(inside) > MOST_BARS:
        inside = _inside(timeline, window)
    if len(inside) > MOST_BARS:
        return None
    median = float(np.median(timeline.end[inside] - timeline.start[inside])) if len(inside) else 0.0
    return inside if median * PLOT / window.length >= NARROWEST or not len(inside) else None


def _inside(timeline: Timeline, window: Window) -> NDArray[np.int64]:
    """Indices of the compute spans that a window shows a part of."""
    compute = timeline.on_stream
    start, end, rank = (c[compute] for c in (timeline.start, timeline.end, timeline.rank))
    shown = (start < window.end) & (end > window.start)
    shown &= (rank > window.top - 0.5) & (rank < window.bottom + 0.5)
    return compute[shown].astype(np.int64)


def strips_in(timeline: Timeline, window: Window, drawn: int) -> NDArray[np.int64]:
    """Indices of the communication to draw under the bars, where there is room for it."""
    near = around(window, timeline)
    kinds = list(LANES) if timeline.num_ranks <= MOST_STRIP_RANKS else list(COLLECTIVES)
    shown = np.isin(timeline.kind, kinds)
    shown &= (timeline.start < near.end) & (timeline.end > near.start)
    inside = np.flatnonzero(shown)
    long = timeline.end[inside] - timeline.start[inside]
    visible = inside[long * PLOT / window.length >= 1.0]
    return visible if len(visible) + drawn <= MOST_BARS else visible[:0]


def numbered(
    timeline: Timeline, spans: NDArray[np.int64], window: Window, row: float
) -> NDArray[np.int64]:
    """Those of some spans whose microbatch's number fits into its bar; all of a kind or few.

    A number that the window's edge would cut is left out: half of it is another number.
    """
    if row < LOWEST_ROW:
        return spans[:0]
    start, end, pixel = timeline.start[spans], timeline.end[spans], PLOT / window.length
    width = len(str(int(timeline.microbatch.max(initial=0)))) * DIGIT
    fits = ((end - start) * pixel >= width + PAD) & (timeline.microbatch[spans] >= 0)
    for edge in (window.start, window.end):
        fits &= np.abs((start + end) / 2 - edge) * NARROW / window.length >= width / 2
    kinds = np.isin(timeline.kind[spans], [Kind.F, Kind.B, Kind.I, Kind.W])
    chosen = spans[fits & kinds]
    if len(chosen) > MOST_NUMBERS:  # then only those in view
        rank = timeline.rank[chosen]
        seen = (timeline.end[chosen] > window.start) & (timeline.start[chosen] < window.end)
        chosen = chosen[seen & (rank > window.top - 0.5) & (rank < window.bottom + 0.5)]
    return chosen if len(chosen) <= MOST_NUMBERS else chosen[:0]
