"""What a profiler wrote of one process, as columns: named ranges, kernels, messages, memory.

Every reader of a foreign format makes these; everything after reads only these. Times are seconds
after the first event, which is `begin` after the zero that the file counts from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Collector", "Intervals", "Recording"]

Column = NDArray[np.float64]
LATEST = 1e9  # times after the first event beyond this are no times [s]


class Intervals(NamedTuple):
    """Named intervals in the order in which they were asked for."""

    name: NDArray[np.int32]  # index into Recording.names, shape (n,)
    asked: Column  # when the host launched it; its start, where the host ran it, shape (n,) [s]
    start: Column  # shape (n,) [s]
    end: Column  # shape (n,) [s]

    def where(self, mask: NDArray[np.bool_]) -> "Intervals":
        """Some of them."""
        return Intervals(self.name[mask], self.asked[mask], self.start[mask], self.end[mask])


@dataclass(frozen=True, eq=False, kw_only=True)
class Recording:
    """One process's trace."""

    source: str  # the file, for messages
    rank: int | None  # in the whole job, None where the file does not say
    begin: int  # of the first event by the file's own clock [ns]
    origin: int | None  # Unix time of that clock's zero, None where the file does not say [ns]
    names: tuple[str, ...]
    ranges: Intervals  # annotations of the host: record_function, NVTX
    device_ranges: Intervals  # the same names on the device's streams, where the profiler adds them
    kernels: Intervals  # on the device
    work: Column  # starts of the operators that the host computed with, sorted [s]
    sends: Column  # begin and end of the host's calls that send, sorted, shape (n, 2) [s]
    message_time: Column  # when a send or receive was asked of the library, sorted [s]
    message_peer: NDArray[np.int32]  # its other end, in the whole job
    message_send: NDArray[np.bool_]
    memory_time: Column  # [s]
    memory_bytes: Column  # allocated on the device [bytes]
    pipeline: tuple[int, ...] = ()  # ranks of its pipeline group in the whole job, if it says
    host: str = ""  # the machine, whose processes share a clock; empty if it is not known


@dataclass
class Collector:
    """Grows while a file is read, in the file's unit; a class because all its lists grow together.

    `unit` is seconds in one unit of the file.
    """

    source: str
    unit: float
    rank: int | None = None
    origin: int | None = None
    pipeline: tuple[int, ...] = ()
    host: str = ""
    index: dict[str, int] = field(default_factory=dict)
    ranges: list[tuple[int, float, float, float]] = field(default_factory=list)
    device_ranges: list[tuple[int, float, float, float]] = field(default_factory=list)
    kernels: list[tuple[int, float, float, float]] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    sends: list[tuple[float, float]] = field(default_factory=list)
    messages: list[tuple[float, int, bool]] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)

    def name(self, text: str) -> int:
        """The index of a name."""
        return self.index.setdefault(text, len(self.index))

    def recording(self) -> Recording:
        """What was collected, from the first event on.

        Raises:
            ValueError: there is no event, or a time is no time.
        """
        tables = (self.ranges, self.device_ranges, self.kernels)
        starts = [row[2] for table in tables for row in table]
        starts += [time for time, _, _ in self.messages]
        if not starts:
            raise ValueError("it holds no ranges and no kernels: 0 events that last")
        zero = min(starts)
        columns = [self._intervals(table, zero) for table in tables]
        messages = sorted(self.messages)
        memory = sorted(self.memory)
        times = self._seconds((time for time, _, _ in messages), zero)
        made = Recording(
            source=self.source,
            rank=self.rank,
            begin=round(zero * self.unit * 1e9),
            origin=self.origin,
            names=tuple(self.index),
            ranges=columns[0],
            device_ranges=columns[1],
            kernels=columns[2],
            work=np.sort(self._seconds(self.work, zero)),
            sends=(np.array(sorted(self.sends)).reshape(-1, 2) - zero) * self.unit,
            message_time=times,
            message_peer=np.array([peer for _, peer, _ in messages], np.int32),
            message_send=np.array([send for _, _, send in messages], np.bool_),
            memory_time=self._seconds((time for time, _ in memory), zero),
            memory_bytes=np.array([nbytes for _, nbytes in memory], np.float64),
            pipeline=self.pipeline,
            host=self.host,
        )
        _check(made)
        return made

    def _intervals(self, rows: Sequence[tuple[int, float, float, float]], zero: float) -> Intervals:
        name = np.fromiter((row[0] for row in rows), np.int32, len(rows))
        asked, start, end = (self._seconds((row[at] for row in rows), zero) for at in (1, 2, 3))
        order = np.lexsort((start, asked))
        return Intervals(name[order], asked[order], start[order], end[order])

    def _seconds(self, values: Iterable[float], zero: float) -> Column:
        column = np.fromiter(values, np.float64)
        seconds: Column = (column - zero) * self.unit
        return seconds


def _check(made: Recording) -> None:
    """Times are finite numbers within a long run of the first event, and nothing ends early."""
    for part in (made.ranges, made.device_ranges, made.kernels):
        for column in (part.start, part.end):
            wrong = ~(np.abs(column) < LATEST)
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                name = made.names[part.name[at]][:60]
                raise ValueError(
                    f"{name!r} stands {column[at]:g} s after the first event, which is no time"
                )
        early = part.end < part.start
        if early.any():
            at = int(np.flatnonzero(early)[0])
            name = made.names[part.name[at]][:60]
            raise ValueError(f"{name!r} lasts {part.end[at] - part.start[at]:g} s; it cannot")
