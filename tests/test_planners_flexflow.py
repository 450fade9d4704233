"""A random walk over plans: Metropolis, seedable, and never better than the exact searches."""

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.planners.flexflow import bounded, exhaustive, flexflow

GRID = [(x, y) for x in range(6) for y in range(5)]


def bowl(choice):
    return 1.0 + (choice[0] - 4) ** 2 + 3 * (choice[1] - 1) ** 2


@given(costs=st.lists(st.integers(1, 50), min_size=30, max_size=30), shares=st.integers(0, 10))
def test_the_bounded_search_finds_the_exhaustive_best_with_no_more_simulations(costs, shares):
    table = dict(zip(GRID, map(float, costs), strict=True))
    every = exhaustive(GRID, table.__getitem__)
    proven = bounded(GRID, table.__getitem__, lambda c: table[c] * shares / 10)
    assert proven.seconds == every.seconds == min(costs)
    assert len(proven.trace) <= len(every.trace) == 30


def test_a_tight_bound_simulates_one_choice():
    assert len(bounded(GRID, bowl, bowl).trace) == 1


@given(seed=st.integers(0, 1000))
def test_a_walk_is_seeded_never_beats_the_best_and_simulates_each_choice_once(seed):
    calls = Counter()

    def cost(choice):
        calls[choice] += 1
        return bowl(choice)

    walk = flexflow(GRID, cost, start=(0, 0), seed=seed, num_proposals=60)
    assert max(calls.values()) == 1
    assert len(walk.trace) == len(calls)
    assert walk.seconds >= exhaustive(GRID, bowl).seconds
    assert walk.trace[walk.simulations - 1] == walk.seconds
    assert walk == flexflow(GRID, bowl, start=(0, 0), seed=seed, num_proposals=60)


def test_200_proposals_find_the_bottom_of_a_bowl_of_30_choices_from_any_seed():
    for seed in range(50):
        walk = flexflow(GRID, bowl, start=(0, 4), seed=seed, num_proposals=200)
        assert (walk.choice, walk.seconds) == ((4, 1), 1.0)


def test_one_proposal_that_is_twice_as_slow_is_taken_in_half_of_all_walks_with_greed_1():
    """(0, 0) -> (0, 1), twice as slow -> (1, 1): seen only from a walk that took the first."""
    table = {(0, 0): 1.0, (0, 1): 2.0, (1, 1): 3.0}
    walks = [
        flexflow(list(table), table.__getitem__, start=(0, 0), seed=seed, num_proposals=2, greed=1)
        for seed in range(4000)
    ]
    seen = sum(len(walk.trace) == 3 for walk in walks) / len(walks)
    # the second knob first (1/2), taken (1/2), then the first knob (1/2)
    assert seen == pytest.approx(1 / 8, abs=0.02)


def test_without_greed_every_proposal_is_taken_and_with_infinite_greed_none_that_is_slower():
    table = {(0, 0): 1.0, (0, 1): 2.0, (1, 1): 0.5}

    def found(greed):
        walks = [
            flexflow(
                list(table), table.__getitem__, start=(0, 0), seed=s, num_proposals=9, greed=greed
            )
            for s in range(100)
        ]
        return sum(walk.seconds == 0.5 for walk in walks)

    assert found(inf) == 0
    assert found(0.0) > 80


def test_choices_that_do_not_fit_are_left_as_soon_as_one_does():
    table = {(0,): inf, (1,): inf, (2,): 3.0, (3,): 4.0}
    walk = flexflow(list(table), table.__getitem__, start=(0,), seed=0, num_proposals=50)
    assert (walk.choice, walk.seconds) == ((2,), 3.0)


def test_a_start_that_cannot_run_is_refused():
    with pytest.raises(ValueError, match="none of the 30 choices"):
        flexflow(GRID, bowl, start=(9, 9), seed=0, num_proposals=1)
    with pytest.raises(ValueError, match="at least one"):
        exhaustive([], bowl)
