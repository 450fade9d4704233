"""Where a rank stands, in a small file that others can read while it hangs and after it died."""

import mmap
import struct
import time
from pathlib import Path
from typing import NamedTuple, Self

from simulator.schedule import Kind, Op, Schedule

__all__ = ["DONE", "ELSEWHERE", "RUNNING", "Beacon", "Place"]

LAYOUT = struct.Struct("<dqqiiiii")  # when, ops ended, play, running, stage, kind, microbatch, pid
RUNNING, DONE, ELSEWHERE = 1, 0, -1


class Place(NamedTuple):
    """What a beacon says."""

    when: float  # of the last change, the host's monotonic clock [s]
    ended: int  # ops that have ended [1]
    play: int  # index of the session's play, or -1 outside of all
    running: int  # RUNNING: in the op; DONE: past it; ELSEWHERE: no op yet
    op: Op
    pid: int

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
        path.write_bytes(bytes(LAYOUT.size))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), LAYOUT.size)
        self.pid, self.ended, self.play = pid, 0, -1
        self.op = (0, 0, 0)
        self.leave()

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
        LAYOUT.pack_into(
            self.map, 0, time.monotonic(), self.ended, self.play, running, *self.op, self.pid
        )

    @staticmethod
    def read(path: Path) -> "Place | None":
        """What the file says, None before the rank has begun."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) < LAYOUT.size:
            return None
        when, ended, play, running, stage, kind, microbatch, pid = LAYOUT.unpack(data)
        if pid == 0:
            return None
        return Place(when, ended, play, running, Op(stage, Kind(kind), microbatch), pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.map.close()
