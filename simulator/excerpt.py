"""What of a timeline explains some gaps, with the messages in it as spans."""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = ["excerpt"]

NONE = -1


def excerpt(
    timeline: Timeline, cause: NDArray[np.int32], following: list[int], begin: list[float]
) -> tuple[Timeline, NDArray[np.int32], list[int]]:
    """The whole ranks of some gaps, what led to these with its messages, and the causes of all.

    Args:
        timeline: a run without messages.
        cause: what `implied_causes` says of it.
        following: the span that ends each gap.
        begin: when each gap began. [s]

    Returns:
        The spans, their causes, and where the spans in `following` are among them.
    """
    needed = np.isin(timeline.rank, timeline.rank[following])
    messages: dict[int, int] = {}  # from the span that waited for one to the span that made it
    for at, since in zip(following, begin, strict=True):
        here = at
        while here != NONE and (here == at or timeline.end[here] > since):
            needed[here] = True
            source = int(cause[here])
            if source < NONE:
                source = messages[here] = -2 - source
                needed[source] = True
            here = source
    kept = np.flatnonzero(needed)
    users, makers = (np.array(list(column), np.int64) for column in (messages, messages.values()))
    part = timeline.where(np.concatenate([kept, makers, users]))
    first, second = len(kept), len(kept) + len(makers)  # of the sends, of the receives
    back = timeline.kind[users] != Kind.F
    part.kind[first:second] = np.where(back, Kind.SEND_B, Kind.SEND_F)
    part.kind[second:] = np.where(back, Kind.RECV_B, Kind.RECV_F)
    part.start[first:] = np.tile(timeline.end[makers], 2)
    part.end[first:] = np.tile(timeline.start[users], 2)
    new = np.full(timeline.num_spans + 1, NONE, np.int32)  # the last stands for none
    new[kept] = np.arange(first)
    found = new[np.concatenate([np.maximum(cause[kept], NONE), makers, makers])]
    found[new[users]] = np.arange(second, second + len(users))
    return part, found, new[following].tolist()
