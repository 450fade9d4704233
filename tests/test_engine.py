"""The engine: the papers' closed forms, and what must hold for every schedule and every cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import engine
from simulator.costs import Costs, uniform
from simulator.fabric import Fabric, ideal
from simulator.job import Plan
from simulator.lower import lower, post_receives_early
from simulator.matching import transfers
from simulator.network import Route
from simulator.schedule import Deadlock, Kind, Schedule, awaited
from simulator.schedules import build
from tests import greedy
from tests.plans import QUICK, nearest, rows_of

SIZES = [(4, 8, 1), (4, 8, 2), (8, 32, 4), (8, 8, 2), (12, 12, 4), (8, 16, 1), (4, 8, 3)]


def pairs(lowered):
    moves = transfers(lowered)
    return set(zip(moves.source.tolist(), moves.target.tolist(), strict=True))


def play(plan, forward=1.0, backward=2.0, latency=0.0):
    lowered = post_receives_early(lower(build(plan)))
    costs = uniform(plan.num_stages, forward / plan.vpp, backward / plan.vpp)
    return engine.run(lowered, costs, ideal(pairs(lowered), latency))


def with_costs(costs, **changes):
    values = {name: getattr(costs, name) for name in Costs.__dataclass_fields__}
    return Costs(**(values | changes))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 16), (1, 5), (5, 2)])
def test_gpipe_and_1f1b_take_m_plus_pp_minus_1_slots(name, pp, m):
    assert play(Plan(schedule=name, pp=pp, num_microbatches=m)).makespan == (m + pp - 1) * 3


@pytest.mark.parametrize(("pp", "m", "vpp"), SIZES)
def test_interleaving_divides_the_bubble_by_vpp(pp, m, vpp):
    plan = Plan(schedule="interleaved", pp=pp, vpp=vpp, num_microbatches=m)
    ideal_time = 3.0 * m
    bubble = play(plan).makespan - ideal_time
    assert bubble / ideal_time == pytest.approx((pp - 1) / (vpp * m), rel=1e-12)


def test_naive_runs_one_rank_at_a_time():
    assert play(Plan(schedule="naive", pp=4, num_microbatches=8)).makespan == 4 * 8 * 3


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 32), (8, 64), (16, 64)])
@pytest.mark.parametrize(("forward", "backward"), [(1.0, 2.0), (10.0, 18.0), (12.0, 9.0)])
def test_1f1b_with_latency_costs_what_the_zero_bubble_tables_say(pp, m, forward, backward):
    latency = 0.25
    slots = (m + pp - 1) * (forward + backward)
    messages = 2 * (pp - 1) * m / pp + 2 * (pp - 2)
    timeline = play(Plan(schedule="1f1b", pp=pp, num_microbatches=m), forward, backward, latency)
    assert timeline.makespan == pytest.approx(slots + messages * latency, rel=1e-12)


@st.composite
def cases(draw):
    """A schedule with random costs, sizes and links."""
    name = draw(st.sampled_from(QUICK))
    sizes = (draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    plan = nearest(name, *sizes)
    times = st.floats(0.1, 10.0)
    stages = plan.num_stages
    seconds = np.zeros((len(Kind), stages))
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        seconds[kind] = draw(st.lists(times, min_size=stages, max_size=stages))
    nbytes = np.array(draw(st.lists(st.floats(0.0, 5.0), min_size=stages, max_size=stages)))
    together = np.full(stages, draw(st.floats(0.6, 1.0)))
    costs = with_costs(
        uniform(stages, 1.0, 1.0), seconds=seconds, boundary_bytes=nbytes, pair_time=together
    )
    lowered = lower(rows_of(plan))
    if draw(st.booleans()):
        lowered = post_receives_early(lowered)
    capacity = tuple(draw(st.lists(st.floats(0.5, 5.0), min_size=3, max_size=3)))
    latency = draw(st.floats(0.0, 1.0))
    sends = {pair: Route((sum(pair) % 2, 2), (1.0, 0.5), latency) for pair in pairs(lowered)}
    return lowered, costs, Fabric(capacity, ("a", "b", "c"), sends, {}, {})


@given(cases())
def test_no_two_ops_overlap_on_a_compute_stream(case):
    compute = engine.run(*case).compute
    same = compute.rank[1:] == compute.rank[:-1]
    together = (compute.start[1:] == compute.start[:-1]) & (compute.end[1:] == compute.end[:-1])
    assert ((compute.start[1:] >= compute.end[:-1]) | together)[same].all()
    assert together[same].sum() == case[0].paired.sum()


@given(cases())
def test_inputs_are_there_before_use(case):
    timeline = engine.run(*case)
    cause = awaited(timeline)
    users = cause >= 0
    assert (timeline.start[users] >= timeline.end[cause[users]]).all()
    sends = timeline.of(Kind.SEND_F, Kind.SEND_B)
    made = {
        (s, k, m): e
        for s, k, m, e in zip(
            timeline.stage.tolist(),
            timeline.kind.tolist(),
            timeline.microbatch.tolist(),
            timeline.end.tolist(),
            strict=True,
        )
    }
    for stage, kind, microbatch, start in zip(
        sends.stage.tolist(),
        sends.kind.tolist(),
        sends.microbatch.tolist(),
        sends.start.tolist(),
        strict=True,
    ):
        makers = (Kind.F,) if kind == Kind.SEND_F else (Kind.B, Kind.I)
        assert start >= max(made.get((stage, maker, microbatch), 0.0) for maker in makers)


@given(cases())
def test_work_is_conserved(case):
    lowered, costs, _ = case
    timeline = engine.run(*case)
    assert timeline.num_spans == lowered.num_ops
    compute = timeline.compute
    expected = costs.seconds[compute.kind, compute.stage]
    first = np.flatnonzero(lowered.paired[lowered.kind <= Kind.OPTIMIZER])
    both = costs.pair_time[compute.stage[first]] * (expected[first] + expected[first + 1])
    expected[first] = expected[first + 1] = both
    np.testing.assert_allclose(compute.end - compute.start, expected, rtol=1e-9, atol=1e-12)


@given(cases())
def test_the_makespan_is_at_least_the_busiest_rank_and_one_microbatchs_way(case):
    lowered, _, _ = case
    timeline = engine.run(*case)
    compute = timeline.compute
    lasts = compute.end - compute.start
    alone = ~lowered.paired[lowered.kind <= Kind.OPTIMIZER]  # a pair counts once
    busy = np.bincount(compute.rank, weights=lasts * alone)
    way = lasts[(compute.microbatch == 0) & np.isin(compute.kind, (Kind.F, Kind.B, Kind.I))].sum()
    assert timeline.makespan >= max(busy.max(), way) * (1 - 1e-12)


@given(cases())
def test_as_many_bytes_are_received_as_sent_and_each_transfer_has_one_span_at_both_ends(case):
    timeline = engine.run(*case)
    for sends, receives, step in (
        (Kind.SEND_F, Kind.RECV_F, 1),
        (Kind.SEND_B, Kind.RECV_B, -1),
    ):
        sent, received = timeline.of(sends), timeline.of(receives)
        here = np.lexsort((sent.microbatch, sent.stage))
        there = np.lexsort((received.microbatch, received.stage))
        assert np.array_equal(sent.stage[here] + step, received.stage[there])
        assert np.array_equal(sent.start[here], received.start[there])
        assert np.array_equal(sent.end[here], received.end[there])


@given(cases())
def test_no_link_ever_carries_more_than_its_capacity(case):
    """Bytes that must cross a link while it is in use fit through it in that time."""
    lowered, costs, fabric = case
    timeline = engine.run(*case)
    sends = timeline.of(Kind.SEND_F, Kind.SEND_B)
    moves = transfers(lowered)
    names = [lowered.op(send) for send in moves.send.tolist()]
    targets = dict(zip(names, moves.target.tolist(), strict=True))
    for link, capacity in enumerate(fabric.capacity):
        spans = []
        for stage, kind, microbatch, rank, start, end in zip(
            sends.stage.tolist(),
            sends.kind.tolist(),
            sends.microbatch.tolist(),
            sends.rank.tolist(),
            sends.start.tolist(),
            sends.end.tolist(),
            strict=True,
        ):
            route = fabric.sends[rank, targets[stage, kind, microbatch]]
            if link in route.links:
                boundary = stage - (kind == Kind.SEND_B)
                load = costs.boundary_bytes[boundary] * route.copies[route.links.index(link)]
                spans.append((start, end - route.latency, load))
        if spans:
            starts, ends, loads = np.array(spans).T
            after, before = starts >= starts[:, None], ends <= ends[:, None]
            inside = (after * loads) @ before.T  # by first start and last end
            room = capacity * np.maximum(0.0, ends - starts[:, None])
            assert (inside <= room * (1 + 1e-6) + 1e-9).all()


@given(cases())
def test_the_same_rows_and_costs_give_the_same_timeline_bit_for_bit(case):
    assert engine.run(*case) == engine.run(*case)


@pytest.mark.parametrize("name", QUICK)
@given(pp=st.integers(1, 5), rounds=st.integers(1, 3), vpp=st.integers(1, 3), data=st.data())
def test_the_engine_agrees_with_the_longest_path(name, pp, rounds, vpp, data):
    plan = nearest(name, pp, rounds, vpp)
    schedule, stages = rows_of(plan), plan.num_stages
    seconds = np.zeros((len(Kind), stages))
    times = st.lists(st.floats(0.1, 10.0), min_size=stages, max_size=stages)
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        seconds[kind] = data.draw(times)
    together = data.draw(st.floats(0.6, 1.0))
    latency = data.draw(st.floats(0.0, 2.0))
    lowered = post_receives_early(lower(schedule))
    pair_time = np.full(stages, together)
    costs = with_costs(uniform(stages, 1.0, 1.0), seconds=seconds, pair_time=pair_time)
    timeline = engine.run(lowered, costs, ideal(pairs(lowered), latency)).compute
    other = greedy.run(
        schedule, seconds, transfer=latency, memory=False, pair_time=together
    ).compute
    for ours, theirs in ((timeline.start, other.start), (timeline.end, other.end)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_straggler_at_1_2x_slows_the_step_as_the_critical_path_says():
    schedule = build(Plan(schedule="1f1b", pp=4, num_microbatches=8))
    lowered = post_receives_early(lower(schedule))
    costs, fabric = uniform(4, 1.0, 2.0), ideal(pairs(lowered))
    slow = engine.run(lowered, costs, fabric, {1: 1.2}).makespan
    by_hand = greedy.run(schedule, costs.seconds * [1, 1.2, 1, 1], memory=False).makespan
    assert slow == pytest.approx(by_hand, rel=1e-12)
    assert slow == pytest.approx(36.6, rel=1e-12)
    assert engine.run(lowered, costs, fabric).makespan == 33.0


def test_a_transfer_missing_one_end_is_named():
    rows = Schedule.parse("0F0,0SEND_F0,0B0\n1F0,1B0")
    with pytest.raises(ValueError, match="1RECV_F0 and 0SEND_F0 do not stand once each"):
        transfers(rows)


def test_rows_with_sends_that_cross_hang_and_say_who_waits_for_what():
    rows = Schedule.parse("0RECV_B0,0B0,0F0,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0")
    costs = uniform(2, 1.0, 1.0)
    with pytest.raises(
        Deadlock,
        match="rank 0 at 0B0 waits for 0RECV_B0 from 1SEND_B0 of rank 1; "
        "rank 1 at 1F0 waits for 1RECV_F0 from 0SEND_F0 of rank 0",
    ):
        engine.run(rows, costs, ideal([(0, 1), (1, 0)]))
