"""Timelines for tests: from rows, and such that no executor makes them, as a damaged trace's."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from simulator import kernel
from simulator.schedule import Kind
from simulator.timeline import Timeline

NAMES = ("rank", "stage", "kind", "microbatch", "start", "end")
TYPES = (np.int32, np.int32, np.int8, np.int32, float, float)
MESSAGES = (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)


def of_rows(rows):
    """A timeline of (rank, stage, kind, microbatch, start, end)."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(NAMES)
    arrays = [np.array(column, kind) for column, kind in zip(columns, TYPES, strict=True)]
    return Timeline(**dict(zip(NAMES, arrays, strict=True)))


def rows_of(timeline):
    """The rows again."""
    return list(zip(*(getattr(timeline, name).tolist() for name in NAMES), strict=True))


def odd(seed, *, ordered=True):
    """Spans of random times, which overlap, end out of order and miss their inputs."""
    rng = np.random.default_rng(seed)
    ranks, stages, count = rng.integers(1, 5), rng.integers(1, 6), rng.integers(1, 8)
    rows = []
    for stage in range(stages):
        for microbatch in range(count):
            backward = (Kind.I, Kind.W) if rng.random() < 0.5 else (Kind.B,)
            home = rng.integers(ranks)
            for kind in (Kind.F, *backward, *MESSAGES):
                if rng.random() < 0.7:
                    rank = home if rng.random() < 0.9 else rng.integers(ranks)
                    rows.append((rank, stage, kind, microbatch))
        for kind in (Kind.OPTIMIZER, Kind.UNSHARD, Kind.REDUCE_GRAD):
            rows += [(rank, stage, kind, -1) for rank in range(ranks) if rng.random() < 0.3]
    start = rng.integers(0, 30, len(rows)) + rng.random(len(rows)) * (seed % 2)
    end = start + rng.integers(0, (2, 5, 30)[seed % 3], len(rows))
    timed = [(*row, a, b) for row, a, b in zip(rows, start.tolist(), end.tolist(), strict=True)]
    if ordered:
        timed.sort(key=lambda row: (row[0], row[4]))
    return of_rows(timed)


@contextmanager
def compiled() -> Iterator[None]:
    """Every kernel runs compiled within."""
    before = kernel._state["compiling"]
    kernel._state["compiling"] = True
    try:
        yield
    finally:
        kernel._state["compiling"] = before
