"""Where a rank stands, in a small file that others can read while it hangs and after it died."""

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from simulator.schedule import Kind, Op, Schedule

__all__ = ["DONE", "ELSEWHERE", "RUNNING", "Beacon", "Place"]

LAYOUT = struct.Struct(
    "<dqqiiiiid"
)  # when, ended, play, running, stage, kind, microbatch, pid, spare
ALIVE = struct.Struct("<d")  # after it, and written by another thread
RUNNING, DONE, ELSEWHERE = 1, 0, -1


class Place(NamedTuple):
    """What a beacon says."""

    when: float  # of the last change, the host's monotonic clock [s]
    ended: int  # ops that have ended [1]
    play: int  # index of the session's play, or -1 outside of all
    running: int  # RUNNING: in the op; DONE: past it; ELSEWHERE: no op yet
    op: Op
    pid: int
    spare: float = 0.0  # how much longer than the timeout nothing may end, as while compiling [s]
    alive: float = 0.0  # when a thread beside the ops last ran, the same clock [s]

    def overdue(self, timeout: float) -> float:
        """How long ago something should have ended, negative until then. [s]"""
        return time.monotonic() - self.when - timeout - self.spare

    def told(self, lowered: Schedule | None, rank: int) -> str:
        """The op that the rank is in, or the next one of its row, which it waits to begin.

        >>> rows = Schedule.parse("0F0,0SEND_F0,0RECV_B0,0B0" + chr(10) + "1F0,1B0")
        >>> Place(0.0, 1, 0, DONE, Op(0, Kind.F, 0), 1).told(rows, 0)
        '0B0'
        """
        if lowered is None or self.running == ELSEWHERE:
            return "no op, between steps"
        if self.running == RUNNING:
            return str(self.op)
        compute = [op for op in lowered.row(rank) if op.kind.is_compute]
        after = compute.index(self.op) + 1 if self.op in compute else 0
        return str(compute[after]) if after < len(compute) else f"the end, after {self.op}"


class Beacon:
    """A rank's place, written in place. A class because it holds the mapped file."""

    def __init__(self, path: Path, pid: int) -> None:
        path.write_bytes(bytes(LAYOUT.size + ALIVE.size))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), LAYOUT.size + ALIVE.size)
        self.pid, self.ended, self.play = pid, 0, -1
        self.op, self.spare = (0, 0, 0), 0.0
        self.beat()
        self.leave()

    def beat(self) -> None:
        """This process runs, whatever its ops do."""
        ALIVE.pack_into(self.map, LAYOUT.size, time.monotonic())

    @contextmanager
    def patient(self, spare: float) -> Iterator[None]:
        """Within, nothing may end for this much longer than the timeout. [s]"""
        self.spare = spare
        self._write(self.running)
        try:
            yield
        finally:
            self.spare = 0.0
            self._write(self.running)

    def enter(self, play: int) -> None:
        """A play begins."""
        self.play = play
        self._write(ELSEWHERE)

    def leave(self) -> None:
        """Outside of all plays."""
        self.play = -1
        self._write(ELSEWHERE)

    def start(self, stage: int, kind: Kind, microbatch: int) -> None:
        """An op begins."""
        self.op = (stage, int(kind), microbatch)
        self._write(RUNNING)

    def finish(self) -> None:
        """The op has ended."""
        self.ended += 1
        self._write(DONE)

    def _write(self, running: int) -> None:
        self.running = running
        now = time.monotonic()
        LAYOUT.pack_into(
            self.map, 0, now, self.ended, self.play, running, *self.op, self.pid, self.spare
        )

    @staticmethod
    def read(path: Path) -> "Place | None":
        """What the file says, None before the rank has begun."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) < LAYOUT.size + ALIVE.size:
            return None
        fields = LAYOUT.unpack_from(data)
        when, ended, play, running, stage, kind, microbatch, pid, spare = fields
        if pid == 0:
            return None
        (alive,) = ALIVE.unpack_from(data, LAYOUT.size)
        op = Op(stage, Kind(kind), microbatch)
        return Place(when, ended, play, running, op, pid, spare, alive)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.map.close()
