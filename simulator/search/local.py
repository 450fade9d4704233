"""Chunks of points judged in processes of this machine, each for about half a second.

A team takes chunks and gives answers. The processes are our own, not those of a pool: a pool that
loses one process loses every chunk and cannot say whose it was, and its processes outlive a parent
that is killed; these have one pipe each, which ends when either side dies.
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Protocol

import numpy as np

from simulator.kernel import compile_all
from simulator.search.front import Front
from simulator.search.judge import Judged, Slow, judge
from simulator.search.known import Known
from simulator.search.space import Space
from simulator.search.store import COLUMNS

__all__ = [
    "MARGIN",
    "Answer",
    "Chunk",
    "Here",
    "Processes",
    "Task",
    "Team",
    "grown",
    "joined",
    "work",
]

SECONDS = 0.5  # of work in one chunk, so that little is lost when a process is killed [s]
PIECES = 4  # calls that one chunk's time is divided into, at least [1]
GROWTH = 4  # of one call's points over those of the call before, at most [1]
FIRST_POINTS = 8  # of the first call, whose speed is not known yet [1]
MARGIN = 0.02  # plans this much slower than the best are simulated whatever the bound says [1]
SMALL = 500  # points of a space that is judged before Numba would be loaded [1]
MOST_POINTS = 8192  # of one call, for its front is that of the call's beginning [1]


@dataclass(frozen=True)
class Task:
    """What is searched, the same in all chunks."""

    space: Space
    margin: float | None  # plans this much slower than the fastest are simulated too; None: all
    judge: Callable[[Space, int, int, Front | None, Known, float, float], Judged] = judge
    seconds: float = SECONDS  # of one chunk [s]


@dataclass(frozen=True)
class Chunk:
    """Points [first, stop) to judge, as far as the time allows."""

    first: int
    stop: int
    size: int = FIRST_POINTS  # points of the first call [1]
    deaths: int = 0  # workers that died over it [1]


@dataclass(frozen=True)
class Answer:
    """What came of a chunk: the verdict on its first points, or a worker's death."""

    chunk: Chunk
    judged: Judged | None  # None: the worker died
    size: int = FIRST_POINTS  # points of a call that takes a fitting time [1]
    seconds: float = 0.0  # of work [s]


class Team(Protocol):
    """Who judges: this process, several, or a cluster."""

    @property
    def num_workers(self) -> int:
        """Workers at the moment. [1]"""

    @property
    def free(self) -> int:
        """Chunks that it would take now. [1]"""

    def send(self, chunk: Chunk, front: Front) -> None:
        """Give it a chunk, and the best points so far."""

    def answers(self, timeout: float) -> list[Answer]:
        """What has come since; waits for the first one, for so long [s]."""

    def close(self) -> None:
        """Stop at once and leave no process behind."""


def work(task: Task, chunk: Chunk, front: Front, known: Known) -> Answer:
    """Judge a chunk's first points for the task's time, with a front that grows on the way.

    `known` is what this process worked out before.
    """
    if task.space.num_points > SMALL:
        compile_all()
    start = perf_counter()
    pieces: list[Judged] = []
    at, size = chunk.first, chunk.size
    while at < chunk.stop:
        begin = perf_counter()
        rivals, margin = (None, 0.0) if task.margin is None else (front, task.margin)
        patience = task.seconds / PIECES
        try:
            stop = min(at + size, chunk.stop)
            piece = task.judge(task.space, at, stop, rivals, known, patience, margin)
        except Slow:
            size = max(1, (stop - at) // GROWTH)
            continue
        pieces.append(piece)
        at = piece.stop
        front = grown(front, piece)
        now = perf_counter()
        fitting = (piece.stop - piece.first) * task.seconds / PIECES / max(now - begin, 1e-6)
        size = int(min(max(1, fitting), GROWTH * size, MOST_POINTS))
        if now - start >= task.seconds * (1 - 1 / PIECES):
            break
    return Answer(chunk, joined(pieces), size, perf_counter() - start)


def grown(front: Front, judged: Judged) -> Front:
    """The front with what was simulated; most of that joins no front, and is told by columns."""
    new = ~front.beats(judged)
    if not new.any():
        return front
    return front.add(Front(**{name: getattr(judged, name)[new] for name in front.arrays()}))


def joined(pieces: Sequence[Judged]) -> Judged:
    """Neighbouring pieces, in order, as one."""
    dropped: dict[str, int] = {}
    for piece in pieces:
        for reason, points in piece.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + points
    return Judged(
        first=pieces[0].first,
        stop=pieces[-1].stop,
        dropped=dropped,
        index=np.concatenate([piece.index for piece in pieces]),
        **{name: np.concatenate([getattr(p, name) for p in pieces]) for name in COLUMNS},
    )


class Here:
    """A team of this process alone. A class as the other teams are."""

    num_workers = 1

    def __init__(self, task: Task) -> None:
        self._task, self._known = task, Known()
        self._given: list[tuple[Chunk, Front]] = []

    @property
    def free(self) -> int:
        """One chunk at a time. [1]"""
        return 1 - len(self._given)

    def send(self, chunk: Chunk, front: Front) -> None:
        """Keep the chunk until an answer is asked for."""
        self._given.append((chunk, front))

    def answers(self, timeout: float) -> list[Answer]:  # noqa: ARG002 - as the other teams
        """Judge it."""
        given, self._given = self._given, []
        return [work(self._task, chunk, front, self._known) for chunk, front in given]

    def close(self) -> None:
        """Nothing to stop."""


@dataclass
class _Worker:
    """A process, our end of its pipe, and the chunk that it has."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    chunk: Chunk | None = None


class Processes:
    """A team of processes; one that dies is replaced, and its chunk is given back."""

    def __init__(self, task: Task, num_workers: int) -> None:
        self._task = task
        self._context = multiprocessing.get_context("spawn")
        self._workers = [self._started() for _ in range(num_workers)]

    @property
    def num_workers(self) -> int:
        """Processes. [1]"""
        return len(self._workers)

    @property
    def free(self) -> int:
        """Processes without a chunk. [1]"""
        return sum(worker.chunk is None for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """The processes' numbers."""
        return [worker.process.pid or 0 for worker in self._workers]

    def send(self, chunk: Chunk, front: Front) -> None:
        """Give it to a process that has none."""
        at = next(at for at, worker in enumerate(self._workers) if worker.chunk is None)
        try:
            self._workers[at].pipe.send((chunk, front))
        except OSError:  # it died while it had nothing to do
            self._replace(at)
            self._workers[at].pipe.send((chunk, front))
        self._workers[at].chunk = chunk

    def answers(self, timeout: float) -> list[Answer]:
        """What the processes say, or that they died."""
        busy = {w.pipe: at for at, w in enumerate(self._workers) if w.chunk is not None}
        found = []
        for pipe in wait(list(busy), timeout):
            at = busy[pipe]  # type: ignore[index]
            worker = self._workers[at]
            assert worker.chunk is not None
            try:
                answer = worker.pipe.recv()
            except (EOFError, OSError):
                answer = Answer(worker.chunk, None)
                self._replace(at)
            else:
                worker.chunk = None
            if isinstance(answer, Exception):
                raise answer
            found.append(answer)
        return found

    def close(self) -> None:
        """Kill them: what they have not answered is not recorded, so nothing is lost."""
        for worker in self._workers:
            worker.process.kill()
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join()

    def _started(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._task), daemon=True)
        process.start()
        theirs.close()  # now it ends when the process does
        return _Worker(process, ours)

    def _replace(self, at: int) -> None:
        self._workers[at].process.kill()
        self._workers[at].process.join()
        self._workers[at].pipe.close()
        self._workers[at] = self._started()


def _serve(pipe: Connection, task: Task) -> None:
    """What a process does: judge what comes, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which stops us
    known = Known()
    while True:
        try:
            chunk, front = pipe.recv()
        except EOFError:
            return
        answer: Answer | Exception
        try:
            answer = work(task, chunk, front, known)
        except Exception as error:
            error.add_note(f"while judging points {chunk.first} to {chunk.stop}")
            answer = error
        try:
            pipe.send(answer)
        except OSError:  # nobody is left to tell
            return
