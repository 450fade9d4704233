"""The best order of a pipeline's ops for given times and memory, with how far it can be from best.

Heuristics first, then a local search, then a mixed-integer programme on HiGHS, each starting from
the best so far. docs/optimal.md has the formulation, its source and its limits.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.costs import Costs
from simulator.optimal.bound import lower_bound
from simulator.optimal.improve import better_rules, better_words, one_at_a_time
from simulator.optimal.problem import (
    Objective,
    Problem,
    Words,
    fits,
    num_choices,
    play,
    schedule_of,
    words_of,
)
from simulator.schedule import Schedule

__all__ = ["Optimum", "Progress", "optimize"]

MOST = 8000  # choices above which HiGHS does not get through the root in a minute [1]
PROVEN = 1e-6  # gap under which an order counts as best: HiGHS's tolerance [1]


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best order that was found, and what is known of better ones."""

    schedule: Schedule  # compute-only rows, each backward as I and W
    objective: float  # [s]
    bound: float  # no order is better than this [s]
    gap: float  # (objective - bound) / objective [1]
    seconds: float  # wall-clock time it took [s]
    proven: bool  # the gap is zero, to 1e-6


class Progress(NamedTuple):
    """How far an optimisation has come."""

    objective: float  # [s]
    bound: float  # [s]
    gap: float  # [1]
    seconds: float  # since the start [s]


def optimize(
    costs: Costs,
    pp: int,
    num_microbatches: int,
    *,
    transfer: float | Sequence[float] = 0.0,
    activation_limit: float | Sequence[float] | None = None,
    objective: Objective = "span",
    placement: Sequence[int] | None = None,
    time_limit: float | None = 60.0,
    effort: float = 1.0,
    progress: Callable[[Progress], None] | None = None,
) -> Optimum:
    """Find the order of F, I and W on each rank that minimises the step.

    Ctrl-C ends it early with the best so far. With `time_limit=None` the same input gives the same
    order.

    Args:
        costs: seconds and bytes of each stage's F, I and W.
        pp: pipeline ranks. [1]
        num_microbatches: all alike. [1]
        transfer: time of one message between neighbouring stages, one for all or one a boundary.
            [s]
        activation_limit: most activation memory of a rank, one for all or one a rank. [bytes]
        objective: `span` = the largest single-rank time from first start to last end; `makespan` =
            the time at which the last rank ends.
        placement: the rank of each stage; stage r on rank r when left out.
        time_limit: wall-clock time, or no limit. [s]
        effort: multiplies how many orders and nodes are tried when there is no time limit. [1]
        progress: called now and then with the best so far.

    Raises:
        ValueError: the memory limit is under the least possible; the message names that.
    """
    home = tuple(range(pp)) if placement is None else tuple(placement)
    if set(home) != set(range(pp)):
        raise ValueError(f"placement is {home}; it must name each of the ranks 0 to {pp - 1}")
    if costs.num_stages != len(home):
        raise ValueError(
            f"the costs have {costs.num_stages} stages, but {len(home)} are placed; estimate them "
            "for the same plan"
        )
    problem = Problem.of(costs, home, num_microbatches, transfer, activation_limit, objective)
    problem.check()
    return _Search(problem, costs, time_limit, effort, progress).best()


class _Search:
    """One optimisation under way. A class because Ctrl-C must find the best so far."""

    def __init__(
        self,
        problem: Problem,
        costs: Costs,
        time_limit: float | None,
        effort: float,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.begin = time.monotonic()
        self.problem, self.costs, self.effort, self.tell = problem, costs, effort, progress
        self.limit = float("inf") if time_limit is None else time_limit
        self.bound = lower_bound(problem)
        self.words = one_at_a_time(problem)
        played = play(problem, self.words)
        assert played is not None
        self.key = played.key

    def best(self) -> Optimum:
        """Heuristics, local search, programme; each stops when the bound is reached."""
        try:
            for stage in (self._heuristics, self._rules, self._moves, self._programme):
                stage()
                if self.gap <= PROVEN or self.elapsed > self.limit:
                    break
        except KeyboardInterrupt:
            pass
        return Optimum(
            schedule=schedule_of(self.problem, self.words),
            objective=self.key[0],
            bound=min(self.bound, self.key[0]),
            gap=self.gap,
            seconds=self.elapsed,
            proven=self.gap <= PROVEN,
        )

    @property
    def elapsed(self) -> float:
        """Wall-clock time since the start. [s]"""
        return time.monotonic() - self.begin

    @property
    def gap(self) -> float:
        """How much better the best order can be, at most. [1]"""
        return max(0.0, (self.key[0] - self.bound) / self.key[0])

    def _take(self, words: Words) -> None:
        """Keep an order that fits and is the best so far."""
        if not fits(self.problem, words):
            return
        played = play(self.problem, words)
        if played is not None and played.key < self.key:
            self.words, self.key = words, played.key
            self._report()

    def _report(self) -> None:
        if self.tell is not None:
            bound = min(self.bound, self.key[0])
            self.tell(Progress(self.key[0], bound, self.gap, self.elapsed))

    def _heuristics(self) -> None:
        for words in heuristics(self.problem, self.costs):
            self._take(words)

    def _rules(self) -> None:
        if self.limit == float("inf"):
            tries = max(2, round(self.effort * min(200.0, 200_000 / self.num_ops)))
        else:
            tries = 200 if num_choices(self.problem) < 3000 else 2000
        self._follow(better_rules(self.problem, tries), 0.1 * self.limit)

    def _moves(self) -> None:
        most = 20.0 * num_choices(self.problem) if self._solvable else 1e9
        if self.limit == float("inf"):
            most = min(most, self.effort * min(8000.0, 8e6 / self.num_ops))
        until = 0.2 if self._solvable else 1.0
        self._follow(better_words(self.problem, self.words, round(most)), until * self.limit)

    @property
    def num_ops(self) -> int:
        """Ops on all ranks. [1]"""
        return sum(map(len, self.words))

    @property
    def _solvable(self) -> bool:
        """Whether the whole programme is small enough to be worth HiGHS's time."""
        most = 1500 * self.effort if self.limit == float("inf") else MOST
        return num_choices(self.problem) <= most

    def _follow(self, orders: Iterator[Words | None], until: float) -> None:
        """Take the orders of a search until a time, or until the bound is reached."""
        for words in orders:
            if words is not None:
                self._take(words)
            if self.gap <= PROVEN or self.elapsed > until:
                return

    def _programme(self) -> None:
        from simulator.optimal.highs import solve

        if not self._solvable:
            return

        def report(_: float, bound: float) -> None:
            if bound < float("inf"):
                self.bound = max(self.bound, bound)
            self._report()

        nodes = None
        if self.limit == float("inf"):
            nodes = round(self.effort * 300_000 / max(num_choices(self.problem), 30))
        found = solve(
            self.problem,
            self.words,
            deadline=self.begin + self.limit,
            nodes=nodes,
            report=report,
        )
        self.bound = max(self.bound, found.bound)
        if found.words is not None:
            self._take(found.words)
        self._report()


def heuristics(problem: Problem, costs: Costs) -> Iterator[Words]:
    """The orders of all registered schedules that have this placement."""
    from simulator.schedules import schedules

    vpp = max(map(len, problem.stages))
    limits = set(problem.limit)
    given = {
        "pp": problem.num_ranks,
        "num_microbatches": problem.num_microbatches,
        "vpp": vpp,
        "costs": costs,
        "transfer": max(problem.hop, default=0.0),
        "activation_limit": None if limits == {float("inf")} else min(limits),
    }
    for name, recipe in schedules().items():
        if name == "optimal" or not set(recipe.takes) <= set(given):
            continue
        if (vpp > 1) != (recipe.chunks > 1):
            continue
        try:
            schedule = recipe.generator(**{name: given[name] for name in recipe.takes})
        except ValueError:  # it has no order of this size, or within this memory
            continue
        words = words_of(problem, schedule)
        if words is not None:
            yield words
