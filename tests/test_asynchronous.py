"""Asynchronous schedules: the papers' weight versions, staleness and pace, from the timeline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import engine, staleness
from simulator.costs import uniform
from simulator.fabric import ideal
from simulator.job import Job, Plan
from simulator.load import load_cluster, load_model
from simulator.lower import lower
from simulator.schedule import Kind, Op, Schedule
from simulator.schedules import build, schedules
from simulator.simulate import simulate, simulate_uniform
from simulator.staleness import Weights

ASYNCHRONOUS = {name: r.weights for name, r in schedules().items() if r.weights is not None}
every_schedule = pytest.mark.parametrize("name", ASYNCHRONOUS)
sizes = {"pp": st.integers(1, 6), "m": st.integers(1, 9)}


def run(name, pp, m, **options):
    """A timeline with forwards of 1 s, backwards of 2 s, and free updates."""
    return simulate_uniform(
        Plan(schedule=name, pp=pp, num_microbatches=m), 1.0, 2.0, **options
    ).timeline


def enough(name, pp, m):
    """2BW needs pp microbatches in a batch."""
    return max(pp, m) if name == "pipedream-2bw" else m


def last_iteration(table, m):
    """The columns of the last m microbatches."""
    return table[:, -m:]


def test_the_asynchronous_schedules_and_their_weights():
    assert ASYNCHRONOUS == {
        "pipedream": Weights.STASH,
        "pipedream-2bw": Weights.DOUBLE_BUFFER,
        "pipelined-sgd": Weights.LATEST,
        "pipemare": Weights.LATEST,
    }


@every_schedule
@given(**sizes)
def test_microbatches_go_on_over_iterations_and_every_gradient_is_applied(name, pp, m):
    m = enough(name, pp, m)
    schedule = build(Plan(schedule=name, pp=pp, num_microbatches=m))
    total = schedule.num_microbatches
    assert total % m == 0
    assert total >= 3 * m
    per_update = 1 if name in ("pipedream", "pipelined-sgd") else m
    for rank, row in enumerate(schedule.rows):
        for kind in (Kind.F, Kind.B):
            assert [op.microbatch for op in row if op.kind is kind] == list(range(total))
        updates = [at for at, op in enumerate(row) if op.kind is Kind.OPTIMIZER]
        assert len(updates) == total // per_update
        for at in updates:
            assert row[at] == Op(rank, Kind.OPTIMIZER)
            assert row[at - 1].kind is Kind.B
            assert row[at - 1].microbatch % per_update == per_update - 1


@every_schedule
@given(**sizes)
def test_the_steady_state_has_no_bubble(name, pp, m):
    m = enough(name, pp, m)
    pace = staleness.steady(run(name, pp, m), m)
    assert pace.bubble_fraction == 0
    assert pace.iteration_time == 3 * m
    assert pace.microbatch_time == 3
    assert not pace.idle.any()


@given(**sizes)
def test_pipedream_rank_r_holds_p_minus_r_versions_and_its_gradients_are_p_minus_1_minus_r_old(
    pp, m
):
    timeline, rank = run("pipedream", pp, m), np.arange(pp)
    assert (staleness.peak_versions(timeline, Weights.STASH) == pp - rank).all()
    old = last_iteration(staleness.gradient_staleness(timeline, Weights.STASH), m)
    assert (old == (pp - 1 - rank)[:, None]).all()
    assert not staleness.weight_mismatch(timeline, Weights.STASH).any()


@given(**sizes)
def test_2bw_holds_2_versions_and_every_gradient_is_1_update_old(pp, m):
    m = enough("pipedream-2bw", pp, m)
    timeline = run("pipedream-2bw", pp, m)
    assert (staleness.peak_versions(timeline, Weights.DOUBLE_BUFFER) == 2).all()
    old = staleness.gradient_staleness(timeline, Weights.DOUBLE_BUFFER)
    assert not old[:, :m].any()  # the first batch reads the first version, and so does the second
    assert (old[:, m:] == 1).all()
    assert not staleness.weight_mismatch(timeline, Weights.DOUBLE_BUFFER).any()


@given(**sizes)
def test_pipelined_sgd_gradients_are_twice_p_minus_1_minus_r_old_with_1_version(pp, m):
    timeline = run("pipelined-sgd", pp, m)
    old = last_iteration(staleness.gradient_staleness(timeline, Weights.LATEST), m)
    delay = 2 * (pp - 1 - np.arange(pp))[:, None]
    assert (old == delay).all()
    assert (staleness.peak_versions(timeline, Weights.LATEST) == 1).all()
    assert (last_iteration(staleness.weight_mismatch(timeline, Weights.LATEST), m) == delay).all()


@given(**sizes)
def test_pipemare_gradients_are_twice_p_minus_1_minus_r_over_m_old_in_the_mean(pp, m):
    timeline = run("pipemare", pp, m)
    old = last_iteration(staleness.gradient_staleness(timeline, Weights.LATEST), m)
    assert old.mean(axis=1) == pytest.approx(2 * (pp - 1 - np.arange(pp)) / m, abs=1e-12)
    assert (staleness.peak_versions(timeline, Weights.LATEST) == 1).all()


def test_stashing_without_the_right_policy_would_hold_more_versions():
    timeline = run("pipelined-sgd", 4, 8)
    assert staleness.peak_versions(timeline, Weights.STASH).tolist() == [7, 5, 3, 1]


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("pipedream", [4, 3, 2, 1]),
        ("pipedream-2bw", [2, 2, 2, 2]),
        ("pipelined-sgd", [1, 1, 1, 1]),
        ("pipemare", [1, 1, 1, 1]),
    ],
)
def test_version_bytes_are_versions_times_the_stages_weights(name, versions):
    weight_bytes = np.array([10.0, 20.0, 30.0, 40.0])
    found = staleness.version_bytes(run(name, 4, 8), ASYNCHRONOUS[name], weight_bytes)
    assert found.tolist() == (versions * weight_bytes).tolist()


def test_pipedreams_memory_grows_as_the_pipeline_fills():
    timeline = run("pipedream", 4, 8)
    whole = staleness.with_versions(timeline, Weights.STASH, np.full(4, 100.0))
    time, level = whole.memory_of(0)
    assert (np.diff(time) > 0).all()
    stashes = level // 100  # a microbatch's activations are 1 byte
    updates = timeline.of(Kind.OPTIMIZER)
    first = updates.end[updates.rank == 0][:3]
    assert [stashes[time < end].max() for end in first] == [0, 1, 2]
    assert whole.peak_memory().tolist() == [304, 203, 102, 1]
    assert timeline.peak_memory().tolist() == [4, 3, 2, 1]
    last = np.searchsorted(time, timeline.makespan, side="right") - 1
    assert level[last] == 0


def test_samples_are_made_where_there_were_none():
    costs = uniform(2, 1.0, 2.0)
    lowered = lower(build(Plan(schedule="pipedream", pp=2, num_microbatches=4)))
    timeline = engine.run(lowered, costs, ideal({(0, 1), (1, 0)}))
    whole = staleness.with_versions(timeline, Weights.STASH, np.ones(2))
    assert whole.peak_memory().tolist() == [1, 0]


@pytest.mark.parametrize(("latency", "period"), [(0.0, 3.0), (0.25, 3.375), (1.0, 4.5)])
def test_pipedream_of_4_ranks_waits_2_times_3_quarters_of_a_message_for_each_microbatch(
    latency, period
):
    pace = staleness.steady(run("pipedream", 4, 8, latency=latency), 8)
    assert pace.microbatch_time == pytest.approx(period, rel=1e-12)
    assert pace.bubble_fraction == pytest.approx(1 - 3 / period, abs=1e-12)


@pytest.mark.parametrize(("latency", "period"), [(1.5, 3.0), (1.6, 3.1)])
def test_pipelined_sgd_hides_messages_of_half_a_forward_and_backward_and_no_longer_ones(
    latency, period
):
    pace = staleness.steady(run("pipelined-sgd", 4, 8, latency=latency), 8)
    assert pace.microbatch_time == pytest.approx(period, rel=1e-12)


def test_updates_take_their_time_and_the_slowest_stage_sets_the_pace():
    costs = uniform(3, 1.0, 2.0)
    costs.seconds[Kind.OPTIMIZER] = 0.5
    costs.seconds[Kind.B, 1] = 3.0
    lowered = lower(build(Plan(schedule="pipedream", pp=3, num_microbatches=4)))
    timeline = engine.run(lowered, costs, ideal({(0, 1), (1, 0), (1, 2), (2, 1)}))
    pace = staleness.steady(timeline, 4)
    assert pace.microbatch_time == 4.5
    assert pace.idle.tolist() == [4, 0, 4]
    assert staleness.peak_versions(timeline, Weights.STASH).tolist() == [3, 2, 1]


def test_a_synchronous_step_has_fresh_gradients_and_1_version():
    rows = Schedule.parse("0F0,0F1,0B0,0B1,0OPTIMIZER")
    timeline = engine.run(lower(rows), uniform(1, 1.0, 2.0), ideal(set()))
    for weights in Weights:
        assert not staleness.gradient_staleness(timeline, weights).any()
        assert staleness.peak_versions(timeline, weights).tolist() == [1]


def test_2bw_refuses_fewer_microbatches_than_ranks_and_names_enough():
    with pytest.raises(ValueError, match=r"num_microbatches is 3.*at least pp = 4; use 4 or more"):
        build(Plan(schedule="pipedream-2bw", pp=4, num_microbatches=3))


def test_two_buffers_are_too_few_for_pipedreams_updates():
    with pytest.raises(ValueError, match=r"stage 0 forwards microbatch 2 before version 1"):
        staleness.peak_versions(run("pipedream", 4, 8), Weights.DOUBLE_BUFFER)


def test_a_gradient_that_is_never_applied_is_named():
    timeline = run("1f1b", 2, 4)
    with pytest.raises(ValueError, match="stage 0, microbatch 0 is never applied"):
        staleness.gradient_staleness(timeline, Weights.STASH)


def test_one_iteration_is_too_short_to_be_steady():
    with pytest.raises(ValueError, match="rank 0 has 4 microbatches, too few to become steady"):
        staleness.steady(run("1f1b", 2, 4), 4)


@every_schedule
def test_lowering_keeps_the_updates_in_their_places(name):
    schedule = build(Plan(schedule=name, pp=3, num_microbatches=4))
    kept = [[op for op in row if op.kind.is_compute] for row in lower(schedule).rows]
    assert kept == [list(row) for row in schedule.rows]


def job(**plan):
    model, cluster = load_model("gpt-1-7b"), load_cluster("selene")
    plan = Plan(schedule="pipedream", tp=8, pp=4, num_microbatches=8, **plan)
    nodes = -(-plan.num_gpus // cluster.gpus_per_node)
    return Job(model=model, cluster=cluster.model_copy(update={"num_nodes": nodes}), plan=plan)


def test_a_real_job_updates_in_its_rows_and_nowhere_else():
    made = simulate(job())
    updates = made.timeline.of(Kind.OPTIMIZER)
    assert updates.num_spans == (made.schedule.kind == Kind.OPTIMIZER).sum()
    nbytes = staleness.version_bytes(made.timeline, Weights.STASH, made.costs.weight_bytes)
    assert nbytes.tolist() == ([4, 3, 2, 1] * made.costs.weight_bytes).tolist()


def test_replicas_of_an_asynchronous_schedule_are_refused():
    with pytest.raises(ValueError, match=r"plan.dp is 2, .* asynchronous schedule, as pipedream"):
        simulate(job(dp=2))
