"""Two clocks with one face: the host's, and CUDA events on the stream that the ops run on.

A mark costs little while ops run; `seconds` turns the marks of a step into times afterwards.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Clock", "CudaClock", "HostClock", "clock_of", "offset_to"]

Mark = Any  # a host time, or a CUDA event
ORIGINS = 5  # tries to pin the device's clock to the host's [1]
PINGS = 20  # tries to pin another host's clock to ours [1]


class Clock(Protocol):
    """What times ops."""

    residual: float  # how far its times may be off the host's clock [s]

    def begin(self) -> None:
        """Get ready for a step: wait for what runs, pin the clock to the host's."""

    def mark(self) -> Mark:
        """The moment at which what was issued so far is done."""

    def extended(self, earlier: Mark) -> Mark:
        """The mark that ends an op now that had ended with an `earlier` one."""

    def seconds(self, marks: Sequence[Mark]) -> NDArray[np.float64]:
        """Host times of these marks, shape (num_marks,), once the step is over. [s]"""

    def worked(self, marks: Sequence[Mark]) -> NDArray[np.float64] | None:
        """What this thread has worked by each mark, or None where that is not known. [s]

        An op that lasts longer than it works was interrupted: by another process, by a transfer.
        """


class HostClock:
    """`time.perf_counter`, one clock for all processes of a host, and this thread's own time."""

    residual = 0.0

    def begin(self) -> None:
        """Nothing to wait for: ops end before they return."""

    def mark(self) -> Mark:
        """Both clocks' readings."""
        return time.perf_counter(), time.thread_time()

    def extended(self, _: Mark) -> Mark:
        """Now, whatever was before."""
        return self.mark()

    def seconds(self, marks: Sequence[Mark]) -> NDArray[np.float64]:
        """Marks hold times already."""
        return np.array([wall for wall, _ in marks], np.float64)

    def worked(self, marks: Sequence[Mark]) -> NDArray[np.float64] | None:
        """The thread's own time."""
        return np.array([own for _, own in marks], np.float64)


class CudaClock:
    """CUDA events, pinned to the host's clock at each step. A class to reuse its events."""

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []
        self.used = 0
        self.origin = _event()
        self.host = 0.0  # when the origin was [s]
        self.residual = 0.0  # how far off that may be [s]

    def begin(self) -> None:
        """Pin: an event on an idle stream happens between two readings of the host's clock."""
        self.used = 0
        best = np.inf
        for _ in range(ORIGINS):
            event = _event()
            torch.cuda.synchronize()
            before = time.perf_counter()
            event.record()
            event.synchronize()
            after = time.perf_counter()
            if after - before < best:
                best = after - before
                self.origin, self.host = event, (before + after) / 2
        self.residual = float(best) / 2

    def mark(self) -> Mark:
        """An event on the current stream."""
        if self.used == len(self.events):
            self.events.append(_event())
        event = self.events[self.used]
        self.used += 1
        event.record()
        return event

    def extended(self, _: Mark) -> Mark:
        """Now, whatever was before."""
        return self.mark()

    def seconds(self, marks: Sequence[Mark]) -> NDArray[np.float64]:
        """Wait for the stream, then read every event."""
        torch.cuda.synchronize()
        since = np.array([self.origin.elapsed_time(event) for event in marks], np.float64)
        return self.host + since / 1e3

    def worked(self, _: Sequence[Mark]) -> NDArray[np.float64] | None:
        """A GPU's stream tells no such thing."""
        return None


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock() if device.type == "cuda" else HostClock()


def offset_to(peer: int, rank: int, group: torch.distributed.ProcessGroup) -> tuple[float, float]:
    """What to add to `peer`'s host clock to get ours, and how far off that may be. [s]

    Both ranks call it, each naming the other; only the lower one's answer counts. Half the
    shortest round trip bounds the error.

    Source: D. Mills, "Internet Time Synchronization: the Network Time Protocol", IEEE Transactions
    on Communications 39(10), 1991.
    """
    offset, trip = 0.0, np.inf
    for _ in range(PINGS):
        if rank < peer:
            sent = time.perf_counter()
            torch.distributed.send(torch.zeros(1, dtype=torch.float64), peer, group)
            theirs = torch.zeros(1, dtype=torch.float64)
            torch.distributed.recv(theirs, peer, group)
            back = time.perf_counter()
            if back - sent < trip:
                trip, offset = back - sent, (sent + back) / 2 - float(theirs)
        else:
            torch.distributed.recv(torch.zeros(1, dtype=torch.float64), peer, group)
            now = torch.tensor([time.perf_counter()], dtype=torch.float64)
            torch.distributed.send(now, peer, group)
    return offset, float(trip) / 2
