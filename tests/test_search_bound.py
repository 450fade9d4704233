"""The bound on the step is never above a simulated step, and is one where the proof says so."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.costs import estimate, uniform
from simulator.frameworks import framework_names, load_framework
from simulator.job import Job, Link, Plan
from simulator.load import load_cluster, load_model
from simulator.schedule import Deadlock, Kind
from simulator.schedules import schedules
from simulator.search.bound import step_bound, work_bound
from simulator.search.known import Known
from simulator.search.shape import is_made_for_times, least_peaks, shape_of
from simulator.search.wires import Wires, wires_of
from simulator.simulate import simulate, simulate_uniform
from tests.plans import nearest

SYNCHRONOUS = [
    name
    for name, recipe in schedules().items()
    if recipe.weights is None and name not in ("optimal", "terapipe")
]
SMALL = load_model("gpt-1-7b")
NODE = load_cluster("dgx-a100")


def free(shape, latency=0.0):
    """Wires whose messages take this long, whatever their size, if they leave their rank. [s]"""
    homes = [set(shape.homes[stage]) for stage in sorted(shape.homes)]
    crosses = np.array([float(not low & high) for low, high in pairwise(homes)])
    ends, none = np.stack([crosses, crosses]) * latency, np.zeros((2, len(homes)))
    return Wires(crosses, ends, np.zeros_like(ends), none, none)


def bound_of(plan, forward, backward, latency=0.0):
    costs, shape = uniform(plan.num_stages, forward / plan.vpp, backward / plan.vpp), shape_of(plan)
    job = Job(
        model=SMALL.model_copy(update={"num_hidden_layers": plan.num_stages}),
        cluster=NODE.model_copy(update={"num_nodes": 16}),
        plan=plan,
    )
    return step_bound(job, costs, shape, free(shape, latency))


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("pp", "m"), [(1, 1), (4, 8), (8, 3), (8, 64), (16, 16)])
def test_equal_stages_the_bound_is_m_plus_p_minus_1_forwards_and_backwards(name, pp, m):
    plan = Plan(schedule=name, pp=pp, num_microbatches=m)
    assert bound_of(plan, 1.0, 2.0) == pytest.approx(3.0 * (m + pp - 1), rel=1e-12)
    assert simulate_uniform(plan, 1.0, 2.0).report.step_time == 3.0 * (m + pp - 1)


def test_naive_one_microbatch_at_a_time_takes_p_m_forwards_and_backwards():
    plan = Plan(schedule="naive", pp=4, num_microbatches=8)
    assert bound_of(plan, 1.0, 2.0) == pytest.approx(3.0 * 4 * 8, rel=1e-12)


def test_interleaved_equal_stages_the_bound_is_the_step():
    plan = Plan(schedule="interleaved", pp=4, vpp=2, num_microbatches=8)
    step = simulate_uniform(plan, 1.0, 2.0).report.step_time
    assert bound_of(plan, 1.0, 2.0) == pytest.approx(step, rel=1e-12) == 3 * 8 + 3 * 3 / 2


def test_messages_in_the_steady_state_of_1f1b_are_seen_by_how_many_are_in_flight():
    pp, m, latency = 8, 64, 0.25
    plan = Plan(pp=pp, num_microbatches=m)
    step = simulate_uniform(plan, 1.0, 2.0, latency=latency).report.step_time
    least = 3.0 * m + 2 * m * latency * (pp - 1) / pp
    assert least <= bound_of(plan, 1.0, 2.0, latency) <= step
    assert 3.0 * (m + pp - 1) + 2 * (pp - 1) * latency < 0.9 * step  # without it
    assert bound_of(plan, 1.0, 2.0, latency) > 0.85 * step


@pytest.mark.parametrize("name", SYNCHRONOUS)
@settings(max_examples=25)
@given(
    pp=st.integers(2, 5),
    rounds=st.integers(1, 3),
    vpp=st.integers(1, 3),
    forward=st.floats(0.1, 3.0),
    backward=st.floats(0.1, 6.0),
    latency=st.floats(0.0, 1.0),
)
def test_bound_is_never_above_the_textbooks_step(name, pp, rounds, vpp, forward, backward, latency):
    plan = nearest(name, pp, rounds, vpp)
    step = simulate_uniform(plan, forward, backward, latency=latency).report.step_time
    assert bound_of(plan, forward, backward, latency) <= step * (1 + 1e-12)


@st.composite
def jobs(draw, name):
    """A real job with uneven layers, any recomputation, replicas, stragglers and offload."""
    plan = nearest(name, draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    layers = tuple(
        draw(st.lists(st.integers(1, 3), min_size=plan.num_stages, max_size=plan.num_stages))
    )
    dp, tp = draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 8)]))
    slow = draw(st.dictionaries(st.integers(0, plan.pp - 1), st.floats(0.5, 3.0), max_size=2))
    changes = {
        "layers_per_stage": layers,
        "dp": dp,
        "tp": tp,
        "zero_stage": draw(st.integers(0, 1)) if dp > 1 else 0,
        "overlap_grad_reduce": draw(st.booleans()) and dp > 1,
        "sequence_parallel": draw(st.booleans()) and tp > 1,
        "recompute": draw(st.sampled_from(["none", "full"])),
        "p2p": draw(st.sampled_from(["overlapped", "blocking"])),
        "micro_batch_size": draw(st.sampled_from([1, 4])),
        "framework": draw(st.sampled_from(["megatron-core", "deepspeed"])),
        "offload": draw(st.sampled_from(["none", "none", "cpu", "nvme"])),
    }
    cluster = NODE.model_copy(
        update={
            "num_nodes": 32,
            "oversubscription": draw(st.sampled_from([1.0, 4.0])),
            "stragglers": slow,
            "nvme": Link(bandwidth=25e9, latency=100e-6),
        }
    )
    model = SMALL.model_copy(update={"num_hidden_layers": sum(layers), "num_attention_heads": 24,
                                     "num_key_value_heads": 24, "head_dim": 96})  # fmt: skip
    return Job(model=model, cluster=cluster, plan=plan.model_copy(update=changes))


@pytest.mark.parametrize("name", SYNCHRONOUS)
@settings(max_examples=25)
@given(data=st.data())
def test_bounds_hold_for_real_jobs_in_both_executors(name, data):
    job = data.draw(jobs(name))
    costs, shape = estimate(job), shape_of(job.plan)
    least = step_bound(job, costs, shape, wires_of(job, shape))
    slack = load_framework(job.plan.framework).allocator_slack
    held = sum(least_peaks(shape, costs, slack).values())
    try:
        alone = simulate(job, "longest_path").report
    except Deadlock:
        assert job.plan.p2p == "blocking"  # which some schedules do not stand
        return
    assert least <= alone.step_time * (1 + 1e-12)
    assert work_bound(job, Known().work(job), shape) <= alone.step_time * (1 + 1e-12)
    assert (held <= alone.peak_memory * (1 + 1e-12)).all()
    shared = simulate(job, "engine").report
    assert alone.step_time <= shared.step_time * (1 + 1e-9)
    assert shared.peak_memory == pytest.approx(alone.peak_memory, rel=1e-12)


@st.composite
def cuts(draw):
    """A dense model or one with experts, in any way cut into stages with any layers."""
    name = draw(st.sampled_from(["gpt-1-7b", "mixtral-8x7b", "deepseek-v3"]))
    layers = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=6)))
    layers = (2, *layers[1:])
    dense = {"num_dense_layers": 1} if name == "deepseek-v3" else {}
    model = load_model(name).model_copy(update={"num_hidden_layers": sum(layers)} | dense)
    tp, cp, dp = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 2])), 8
    recompute = draw(st.sampled_from(["none", "full"]))
    some = recompute == "full" and draw(st.booleans())
    plan = Plan(
        pp=len(layers), layers_per_stage=layers, num_microbatches=8, tp=tp, cp=cp, dp=dp,
        ep=draw(st.sampled_from([1, 8])) if model.num_experts > 1 else 1,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        zero_stage=draw(st.sampled_from([0, 1, 2, 3])) if len(layers) == 1 else
        draw(st.sampled_from([0, 1, 3])),
        recompute=recompute,
        recompute_method=draw(st.sampled_from(["uniform", "block"])) if some else "uniform",
        recompute_num_layers=draw(st.integers(1, 3)) if some else None,
        micro_batch_size=draw(st.sampled_from([1, 2, 16])),
        framework=draw(st.sampled_from(framework_names())),
    )  # fmt: skip
    return Job(model=model, cluster=NODE.model_copy(update={"num_nodes": 128}), plan=plan)


@settings(max_examples=200)
@given(cuts())
def test_on_one_stage_a_microbatch_takes_no_longer_than_on_many(job):
    seconds = estimate(job).seconds
    backward = np.minimum(seconds[Kind.B], seconds[Kind.I] + seconds[Kind.W])
    assert Known().work(job) <= (seconds[Kind.F] + backward).sum() * (1 + 1e-12)


@given(cuts())
def test_bytes_without_times_are_those_of_the_costs(job):
    held, costs = Known().held(job), estimate(job)
    for name in held._fields:
        np.testing.assert_array_equal(getattr(held, name), getattr(costs, name))


@pytest.mark.parametrize("name", [name for name in SYNCHRONOUS if is_made_for_times(name)])
def test_rows_made_for_times_have_the_homes_and_kinds_of_one_microbatch(name):
    plan = nearest(name, 4, 3, 1)
    costs = uniform(plan.num_stages, 1.0, 2.0)
    rows = schedules()[name].generator
    given = {"pp": 4, "num_microbatches": 12, "costs": costs, "transfer": 0.1}
    takes = schedules()[name].takes
    found = rows(**{key: value for key, value in given.items() if key in takes})
    shape = shape_of(plan.model_copy(update={"num_microbatches": 12}))
    assert [set(found.stage[found.rank == rank].tolist()) for rank in range(4)] == [
        set(row) for row in shape.stage.tolist()
    ]
    kinds = {int(kind) for kind in found.kind}
    assert (1 in kinds, 2 in kinds) == (shape.has_whole, shape.has_halves)


@pytest.mark.parametrize("name", [name for name in SYNCHRONOUS if not is_made_for_times(name)])
def test_memory_bound_is_the_peak_of_equal_stages(name):
    plan = nearest(name, 4, 3, 2)
    run = simulate_uniform(plan, 1.0, 2.0)
    costs = uniform(plan.num_stages, 0.5, 1.0)
    held = sum(least_peaks(shape_of(plan), costs).values())
    assert (held <= run.timeline.peak_memory()).all()
    if not shape_of(plan).has_pairs:
        assert held.max() == run.timeline.peak_memory().max()
