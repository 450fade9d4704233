"""Clocks: offsets that messages bound, drifts between the bounds, and what cannot be explained."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.measured.clocks import Messages, align


def exchange(pairs, offsets, transit, drifts=None, span=1.0, count=20, seed=0):
    """Messages both ways between pairs, each taking `transit` or more, by clocks that are wrong."""
    shuffled = np.random.default_rng(seed)
    drifts = np.zeros(len(offsets)) if drifts is None else np.array(drifts)
    offsets = np.array(offsets)
    rows = []
    for a, b in pairs:
        for source, target in ((a, b), (b, a)):
            for at, time in enumerate(shuffled.uniform(0, span, count)):
                late = transit * (1 if at % 3 == 0 else 1 + shuffled.exponential())
                rows.append((source, target, time, time + late))
    sender, receiver, sent, arrived = (np.array(column) for column in zip(*rows, strict=True))

    def shown(rank, time):
        return time * (1 + drifts[rank]) + offsets[rank]

    return Messages(
        sender=sender,
        receiver=receiver,
        sent=shown(sender, sent),
        arrived=shown(receiver, arrived),
    )


def chain(number):
    return list(itertools.pairwise(range(number)))


def ring(number):
    return [*chain(number), (0, number - 1)]


OFFSETS = st.lists(st.floats(-100, 100), min_size=2, max_size=6)


@settings(deadline=None, max_examples=60)
@given(offsets=OFFSETS, seed=st.integers(0, 999), closed=st.booleans())
def test_offsets_are_found_within_the_margin_and_no_message_arrives_early(offsets, seed, closed):
    number = len(offsets)
    messages = exchange((ring if closed else chain)(number), offsets, 1e-3, seed=seed)
    clocks = align(messages, range(number))
    true = offsets[0] - np.array(offsets)
    assert clocks.residual <= 1e-12
    assert (np.abs(clocks.offset - true) <= 2 * clocks.margin + 1e-9).all()
    assert clocks.margin.max() <= 1.001e-3 * number


def test_equal_transit_times_both_ways_give_the_exact_offset():
    clocks = align(exchange(chain(4), [0.0, 5.0, -3.0, 0.25], 1e-3), range(4))
    assert clocks.offset == pytest.approx([0.0, -5.0, 3.0, -0.25], abs=1e-12)
    assert clocks.margin == pytest.approx([0.0, 1e-3, 2e-3, 3e-3], rel=1e-9)
    assert not clocks.drift.any()


def test_two_ranks_agree_with_a_search_over_all_offsets():
    messages = exchange([(0, 1)], [0.0, 0.7], 2e-3, count=5, seed=4)
    grid = np.linspace(-0.71, -0.69, 20001)
    onward = messages.sender == 0
    gap = messages.arrived - messages.sent
    slack = np.minimum((gap[onward] + grid[:, None]).min(1), (gap[~onward] - grid[:, None]).min(1))
    clocks = align(messages, [0, 1])
    assert clocks.offset[1] == pytest.approx(grid[slack.argmax()], abs=1e-6)
    assert clocks.margin[1] == pytest.approx(slack.max(), abs=1e-6)


def test_around_a_ring_no_bound_is_broken_although_the_middles_disagree():
    """Middles of 1, 1 and -5 ms do not add up around the ring; the room of 3 ms a pair does."""
    rows = [(0, 1, 0.0, 2e-3), (1, 0, 0.0, 4e-3), (1, 2, 0.0, 2e-3), (2, 1, 0.0, 4e-3)]
    rows += [(0, 2, 0.0, 8e-3), (2, 0, 0.0, 1e-3)]
    sender, receiver, sent, arrived = (np.array(column) for column in zip(*rows, strict=True))
    messages = Messages(sender=sender, receiver=receiver, sent=sent, arrived=arrived)
    clocks = align(messages, range(3))
    common = clocks.offset[receiver] + arrived - clocks.offset[sender] - sent
    assert common.min() >= -1e-12
    assert clocks.residual <= 1e-12


@pytest.mark.parametrize("ppm", [20.0, 150.0])
def test_drift_is_fitted_over_a_long_run(ppm):
    drifts = [0.0, ppm * 1e-6, -ppm * 1e-6]
    messages = exchange(chain(3), [0.0, 2.0, -1.0], 1e-3, drifts, span=60.0, count=200)
    clocks = align(messages, range(3))
    assert clocks.drift == pytest.approx(-np.array(drifts), abs=2e-6)
    assert clocks.residual <= 1e-6
    common = [clocks.common(r, np.array([o + 30 * (1 + d)])) for r, (o, d) in
              enumerate(zip([0.0, 2.0, -1.0], drifts, strict=True))]  # fmt: skip
    assert np.ptp(common) <= 1e-4  # 30 s shown by three clocks


def test_a_short_run_has_no_drift():
    messages = exchange(chain(3), [0.0, 2.0, -1.0], 1e-3, span=0.1, count=30)
    assert not align(messages, range(3)).drift.any()


def test_ranks_of_one_host_have_one_clock():
    messages = exchange(chain(4), [0.0, 0.0, 3.0, 3.0], 1e-3)
    clocks = align(messages, [7, 7, 2, 2])
    assert clocks.offset == pytest.approx([0.0, 0.0, -3.0, -3.0], abs=1e-9)


def test_what_no_offset_explains_is_the_residual():
    """Each message seems to arrive 5 ms before it is sent, whichever way: half is left to each."""
    one = np.array([0, 1])
    messages = Messages(
        sender=one, receiver=1 - one, sent=np.array([1.0, 1.0]), arrived=np.array([0.995, 0.995])
    )
    clocks = align(messages, [0, 1])
    assert clocks.residual == pytest.approx(5e-3)
    assert align(messages, [0, 0]).residual == pytest.approx(5e-3)


def test_messages_one_way_leave_the_margin_open():
    one = np.array([0, 0])
    messages = Messages(
        sender=one, receiver=one + 1, sent=np.array([1.0, 2.0]), arrived=np.array([9.0, 10.5])
    )
    clocks = align(messages, [0, 1])
    assert np.isinf(clocks.margin[1])
    assert clocks.offset[1] == pytest.approx(-8.0)  # the fastest took no time
    assert clocks.residual <= 1e-12


def test_no_messages_leave_the_clocks_as_they_are():
    nothing = Messages(
        sender=np.empty(0, int), receiver=np.empty(0, int), sent=np.empty(0), arrived=np.empty(0)
    )
    clocks = align(nothing, [0, 1, 2])
    assert not clocks.offset.any()
    assert np.isinf(clocks.margin[1:]).all()


def test_jitter_of_2_us_moves_offsets_by_no_more_than_that():
    shuffled = np.random.default_rng(1)
    messages = exchange(chain(3), [0.0, 2.0, -1.0], 1e-4, span=0.5, count=60)
    noisy = Messages(
        sender=messages.sender,
        receiver=messages.receiver,
        sent=messages.sent + shuffled.uniform(-2e-6, 2e-6, len(messages.sent)),
        arrived=messages.arrived + shuffled.uniform(-2e-6, 2e-6, len(messages.sent)),
    )
    clocks = align(noisy, range(3))
    assert clocks.offset == pytest.approx([0.0, -2.0, 1.0], abs=8e-6)
