"""Causes, the critical path and every bubble in words."""

import numpy as np
import pytest
from hypothesis import given

from simulator import engine
from simulator.explain import causes, critical_path, explain, explain_longest, longest_gaps
from simulator.job import Plan
from simulator.schedule import Kind, Op
from simulator.simulate import simulate_uniform
from simulator.split import shortest
from tests.test_engine import cases
from tests.timelines import of_rows


def run(schedule="1f1b", pp=4, m=8, vpp=1, latency=0.0, **plan):
    made = Plan(schedule=schedule, pp=pp, num_microbatches=m, vpp=vpp, **plan)
    return simulate_uniform(made, 1.0, 2.0, latency=latency).timeline


@given(cases())
def test_every_span_starts_when_its_cause_ends_or_at_zero(case):
    timeline = engine.run(*case)
    cause = causes(timeline)
    first = cause < 0
    assert (timeline.start[first] == 0).all()
    np.testing.assert_array_equal(timeline.start[~first], timeline.end[cause[~first]])


@given(cases())
def test_the_critical_path_is_gapless_from_zero_to_the_end(case):
    timeline = engine.run(*case)
    path = critical_path(timeline)
    start, end = timeline.start[path], timeline.end[path]
    assert start[0] == 0
    assert end[-1] == timeline.makespan
    np.testing.assert_array_equal(start[1:], end[:-1])


def test_blocking_causes_are_gapless_too():
    timeline = run(latency=0.25, p2p="blocking")
    path = critical_path(timeline)
    np.testing.assert_array_equal(timeline.start[path][1:], timeline.end[path][:-1])


def test_1f1b_pp4_m8_rank_0_idles_6_s_in_warm_up_for_the_way_down_and_back():
    bubble = explain(run(), rank=0, time=5.0)
    assert (bubble.start, bubble.end, bubble.kind) == (4.0, 10.0, "warm-up")
    assert bubble.next_op == Op(0, Kind.B, 0)
    computed = [op for _, op, _, _ in bubble.chain if op.kind.is_compute]
    assert computed == [Op(3, Kind.B, 0), Op(2, Kind.B, 0), Op(1, Kind.B, 0)]
    assert "rank 0 idles 6 s from 4 to 10 (warm-up): 0B0 waits for 0RECV_B0 of rank 1" in str(
        bubble
    )


def test_a_gap_between_the_last_backwards_is_drain():
    bubble = explain(run(), rank=0, time=24.5)
    assert (bubble.kind, bubble.next_op) == ("drain", Op(0, Kind.B, 5))


def test_after_its_last_op_a_rank_has_nothing_left_to_do():
    bubble = explain(run(), rank=3, time=30.0)
    assert (bubble.start, bubble.end, bubble.kind) == (27.0, 33.0, "drain")
    assert "nothing left to do" in str(bubble)


def test_a_gap_that_is_mostly_a_message_on_its_way_is_transfer():
    timeline = run(pp=2, m=4, latency=5.0)
    assert explain(timeline, rank=1, time=3.0).kind == "transfer"


def test_a_straggler_is_named_where_it_makes_the_gap():
    plan = Plan(pp=2, num_microbatches=4)
    timeline = simulate_uniform(plan, 1.0, 2.0).timeline
    slow = 5.0
    from simulator.costs import uniform
    from simulator.fabric import ideal
    from simulator.lower import lower, post_receives_early
    from simulator.schedules import build

    lowered = post_receives_early(lower(build(plan)))
    timeline = engine.run(lowered, uniform(2, 1.0, 2.0), ideal([(0, 1), (1, 0)]), {0: slow})
    bubble = explain(timeline, rank=1, time=15.0, stragglers={0: slow})
    assert bubble.kind == "straggler"
    assert bubble.waits_on == 0


def test_a_limit_on_memory_is_named_where_a_ready_forward_had_no_room():
    """Rank 0 of 1F1B holds 4 forwards; a fifth was ready and only a limit of 4 held it back."""
    timeline = run()
    assert explain(timeline, rank=0, time=5.0, activation_limit=4.0).kind == "memory limit"
    assert explain(timeline, rank=0, time=5.0, activation_limit=5.0).kind == "warm-up"


@given(cases())
def test_the_longest_gaps_explained_at_once_are_those_explained_one_by_one(case):
    timeline = engine.run(*case)
    expected, seen = [], set()
    for _, rank, time in longest_gaps(timeline):
        bubble = explain(timeline, rank, time)
        if rank not in seen and bubble.next_op is not None:
            expected.append(bubble)
        seen.add(rank)  # a rank that idles longest at its end explains nothing
    known = {"lone": shortest(timeline), "stragglers": {}, "activation_limit": None}
    assert explain_longest(timeline, 3, cause=causes(timeline), **known) == tuple(expected[:3])


def test_a_chain_in_words_names_its_first_and_last_three():
    bubble = explain(run(pp=8, m=16), rank=0, time=10.0)
    assert len(bubble.chain) == 14
    assert "-> 6B0 (rank 6) -> 8 more -> 2RECV_B0" not in str(bubble)
    assert str(bubble).endswith(
        "7B0 (rank 7) -> 6RECV_B0 (rank 6) -> 6B0 (rank 6) -> 8 more -> "
        "1RECV_B0 (rank 1) -> 1B0 (rank 1) -> 0RECV_B0 (rank 0)"
    )


def test_causes_in_a_circle_as_clocks_that_disagree_make_end_the_path():
    """0B0 seems to wait for 1B0, that for 1F1 before it, that for 0F1, and that for 0B0."""
    timeline = of_rows(
        [
            (0, 0, Kind.RECV_B, 0, 0, 9),
            (0, 0, Kind.B, 0, 0, 1),
            (0, 0, Kind.F, 1, 1, 2),
            (0, 0, Kind.SEND_F, 1, 2, 9),
            (1, 1, Kind.RECV_F, 1, 0, 9),
            (1, 1, Kind.F, 1, 0, 1),
            (1, 1, Kind.B, 0, 1, 2),
            (1, 1, Kind.SEND_B, 0, 2, 9),
        ]
    )
    assert causes(timeline).tolist() == [6, 0, 1, 2, 2, 4, 5, 6]
    assert critical_path(timeline).tolist() == [1, 2, 4, 5, 6, 0]


@pytest.mark.parametrize(
    ("rank", "time", "message"),
    [
        (4, 1.0, "rank is 4, but the timeline has ranks 0 to 3"),
        (0, 99.0, "time is 99 s, but the step lasts from 0 to 33 s"),
        (0, 0.5, "rank 0 runs 0F0 at 0.5 s; give the time of a gap"),
    ],
)
def test_what_is_no_gap_is_refused(rank, time, message):
    with pytest.raises(ValueError, match=message):
        explain(run(), rank, time)
