"""The verdict on every point of a chunk: dropped for a counted reason, or simulated.

What cannot fit or breaks a rule never comes here. Of the rest, a point is dropped unsimulated if
even the proven bound on its step is no better, in any ranking, than a plan that is simulated
already. Its times without contention are such a bound too, so that shared links are simulated only
where they may decide. The best bounds are simulated first, so that the front rises early.
"""

from collections import Counter
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from simulator.execution import NotWorth
from simulator.report import Report
from simulator.search.candidates import Candidate, Slow, candidates
from simulator.search.front import Front, Hurdle
from simulator.search.known import Known
from simulator.search.reasons import BEATEN, no_room, reason
from simulator.search.space import Space, plan_at
from simulator.simulate import simulate

__all__ = ["Judged", "Slow", "judge"]

Column = NDArray[np.float64]

ROUNDING = 1e-11  # part by which sums in another order may exceed a bound [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """The verdict on the points [first, stop): every one is dropped or simulated."""

    first: int
    stop: int
    dropped: dict[str, int]  # reason -> points
    index: NDArray[np.int64]  # the simulated points, ascending
    step_time: Column  # [s]
    tokens_per_second: Column  # [1/s]
    headroom: Column  # left on the fullest GPU [bytes]
    gpu_seconds_per_token: Column  # [s]
    bubble_fraction: Column  # [1]
    mfu: Column  # [1]


def judge(
    space: Space,
    first: int,
    stop: int,
    front: Front | None,
    known: Known | None = None,
    patience: float = inf,
    margin: float = 0.0,
) -> Judged:
    """Judge a chunk of points.

    Args:
        space: the space.
        first: the first point.
        stop: one more than the last.
        front: points that are simulated already: a point that cannot join them is not simulated.
            None simulates every point that fits.
        known: what earlier chunks of the same space worked out, and will find here again.
        patience: time after which a range of several points is given up. [s]
        margin: plans that may be slower than the fastest by no more than this share are simulated
            in any case. [1]

    Raises:
        Slow: out of patience; what was simulated is in `known`, so that a shorter range goes on.
    """
    until = perf_counter() + patience
    dropped: Counter[str] = Counter()
    known = Known() if known is None else known
    hurdle = None if front is None else Hurdle.of(front, margin)
    left = sorted(candidates(space, first, stop, known, dropped, until, hurdle), key=_by_bound)
    found: list[tuple[int, Report]] = []
    rivals = None if front is None else _Rivals(space, front, margin, left)
    for at, one in enumerate(left):
        if rivals is not None and rivals.beat(at):
            dropped[BEATEN] += 1
            continue
        report = known.reports.get(one.point)
        if report is None:
            report = _simulated(space, one, rivals)
            known.reports[one.point] = report
        if perf_counter() > until and stop - first > 1:
            raise Slow
        if isinstance(report, str):
            dropped[report] += 1
            continue
        found.append((one.point, report))
        if rivals is not None:
            rivals.add(_judged(space, found[-1:]))
    found.sort(key=lambda one: one[0])
    for one in left:
        known.reports.pop(one.point, None)
    return _judged(space, found, first=first, stop=stop, dropped=dict(sorted(dropped.items())))


class _Rivals:
    """What is simulated already, and which candidates it beats. A class because it grows."""

    def __init__(self, space: Space, front: Front, margin: float, left: list[Candidate]) -> None:
        self.space, self.front, self.margin = space, front, margin
        self.hopes = _hopes(space, left)
        self.behind = front.beats(self.hopes)
        self.best = float(front.tokens_per_second.max(initial=0.0))

    def add(self, judged: Judged) -> None:
        """One more that is simulated."""
        one = Front().add(judged)
        self.behind |= one.beats(self.hopes)
        self.best = max(self.best, float(one.tokens_per_second[0]))
        if not self.front.beats(one).all():
            self.front = self.front.add(one)

    def beat(self, at: int) -> bool:
        """Whether a candidate can neither join the front nor be as fast as the margin asks."""
        return bool(self.behind[at]) and self._is_far(self.hopes.tokens_per_second[at])

    def beat_at(self, one: Candidate, step_time: float) -> bool:
        """The same of one whose step is known to take at least so long. [s]"""
        hope = _hopes(self.space, [one._replace(least_step=step_time)])
        return bool(self.front.beats(hope)[0]) and self._is_far(hope.tokens_per_second[0])

    def _is_far(self, tokens_per_second: float) -> bool:
        return tokens_per_second * (1 + self.margin) < self.best


def _simulated(space: Space, one: Candidate, rivals: _Rivals | None) -> Report | str:
    """A plan's report, or why it is dropped."""
    worth = None
    if rivals is not None and one.least_step > 0:  # else its step is no makespan

        def worth(step_time: float) -> bool:
            return not rivals.beat_at(one, step_time)

    try:
        report = simulate(plan_at(space, one.point), worth=worth).report
    except NotWorth:
        return BEATEN
    except ValueError as error:  # rules of rows that are only known with their times
        return reason(error)
    return report if report.fits else _no_room(report)


def _by_bound(one: Candidate) -> tuple[float, int]:
    return one.least_step, one.point


def _hopes(space: Space, left: list[Candidate]) -> Front:
    """The candidates as points with the best figures that they could reach."""
    steps = np.array([one.least_step for one in left]) * (1 - ROUNDING)
    room = np.array([one.most_headroom for one in left])
    with np.errstate(divide="ignore"):
        tokens = space.global_batch_size * space.job.model.seq_len / steps
        cost = space.num_gpus / tokens
    index = np.array([one.point for one in left], np.int64)
    return Front(index, tokens, room + ROUNDING * np.abs(room), cost)


def _judged(
    space: Space,
    found: list[tuple[int, Report]],
    *,
    first: int = 0,
    stop: int = 0,
    dropped: dict[str, int] | None = None,
) -> Judged:
    """Simulated points as columns."""
    reports = [report for _, report in found]
    steps = np.array([report.step_time for report in reports])
    tokens = space.global_batch_size * space.job.model.seq_len / steps
    return Judged(
        first=first,
        stop=stop,
        dropped=dropped or {},
        index=np.array([index for index, _ in found], np.int64),
        step_time=steps,
        tokens_per_second=tokens,
        headroom=np.array([_headroom(report) for report in reports]),
        gpu_seconds_per_token=space.num_gpus / tokens,
        bubble_fraction=np.array([report.bubble_fraction for report in reports]),
        mfu=np.array([report.mfu or 0.0 for report in reports]),
    )


def _no_room(report: Report) -> str:
    """What is too large on the fullest rank."""
    assert report.peak_memory is not None
    assert report.memory_parts is not None
    worst = int(report.peak_memory.argmax())
    return no_room({name: float(part[worst]) for name, part in report.memory_parts.items()})


def _headroom(report: Report) -> float:
    """What is left on the fullest GPU. [bytes]"""
    assert report.peak_memory is not None
    assert report.memory_capacity is not None
    return report.memory_capacity - float(report.peak_memory.max())
