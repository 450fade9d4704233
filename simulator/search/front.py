"""The points that no other point beats in every ranking.

Rankings compare nine digits: executors agree no closer, and a bound that is equal but for rounding
then settles a tie. Points that are equal in every ranking are one point, the first of them. So the
front depends on the points alone, not on the order in which they come.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLUMNS", "Front", "Hurdle", "Ranked", "Ranking"]

Column = NDArray[np.float64]
Index = NDArray[np.int64]
Ranking = Literal["throughput", "headroom", "cost"]

COLUMNS = ("index", "tokens_per_second", "headroom", "gpu_seconds_per_token")
RANKINGS = {"throughput": 0, "headroom": 1, "cost": 2}
BITS = 30
BEYOND = 1e-8  # part by which a figure that is rounded to nine digits is surely another [1]


class Ranked(Protocol):
    """Points with the figures that they are ranked by, columns of one length."""

    @property
    def index(self) -> Index: ...  # noqa: D102
    @property
    def tokens_per_second(self) -> Column: ...  # noqa: D102
    @property
    def headroom(self) -> Column: ...  # noqa: D102
    @property
    def gpu_seconds_per_token(self) -> Column: ...  # noqa: D102


def _no_indices() -> Index:
    return np.empty(0, np.int64)


def _no_numbers() -> Column:
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class Front:
    """The points so far that no other point beats in every ranking, in order of index."""

    index: Index = field(default_factory=_no_indices)
    tokens_per_second: Column = field(default_factory=_no_numbers)  # [1/s]
    headroom: Column = field(default_factory=_no_numbers)  # [bytes]
    gpu_seconds_per_token: Column = field(default_factory=_no_numbers)  # [s]

    def add(self, points: Ranked) -> Self:
        """The front with these points too: a Judged, another Front.

        >>> one = Front(np.array([4]), np.array([2.0]), np.array([1.0]), np.array([0.5]))
        >>> two = Front(np.array([3]), np.array([2.0]), np.array([1.0]), np.array([0.5]))
        >>> one.add(two).index, two.add(one).index
        (array([3]), array([3]))
        """
        columns = [np.concatenate([getattr(self, n), getattr(points, n)]) for n in COLUMNS]
        score, index = _scores(*columns[1:]), columns[0]
        order = np.lexsort((index, *(-score[::-1])))  # best first, so that nothing later beats it
        kept: list[int] = []
        best = np.empty((3, len(order)))
        for at in order.tolist():
            if not (best[:, : len(kept)] >= score[:, at, None]).all(axis=0).any():
                best[:, len(kept)] = score[:, at]
                kept.append(at)
        keep = np.array(kept, np.int64)
        keep = keep[np.argsort(index[keep])]
        return type(self)(*(column[keep] for column in columns))

    def beats(self, points: Ranked) -> NDArray[np.bool_]:
        """Which of these points cannot join the front, whatever points come, shape (num_points,).

        For points that are not simulated yet, figures that are at least as good as theirs: such a
        point is beaten where another is as good in every ranking and better in one, or comes first.
        """
        if not len(self.index) or not len(points.index):
            return np.zeros(len(points.index), bool)
        mine, theirs = (
            _scores(*(getattr(self, n) for n in COLUMNS[1:])),
            _scores(points.tokens_per_second, points.headroom, points.gpu_seconds_per_token),
        )
        beaten = np.zeros(len(points.index), bool)
        for at in range(len(self.index)):
            one = mine[:, at, None]
            better = (one > theirs).any(axis=0) | (self.index[at] < points.index)
            beaten |= (one >= theirs).all(axis=0) & better
        return beaten

    def best(self, by: Ranking = "throughput") -> int:
        """Index of the best point in one ranking; ties go by the others, then to the first.

        Raises:
            ValueError: there is no point.
        """
        if not len(self.index):
            raise ValueError("no plan is left to rank: every point of the space was dropped")
        score = _scores(self.tokens_per_second, self.headroom, self.gpu_seconds_per_token)
        first = RANKINGS[by]
        keys = [first, *(at for at in range(3) if at != first)]
        order = np.lexsort((self.index, *(-score[at] for at in reversed(keys))))
        return int(self.index[order[0]])

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The columns by name, as `Front(**arrays)` takes them."""
        return {name: getattr(self, name) for name in COLUMNS}


@dataclass(frozen=True, eq=False)
class Hurdle:
    """The throughput that a plan must be able to reach to matter, by its free memory.

    A quick look at one plan at a time: what it drops, `Front.beats` drops too.
    """

    headroom: list[float]  # of the front's points, ascending [bytes]
    tokens_per_second: list[float]  # most of a point with so much or more, and none with more [1/s]

    @classmethod
    def of(cls, front: Front, margin: float) -> Self:
        """The hurdle that a front sets; plans within this share of the fastest matter too. [1]"""
        order = np.argsort(front.headroom, kind="stable")
        tokens = front.tokens_per_second[order]
        most = np.maximum.accumulate(tokens[::-1])[::-1]
        asked = np.minimum(most, tokens.max(initial=0.0) / (1 + margin)) * (1 - BEYOND)
        return cls(front.headroom[order].tolist(), [*asked.tolist(), 0.0])

    def at(self, headroom: float) -> float:
        """Throughput below which a plan with at most this free memory [bytes] is beaten. [1/s]

        >>> front = Front(np.arange(2), np.array([9.0, 5.0]), np.array([1.0, 4.0]), np.ones(2))
        >>> [round(Hurdle.of(front, 0.0).at(room), 6) for room in (0.5, 2.0, 4.0)]
        [9.0, 5.0, 0.0]
        """
        return self.tokens_per_second[bisect_right(self.headroom, headroom)]


def _scores(tokens_per_second: Column, headroom: Column, cost: Column) -> Column:
    """The rankings as numbers of nine digits, more is better; shape (3, num_points)."""
    return np.stack([_rounded(tokens_per_second), _rounded(headroom), -_rounded(cost)])


def _rounded(values: Column) -> Column:
    """Values to thirty bits, nine digits: never a smaller one for a larger value, and exactly so.

    >>> _rounded(np.array([80e9, 80e9 + 20, 1 / 3])) == [80e9, 80e9, 1 / 3]
    array([ True,  True, False])
    """
    mantissa, exponent = np.frexp(np.asarray(values, float))
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, BITS)), exponent - BITS))
