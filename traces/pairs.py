"""Overlapped pairs: two ops of a rank's compute stream that start and end together."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.timeline import Timeline

__all__ = ["halves", "side_by_side"]


def halves(spans: Timeline) -> NDArray[np.int8]:
    """1 for the first op of an overlapped pair, 2 for the second, 0 for every other span."""
    half = np.zeros(spans.num_spans, np.int8)
    first = spans.pairs()
    half[first] = 1
    half[first + 1] = 2
    return half


def side_by_side(timeline: Timeline) -> Timeline:
    """The same timeline with each pair's time shared evenly, so that no two ops overlap."""
    half = halves(timeline)
    if not half.any():
        return timeline
    middle = (timeline.start + timeline.end) / 2
    return replace(
        timeline,
        start=np.where(half == 2, middle, timeline.start),
        end=np.where(half == 1, middle, timeline.end),
    )
