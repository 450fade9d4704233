"""What is to be ordered: durations, messages and memory, and a fast player of candidate orders.

Microbatches are alike, so some best order runs them in order in every chain of one kind and stage:
give the k-th forward of a stage the name k, likewise each I and W, and every op still finds its
input at least as early. A rank's order is then a word: a list of symbols `3 stage + kind` in which
the k-th occurrence of a symbol is microbatch k.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from simulator.costs import Costs
from simulator.schedule import Kind, Op, Schedule

__all__ = [
    "Objective",
    "Problem",
    "Words",
    "fits",
    "num_choices",
    "peak",
    "play",
    "schedule_of",
    "words_of",
]

Objective = Literal["span", "makespan"]
Words = list[list[int]]  # by rank

KINDS = (Kind.F, Kind.I, Kind.W)  # a symbol's kind is its remainder by three
F, I, W = range(3)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything that decides how long an order takes, and whether it fits."""

    num_microbatches: int
    home: tuple[int, ...]  # rank of each stage
    seconds: tuple[float, ...]  # by symbol [s]
    hop: tuple[float, ...]  # message over the boundary above each stage, shape (num_stages - 1) [s]
    gains: tuple[float, ...]  # memory that a symbol's op leaves allocated when it ends [bytes]
    transient: tuple[float, ...]  # held by a stage's I while it runs [bytes]
    limit: tuple[float, ...]  # of each rank [bytes]
    objective: Objective

    @property
    def num_stages(self) -> int:
        """Model stages. [1]"""
        return len(self.home)

    @cached_property
    def num_ranks(self) -> int:
        """Pipeline ranks. [1]"""
        return max(self.home) + 1

    @cached_property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """Stages of each rank, in order of depth."""
        held: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for stage, rank in enumerate(self.home):
            held[rank].append(stage)
        return tuple(map(tuple, held))

    @cached_property
    def source(self) -> tuple[int, ...]:
        """The symbol on which each symbol waits, or -1."""
        table = []
        for stage in range(self.num_stages):
            deeper = 3 * (stage + 1) + I if stage + 1 < self.num_stages else 3 * stage + F
            table += [3 * (stage - 1) + F if stage else -1, deeper, 3 * stage + I]
        return tuple(table)

    @cached_property
    def delay(self) -> tuple[float, ...]:
        """Time of the message from the source to each symbol. [s]"""
        table = []
        for stage in range(self.num_stages):
            below = self.hop[stage - 1] if stage else 0.0
            above = self.hop[stage] if stage + 1 < self.num_stages else 0.0
            table += [below, above, 0.0]
        return tuple(table)

    @cached_property
    def work(self) -> tuple[float, ...]:
        """Compute time of each rank. [s]"""
        return tuple(
            self.num_microbatches * sum(sum(self.seconds[3 * s : 3 * s + 3]) for s in held)
            for held in self.stages
        )

    @cached_property
    def first(self) -> tuple[float, ...]:
        """Earliest start of each rank's first op, the forward of its shallowest stage. [s]"""
        start = [0.0]
        for stage, hop in enumerate(self.hop):
            start.append(start[-1] + self.seconds[3 * stage] + hop)
        return tuple(start[held[0]] for held in self.stages)

    @cached_property
    def offset(self) -> tuple[float, ...]:
        """What the objective subtracts from the time at which each rank ends. [s]"""
        return self.first if self.objective == "span" else (0.0,) * self.num_ranks

    def check(self) -> None:
        """Raise what the user must mend.

        Raises:
            ValueError: a limit under the least possible, or a span that no order alone decides.
        """
        if self.objective == "span":
            lowest = {held[0] for held in self.stages}
            if any(s not in lowest for held in self.stages for s in range(held[0])):
                raise ValueError(
                    "the largest span needs every stage below a rank's first stage to be the first "
                    f"of its own rank; placement {self.home} has others; use objective 'makespan'"
                )
        for rank, (limit, least) in enumerate(zip(self.limit, self.least, strict=True)):
            if limit < least * (1 - 1e-9):
                raise ValueError(
                    f"activation_limit is {limit:g} on rank {rank}, but one microbatch alone needs "
                    f"{least:g}; the least possible is {max(self.least):g}"
                )

    @cached_property
    def least(self) -> tuple[float, ...]:
        """Peak memory of each rank with one microbatch at a time, the least of all. [bytes]"""
        words = []
        for held in self.stages:
            back = [symbol for s in reversed(held) for symbol in (3 * s + I, 3 * s + W)]
            words.append([3 * s + F for s in held] + back)
        return tuple(peak(self, word) for word in words)

    @classmethod
    def of(
        cls,
        costs: Costs,
        home: Sequence[int],
        num_microbatches: int,
        transfer: float | Sequence[float],
        activation_limit: float | Sequence[float] | None,
        objective: Objective,
    ) -> "Problem":
        """Take what matters from the costs."""
        stages, ranks = len(home), max(home) + 1
        one = isinstance(transfer, int | float)
        hops = [float(transfer)] * (stages - 1) if one else list(transfer)  # type: ignore[arg-type]
        if len(hops) != stages - 1:
            raise ValueError(
                f"transfer has {len(hops)} times, but {stages} stages have {stages - 1} boundaries"
            )
        if activation_limit is None:
            limits = [float("inf")] * ranks
        elif isinstance(activation_limit, int | float):
            limits = [float(activation_limit)] * ranks
        else:
            limits = list(activation_limit)
        if len(limits) != ranks:
            raise ValueError(
                f"activation_limit has {len(limits)} values, but there are {ranks} ranks"
            )
        kept, freed = costs.activation_bytes.tolist(), costs.input_grad_bytes.tolist()
        gains = [g for a, b in zip(kept, freed, strict=True) for g in (a, -b, b - a)]
        return cls(
            num_microbatches=num_microbatches,
            home=tuple(home),
            seconds=tuple(float(costs.seconds[k, s]) for s in range(stages) for k in KINDS),
            hop=tuple(h if home[s] != home[s + 1] else 0.0 for s, h in enumerate(hops)),
            gains=tuple(gains),
            transient=tuple(costs.transient_bytes.tolist()),
            limit=tuple(limits),
            objective=objective,
        )


def peak(problem: Problem, word: list[int]) -> float:
    """Most activation memory of one rank; F allocates at its start, I and W free at their ends."""
    level = most = 0.0
    gains, transient = problem.gains, problem.transient
    for symbol in word:
        if symbol % 3 == I:
            most = max(most, level + transient[symbol // 3])
        level += gains[symbol]
        if level > most:
            most = level
    return most


def fits(problem: Problem, words: Words) -> bool:
    """Whether every rank stays within its limit."""
    return all(
        peak(problem, word) <= limit * (1 + 1e-9)
        for word, limit in zip(words, problem.limit, strict=True)
    )


class Played(NamedTuple):
    """How an order goes when every op starts as early as it can."""

    value: float  # the objective [s]
    key: tuple[float, float]  # the objective, then the other one [s]
    energy: float  # the objective and, to lead a search downhill, the mean over ranks [s]
    ends: list[list[float]]  # of each symbol's ops [s]


def play(problem: Problem, words: Words) -> Played | None:
    """Start every op as early as its rank and its input allow; nothing if the order hangs."""
    source, delay, seconds = problem.source, problem.delay, problem.seconds
    done: list[list[float]] = [[] for _ in seconds]
    free, at = [0.0] * len(words), [0] * len(words)
    left = list(range(len(words)))
    while left:
        moved, still = False, []
        for rank in left:
            word, i, now = words[rank], at[rank], free[rank]
            begin, size = i, len(word)
            while i < size:
                symbol = word[i]
                mine, origin = done[symbol], source[symbol]
                if origin >= 0:
                    k, theirs = len(mine), done[origin]
                    if len(theirs) <= k:
                        break
                    ready = theirs[k] + delay[symbol]
                    if ready > now:
                        now = ready
                now += seconds[symbol]
                mine.append(now)
                i += 1
            at[rank], free[rank] = i, now
            moved = moved or i > begin
            if i < size:
                still.append(rank)
        if not moved:
            return None
        left = still
    span = max(end - first for end, first in zip(free, problem.first, strict=True))
    makespan = max(free)
    value, other = (span, makespan) if problem.objective == "span" else (makespan, span)
    mean = sum(end - first for end, first in zip(free, problem.first, strict=True)) / len(free)
    return Played(value, (value, other), value + mean, done)


def num_choices(problem: Problem) -> int:
    """Pairs of ops whose order the programme may choose, at most. [1]"""
    m = problem.num_microbatches
    pairs = sum(len(held) * 3 * (len(held) * 3 - 1) // 2 for held in problem.stages)
    return pairs * m * (m - 1) // 2


def schedule_of(problem: Problem, words: Words) -> Schedule:
    """The rows that the words stand for."""
    rows = []
    for word in words:
        seen = [0] * len(problem.seconds)
        row = []
        for symbol in word:
            row.append(Op(symbol // 3, KINDS[symbol % 3], seen[symbol]))
            seen[symbol] += 1
        rows.append(row)
    return Schedule.of(rows)


def words_of(problem: Problem, schedule: Schedule) -> Words | None:
    """The words of rows, each backward split; nothing if the rows have another shape."""
    shape = (problem.num_ranks, problem.num_stages, problem.num_microbatches)
    if (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches) != shape:
        return None
    if schedule.paired.any() or (schedule.kind > Kind.W).any():
        return None
    if (np.array(problem.home)[schedule.stage] != schedule.rank).any():
        return None
    symbols = {Kind.F: (F,), Kind.B: (I, W), Kind.I: (I,), Kind.W: (W,)}
    words: Words = [
        [3 * op.stage + kind for op in row for kind in symbols[op.kind]] for row in schedule.rows
    ]
    count = np.bincount([s for word in words for s in word], minlength=len(problem.seconds))
    return words if (count == problem.num_microbatches).all() else None
