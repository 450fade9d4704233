"""Memory curves at the detail of a page: corners of one rank's, and the band of all ranks'."""

import numpy as np
from numpy.typing import NDArray

from simulator.timeline import Timeline

__all__ = ["MOST_LINES", "band", "envelope", "steps"]

MOST_LINES = 8  # a picture shows more ranks than this as a band
MOST_STEPS = 2000  # of one line


def steps(timeline: Timeline, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Corners of one rank's curve [s], [bytes]; a long one keeps the peak of each of many bins."""
    time, nbytes = _without_dips(*timeline.memory_of(rank))
    if len(time) > MOST_STEPS:
        edges = np.linspace(0.0, timeline.makespan, MOST_STEPS + 1)
        _, high = envelope(time, nbytes, edges)
        return edges, np.append(high, high[-1])
    last = nbytes[-1:] if len(nbytes) else nbytes
    return np.append(time, [timeline.makespan] * len(last)), np.append(nbytes, last)


def band(
    timeline: Timeline,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Edges of bins, and the smallest and largest memory of any rank in each, last one twice."""
    edges = np.linspace(0.0, timeline.makespan, MOST_STEPS + 1)
    pairs = [
        envelope(*_without_dips(*timeline.memory_of(r)), edges) for r in range(timeline.num_ranks)
    ]
    low = np.min([pair[0] for pair in pairs], axis=0)
    high = np.max([pair[1] for pair in pairs], axis=0)
    return edges, np.append(low, low[-1]), np.append(high, high[-1])


def _without_dips(
    time: NDArray[np.float64], nbytes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Drop what is freed and taken again in the same moment: it would show as a tick."""
    lasts = np.append((time[1:] > time[:-1]) | (nbytes[1:] < nbytes[:-1]), [True] * (len(time) > 0))
    return time[lasts], nbytes[lasts]


def envelope(
    time: NDArray[np.float64], value: NDArray[np.float64], edges: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Smallest and largest value in each bin of a step function that is 0 before its first step.

    >>> low, high = envelope(np.array([0.5]), np.array([8.0]), np.array([0.0, 1.0, 2.0]))
    >>> low.tolist(), high.tolist()
    ([0.0, 8.0], [8.0, 8.0])
    """
    steps = np.concatenate([[0.0], value])
    held = steps[np.searchsorted(time, edges[:-1], side="right")]  # on entering each bin
    low, high = held.copy(), held.copy()
    place = np.searchsorted(edges, time, side="right") - 1
    place[time == edges[-1]] = len(edges) - 2
    inside = (place >= 0) & (place < len(low))
    np.minimum.at(low, place[inside], value[inside])
    np.maximum.at(high, place[inside], value[inside])
    return low, high
