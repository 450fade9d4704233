"""What a Gantt chart shows at a given size: bars or an image, which strips, which ranks' names."""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.pairs import halves
from traces.raster import COLLECTIVES

__all__ = [
    "BAR",
    "BAR_OVER_STRIPS",
    "LANES",
    "LOW",
    "Lane",
    "is_blurred",
    "is_image",
    "labelled_ranks",
    "lanes",
    "median_width",
    "strip_kinds",
]

Lane = tuple[float, float]  # top and bottom of a bar, from the middle of its row, in rows
BAR: Lane = (-0.42, 0.42)
BAR_OVER_STRIPS: Lane = (-0.44, 0.25)
LOW = 0.18  # below a bar's number, from the middle of its row, in rows
LANES: dict[Kind, Lane] = {
    Kind.SEND_F: (0.29, 0.365),
    Kind.SEND_B: (0.29, 0.365),
    Kind.RECV_F: (0.375, 0.45),
    Kind.RECV_B: (0.375, 0.45),
    **dict.fromkeys(COLLECTIVES, (0.29, 0.45)),
}
"""Where the strips of communication stand, under the bar of compute."""

MOST_BARS = 5000
MOST_STRIP_RANKS = 8  # above this, rows are too low for transfers under their bars
NARROWEST = 1.2  # [pt] a bar or strip that can be seen
LINE = 10.5  # [pt] between lines of text


def is_image(timeline: Timeline, width_points: float) -> bool:
    """Whether bars would be too many, or half of them too narrow, to be drawn one by one."""
    compute = timeline.compute
    return compute.num_spans > MOST_BARS or is_blurred(timeline, width_points)


def is_blurred(timeline: Timeline, width_points: float) -> bool:
    """Whether half of the compute is too narrow to be seen one by one."""
    compute = timeline.compute
    return compute.num_spans > 0 and median_width(compute, timeline, width_points) < NARROWEST


def lanes(spans: Timeline, bar: Lane) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Top and bottom of each span's bar; the ops of an overlapped pair stand one over the other."""
    half, middle = halves(spans), sum(bar) / 2
    return np.where(half == 2, middle, bar[0]), np.where(half == 1, middle, bar[1])


def strip_kinds(timeline: Timeline, width_points: float) -> list[Kind]:
    """Kinds of communication that are drawn as thin strips under the bars."""
    shown = []
    for kind in LANES:
        spans = timeline.of(kind)
        roomy = timeline.num_ranks <= MOST_STRIP_RANKS or kind in COLLECTIVES
        if spans.num_spans and roomy and median_width(spans, timeline, width_points) >= NARROWEST:
            shown.append(kind)
    return shown


def median_width(spans: Timeline, whole: Timeline, width_points: float) -> float:
    """How wide half of some spans are, where the whole is `width_points` wide. [pt]"""
    if not spans.num_spans:
        return 0.0
    return float(np.median(spans.end - spans.start)) * width_points / whole.makespan


def labelled_ranks(num_ranks: int, row_points: float) -> list[int]:
    """The ranks that have room for a line of text, and always the first and the last.

    >>> labelled_ranks(4, 30.0), labelled_ranks(64, 2.0)
    ([0, 1, 2, 3], [0, 8, 16, 24, 32, 40, 48, 56, 63])
    """
    stride = 1
    while stride * row_points < LINE:
        stride *= 2
    ranks = list(range(0, num_ranks, stride))
    if ranks[-1] != num_ranks - 1:
        if (num_ranks - 1 - ranks[-1]) * row_points < LINE:
            ranks.pop()
        ranks.append(num_ranks - 1)
    return ranks
