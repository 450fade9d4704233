"""The mixed-integer programme: its columns and rows, without a solver.

One binary for each pair of ops of a rank whose order is open; a rank's time is counted as work done
before an op plus idle, and only the idle needs a big M. docs/optimal.md derives it.
"""

from fractions import Fraction
from itertools import combinations
from math import lcm

import numpy as np

from simulator.optimal.bound import heads, tails
from simulator.optimal.problem import F, I, Problem, Words, play

__all__ = ["Programme"]

Linear = tuple[float, dict[int, float]]  # constant, coefficients by variable


class Model:
    """The programme's columns and rows as they are collected, for one passModel."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.integer: list[bool] = []
        self.row_low: list[float] = []
        self.row_high: list[float] = []
        self.starts = [0]
        self.index: list[int] = []
        self.value: list[float] = []

    def column(self, low: float, high: float, integer: bool = False) -> int:
        self.low.append(low)
        self.high.append(high)
        self.integer.append(integer)
        return len(self.low) - 1

    def row(self, expression: Linear, low: float, high: float = np.inf) -> None:
        constant, terms = expression
        self.row_low.append(low - constant)
        self.row_high.append(high - constant)
        self.index += terms.keys()
        self.value += terms.values()
        self.starts.append(len(self.index))


def _sum(*parts: tuple[float, Linear]) -> Linear:
    """A weighted sum of linear expressions."""
    constant, terms = 0.0, dict[int, float]()
    for weight, (own, own_terms) in parts:
        constant += weight * own
        for name, value in own_terms.items():
            terms[name] = terms.get(name, 0.0) + weight * value
    return constant, terms


class Programme:
    """The programme of one problem and one incumbent, whose objective cuts off what is worse."""

    def __init__(self, problem: Problem, words: Words, value: float) -> None:
        self.problem, self.model = problem, Model()
        grid = _grid(problem)
        self.unit = grid or min(s for s in problem.seconds if s > 0)
        self.top = value * (1 + 1e-9)
        self.heads, self.tails = heads(problem), tails(problem)
        self.place = _places(problem, words)
        self.known: dict[tuple[int, int, int, int], Linear] = {}
        model, unit = self.model, self.unit
        self.objective = model.column(0.0, self.top / unit, integer=grid is not None)
        m = problem.num_microbatches
        self.idle = [[-1] * m for _ in problem.seconds]
        for symbol in range(len(problem.seconds)):
            rank = problem.home[symbol // 3]
            most = self.top + problem.offset[rank] - problem.first[rank] - problem.work[rank]
            for k in range(m):
                self.idle[symbol][k] = model.column(0.0, max(0.0, most) / unit)
        for rank, held in enumerate(problem.stages):
            self._rank(rank, [3 * s + kind for s in held for kind in range(3)])
        self._messages()

    def _fixed(self, a: int, i: int, b: int, j: int) -> bool | None:
        """Whether op (a, i) runs before (b, j) of its rank in every order worth looking at."""
        if a == b:
            return i < j
        seconds, slack = self.problem.seconds, 1e-9 * self.top
        if self._must(a, b) and i <= j:
            return True
        if self._must(b, a) and j <= i:
            return False
        if self.heads[a][i] + seconds[a] + self.tails[b][j] > self.top + slack:
            return False
        if self.heads[b][j] + seconds[b] + self.tails[a][i] > self.top + slack:
            return True
        return None

    @staticmethod
    def _must(a: int, b: int) -> bool:
        """Whether a microbatch's a comes before its b."""
        (s, kind), (t, other) = divmod(a, 3), divmod(b, 3)
        if kind == F:
            return other != F or s < t
        if kind == I:
            return (other == I and s > t) or (other == 2 and s >= t)
        return False

    def before(self, a: int, i: int, b: int, j: int) -> Linear:
        """One if op (a, i) runs before (b, j), else zero."""
        if a > b:
            constant, terms = self.before(b, j, a, i)
            return 1.0 - constant, {name: -value for name, value in terms.items()}
        key = (a, i, b, j)
        if key not in self.known:
            fixed = self._fixed(a, i, b, j)
            if fixed is None:
                self.known[key] = 0.0, {self.model.column(0.0, 1.0, integer=True): 1.0}
            else:
                self.known[key] = float(fixed), {}
        return self.known[key]

    def work_before(self, b: int, j: int) -> Linear:
        """Work that the rank does before an op, in units."""
        problem = self.problem
        parts = []
        for s in problem.stages[problem.home[b // 3]]:
            for a in (3 * s, 3 * s + 1, 3 * s + 2):
                share = problem.seconds[a] / self.unit
                if a == b:
                    parts.append((share, (float(j), dict[int, float]())))
                else:
                    parts += [
                        (share, self.before(a, i, b, j)) for i in range(problem.num_microbatches)
                    ]
        return _sum(*parts)

    def start(self, b: int, j: int) -> Linear:
        """When an op starts, in units: its rank's first start, the work and the idle before it."""
        rank = self.problem.home[b // 3]
        first = (self.problem.first[rank] / self.unit, {self.idle[b][j]: 1.0})
        return _sum((1.0, first), (1.0, self.work_before(b, j)))

    def _rank(self, rank: int, symbols: list[int]) -> None:
        """What one rank's order must keep."""
        model, problem, m = self.model, self.problem, self.problem.num_microbatches
        for a in symbols:
            for i in range(m - 1):
                model.row((0.0, {self.idle[a][i + 1]: 1.0, self.idle[a][i]: -1.0}), 0.0)
        for a, b in combinations(symbols, 2):
            self._pair(a, b)
        for a, b, c in combinations(symbols, 3):
            self._transitive(a, b, c)
        end = (problem.first[rank] + problem.work[rank] - problem.offset[rank]) / self.unit
        for s in problem.stages[rank]:
            last = self.idle[3 * s + 2][m - 1]
            model.row((0.0, {self.objective: 1.0, last: -1.0}), end)
        self._memory(rank, symbols)

    def _pair(self, a: int, b: int) -> None:
        """Two kinds of op take turns: whoever comes later has seen at least as much idle."""
        model, m = self.model, self.problem.num_microbatches
        most = model.high[self.idle[a][0]]
        for i in range(m):
            for j in range(m):
                x = self.before(a, i, b, j)
                if i + 1 < m:
                    self._add(_sum((1.0, x), (-1.0, self.before(a, i + 1, b, j))))
                if j + 1 < m:
                    self._add(_sum((1.0, self.before(a, i, b, j + 1)), (-1.0, x)))
                later = (0.0, {self.idle[b][j]: 1.0, self.idle[a][i]: -1.0})
                if x[1]:
                    self._add(_sum((1.0, later), (-most, x), (most, (1.0, {}))))
                    self._add(_sum((-1.0, later), (most, x)))
                else:
                    self._add(_sum((2 * x[0] - 1, later)))

    def _add(self, expression: Linear) -> None:
        """The expression is at least zero; nothing is added where that is plain."""
        if any(expression[1].values()):
            self.model.row(expression, 0.0)

    def _transitive(self, a: int, b: int, c: int) -> None:
        """Three kinds of op stand in one line."""
        m = self.problem.num_microbatches
        for i in range(m):
            for j in range(m):
                ab = self.before(a, i, b, j)
                for k in range(m):
                    bc, ac = self.before(b, j, c, k), self.before(a, i, c, k)
                    if sum(bool(x[1]) for x in (ab, bc, ac)) < 2:
                        continue  # the windows have closed it: see _fixed
                    around = _sum((1.0, ab), (1.0, bc), (-1.0, ac))  # 0 or 1
                    self._row_if_open(around, 0.0, 1.0)

    def _row_if_open(self, expression: Linear, low: float, high: float) -> None:
        constant, terms = expression
        least = constant + sum(min(0.0, v) for v in terms.values())
        most = constant + sum(max(0.0, v) for v in terms.values())
        if least < low or most > high:
            self.model.row(expression, low, high)

    def _memory(self, rank: int, symbols: list[int]) -> None:
        """At each moment at which a rank's memory can peak, it is within the limit."""
        problem, m = self.problem, self.problem.num_microbatches
        limit = problem.limit[rank] * (1 + 1e-9)
        if limit == np.inf:
            return
        scale = max(problem.gains[3 * s] for s in problem.stages[rank]) or 1.0
        for b in symbols:
            grows = max(problem.gains[b], problem.transient[b // 3] if b % 3 == I else 0.0)
            if grows <= 0:
                continue
            for j in range(m):
                parts = [(grows / scale, (1.0, dict[int, float]()))]
                for a in symbols:
                    gain = problem.gains[a] / scale
                    if a == b:
                        parts.append((gain, (float(j), {})))
                    else:
                        parts += [(gain, self.before(a, i, b, j)) for i in range(m)]
                self._row_if_open(_sum(*parts), -np.inf, limit / scale)

    def _messages(self) -> None:
        """No op starts before its input is there."""
        problem = self.problem
        for symbol, origin in enumerate(problem.source):
            if origin < 0:
                continue
            gap = (problem.seconds[origin] + problem.delay[symbol]) / self.unit
            if problem.home[origin // 3] == problem.home[symbol // 3]:
                continue  # the order says it
            for k in range(problem.num_microbatches):
                wait = _sum((1.0, self.start(symbol, k)), (-1.0, self.start(origin, k)))
                self.model.row(wait, gap)

    def warm_start(self) -> np.ndarray:
        """The incumbent as a point."""
        problem = self.problem
        words = self.words_from(self.place)
        played = play(problem, words)
        assert played is not None
        point = np.zeros(len(self.model.low))
        point[self.objective] = played.value / self.unit
        for (a, i, b, j), (_, terms) in self.known.items():
            for name in terms:
                point[name] = float(self.place[a][i] < self.place[b][j])
        for rank, word in enumerate(words):
            done, seen = 0.0, [0] * len(problem.seconds)
            for symbol in word:
                k = seen[symbol]
                seen[symbol] += 1
                start = played.ends[symbol][k] - problem.seconds[symbol]
                idle = (start - problem.first[rank] - done) / self.unit
                point[self.idle[symbol][k]] = max(0.0, idle)
                done += problem.seconds[symbol]
        return point

    def words_from(self, place: list[list[float]]) -> Words:
        """Words in which every op stands at its place."""
        return [
            [
                symbol
                for _, symbol in sorted(
                    (place[3 * s + kind][k], 3 * s + kind)
                    for s in held
                    for kind in range(3)
                    for k in range(self.problem.num_microbatches)
                )
            ]
            for held in self.problem.stages
        ]

    def words(self, point: np.ndarray) -> Words:
        """The order at a point: each op stands behind as many as run before it."""
        m, problem = self.problem.num_microbatches, self.problem
        place = [[float(k) for k in range(m)] for _ in problem.seconds]
        for held in problem.stages:
            for a, b in combinations([3 * s + kind for s in held for kind in range(3)], 2):
                for i in range(m):
                    for j in range(m):
                        constant, terms = self.before(a, i, b, j)
                        first = round(constant + sum(v * point[n] for n, v in terms.items()))
                        place[b][j] += first
                        place[a][i] += 1 - first
        return self.words_from(place)


def _grid(problem: Problem) -> float | None:
    """The time of which every duration and message is a small multiple, if there is one. [s]"""
    times = [t for t in (*problem.seconds, *problem.hop) if t > 0]
    ratios = [Fraction(t / min(times)).limit_denominator(100) for t in times]
    if any(abs(float(r) * min(times) - t) > 1e-10 * t for r, t in zip(ratios, times, strict=True)):
        return None
    parts = lcm(*(r.denominator for r in ratios))
    return min(times) / parts if parts <= 1000 else None


def _places(problem: Problem, words: Words) -> list[list[float]]:
    """Where each op stands in its rank's word, by symbol and microbatch."""
    place: list[list[float]] = [[] for _ in problem.seconds]
    for word in words:
        for at, symbol in enumerate(word):
            place[symbol].append(float(at))
    return place
