"""Rows of a file to the columns of a timeline."""

from collections.abc import Sequence

import numpy as np

from simulator.timeline import Timeline

__all__ = ["Sample", "Span", "timeline_of"]

Span = tuple[int, int, int, int, float, float]  # rank, stage, kind, microbatch, start, end
Sample = tuple[int, float, float]  # rank, time, bytes


def timeline_of(spans: Sequence[Span], samples: Sequence[Sample]) -> Timeline:
    """Rows of a file, in its order, as a timeline.

    Raises:
        ValueError: a number stands outside what a timeline can hold.

    """
    rank, stage, kind, microbatch, start, end = zip(*spans, strict=True) if spans else ((),) * 6
    memory_rank, time, nbytes = zip(*samples, strict=True) if samples else ((),) * 3
    try:
        timeline = Timeline(
            rank=np.array(rank, np.int32),
            stage=np.array(stage, np.int32),
            kind=np.array(kind, np.int8),
            microbatch=np.array(microbatch, np.int32),
            start=np.array(start, np.float64),
            end=np.array(end, np.float64),
            memory_rank=np.array(memory_rank, np.int32),
            memory_time=np.array(time, np.float64),
            memory_bytes=np.array(nbytes, np.float64),
        )
    except OverflowError as error:
        raise ValueError(f"a number is too large: {error}") from None
    if timeline.num_spans and min(timeline.rank.min(), timeline.stage.min()) < 0:
        raise ValueError("a rank or a stage is negative")
    if timeline.memory_rank.min(initial=0) < 0:
        raise ValueError("a memory sample's rank is negative")
    return timeline
