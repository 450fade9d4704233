"""Wave Synchronous Parallel: when virtual workers may run ahead of each other, and for how long.

A virtual worker keeps W minibatches in flight, a wave. After each wave it pushes one update to the
parameter server. The last minibatch of wave c starts only when every worker's wave c - D - 1 has
been pushed, and pulled; the W - 1 before it need one wave less. D is the clock distance; D = 0 is
bulk-synchronous. Source: Park et al., "HetPipe", USENIX ATC 2020, sections 4 and 5.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Waves", "global_staleness", "wave_synchronous"]

Column = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Waves:
    """What every virtual worker did, minibatch by minibatch."""

    start: Column  # start of each minibatch, shape (num_workers, num_minibatches) [s]
    end: Column  # end of each minibatch, same shape [s]
    wave: int  # minibatches in a wave [1]

    @property
    def waited(self) -> Column:
        """Time in which a place in the pipeline was free but the minibatch held back. [s]"""
        free = np.zeros_like(self.end)
        free[:, self.wave :] = self.end[:, : -self.wave]
        return self.start - free

    @property
    def waiting_share(self) -> Column:
        """Held-back time of each worker over its run, shape (num_workers,). [1]"""
        return np.asarray(self.waited.sum(axis=1) / (self.wave * self.end[:, -1]))

    @property
    def makespan(self) -> float:
        """End of the last minibatch of all. [s]"""
        return float(self.end.max())

    def rate(self) -> float:
        """Minibatches of all workers in the second half of the run, over its time. [1/s]"""
        half = self.end.shape[1] // 2
        span = self.end[:, -1] - self.end[:, half - 1]
        return float(((self.end.shape[1] - half) / span).sum())

    def completed(self, time: float) -> int:
        """Minibatches of all workers that have ended by a time [s]. [1]"""
        return int((self.end <= time).sum())


def global_staleness(wave: int, distance: int) -> int:
    """Updates that a minibatch may miss of the other workers, s_global. [1]

    With s_local = wave - 1: s_global = (D + 1)(s_local + 1) + s_local - 1.
    Source: Park et al., "HetPipe", USENIX ATC 2020, section 5.

    >>> global_staleness(4, 0), global_staleness(4, 4), global_staleness(1, 0)
    (6, 22, 0)
    """
    _check(wave, distance)
    local = wave - 1
    return (distance + 1) * (local + 1) + local - 1


def wave_synchronous(
    pace: ArrayLike,
    latency: ArrayLike,
    *,
    wave: int,
    distance: int,
    num_waves: int,
    push: float = 0.0,
    pull: float = 0.0,
) -> Waves:
    """Run virtual workers for some waves.

    Minibatches of a worker start in order. Minibatch p starts when minibatch p - W has ended and
    the clocks admit it; it ends `latency` after its start, and not sooner than `pace` after the
    one before it.

    Args:
        pace: time between two minibatches of each worker, shape (num_workers,), or of each of its
            minibatches, shape (num_workers, num_waves x wave). [s]
        latency: of a minibatch in an empty pipeline, shape (num_workers,). [s]
        wave: minibatches in flight, W. [1]
        distance: D. [1]
        num_waves: waves that each worker runs. [1]
        push: a worker's update to the parameter server; pushes of a worker are in order. [s]
        pull: the global weights back to a worker. [s]

    One worker takes 1 s for a minibatch, the other 2 s; waves of one minibatch, D = 0: both go at
    the pace of the slow one.

    >>> runs = wave_synchronous([1, 2], [1, 2], wave=1, distance=0, num_waves=3)
    >>> runs.end
    array([[1., 3., 5.],
           [2., 4., 6.]])
    >>> wave_synchronous([1, 2], [1, 2], wave=1, distance=1, num_waves=3).end[0]
    array([1., 2., 3.])
    """
    _check(wave, distance)
    if num_waves < 1 or push < 0 or pull < 0:
        raise ValueError(
            f"num_waves is {num_waves}, push {push:g} s and pull {pull:g} s; use at least one wave "
            "and times that are not negative"
        )
    paces, alone = np.asarray(pace, float), np.asarray(latency, float)
    workers, count = len(alone), num_waves * wave
    paces = np.broadcast_to(paces if paces.ndim == 2 else paces[:, None], (workers, count))
    if paces.min() <= 0 or alone.min() <= 0:
        raise ValueError("a pace or a latency is not positive; every minibatch takes some time")
    start, end = np.zeros((workers, count)), np.zeros((workers, count))
    pushed = np.zeros((workers, num_waves))
    for c in range(num_waves):
        needed = c - distance - 1
        gate = float(pushed[:, needed].max()) + pull if needed >= 0 else 0.0
        for worker in range(workers):
            columns = start[worker], end[worker], paces[worker]
            _run_wave(*columns, float(alone[worker]), wave=(c * wave, wave, gate))
            before = pushed[worker, c - 1] if c else 0.0
            pushed[worker, c] = max(before, float(end[worker, (c + 1) * wave - 1])) + push
    return Waves(start=start, end=end, wave=wave)


def _run_wave(
    start: Column, end: Column, pace: Column, latency: float, *, wave: tuple[int, int, float]
) -> None:
    """Fill in one worker's wave, given as its first minibatch, its size and its gate."""
    first, size, gate = wave
    for p in range(first, first + size):
        free = float(end[p - size]) if p >= size else 0.0
        start[p] = max(free, float(start[p - 1]) if p else 0.0)
        if p == first + size - 1:
            start[p] = max(start[p], gate)
        end[p] = max(start[p] + latency, (float(end[p - 1]) if p else 0.0) + float(pace[p]))


def _check(wave: int, distance: int) -> None:
    if wave < 1 or distance < 0:
        raise ValueError(
            f"wave is {wave} and distance {distance}; a wave has at least one minibatch, and D is "
            "at least 0"
        )
