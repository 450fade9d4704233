"""The compiled events equal the SimPy engine wherever flows share links."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import engine, events
from simulator.aligned import reduce_aligned, unshard_ahead, unshard_aligned
from simulator.costs.memory import memory_samples
from simulator.fabric import Fabric, Ring
from simulator.job import Plan
from simulator.load import load_job
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
from simulator.schedule import Deadlock
from simulator.simulate import simulate
from simulator.spans import ordered
from tests.plans import QUICK, nearest, rows_of
from tests.test_longest_path import (
    EXAMPLES,
    LOWERINGS,
    assert_equal_but_for_rounding,
    random_costs,
)


def crowded(lowered, seed):
    """A fabric whose flows cross up to three of a few links, some of them twice."""
    rng = np.random.default_rng(seed)
    capacity = tuple(rng.uniform(0.5, 8, max(2, lowered.num_ranks)).tolist())

    def route():
        size = min(int(rng.integers(0, 4)), len(capacity))
        links = tuple(rng.choice(len(capacity), size=size, replace=False).tolist())
        copies = tuple(rng.integers(1, 4, size).astype(float).tolist())
        return Route(links, copies, float(rng.choice([0, 0.1])))

    sends = {pair: route() for pair in sorted(talking(lowered, match(lowered)))}
    rings = {s: Ring(route(), float(rng.uniform(1, 2))) for s in range(lowered.num_stages)}
    return Fabric(capacity, tuple(map(str, capacity)), sends, rings, rings)


@pytest.mark.parametrize("how", LOWERINGS)
@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=4)
@given(seed=st.integers(0, 10**6))
def test_shared_links_give_the_engine_s_spans_and_memory(name, how, seed):
    plan = nearest(name, 4, 2, 2)
    lowered = LOWERINGS[how](lower(rows_of(plan)))
    if not lowered.kind.max() >= 9 and "OPTIMIZER" not in str(lowered):
        reduce, gather = (
            (reduce_when_ready, unshard_after_step),
            (reduce_at_end, unshard_ahead),
            (reduce_aligned, unshard_aligned),
        )[seed % 3]
        lowered = gather(step_optimizer(reduce(lowered)))
    costs, fabric = random_costs(plan.num_stages, seed), crowded(lowered, seed)
    stragglers = {seed % 4: 1.25}
    found = events.run(
        lowered, match(lowered), costs, fabric, routes_of(fabric, lowered.num_ranks), stragglers
    )
    try:
        theirs = memory_samples(engine.run(lowered, costs, fabric, stragglers), costs)
    except Deadlock:  # some schedules hang when transfers block
        assert not found[2]
        return
    ours = memory_samples(ordered(lowered, *found[:2]), costs)
    assert found[2]
    assert_equal_but_for_rounding(ours, theirs)


def test_a_hundred_flows_on_one_uplink_share_it_as_in_the_engine():

    plan = Plan(schedule="gpipe", pp=2, num_microbatches=100)
    lowered = post_receives_early(lower(rows_of(plan)))
    costs = random_costs(2, 1)
    costs.boundary_bytes[:] = 50.0
    fabric = Fabric(
        (1.0, 1.0),
        ("up", "down"),
        {(0, 1): Route((0, 1), (1, 2), 0.5), (1, 0): Route((1,), (1,), 0)},
        {},
        {},
    )
    start, end, finished = events.run(lowered, match(lowered), costs, fabric, routes_of(fabric, 2))
    assert finished
    assert_equal_but_for_rounding(ordered(lowered, start, end), engine.run(lowered, costs, fabric))


@pytest.mark.parametrize(
    "name", ["sc21_145_6b", "korthikanti_530b_selective_sp_2240_gpus", "llama3_70b_dgx_h100"]
)
def test_real_jobs_that_contend_take_the_engine_s_time(name):
    job = load_job(EXAMPLES / f"{name}.toml")
    ours, theirs = simulate(job, "events"), simulate(job, "engine")
    assert_equal_but_for_rounding(ours.timeline, theirs.timeline)
    for key, value in theirs.report.to_dict().items():
        if isinstance(value, float):
            assert ours.report.to_dict()[key] == pytest.approx(value, rel=1e-9)
