"""A search from its open points to its front: hands out chunks, records what comes back.

The store's ledger says what is done. A chunk is a range of points; a worker judges as many of them
as its time allows, and what is left goes back. A large space is sampled first, a few points at many
places, so that the front rises early and prunes all the rest. A chunk whose worker died is judged
again, in halves, until the point that kills workers stands alone; that one is set aside.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from simulator.search.front import Front
from simulator.search.local import FIRST_POINTS, Answer, Chunk, Task, Team, grown
from simulator.search.reasons import num_legal
from simulator.search.store import Store

__all__ = ["Outcome", "Progress", "search"]

WAIT = 0.25  # between two looks at the clock while nothing comes [s]
PATIENCE = 3  # deaths over one point before it is set aside [1]
MOST_DEATHS = 200  # in a row, without one answer: not the points' fault [1]
SAMPLES, SAMPLE = 192, 256  # places, and points at each, that a large space is sampled at [1]
GOLDEN = (5**0.5 - 1) / 2  # its multiples, without their whole part, are evenly strewn [1]
AHEAD = 2.0  # a chunk's points over those that its time was enough for last [1]


@dataclass(frozen=True)
class Progress:
    """How far a search is."""

    num_points: int
    num_judged: int
    rate: float  # points a second, since this run began [1/s]
    seconds_left: float | None  # None where there is no rate yet [s]
    num_workers: int
    front: Front


@dataclass(frozen=True)
class Outcome:
    """What a search found."""

    front: Front
    seconds: float  # of this run [s]
    num_judged: int  # in this run [1]
    num_legal: int  # of them, plans that break no rule and are like no other [1]
    deaths: int  # workers that died and whose chunks were judged again [1]
    set_aside: tuple[int, ...]  # points that kill their workers, not judged


def search(
    task: Task, store: Store, team: Team, show: Callable[[Progress], None] | None = None
) -> Outcome:
    """Judge every point that the store does not hold yet.

    `show` is called after every answer, and at least every quarter of a second.

    Raises:
        ValueError: the store cannot be written, or every worker dies.
    """
    return _Search(task, store, team).run(show)


class _Search:
    """A search that runs. A class because its five queues and counts change together."""

    def __init__(self, task: Task, store: Store, team: Team) -> None:
        self.task, self.store, self.team = task, store, team
        self.num_points = task.space.num_points
        self.open = deque(_samples_first(store.gaps(self.num_points), self.num_points))
        self.before = store.num_judged
        self.judged = self.legal = 0
        self.running, self.is_alone = 0, False
        self.size, self.points = FIRST_POINTS, FIRST_POINTS
        self.deaths, self.in_a_row = 0, 0
        self.set_aside: list[int] = []
        self.front = Front()
        for block in store.blocks():
            self.front = grown(self.front, block)

    def run(self, show: Callable[[Progress], None] | None) -> Outcome:
        start = perf_counter()
        while self.open or self.running:
            while self._may_send():
                self._send()
            answers = self.team.answers(WAIT)
            self.running -= len(answers)
            self._record(answers)
            for answer in answers:
                self._mourn(answer) if answer.judged is None else self._go_on(answer)
            if show is not None:
                show(self._progress(perf_counter() - start))
        return Outcome(
            self.front,
            perf_counter() - start,
            self.judged,
            self.legal,
            self.deaths,
            tuple(sorted(self.set_aside)),
        )

    def _may_send(self) -> bool:
        """A single point under suspicion is judged while nothing else is, so that no other dies."""
        if not self.open or self.team.free <= 0 or (self.is_alone and self.running):
            return False
        chunk = self.open[0]
        self.is_alone = chunk.deaths > 0 and chunk.stop - chunk.first == 1
        return not (self.is_alone and self.running)

    def _send(self) -> None:
        """Give the team the next open points, as many as it may manage in a chunk's time."""
        chunk = self.open.popleft()
        share = -(-(chunk.stop - chunk.first) // max(1, self.team.num_workers))
        stop = min(chunk.stop, chunk.first + max(1, min(self.points, share)))
        if chunk.deaths:
            stop = chunk.stop
        elif stop < chunk.stop:
            self.open.appendleft(Chunk(stop, chunk.stop))
        size = min(self.size, stop - chunk.first)
        self.team.send(Chunk(chunk.first, stop, size, chunk.deaths), self.front)
        self.running += 1

    def _record(self, answers: list[Answer]) -> None:
        """Keep what came in one transaction, so that a thousand workers cost one write."""
        judged = [answer.judged for answer in answers if answer.judged is not None]
        if judged:
            for chunk in self.store.record(judged):
                self.judged += chunk.stop - chunk.first
                self.legal += num_legal(len(chunk.index), chunk.dropped)
                self.front = grown(self.front, chunk)

    def _go_on(self, answer: Answer) -> None:
        """What a worker had no time for is open again; its speed sets the next chunk's size."""
        chunk, judged = answer.chunk, answer.judged
        assert judged is not None
        self.in_a_row = 0
        if judged.stop < chunk.stop:
            self.open.appendleft(Chunk(judged.stop, chunk.stop))
        self.size = answer.size
        speed = (judged.stop - judged.first) / max(answer.seconds, 1e-6)
        self.points = max(FIRST_POINTS, int(AHEAD * speed * self.task.seconds))

    def _mourn(self, answer: Answer) -> None:
        """A worker died: judge its chunk again, in halves from the second time on."""
        chunk = answer.chunk
        self.deaths += 1
        self.in_a_row += 1
        if self.in_a_row >= MOST_DEATHS:
            raise ValueError(
                f"{self.in_a_row} workers died one after the other, the last one over points "
                f"{chunk.first} to {chunk.stop - 1}; they may have too little memory: use fewer "
                "workers"
            )
        deaths = chunk.deaths + 1
        if chunk.stop - chunk.first == 1:
            if deaths >= PATIENCE:
                self.set_aside.append(chunk.first)
            else:
                self.open.appendleft(Chunk(chunk.first, chunk.stop, 1, deaths))
            return
        middle = (chunk.first + chunk.stop) // 2 if deaths > 1 else chunk.stop
        for first, stop in ((middle, chunk.stop), (chunk.first, middle)):
            if first < stop:
                self.open.appendleft(Chunk(first, stop, deaths=1))

    def _progress(self, seconds: float) -> Progress:
        rate = self.judged / seconds if seconds > 0 else 0.0
        done = self.before + self.judged
        left = (self.num_points - done) / rate if rate > 0 else None
        return Progress(self.num_points, done, rate, left, self.team.num_workers, self.front)


def _samples_first(gaps: list[tuple[int, int]], num_points: int) -> list[Chunk]:
    """The open points as chunks: those of the sample, evenly strewn, then all others in order."""
    width = SAMPLE if num_points > 4 * SAMPLES * SAMPLE else 0
    places = sorted({int(num_points * (at * GOLDEN % 1)) // SAMPLE for at in range(SAMPLES)})
    samples: list[Chunk] = []
    others: list[Chunk] = []
    for first, stop in gaps:
        at = first
        for place in places if width else ():
            begin, end = place * SAMPLE, min((place + 1) * SAMPLE, num_points)
            if first <= begin and end <= stop:
                samples.append(Chunk(begin, end))
                others.append(Chunk(at, begin))
                at = end
        others.append(Chunk(at, stop))
    return samples + [chunk for chunk in others if chunk.first < chunk.stop]
