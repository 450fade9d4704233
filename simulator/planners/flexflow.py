"""Plans found by a random walk that simulates each one: the baseline that a search must beat.

The walk starts at one plan, changes one knob at a time, and takes a change that makes the step
longer with a probability that falls with how much longer.

Source: Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural Networks", SysML
2019, section 6: Markov chain Monte Carlo with the Metropolis-Hastings rule over a simulated cost.
There a strategy places each operator; here the knobs are those of a Plan.
"""

import random
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

__all__ = ["Found", "bounded", "exhaustive", "flexflow"]

Choice = tuple[Any, ...]  # a value for each knob
Cost = Callable[[Choice], float]  # [s], or inf of what does not fit


class Found(NamedTuple):
    """The best choice, and what it took to find it."""

    choice: Choice
    seconds: float  # [s]
    simulations: int  # choices that were simulated until the best one was [1]
    trace: tuple[float, ...]  # the best after each simulation [s]


def flexflow(
    choices: Sequence[Choice],
    cost: Cost,
    *,
    start: Choice,
    seed: int,
    num_proposals: int,
    greed: float = 20.0,
) -> Found:
    """The best choice of a random walk.

    A proposal gives one knob, drawn evenly, another of its values, drawn evenly; so every proposal
    is as likely as its way back. It is taken with probability min(1, (old / new)^greed), the
    Metropolis rule for the logarithm of the cost: with greed 20, one that is 5% slower in 3 of 8
    cases, one that is twice as slow in one of a million. A choice is simulated once.

    Args:
        choices: every choice that can run; others are turned down unsimulated.
        cost: the simulated step.
        start: the choice where the walk begins.
        seed: of the random numbers.
        num_proposals: length of the walk. [1]
        greed: 0 takes every proposal that fits, infinity none that is slower. [1]

    >>> walk = flexflow(
    ...     [(x,) for x in range(9)], lambda c: 1 + (c[0] - 3) ** 2,
    ...     start=(8,), seed=1, num_proposals=99,
    ... )
    >>> walk.choice, walk.seconds
    ((3,), 1)
    """
    if start not in choices:
        raise ValueError(f"start is {start}, which is none of the {len(choices)} choices")
    can_run, generator = set(choices), random.Random(seed)  # noqa: S311
    knobs = [list(dict.fromkeys(values)) for values in zip(*choices, strict=True)]
    movable = [at for at, values in enumerate(knobs) if len(values) > 1]
    known: dict[Choice, float] = {}
    trace: list[float] = []

    def simulated(choice: Choice) -> float:
        if choice not in known:
            known[choice] = cost(choice)
            trace.append(min(known[choice], trace[-1] if trace else inf))
        return known[choice]

    here, now = start, simulated(start)
    for _ in range(num_proposals if movable else 0):
        at = generator.choice(movable)
        others = [value for value in knobs[at] if value != here[at]]
        there = (*here[:at], generator.choice(others), *here[at + 1 :])
        if there not in can_run:
            continue
        then = simulated(there)
        if then <= now or (then < inf and generator.random() < (now / then) ** greed):
            here, now = there, then
    best = min(known, key=known.__getitem__)
    return Found(best, known[best], trace.index(known[best]) + 1, tuple(trace))


def exhaustive(choices: Sequence[Choice], cost: Cost) -> Found:
    """The best of all choices, each simulated; of equals the first."""
    return bounded(choices, cost, lambda _: 0.0)


def bounded(choices: Sequence[Choice], cost: Cost, bound: Cost) -> Found:
    """The best of all choices; where a lower bound is no better than the best, unsimulated.

    Most promising first, so that the search ends at the first bound that is too long. Exact if no
    bound is above its cost; of equals, the one with the lower bound, then the earlier.

    >>> found = bounded(
    ...     [(x,) for x in range(9)], lambda c: 1 + (c[0] - 3) ** 2, lambda c: abs(c[0] - 3)
    ... )
    >>> found.choice, found.seconds, found.trace
    ((3,), 1, (1,))
    """
    if not choices:
        raise ValueError("there are no choices; give at least one that can run")
    bounds = [bound(choice) for choice in choices]
    best, shortest, trace = choices[0], inf, list[float]()
    for at in sorted(range(len(choices)), key=bounds.__getitem__):
        if bounds[at] >= shortest:
            break
        seconds = cost(choices[at])
        if seconds < shortest:
            best, shortest = choices[at], seconds
        trace.append(shortest)
    return Found(best, shortest, trace.index(shortest) + 1, tuple(trace))
