"""Bidirectional, waved, overlapped and sliced schedules: the papers' figures and PyTorch's rows."""

import csv
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as pytorch

from simulator import engine
from simulator.costs import uniform
from simulator.costs.memory import memory_samples
from simulator.costs.slices import slice_times
from simulator.fabric import ideal
from simulator.job import Job, Model, Plan
from simulator.load import load_cluster, load_job
from simulator.lower import lower, post_receives_early
from simulator.matching import transfers
from simulator.schedule import Kind, Pair, Schedule
from simulator.schedules import build
from simulator.schedules.terapipe import choose_slices
from simulator.simulate import simulate, simulate_uniform

DATA = Path(__file__).parent / "data"


def play(plan, forward=1.0, backward=2.0, weight_grad=None, pair_time=1.0):
    """The timeline of equal stages, times of one chunk; and each rank's idle time."""
    costs = uniform(plan.num_stages, forward, backward, weight_grad)
    costs = replace(costs, pair_time=np.full(plan.num_stages, pair_time))
    lowered = post_receives_early(lower(build(plan)))
    moves = transfers(lowered)
    ends = set(zip(moves.source.tolist(), moves.target.tolist(), strict=True))
    timeline = memory_samples(engine.run(lowered, costs, ideal(ends)), costs)
    compute = timeline.compute
    alone = ~lowered.paired[lowered.kind <= Kind.OPTIMIZER]  # a pair counts once
    busy = np.bincount(compute.rank, weights=(compute.end - compute.start) * alone)
    return timeline, timeline.makespan - busy


def stages_held(schedule):
    """How many stages each rank holds."""
    held = np.zeros((schedule.num_ranks, schedule.num_stages), int)
    held[schedule.rank, schedule.stage] = 1
    return held.sum(axis=1)


# DualPipe -----------------------------------------------------------------------------------------


def table():
    """DualPipe's table of bubbles and memory, by method."""
    with (DATA / "dualpipe_table.csv").open() as file:
        lines = (line for line in file if not line.startswith("#"))
        return {row["method"]: row for row in csv.DictReader(lines)}


def plan_of(method, stages, m):
    """The plan of a row of the table for a number of stages and m microbatches a stage's copy."""
    return {
        "1F1B": Plan(schedule="1f1b", pp=stages, num_microbatches=m),
        "DualPipe": Plan(schedule="dualpipe", pp=stages, num_microbatches=m),
        "DualPipeV": Plan(
            schedule="dualpipe-v", pp=stages // 2, vpp=2, num_microbatches=max(stages, m // 2)
        ),
    }[method]


@pytest.mark.parametrize("method", ["1F1B", "DualPipe", "DualPipeV"])
@pytest.mark.parametrize(("stages", "m"), [(4, 8), (4, 10), (8, 20), (8, 32), (16, 32)])
@pytest.mark.parametrize(
    ("times", "pair_time"), [((1, 2, 1), 1.0), ((1, 2, 1), 0.8), ((10, 18, 8), 0.9)]
)
def test_dualpipes_table_bubble_is_pp_half_minus_1_times_fb_plus_b_minus_3w(
    method, stages, m, times, pair_time
):
    """On the rank that idles most, with F = I; on every rank when a pair takes F + B."""
    f, b, w = times
    row = table()[method]
    names = {"PP": stages, "F": f, "B": b, "W": w, "FB": pair_time * (f + b)}
    idle = play(plan_of(method, stages, m), f, b, w, pair_time)[1]
    wanted = eval(row["bubble"], {}, names)
    assert idle.max() == pytest.approx(wanted, rel=1e-12)
    if pair_time == 1.0 or method == "1F1B":
        np.testing.assert_allclose(idle, wanted, rtol=1e-12)


@pytest.mark.parametrize("method", ["1F1B", "DualPipe", "DualPipeV"])
@pytest.mark.parametrize(("stages", "m"), [(4, 8), (8, 20), (16, 32)])
def test_dualpipes_table_memory_is_pp_plus_1_activations_and_2_stages_a_rank(method, stages, m):
    row, plan = table()[method], plan_of(method, stages, m)
    timeline, _ = play(plan, weight_grad=1.0)
    assert timeline.peak_memory().max() == eval(row["activations"], {}, {"PP": stages})
    assert timeline.num_ranks == eval(row["devices"], {}, {"PP": stages})
    assert (stages_held(build(plan)) == int(row["parameters"])).all()


def test_dualpipe_of_8_ranks_20_microbatches_steps_in_66_with_9_activations_on_every_rank():
    report = simulate_uniform(Plan(schedule="dualpipe", pp=8, num_microbatches=20), 1.0, 2.0).report
    assert report.step_time == 66  # 20 x 3 and a bubble of 3 x (3 + 2 - 3)
    assert report.bubble_fraction == pytest.approx(6 / 66)
    assert report.peak_in_flight.tolist() == [9] * 8


def test_dualpipe_is_its_own_mirror_image():
    schedule = build(Plan(schedule="dualpipe", pp=6, num_microbatches=14))
    for rank in range(3):
        near, far = schedule.row(rank), schedule.row(5 - rank)
        assert [(op.stage, op.kind, (op.microbatch + 7) % 14) for op in near] == list(far)


def test_dualpipe_pairs_every_second_forward_of_its_steady_state():
    rows = build(Plan(schedule="dualpipe", pp=8, num_microbatches=20))
    pairs = [sum(isinstance(item, Pair) for item in rows.items(rank)) for rank in range(4)]
    steady, before = [2 * (10 - 8 + rank + 1) for rank in range(4)], [3, 2, 1, 0]
    unpaired = [0, 0, 0, 1]  # the middle ranks run their first two one after the other
    assert pairs == [s + b - u for s, b, u in zip(steady, before, unpaired, strict=True)]


# Chimera ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "n"), [(2, 2), (4, 4), (4, 8), (8, 8), (8, 32), (16, 64)])
def test_chimeras_bubble_is_d_minus_2_over_2n_plus_d_minus_2_when_f_equals_b(depth, n):
    timeline, idle = play(Plan(schedule="chimera", pp=depth, num_microbatches=n), 1.0, 1.0)
    np.testing.assert_array_equal(idle, depth - 2)
    assert idle[0] / timeline.makespan == pytest.approx((depth - 2) / (2 * n + depth - 2))


@pytest.mark.parametrize("depth", [4, 8, 16])
def test_chimeras_bubble_of_one_unit_is_d_minus_2_over_3n_half_plus_d_minus_2_when_b_is_2f(depth):
    timeline, idle = play(Plan(schedule="chimera", pp=depth, num_microbatches=depth))
    assert idle[0] / timeline.makespan == pytest.approx((depth - 2) / (1.5 * depth + depth - 2))


@pytest.mark.parametrize(("depth", "units"), [(4, 1), (4, 4), (8, 2), (8, 4)])
def test_chimeras_bubble_grows_by_d_minus_2_a_unit_when_b_is_2f(depth, units):
    _, idle = play(Plan(schedule="chimera", pp=depth, num_microbatches=depth * units))
    np.testing.assert_array_equal(idle, (depth - 2) * (units + 1))


@pytest.mark.parametrize("depth", [4, 8, 16])
def test_chimera_holds_d_half_plus_1_to_d_activations_and_twice_the_weights(depth):
    plan = Plan(schedule="chimera", pp=depth, num_microbatches=4 * depth)
    peak = play(plan, 1.0, 1.0)[0].peak_memory()
    assert (peak.min(), peak.max()) == (depth / 2 + 1, depth)
    assert (stages_held(build(plan)) == 2).all()


# Hanayo -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waves", [1, 2, 4])
@pytest.mark.parametrize(("pp", "m"), [(4, 4), (4, 16), (8, 8), (8, 32), (3, 6)])
def test_hanayos_bubble_is_2pp_minus_2_chunk_slots_when_f_equals_b(pp, m, waves):
    plan = Plan(schedule="hanayo", pp=pp, vpp=2 * waves, num_microbatches=m)
    np.testing.assert_array_equal(play(plan, 1.0, 1.0)[1], 2 * pp - 2)


@pytest.mark.parametrize("waves", [1, 2, 4])
@pytest.mark.parametrize(("pp", "units"), [(4, 1), (4, 4), (8, 1), (8, 3)])
def test_hanayos_bubble_is_pp_minus_1_times_units_plus_1_over_waves_when_b_is_2f(pp, units, waves):
    plan = Plan(schedule="hanayo", pp=pp, vpp=2 * waves, num_microbatches=pp * units)
    report = simulate_uniform(plan, 1.0, 2.0).report
    bubble = report.step_time - 3.0 * pp * units
    assert bubble == pytest.approx((pp - 1) * (units + 1) / waves, rel=1e-12)


@pytest.mark.parametrize("pp", [4, 8, 16])
def test_hanayos_bubble_halves_with_twice_the_waves(pp):
    bubbles = [
        play(Plan(schedule="hanayo", pp=pp, vpp=2 * w, num_microbatches=pp), 1 / w, 2 / w)[1].max()
        for w in (1, 2, 4)
    ]
    assert bubbles == pytest.approx([bubbles[0], bubbles[0] / 2, bubbles[0] / 4])


def test_hanayo_of_one_wave_has_chimeras_bubble_plus_2_slots_without_its_second_copy():
    wave, two = (
        play(Plan(schedule=name, pp=8, vpp=vpp, num_microbatches=8), f, f)[1][0]
        for name, vpp, f in (("hanayo", 2, 0.5), ("chimera", 1, 1.0))
    )
    assert (wave, two) == (7.0, 6.0)


def test_hanayos_turns_need_no_transfer():
    lowered = lower(build(Plan(schedule="hanayo", pp=4, vpp=4, num_microbatches=4)))
    boundaries = set(lowered.stage[lowered.kind == Kind.SEND_F].tolist())
    assert boundaries == set(range(15)) - {3, 7, 11}


# Breadth first, interleaved -----------------------------------------------------------------------


@pytest.mark.parametrize(("pp", "m", "vpp"), [(4, 4, 2), (8, 8, 4), (8, 32, 2), (4, 6, 2)])
def test_breadth_first_divides_1f1bs_bubble_by_vpp_at_any_m_from_pp_on(pp, m, vpp):
    plan = Plan(schedule="bfs", pp=pp, vpp=vpp, num_microbatches=m)
    report = simulate_uniform(plan, 1.0, 2.0).report
    assert report.bubble_to_ideal == pytest.approx((pp - 1) / (vpp * m), rel=1e-12)
    assert report.peak_in_flight.tolist() == [m * vpp] * pp


def test_at_m_8_on_8_ranks_breadth_first_of_4_chunks_takes_29_and_1f1b_45():
    bfs = Plan(schedule="bfs", pp=8, vpp=4, num_microbatches=8)
    plain = Plan(schedule="1f1b", pp=8, num_microbatches=8)
    assert simulate_uniform(bfs, 1.0, 2.0).report.step_time == 24 + 21 / 4
    assert simulate_uniform(plain, 1.0, 2.0).report.step_time == 24 + 21


@pytest.mark.parametrize(("group", "peak"), [(None, 11), (4, 11), (8, 15), (6, 13), (16, 23)])
def test_interleaved_group_of_g_holds_vpp_minus_1_g_plus_2pp_minus_1_chunks_on_rank_0(group, peak):
    plan = Plan(
        schedule="interleaved", pp=4, vpp=2, num_microbatches=16, microbatch_group_size=group
    )
    report = simulate_uniform(plan, 1.0, 2.0).report
    assert report.peak_in_flight[0] == peak
    assert report.step_time == 48 + 4.5  # larger groups cost memory, no time


def test_larger_groups_hide_transfers_between_chunks():
    steps = [
        simulate_uniform(
            Plan(
                schedule="interleaved",
                pp=4,
                vpp=2,
                num_microbatches=24,
                microbatch_group_size=group,
            ),
            1.0,
            2.0,
            latency=0.25,
        ).report.step_time
        for group in (4, 6)
    ]
    assert steps[1] < steps[0]


@pytest.mark.parametrize(("group", "fits"), [(3, "5, 6, 10"), (7, "5, 6, 10")])
def test_a_group_that_leaves_less_than_pp_is_refused_with_the_sizes_that_work(group, fits):
    plan = Plan(
        schedule="interleaved", pp=4, vpp=2, num_microbatches=10, microbatch_group_size=group
    )
    with pytest.raises(ValueError, match=rf"group_size is {group}, .*; use {fits}$"):
        build(plan)


# 1F1B with overlap --------------------------------------------------------------------------------


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("vpp", [1, 2])
def test_1f1b_overlap_without_a_gain_has_1f1bs_bubble_over_vpp(pp, m, vpp):
    _, idle = play(Plan(schedule="1f1b-overlap", pp=pp, vpp=vpp, num_microbatches=m))
    np.testing.assert_allclose(idle, 3 * (pp - 1), rtol=1e-12)  # in chunks: F + B = 3


@pytest.mark.parametrize(("pp", "m"), [(4, 16), (8, 32)])
def test_1f1b_overlap_pairs_all_but_2_pp_minus_1_minus_rank_plus_1_forwards(pp, m):
    rows = build(Plan(schedule="1f1b-overlap", pp=pp, num_microbatches=m))
    pairs = [sum(isinstance(item, Pair) for item in rows.items(rank)) for rank in range(pp)]
    assert pairs == [m - 2 * (pp - 1 - rank) - 1 for rank in range(pp)]
    timeline, _ = play(Plan(schedule="1f1b-overlap", pp=pp, num_microbatches=m))
    assert timeline.peak_memory().tolist() == [2 * (pp - rank) for rank in range(pp)]


def test_1f1b_overlap_of_pairs_at_80_percent_beats_1f1b_at_pp_4_m_32_and_not_at_100():
    steps = [
        play(Plan(schedule="1f1b-overlap", pp=4, num_microbatches=32), pair_time=t)[0].makespan
        for t in (0.8, 1.0)
    ]
    plain = play(Plan(schedule="1f1b", pp=4, num_microbatches=32))[0].makespan
    assert steps[0] < plain == steps[1]


# TeraPipe -----------------------------------------------------------------------------------------


def test_terapipe_runs_slices_of_a_sequence_forward_and_the_last_one_back_first():
    text = str(build(Plan(schedule="terapipe", pp=1, num_microbatches=2, num_slices=2)))
    assert text == "0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0"


@pytest.mark.parametrize(("m", "slices"), [(1, 4), (2, 8), (4, 1)])
def test_terapipes_bubble_is_pp_minus_1_slices(m, slices):
    plan = Plan(schedule="terapipe", pp=4, num_microbatches=m, num_slices=slices)
    run = simulate_uniform(plan, 1.0, 2.0)
    assert run.report.step_time == pytest.approx(3 * m + 3 * 3 / slices)
    assert run.timeline.peak_memory() == pytest.approx([m] * 4)


def test_terapipes_last_of_4_equal_slices_takes_7_times_the_first_where_all_is_attention():
    assert slice_times([512] * 4, 1.0).tolist() == [1 / 16, 3 / 16, 5 / 16, 7 / 16]


def test_terapipe_fills_the_pipeline_of_one_long_sequence_and_keeps_its_memory():
    sizes = {"num_hidden_layers": 8, "hidden_size": 4096, "num_attention_heads": 32}
    model = Model(name="long", vocab_size=1000, seq_len=16384, **sizes)
    cluster = load_cluster("dgx-a100").model_copy(update={"num_nodes": 1})
    whole, cut = (
        simulate(
            Job(
                model=model,
                cluster=cluster,
                plan=Plan(schedule="terapipe", pp=4, num_slices=slices),
            )
        )
        for slices in (1, 8)
    )
    busy = [run.report.split.compute.sum() for run in (whole, cut)]
    assert busy[1] >= busy[0] * (1 - 1e-9)  # the host may hold short slices up
    assert cut.report.step_time < 0.5 * whole.report.step_time
    peaks = cut.report.peak_memory / whole.report.peak_memory
    assert peaks[:3] == pytest.approx(1)
    assert 0.99 < peaks[3] < 1  # the loss of one slice is held, not that of all


def brute_force(seq_len, num_stages, cost):
    """The least latency over all ways to cut a sequence."""
    best = np.inf
    for cuts in itertools.product((0, 1), repeat=seq_len - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), seq_len]
        times = [cost(b - a, a) for a, b in itertools.pairwise(edges)]
        best = min(best, sum(times) + (num_stages - 1) * max(times))
    return best


def latency(slices, num_stages, cost):
    """Sum of the slices' times and num_stages - 1 times the longest."""
    before = np.concatenate([[0], np.cumsum(slices)[:-1]]).tolist()
    times = [cost(length, prefix) for length, prefix in zip(slices, before, strict=True)]
    return sum(times) + (num_stages - 1) * max(times)


@given(
    seq_len=st.integers(1, 9),
    num_stages=st.integers(1, 6),
    fixed=st.floats(0.0, 3.0),
    linear=st.floats(0.0, 1.0),
    attention=st.floats(0.0, 0.5),
)
def test_terapipes_dynamic_programme_equals_brute_force(
    seq_len, num_stages, fixed, linear, attention
):
    def cost(length, before):
        return fixed + linear * length + attention * length * (before + length / 2)

    slices = choose_slices(seq_len, num_stages, cost)
    assert sum(slices) == seq_len
    best = brute_force(seq_len, num_stages, cost)
    assert latency(slices, num_stages, cost) == pytest.approx(best, rel=1e-12, abs=1e-12)


def test_terapipes_slices_get_shorter_where_attention_is_dearer():
    def cost(length, before):
        return 64 + length + length * (before + length / 2) / 512

    slices = choose_slices(2048, 48, cost, granularity=32, tolerance=0.1)
    assert sum(slices) == 2048
    assert list(slices) == sorted(slices, reverse=True)
    assert slices[0] > 2 * slices[-1]


def test_terapipe_refuses_a_granularity_that_does_not_divide_the_sequence():
    with pytest.raises(ValueError, match=r"seq_len is 100, but slices are multiples of .* = 32"):
        choose_slices(100, 4, lambda length, _: length, granularity=32)


# PyTorch's rows -----------------------------------------------------------------------------------


def pytorchs_rows(kind, pp, num_microbatches, vpp):
    """The compute-only rows that a class of PyTorch makes, from what its generator reads."""
    rounds = max(1, num_microbatches // pp)
    rows = []
    for rank in range(pp):
        made = kind._calculate_single_rank_operations(
            SimpleNamespace(
                _stages=[None] * vpp,
                _n_microbatches=num_microbatches,
                pp_group_size=pp,
                n_local_stages=vpp,
                microbatches_per_round=num_microbatches // rounds,
                rank=rank,
            ),
            rank,
        )
        rows.append(",".join(str(action) for action in made if action is not None))
    return Schedule.parse("\n".join(rows))


@given(pp=st.integers(1, 6), m=st.integers(1, 12), vpp=st.integers(1, 4))
def test_breadth_first_equals_pytorchs_looped_bfs(pp, m, vpp):
    ours = build(Plan(schedule="bfs", pp=pp, num_microbatches=m, vpp=vpp))
    assert ours == pytorchs_rows(pytorch.ScheduleLoopedBFS, pp, m, vpp)


@given(
    pp=st.integers(1, 6), rounds=st.integers(1, 4), size=st.integers(1, 12), vpp=st.integers(1, 4)
)
def test_interleaved_flex_equals_pytorchs_interleaved_1f1b(pp, rounds, size, vpp):
    m = rounds * size
    if m % max(1, m // pp):
        with pytest.raises(ValueError, match=f"num_microbatches is {m}, but it must be a multiple"):
            build(Plan(schedule="interleaved-flex", pp=pp, num_microbatches=m, vpp=vpp))
        return
    ours = build(Plan(schedule="interleaved-flex", pp=pp, num_microbatches=m, vpp=vpp))
    assert ours == pytorchs_rows(pytorch.ScheduleInterleaved1F1B, pp, m, vpp)


@given(pp=st.integers(1, 6), rounds=st.integers(2, 4), vpp=st.integers(2, 4))
def test_interleaved_equals_pytorchs_at_more_than_pp_microbatches(pp, rounds, vpp):
    ours = build(Plan(schedule="interleaved", pp=pp, num_microbatches=pp * rounds, vpp=vpp))
    assert ours == pytorchs_rows(pytorch.ScheduleInterleaved1F1B, pp, pp * rounds, vpp)


@given(pp=st.integers(1, 6), more=st.integers(0, 8))
def test_dualpipe_v_equals_pytorchs(pp, more):
    m = 2 * pp + more
    ours = build(Plan(schedule="dualpipe-v", pp=pp, num_microbatches=m, vpp=2))
    assert ours == pytorchs_rows(pytorch.ScheduleDualPipeV, pp, m, 2)


# Sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "sizes", "message"),
    [
        ("chimera", {"pp": 3, "num_microbatches": 4}, "plan.pp is 3, .* even .*; use 2 or 4"),
        ("chimera", {"pp": 4, "num_microbatches": 5}, "num_microbatches is 5, .*; use 4 or 6"),
        ("dualpipe", {"pp": 5, "num_microbatches": 20}, "plan.pp is 5, .*; use 4 or 6"),
        ("dualpipe", {"pp": 4, "num_microbatches": 6}, "is 6, .* 2 pp = 8; use 8"),
        ("dualpipe", {"pp": 4, "num_microbatches": 9}, "is 9, .* even .*; use 10"),
        ("dualpipe-v", {"pp": 4, "vpp": 3, "num_microbatches": 8}, "vpp is 3, .*; use 2"),
        ("dualpipe-v", {"pp": 4, "vpp": 2, "num_microbatches": 7}, "is 7, .*; use 8 or more"),
        ("hanayo", {"pp": 4, "vpp": 3, "num_microbatches": 8}, "vpp is 3, .*; use 2 or 4"),
        ("hanayo", {"pp": 4, "num_microbatches": 8}, "vpp is 1, .*; use 2$"),
        ("1f1b-overlap", {"pp": 4, "vpp": 2, "num_microbatches": 6}, "is 6, .*; use 4 or 8"),
        ("interleaved-flex", {"pp": 4, "vpp": 2, "num_microbatches": 9}, "is 9, .*; use 8 or 10"),
        ("1f1b", {"num_slices": 2}, "num_slices is 2, but schedule 1f1b takes no num_slices"),
    ],
)
def test_a_size_that_does_not_fit_is_named_with_those_that_do(schedule, sizes, message):
    with pytest.raises(ValueError, match=message):
        build(Plan(schedule=schedule, **sizes))


@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [
        ("bfs", 4),
        ("interleaved", 4),
        ("interleaved-flex", 4),
        ("hanayo", 4),
        ("1f1b-overlap", 4),
        ("dualpipe-v", 2),
        ("dualpipe", 1),
        ("chimera", 1),
        ("terapipe", 1),
    ],
)
def test_rows_for_64_ranks_and_512_microbatches_are_columns(schedule, vpp):
    rows = build(Plan(schedule=schedule, pp=64, vpp=vpp, num_microbatches=512))
    assert (rows.kind != Kind.W).sum() == 2 * 64 * 512 * vpp
    assert rows.stage.dtype == np.int32


def test_a_job_without_num_slices_is_cut_where_terapipes_programme_says():
    """With alike stages, as the programme assumes, it beats no and as many equal slices."""
    base = load_job(Path(__file__).parent.parent / "examples" / "small_8_gpus.toml")
    plan = {"schedule": "terapipe", "num_microbatches": 1, "vpp": 1, "activation_limit": None}
    job = base.model_copy(
        update={
            "plan": base.plan.model_copy(update=plan),
            "model": base.model.model_copy(update={"seq_len": 32768, "vocab_size": 64}),
        }
    )
    chosen = simulate(job)
    lengths = chosen.costs.slice_tokens
    assert len(lengths) > 1
    times = []
    for count in (1, len(lengths)):
        equal = job.plan.model_copy(update={"num_slices": count})
        times.append(simulate(job.model_copy(update={"plan": equal})).report.step_time)
    assert chosen.report.step_time < min(times)
