"""Where a rank's step goes: values that can be checked on paper."""

import numpy as np
import pytest

from simulator.job import Plan
from simulator.load import load_job
from simulator.report import SPLIT, split
from simulator.schedule import Kind
from simulator.simulate import simulate, simulate_uniform
from simulator.timeline import Timeline

EXAMPLES = "examples"


def uniform(schedule="1f1b", pp=4, m=8, vpp=1, **times):
    plan = Plan(schedule=schedule, pp=pp, num_microbatches=m, vpp=vpp)
    return simulate_uniform(plan, 1.0, 2.0, **times).report


def test_1f1b_pp4_m8_waits_6_5_4_3_s_in_warm_up_and_3_4_5_6_s_in_drain():
    parts = uniform().split
    assert parts.warm_up.tolist() == [6, 5, 4, 3]
    assert parts.drain.tolist() == [3, 4, 5, 6]
    assert parts.compute.tolist() == [24] * 4
    others = set(SPLIT) - {"warm_up", "drain", "compute"}
    assert not any(getattr(parts, name).any() for name in others)


def test_gpipe_pp4_m8_waits_before_the_first_backward_and_after_the_last():
    parts = uniform("gpipe").split
    assert parts.warm_up.tolist() == [9, 7, 5, 3]
    assert parts.drain.tolist() == [0, 2, 4, 6]


def test_a_message_on_its_way_is_pipeline_communication_up_to_its_latency():
    """Two ranks, one microbatch: F 1 s, 0.5 s down, F and B 3 s, 0.5 s back, B 2 s."""
    parts = uniform(pp=2, m=1, latency=0.5).split
    assert parts.pipeline.tolist() == [0.5, 0.5]
    assert parts.warm_up.tolist() == [3.5, 1.0]
    assert parts.drain.tolist() == [0.0, 2.5]


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 16), (4, 2)])
def test_1f1b_holds_at_most_pp_minus_rank_forwards(pp, m):
    expected = [min(pp - rank, m) for rank in range(pp)]
    assert uniform(pp=pp, m=m).peak_in_flight.tolist() == expected


@pytest.mark.parametrize(
    ("pp", "vpp", "expected"),
    [(4, 2, [11, 9, 7, 5]), (8, 3, [31, 29, 27, 25, 23, 21, 19, 17])],
)
def test_interleaved_holds_vp_plus_p_minus_1_chunks_on_the_first_rank(pp, vpp, expected):
    report = uniform("interleaved", pp=pp, m=4 * pp, vpp=vpp)
    assert report.peak_in_flight.tolist() == expected
    assert expected[0] == vpp * pp + pp - 1


def test_gpipe_holds_every_microbatch():
    assert uniform("gpipe").peak_in_flight.tolist() == [8] * 4


def test_the_zero_bubble_papers_count_idle_within_the_largest_span():
    """Rank 0 of 1F1B spans the whole step: 9 of 33; gaps inside all ranks' spans: 9 6 3 0 ... s."""
    report = uniform()
    assert report.span_bubble == pytest.approx(9 / 33)
    assert report.internal_bubble == pytest.approx((9 + 6 + 3 + 0) / (33 + 30 + 27 + 24))


def timeline(rows):
    """A timeline of (rank, stage, kind, microbatch, start, end)."""
    columns = list(zip(*rows, strict=True))
    types = (np.int32, np.int32, np.int8, np.int32, float, float)
    arrays = [np.array(column, dtype) for column, dtype in zip(columns, types, strict=True)]
    names = ("rank", "stage", "kind", "microbatch", "start", "end")
    return Timeline(**dict(zip(names, arrays, strict=True)))


def test_what_a_message_takes_longer_than_alone_is_a_busy_link():
    """The second message takes 3 s where the first took 1: 2 of the 3 s that rank 1 waits."""
    run = timeline(
        [
            (0, 0, Kind.F, 0, 0, 1),
            (0, 0, Kind.SEND_F, 0, 1, 2),
            (0, 0, Kind.F, 1, 1, 2),
            (0, 0, Kind.SEND_F, 1, 2, 5),
            (1, 1, Kind.RECV_F, 0, 1, 2),
            (1, 1, Kind.F, 0, 2, 2.5),
            (1, 1, Kind.RECV_F, 1, 2, 5),
            (1, 1, Kind.F, 1, 5, 6),
        ]
    )
    nothing = np.zeros(run.num_spans)
    parts = split(run, recompute=nothing, tensor=nothing)
    assert parts.link.tolist() == [0.0, 2.0]
    assert parts.pipeline.tolist() == [0.0, 1.5]  # 1 s of the first message, 0.5 s of the second
    np.testing.assert_allclose(parts.total, 6.0)


def test_an_overlapped_pair_counts_once_with_what_both_ops_hold():
    run = timeline([(0, 0, Kind.F, 1, 0, 3), (0, 0, Kind.B, 0, 0, 3)])
    parts = split(run, recompute=np.array([0.0, 1.0]), tensor=np.array([0.2, 0.3]))
    assert (parts.compute[0], parts.recompute[0], parts.tensor[0]) == (1.5, 1.0, 0.5)


def test_compute_is_the_same_whatever_is_recomputed():
    job = load_job(f"{EXAMPLES}/korthikanti_22b_full.toml")
    plans = [job.plan.model_copy(update={"recompute": r}) for r in ("none", "selective", "full")]
    parts = [simulate(job.model_copy(update={"plan": plan})).report.split for plan in plans]
    compute = [float(part.compute[0]) for part in parts]
    assert compute[1:] == pytest.approx(compute[:1] * 2, rel=1e-9)
    assert parts[0].recompute[0] == 0
    assert 0 < parts[1].recompute[0] < parts[2].recompute[0]
    assert parts[2].tensor[0] > parts[0].tensor[0]


def test_a_straggler_slows_its_compute_and_recomputation_but_not_its_communication():
    job = load_job(f"{EXAMPLES}/korthikanti_22b_full.toml")
    slow = job.cluster.model_copy(update={"stragglers": {0: 2.0}})
    fast = simulate(job).report.split
    late = simulate(job.model_copy(update={"cluster": slow})).report.split
    assert late.recompute[0] == pytest.approx(2 * fast.recompute[0])
    assert late.compute[0] == pytest.approx(2 * fast.compute[0])
    assert late.tensor[0] == pytest.approx(fast.tensor[0])


def test_the_verdict_names_the_part_that_is_too_large():
    job = load_job(f"{EXAMPLES}/korthikanti_22b_full.toml")
    plan = job.plan.model_copy(update={"recompute": "none", "micro_batch_size": 32})
    report = simulate(job.model_copy(update={"plan": plan})).report
    assert report.fits is False
    assert "does not fit: rank 0 peaks at" in report.verdict
    assert "activations are the largest part" in report.verdict
    small = job.model_copy(update={"plan": job.plan.model_copy(update={"micro_batch_size": 1})})
    assert simulate(small).report.verdict.startswith("fits: rank 0 peaks at")


def test_zero_1_gathers_the_new_weights_after_the_step():
    job = load_job(f"{EXAMPLES}/korthikanti_530b_selective_sp_2240_gpus.toml")
    split_plan = job.plan.model_copy(update={"zero_stage": 1})
    run = simulate(job.model_copy(update={"plan": split_plan}))
    unshard, step = run.timeline.of(Kind.UNSHARD), run.timeline.of(Kind.OPTIMIZER)
    assert unshard.num_spans == job.plan.num_stages
    assert (unshard.start[unshard.stage.argsort()] >= step.end[step.stage.argsort()]).all()
    wire = run.costs.unshard_bytes[0] * 7 / 8
    link = job.cluster.inter_node
    first = unshard.where(unshard.stage == 0)
    least = wire / (link.bandwidth * link.efficiency)
    assert float((first.end - first.start)[0]) >= least
    assert run.report.split.data.min() > 0


def test_the_report_explains_the_longest_gap_of_a_rank():
    first, *_ = uniform().longest_gaps
    assert first == (
        "rank 0 idles 6 s from 4 to 10 (warm-up): 0B0 waits for 0RECV_B0 of rank 1; late because "
        "of 3B0 (rank 3) -> 2RECV_B0 (rank 2) -> 2B0 (rank 2) -> 1RECV_B0 (rank 1) -> "
        "1B0 (rank 1) -> 0RECV_B0 (rank 0)"
    )


def test_a_report_without_gaps_explains_none():
    assert uniform(pp=1, m=4).longest_gaps == ()
