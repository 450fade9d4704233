"""The front holds what nothing beats, whatever the order in which points come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.search.front import Front, Hurdle

LEVELS = st.integers(1, 5).map(float)


def points(rows, first=0):
    """Points with these throughputs and headrooms; all on 8 GPUs."""
    tokens, room = (np.array(column, float) for column in zip(*rows, strict=True))
    return Front(np.arange(first, first + len(rows)), tokens, room, 8 / tokens)


def unbeaten(rows):
    """By comparing all pairs: as good in both and better in one, or equal and earlier."""
    return [
        at
        for at, (tokens, room) in enumerate(rows)
        if not any(
            t >= tokens and r >= room and ((t, r) != (tokens, room) or other < at)
            for other, (t, r) in enumerate(rows)
        )
    ]


@given(st.lists(st.tuples(LEVELS, LEVELS), min_size=1, max_size=40))
def test_front_is_what_comparing_all_pairs_leaves(rows):
    assert Front().add(points(rows)).index.tolist() == unbeaten(rows)


@given(
    st.lists(st.tuples(LEVELS, LEVELS), min_size=1, max_size=30),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_front_does_not_depend_on_chunks_or_their_order(rows, size, random):
    chunks = [points(rows[at : at + size], at) for at in range(0, len(rows), size)]
    random.shuffle(chunks)
    front = Front()
    for chunk in chunks:
        front = front.add(chunk)
    assert front.index.tolist() == unbeaten(rows)


@given(st.lists(st.tuples(LEVELS, LEVELS), min_size=1, max_size=30), st.integers(1, 29))
def test_a_point_that_a_part_of_the_points_beats_is_not_on_the_front_of_all(rows, size):
    whole = points(rows)
    beaten = Front().add(points(rows[:size])).beats(whole)
    assert not set(whole.index[beaten].tolist()) & set(unbeaten(rows))
    assert Front().add(whole).beats(whole).sum() == len(rows) - len(unbeaten(rows))


@given(
    st.lists(st.tuples(LEVELS, LEVELS), min_size=1, max_size=30),
    st.tuples(st.floats(0.5, 6.0), st.floats(0.5, 6.0)),
    st.sampled_from([0.0, 0.02, 0.5]),
)
def test_what_does_not_take_the_hurdle_is_beaten_and_slower_than_the_margin(rows, figures, margin):
    front, (tokens, room) = Front().add(points(rows)), figures
    one, best = points([figures]), max(row[0] for row in rows)
    is_lost = bool(front.beats(one)[0]) and tokens * (1 + margin) < best
    if tokens < Hurdle.of(front, margin).at(room):
        assert is_lost
    elif tokens not in front.tokens_per_second:  # else a tie, which the hurdle leaves to the front
        assert not is_lost


def test_nothing_is_too_slow_for_the_hurdle_of_an_empty_front():
    assert Hurdle.of(Front(), 0.0).at(0.0) == 0.0


def test_three_points_one_beaten_and_each_ranking_has_its_best():
    front = Front().add(points([(100.0, 2.0), (90.0, 5.0), (80.0, 4.0)]))
    assert front.index.tolist() == [0, 1]
    assert [front.best(by) for by in ("throughput", "headroom", "cost")] == [0, 1, 0]


def test_a_difference_in_the_tenth_digit_is_a_tie_and_the_first_point_stands_for_both():
    assert Front().add(points([(1e5, 1.0), (1e5 * (1 + 1e-10), 1.0)])).index.tolist() == [0]
    assert Front().add(points([(1e5, 1.0), (1e5 * (1 + 1e-8), 1.0)])).index.tolist() == [1]


@given(st.floats(1e-12, 1e15), st.floats(0, 1e-7))
def test_rounding_never_turns_two_figures_round(value, more):
    larger = value * (1 + more)
    front = Front().add(points([(value, 1.0)]))
    assert not front.beats(points([(larger, 1.0)], first=-1)).any()


def test_front_travels_as_plain_arrays():
    front = Front().add(points([(100.0, 2.0), (90.0, 5.0)]))
    again = Front(**front.arrays())
    assert again.index.tolist() == [0, 1]
    assert again.headroom.tolist() == [2.0, 5.0]


def test_an_empty_front_beats_nothing_and_has_no_best():
    assert not Front().beats(points([(1.0, 1.0)])).any()
    with pytest.raises(ValueError, match="no plan is left to rank"):
        Front().best()
