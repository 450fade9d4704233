"""Every point is judged once; pruning loses nothing; verdicts are those of the simulator."""

import re
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.costs import estimate
from simulator.execution import NotWorth
from simulator.job import Job, Plan
from simulator.kernel import compile_all
from simulator.load import load_cluster, load_model
from simulator.schedules import recipe_of
from simulator.search.front import Front
from simulator.search.judge import Slow, judge
from simulator.search.known import Known
from simulator.search.reasons import BEATEN, EVEN, SAME_ROWS, TOO_LARGE
from simulator.search.space import job_at, plan_at, point, space_of
from simulator.simulate import simulate


def space_with(memory=80e9, num_nodes=2, layers=8, batch=32, plan=None, **knobs):
    """All plans of a small model on GPUs with this much memory. [bytes]"""
    cluster = load_cluster("dgx-a100")
    gpu = cluster.gpu.model_copy(update={"memory": memory})
    job = Job(
        model=load_model("gpt-1-7b").model_copy(update={"num_hidden_layers": layers}),
        cluster=cluster.model_copy(update={"gpu": gpu, "num_nodes": num_nodes}),
        plan=plan or Plan(),
    )
    given = {"cp": 1, "recompute": ("none", "full"), "zero_stage": (0, 1, 2)}
    given |= {"tp": (1, 2, 3, 8), "micro_batch_size": (1, 4), "pp": (1, 2, 3, 4, 8)}
    return space_of(job, global_batch_size=batch, **(given | knobs))


TIGHT = space_with(6e9, sequence_parallel=False)
SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved", "hanayo", "dualpipe", "zb-v", "naive")
FEW = space_with(6e9, sequence_parallel=(False, True), tp=(1, 2), schedule=SCHEDULES, vpp=(1, 2))


@pytest.fixture(scope="module")
def everything():
    """Every point of the space FEW that fits, simulated."""
    compile_all()
    return judge(FEW, 0, FEW.num_points, None)


def same(front, other):
    return all(
        np.array_equal(front.arrays()[name], other.arrays()[name]) for name in front.arrays()
    )


def test_every_point_is_simulated_or_has_a_reason(everything):
    assert everything.index.size + sum(everything.dropped.values()) == FEW.num_points
    assert everything.index.size > 300
    reasons = set(everything.dropped)
    chunks = "plan.vpp: chunks need a pipeline, plan.pp of 2 or more"
    assert {EVEN, SAME_ROWS, chunks, "plan.vpp: hanayo needs two chunks a wave"} <= reasons
    assert any(reason.startswith("does not fit: activations") for reason in reasons)
    assert BEATEN not in reasons
    for one in reasons:  # short, whole sentences, one for all values of a knob
        assert len(one) < 90, one
        assert not re.search(
            r"  | (or|to|w|is|of|than)$|(?<![\w.-])[4-9]\d*(?![\w-])|= [2-9]", one
        ), one


def test_trying_every_point_by_itself_gives_the_same_plans_and_the_same_verdicts(everything):
    simulated = dict(zip(everything.index.tolist(), range(everything.index.size), strict=True))
    rows_seen = {}
    for index in range(FEW.num_points):
        try:
            job = job_at(FEW, index)
        except ValueError:
            assert index not in simulated
            continue
        report = simulate(job).report
        if index in simulated:
            at = simulated[index]
            assert report.fits
            assert everything.step_time[at] == report.step_time
            assert everything.bubble_fraction[at] == report.bubble_fraction
            assert everything.mfu[at] == report.mfu
            assert everything.tokens_per_second[at] == report.tokens_per_second
            assert everything.headroom[at] == 6e9 - report.peak_memory.max()
            rows_seen.setdefault(_figures(job, report), index)
        elif report.fits:
            values = point(FEW, index)  # a duplicate: the even split, or the rows of another
            doubles = rows_seen.get(_figures(job, report))
            assert doubles is not None or values["layer_split"] == "balanced"
            assert doubles is None or doubles < index


def _figures(job, report):
    sizes = job.plan.model_copy(update={"schedule": "1f1b", "layers_per_stage": None})
    return sizes, job.layers_per_stage, report.step_time, float(report.peak_memory.max())


def test_pruning_loses_neither_a_winner_nor_a_point_of_the_front(everything):
    full = Front().add(everything)
    pruned = judge(FEW, 0, FEW.num_points, Front())
    assert same(Front().add(pruned), full)
    assert [full.best(by) for by in ("throughput", "headroom", "cost")] == [
        Front().add(pruned).best(by) for by in ("throughput", "headroom", "cost")
    ]
    assert pruned.dropped[BEATEN] > 0.8 * everything.index.size
    # of the points that the bound drops, some would not have fitted
    assert pruned.dropped[BEATEN] + pruned.index.size >= everything.index.size
    assert legal_alone(pruned.dropped) == legal_alone(everything.dropped)


def test_a_margin_of_10_percent_simulates_every_plan_that_close_to_the_fastest(everything):
    close = everything.index[everything.step_time <= 1.1 * everything.step_time.min() * (1 - 1e-9)]
    bare = judge(FEW, 0, FEW.num_points, Front())
    assert len(close) > 5
    assert not set(close.tolist()) <= set(bare.index.tolist())  # the bound alone drops some
    for front in (Front(), Front().add(everything)):
        judged = judge(FEW, 0, FEW.num_points, front, margin=0.1)
        assert set(close.tolist()) <= set(judged.index.tolist())
        assert judged.index.size < everything.index.size / 2
        assert same(Front().add(everything).add(judged), Front().add(everything))


def test_a_plan_that_loses_without_contention_is_dropped_before_it_is_run_with_it(everything):
    front = Front().add(everything)
    behind = int(everything.index[everything.step_time.argmax()])
    assert simulate(plan_at(FEW, behind)).report.step_time > everything.step_time.min()
    least = simulate(plan_at(FEW, behind), "longest_path").report.step_time
    asked = []
    with pytest.raises(NotWorth):
        simulate(plan_at(FEW, behind), worth=lambda step: asked.append(step))
    assert asked == [pytest.approx(least, rel=1e-12)]
    assert behind not in judge(FEW, behind, behind + 1, front).index


def legal_alone(dropped):
    """The reasons that need no simulation."""
    return {k: v for k, v in dropped.items() if k != BEATEN and not k.startswith("does not fit")}


@settings(max_examples=4)
@given(st.integers(100, 3000), st.randoms(use_true_random=False))
def test_front_and_counts_do_not_depend_on_chunks_their_order_or_who_knows_what(size, random):
    known = Known()
    firsts = list(range(0, FEW.num_points, size))
    random.shuffle(firsts)
    front, dropped, simulated = Front(), Counter(), 0
    for first in firsts:
        stop = min(first + size, FEW.num_points)
        seen = front if random.random() < 0.7 else Front()  # a worker that knows no front yet
        judged = judge(FEW, first, stop, seen, known if random.random() < 0.7 else None)
        front = front.add(judged)
        dropped.update(judged.dropped)
        simulated += judged.index.size
        assert judged.index.size + sum(judged.dropped.values()) == stop - first
    whole = judge(FEW, 0, FEW.num_points, Front())
    assert same(front, Front().add(whole))
    assert legal_alone(dropped) == legal_alone(whole.dropped)


def test_every_schedule_of_the_default_space_prunes_to_the_front_of_all():
    small = space_with(
        14e9, tp=1, pp=(2, 4), micro_batch_size=4, cp=1, zero_stage=1, recompute="none"
    )
    full = judge(small, 0, small.num_points, None)
    used = {point(small, int(index))["schedule"] for index in full.index}
    assert len(used) >= 10
    assert same(Front().add(judge(small, 0, small.num_points, Front())), Front().add(full))


def test_memory_that_holds_no_plan_is_dropped_by_its_largest_part():
    none = space_with(1e8)
    judged = judge(none, 0, none.num_points, Front())
    assert judged.index.size == 0
    assert sum(judged.dropped.values()) == none.num_points
    assert judged.dropped[TOO_LARGE] > 0


@pytest.mark.parametrize("changed", [{"overlap_grad_reduce": True}, {"scatter_gather": False}])
def test_rules_of_the_fixed_part_of_the_plan_are_kept(changed):
    space = space_with(
        plan=Plan(dp=2, tp=2, **changed), tp=(1, 2), schedule=("1f1b", "gpipe"), zero_stage=0,
        recompute="none", cp=1, vpp=1, micro_batch_size=4,
    )  # fmt: skip
    judged = judge(space, 0, space.num_points, None)
    legal = []
    for index in range(space.num_points):
        try:
            legal.append(simulate(job_at(space, index)).report.fits and index)
        except ValueError:
            continue
    assert set(judged.index.tolist()) <= set(legal)
    assert judged.index.size + judged.dropped.get(EVEN, 0) + judged.dropped.get(
        SAME_ROWS, 0
    ) == len(legal)


def test_asynchronous_schedules_are_simulated_without_a_bound():
    assert recipe_of("pipedream").weights is not None
    space = space_with(
        num_nodes=1, tp=(2, 8), pp=(1, 2, 4), schedule=("1f1b", "pipedream"), zero_stage=0, vpp=1,
        cp=1, micro_batch_size=1, sequence_parallel=False, recompute="none", layer_split="even",
    )  # fmt: skip
    judged = judge(space, 0, space.num_points, Front())
    plans = [job_at(space, int(index)).plan for index in judged.index]
    assert ("pipedream", 4) in {(plan.schedule, plan.pp) for plan in plans}
    for index, step in zip(judged.index, judged.step_time, strict=True):
        assert step == simulate(job_at(space, int(index))).report.step_time
    assert any("asynchronous" in reason for reason in judged.dropped)


def test_a_pipeline_without_the_slow_rank_is_dropped_in_whole_words():
    cluster = load_cluster("dgx-a100").model_copy(update={"stragglers": {2: 2.0}})
    job = Job(
        model=load_model("gpt-1-7b"), cluster=cluster, plan=Plan(pp=4, dp=2, num_microbatches=8)
    )
    space = space_of(
        job, pp=2, tp=1, cp=1, schedule="1f1b", recompute="full", zero_stage=0, vpp=1,
        micro_batch_size=1, layer_split="even",
    )  # fmt: skip
    judged = judge(space, 0, space.num_points, None)
    assert judged.index.size == 0
    assert judged.dropped["cluster.stragglers: the pipeline has no such rank"] == 1


def test_experts_contexts_and_zero_0_to_3_prune_to_the_front_of_all():
    job = Job(
        model=load_model("mixtral-8x7b").model_copy(update={"num_hidden_layers": 8}),
        cluster=load_cluster("dgx-a100").model_copy(update={"num_nodes": 2}),
        plan=Plan(),
    )
    space = space_of(
        job, global_batch_size=32, tp=(1, 2), cp=(1, 2), ep=(1, 4, 8), pp=(1, 2), vpp=1,
        schedule=("1f1b", "zb-h1"), recompute="full", zero_stage=(0, 1, 2, 3), micro_batch_size=2,
        layer_split="even", sequence_parallel=False,
    )  # fmt: skip
    full = judge(space, 0, space.num_points, None)
    found = {
        tuple(point(space, int(at))[k] for k in ("cp", "ep", "zero_stage")) for at in full.index
    }
    assert {(1, 8, 1), (2, 4, 3), (1, 4, 2)} <= found
    known = Known()
    front = Front()
    for first in range(0, space.num_points, 16):
        stop = min(first + 16, space.num_points)
        front = front.add(judge(space, first, stop, front, known))
    assert same(front, Front().add(full))


def test_what_is_known_of_one_plan_is_never_used_for_another():
    job = Job(
        model=load_model("mixtral-8x7b"),
        cluster=load_cluster("dgx-a100").model_copy(update={"num_nodes": 2}),
        plan=Plan(),
    )
    space = space_of(
        job, global_batch_size=32, schedule="1f1b", layer_split="even", tp=(1, 2), cp=(1, 2),
        ep=(1, 2), pp=(1, 2), vpp=(1, 2), micro_batch_size=(1, 2),
    )  # fmt: skip
    known, many = Known(), 0
    for index in range(0, space.num_points, 3):
        try:
            job = plan_at(space, index)
        except ValueError:
            continue
        one, other = known.costs(job), estimate(job)
        for field in fields(one):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))
        many += 1
    assert many > 50


def test_a_range_that_takes_too_long_is_given_up_and_goes_on_in_shorter_ones(everything):
    known, at, size, given_up, pieces = Known(), 0, FEW.num_points, 0, []
    while at < FEW.num_points:
        try:
            stop = min(at + size, FEW.num_points)
            pieces.append(judge(FEW, at, stop, None, known, patience=0.0))
            at = stop
        except Slow:
            assert size > 1
            size, given_up = max(1, size // 4), given_up + 1
    assert given_up >= 4
    assert np.concatenate([piece.index for piece in pieces]).tolist() == everything.index.tolist()
    steps = np.concatenate([piece.step_time for piece in pieces])
    np.testing.assert_array_equal(steps, everything.step_time)
