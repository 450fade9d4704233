"""What the step's length hangs on: the causes of its last span, followed back to time zero."""

import numpy as np
from numpy.typing import NDArray

from simulator.causes import causes
from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = ["critical_line", "critical_path"]


def critical_path(timeline: Timeline) -> NDArray[np.int64]:
    """Indices of the spans that the step's length hangs on, from first to last.

    Each but the first starts when the one before it ends, so none can be late without the step
    being late.
    """
    cause = causes(timeline)
    here = int(np.argmax(timeline.end))
    path = {here: None}
    while (here := int(cause[here])) != -1 and here not in path:  # skewed clocks make circles
        path[here] = None
    return np.array(list(path)[::-1])


def critical_line(timeline: Timeline) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """The critical path as a line to draw over a Gantt chart: times [s] and ranks.

    Along a rank while its op runs, from rank to rank with a message.
    """
    path = critical_path(timeline)
    compute = path[timeline.kind[path] <= Kind.OPTIMIZER]
    time = np.column_stack([timeline.start[compute], timeline.end[compute]]).ravel()
    return time, np.repeat(timeline.rank[compute], 2)
