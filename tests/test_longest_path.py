"""The compiled executor equals the engine, and knows when it must leave the job to it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import engine
from simulator.aligned import reduce_aligned, unshard_ahead, unshard_aligned
from simulator.blocking import block
from simulator.costs import uniform
from simulator.costs.memory import memory_samples
from simulator.fabric import Fabric, Ring, ideal
from simulator.job import Plan
from simulator.load import load_job
from simulator.longest_path import contends, longest_path, play
from simulator.lower import (
    lower,
    post_receives_early,
    reduce_at_end,
    reduce_when_ready,
    step_optimizer,
    unshard_after_step,
)
from simulator.matching import match
from simulator.network import Route
from simulator.routes import routes_of, talking
from simulator.schedule import Deadlock, Kind, Schedule
from simulator.schedules import build
from simulator.simulate import simulate, simulate_uniform
from simulator.turns import take_turns
from tests.plans import QUICK, nearest, rows_of

EXAMPLES = Path(__file__).parent.parent / "examples"


def random_costs(num_stages, seed):
    """Costs that differ in every number, with overlapped pairs and bytes to send and reduce."""
    rng = np.random.default_rng(seed)

    def some(least=0.1):
        return rng.uniform(least, 2.0, num_stages)

    costs = uniform(num_stages, 1.0, 2.0)
    seconds = costs.seconds * rng.uniform(0.3, 3.0, costs.seconds.shape)
    seconds[Kind.OPTIMIZER] = some()
    return dataclasses.replace(
        costs,
        seconds=seconds,
        tensor_seconds=seconds * rng.uniform(0.0, 0.4, seconds.shape),
        boundary_bytes=some(),
        boundary_gather=some() / 50,
        reduce_bytes=some(),
        unshard_bytes=some(),
        weight_bytes=some(),
        gradient_bytes=some(),
        optimizer_bytes=some(),
        activation_bytes=some(),
        input_grad_bytes=some() / 20,
        transient_bytes=some() / 10,
        pair_time=rng.uniform(0.6, 1.0, num_stages),
    )


def one_link_each(lowered, seed):
    """A fabric in which every message and collective has a link of its own."""
    rng = np.random.default_rng(seed)
    capacity, sends, rings = [], {}, {}
    for pair in sorted(talking(lowered, match(lowered))):
        sends[pair] = Route((len(capacity),), (1.0,), float(rng.uniform(0, 0.1)))
        capacity.append(float(rng.uniform(40, 80)))
    for stage in range(lowered.num_stages):
        route = Route((len(capacity),), (2.0,), float(rng.uniform(0, 0.1)))
        rings[stage] = Ring(route, float(rng.uniform(1, 2)))
        capacity.append(float(rng.uniform(2, 4)))
    return Fabric(tuple(capacity), tuple(map(str, capacity)), sends, rings, rings)


def assert_equal_but_for_rounding(ours, theirs):
    """Two timelines: the same spans and samples, all times to 1e-9 relative."""
    scale = theirs.makespan
    order = [
        np.lexsort((t.microbatch, t.stage, t.kind, t.rank)) for t in (ours, theirs)
    ]  # rounding may swap spans that start together
    for name in ("rank", "stage", "kind", "microbatch", "start", "end"):
        a, b = getattr(ours, name)[order[0]], getattr(theirs, name)[order[1]]
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * scale)
    np.testing.assert_array_equal(ours.memory_rank, theirs.memory_rank)
    np.testing.assert_allclose(ours.memory_time, theirs.memory_time, rtol=1e-9, atol=1e-9 * scale)
    np.testing.assert_allclose(ours.memory_bytes, theirs.memory_bytes, rtol=1e-9, atol=1e-9)


LOWERINGS = {
    "early": post_receives_early,
    "as PyTorch": lambda rows: rows,
    "blocking": block,
    "in turn": take_turns,
}


@pytest.mark.parametrize("how", LOWERINGS)
@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=4)
@given(seed=st.integers(0, 10**6))
def test_spans_and_memory_equal_the_engine_s_with_random_costs(name, how, seed):
    plan = nearest(name, 4, 2, 2)
    lowered = LOWERINGS[how](lower(rows_of(plan)))
    costs = random_costs(plan.num_stages, seed)
    fabric = ideal(talking(lowered, match(lowered)), seed % 3 / 10)
    stragglers = {seed % 4: 1.25} if seed % 2 else {}
    try:
        theirs = memory_samples(engine.run(lowered, costs, fabric, stragglers), costs)
    except Deadlock:  # some schedules hang when transfers block
        with pytest.raises(ValueError, match="cannot finish"):
            longest_path(lowered, costs, fabric, stragglers)
        return
    ours = memory_samples(longest_path(lowered, costs, fabric, stragglers), costs)
    assert_equal_but_for_rounding(ours, theirs)


@pytest.mark.parametrize(
    ("reduce", "gather"),
    [
        (reduce_when_ready, unshard_after_step),
        (reduce_at_end, unshard_after_step),
        (reduce_when_ready, unshard_ahead),
        (reduce_aligned, unshard_aligned),
    ],
)
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h1", "zb-v", "chimera", "dualpipe"])
@settings(max_examples=4)
@given(seed=st.integers(0, 10**6))
def test_reductions_optimizer_and_gathering_equal_the_engine_s(name, reduce, gather, seed):
    plan = nearest(name, 4, 2, 2)
    lowered = post_receives_early(lower(rows_of(plan)))
    lowered = gather(step_optimizer(reduce(lowered)))
    costs, fabric = random_costs(plan.num_stages, seed), one_link_each(lowered, seed)
    matches, routes = match(lowered), routes_of(fabric, lowered.num_ranks)
    played = play(lowered, matches, costs, fabric, routes)
    theirs = engine.run(lowered, costs, fabric)
    ours = longest_path(lowered, costs, fabric)
    if contends(lowered, matches, fabric, routes, played):  # messages of one pair met
        assert ours.makespan <= theirs.makespan * (1 + 1e-12)
    else:
        assert_equal_but_for_rounding(ours, theirs)


def wire(latency=0.0):
    """Two ranks, one link each way of 1 byte/s."""
    return Fabric(
        (1.0, 1.0),
        ("there", "back"),
        {(0, 1): Route((0,), (1.0,), latency), (1, 0): Route((1,), (1.0,), latency)},
        {},
        {},
    )


@pytest.mark.parametrize(("nbytes", "meets"), [(0.99, False), (1.0, False), (1.01, True)])
def test_messages_1_s_apart_on_a_link_of_1_byte_a_second_meet_above_1_byte(nbytes, meets):
    rows = post_receives_early(lower(build(Plan(schedule="gpipe", pp=2, num_microbatches=3))))
    costs = dataclasses.replace(uniform(2, 1.0, 2.0), boundary_bytes=np.full(2, nbytes))
    matches, routes = match(rows), routes_of(wire(), 2)
    played = play(rows, matches, costs, wire(), routes)
    assert contends(rows, matches, wire(), routes, played) == meets
    ours, theirs = longest_path(rows, costs, wire()), engine.run(rows, costs, wire())
    assert (ours == theirs) == (not meets)
    assert ours.makespan <= theirs.makespan


def test_a_message_that_meets_a_reduction_on_a_link_contends():
    rows = reduce_when_ready(
        post_receives_early(lower(build(Plan(schedule="1f1b", pp=2, num_microbatches=2))))
    )
    costs = dataclasses.replace(
        uniform(2, 1.0, 2.0), boundary_bytes=np.full(2, 0.5), reduce_bytes=np.full(2, 3.0)
    )
    apart = dataclasses.replace(wire(), capacity=(1.0, 1.0, 1.0), names=("there", "back", "ring"))
    for link, meets in ((1, True), (2, False)):  # rank 1 sends its last gradient back, and reduces
        rings = {0: Ring(Route((), (), 0.0), 0.0), 1: Ring(Route((link,), (1.0,), 0.0), 1.0)}
        fabric = dataclasses.replace(apart, reduces=rings)
        matches, routes = match(rows), routes_of(fabric, 2)
        played = play(rows, matches, costs, fabric, routes)
        assert contends(rows, matches, fabric, routes, played) == meets
        assert (longest_path(rows, costs, fabric) == engine.run(rows, costs, fabric)) != meets


@pytest.mark.parametrize(
    ("name", "executor"),
    [
        ("sc21_1_7b", "longest_path"),  # no pipeline
        ("sc21_145_6b", "events"),  # reductions and messages share the NICs
        ("korthikanti_175b_selective_sp", "events"),  # two sends of a batch share a NIC
        ("korthikanti_530b_selective_sp", "events"),  # messages of both neighbours meet at a NIC
        ("korthikanti_22b_selective_sp", "longest_path"),
    ],
)
def test_the_executor_follows_from_contention_and_both_say_the_same_without_it(name, executor):
    job = load_job(EXAMPLES / f"{name}.toml")
    auto, by_engine = simulate(job), simulate(job, "engine")
    assert auto.report.executor == executor
    assert by_engine.report.executor == "engine"
    assert_equal_but_for_rounding(auto.timeline, by_engine.timeline)
    alone = simulate(job, "longest_path").report
    assert alone.step_time <= by_engine.report.step_time * (1 + 1e-12)
    expected = "longest_path" if executor == "longest_path" else "longest_path, contention ignored"
    assert alone.executor == expected


@pytest.mark.parametrize("name", QUICK)
def test_reports_of_both_executors_are_equal(name):
    plan = nearest(name, 4, 2, 2)
    ours, others, theirs = (
        simulate_uniform(plan, 1.0, 2.0, latency=0.125, executor=e).report.to_dict()
        for e in ("longest_path", "events", "engine")
    )
    assert ours.pop("executor") == "longest_path"
    assert others.pop("executor") == "events"
    assert theirs.pop("executor") == "engine"
    assert ours == others == theirs


def test_rows_that_cannot_finish_are_explained_by_the_engine():
    rows = "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
    rows += "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1"
    plan = Plan(schedule="custom", rows=rows, pp=2, num_microbatches=2)
    with pytest.raises(Deadlock, match="rank 0 at 0B0 waits for 0RECV_B0 from 1SEND_B0 of rank 1"):
        simulate_uniform(plan, 1.0, 2.0)
    with pytest.raises(ValueError, match="cannot finish"):
        longest_path(Schedule.parse(rows), uniform(2, 1.0, 2.0), ideal([(0, 1), (1, 0)]))
