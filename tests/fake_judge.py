"""Judges that take no model: verdicts are arithmetic on the point's number."""

# ruff: noqa: ARG001 - all judges take the same

import os
import signal
import time
from pathlib import Path

import numpy as np

from simulator.load import load_job
from simulator.search.judge import Judged
from simulator.search.space import Space

JOB = load_job(Path(__file__).parent.parent / "examples" / "small_8_gpus.toml")
TRAP = 700  # a point that kills whoever judges it


def space(num_points):
    """A space of at least so many points: the micro-batch sizes count them off."""
    return Space(
        job=JOB,
        global_batch_size=64,
        num_gpus=8,
        micro_batch_size=tuple(range(1, num_points + 1)),
    )


def judged(first, stop, keep):
    """The verdict on [first, stop): 1 of 3 is illegal, others are simulated if `keep` says so."""
    index = np.arange(first, stop, dtype=np.int64)
    mixed = (index * 2654435761) % 1000003
    legal = mixed % 3 > 0
    step = 1.0 + (mixed % 7919) / 7919
    room = ((mixed * 31) % 104729).astype(float)
    kept = legal & keep(step, room)
    dropped = {"illegal": int((~legal).sum()), "bound": int((legal & ~kept).sum())}
    at = np.flatnonzero(kept)
    return Judged(
        first=first,
        stop=stop,
        dropped=dropped,
        index=index[at],
        step_time=step[at],
        tokens_per_second=1000 / step[at],
        headroom=room[at],
        gpu_seconds_per_token=8 * step[at] / 1000,
        bubble_fraction=1 / (1 + room[at]),
        mfu=0.5 / step[at],
    )


def judge(space, first, stop, front, known=None, patience=0.0, margin=0.0):
    """Prunes what a point of the front beats strictly; takes 20 us a point."""
    time.sleep(2e-5 * (stop - first))

    def keep(step, room):
        if front is None or not len(front.index):
            return np.ones(len(step), bool)
        tokens = 1000 / step
        faster = front.tokens_per_second[:, None] > tokens
        beaten = (faster & (front.headroom[:, None] > room)).any(axis=0)
        return ~beaten | (tokens * (1 + margin) >= front.tokens_per_second.max())

    return judged(first, stop, keep)


def slow(space, first, stop, front, known=None, patience=0.0, margin=0.0):
    """The same, 1 ms a point."""
    time.sleep(1e-3 * (stop - first))
    return judge(space, first, stop, front, margin=margin)


def everything(space, first, stop, front, known=None, patience=0.0, margin=0.0):
    """Simulates every legal point, whatever the front."""
    return judge(space, first, stop, None)


def trapped(space, first, stop, front, known=None, patience=0.0, margin=0.0):
    """Dies over one point."""
    if first <= TRAP < stop:
        os.kill(os.getpid(), signal.SIGKILL)
    return judge(space, first, stop, front, margin=margin)


def deadly(space, first, stop, front, known=None, patience=0.0, margin=0.0):
    """Dies over every point."""
    os.kill(os.getpid(), signal.SIGKILL)


def broken(space, first, stop, front, known=None, patience=0.0, margin=0.0):
    """Fails as a program with a mistake does."""
    raise KeyError("mistake")
