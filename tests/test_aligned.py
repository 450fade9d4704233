"""Where Megatron-Core starts a chunk's reduction and gathering, and what that hides."""

import dataclasses

import numpy as np
import pytest

from simulator import engine
from simulator.aligned import reduce_aligned, unshard_ahead, unshard_aligned
from simulator.costs import uniform
from simulator.costs.estimate import estimate
from simulator.fabric import Ring, ideal
from simulator.job import Plan
from simulator.load import job_from_options
from simulator.longest_path import longest_path
from simulator.lower import lower, post_receives_early, reduce_when_ready, step_optimizer
from simulator.matching import match
from simulator.network import Route
from simulator.routes import talking
from simulator.schedule import Kind
from simulator.simulate import simulate
from tests.plans import rows_of

PP, VPP, M = 4, 3, 8


def rows(pp=PP, vpp=VPP, num_microbatches=M):
    plan = Plan(schedule="interleaved", pp=pp, vpp=vpp, num_microbatches=num_microbatches)
    return post_receives_early(lower(rows_of(plan)))


def play(lowered, reduce=0.0, gather=0.0):
    """Both executors' timeline; collectives take so long, each on links of its own. [s]"""
    fabric = ideal(talking(lowered, match(lowered)))

    def rings(seconds):
        return {s: Ring(Route((), (), seconds), 0.0) for s in range(lowered.num_stages)}

    fabric = dataclasses.replace(fabric, reduces=rings(reduce), gathers=rings(gather))
    costs = uniform(lowered.num_stages, 1.0, 2.0)
    found = longest_path(lowered, costs, fabric)
    assert found == engine.run(lowered, costs, fabric)
    return found


def starts(timeline, kind):
    """When each stage's collective started, shape (vpp, pp). [s]"""
    spans = timeline.of(kind)
    return spans.start[np.argsort(spans.stage)].reshape(VPP, PP)


def test_reductions_of_a_chunk_start_at_one_moment_on_all_4_ranks_but_the_last_chunk_s():
    aligned = starts(play(reduce_aligned(rows())), Kind.REDUCE_GRAD)
    ready = starts(play(reduce_when_ready(rows())), Kind.REDUCE_GRAD)
    for chunk in (1, 2):
        assert len(set(aligned[chunk])) == 1
        assert (ready[chunk] == aligned[chunk][0] - 2 * np.arange(PP)).all()
    assert (aligned[0] == ready[0]).all()  # nothing is left to wait for


def test_gatherings_of_two_chunks_start_with_the_step_and_the_third_s_4_forwards_later():
    found = starts(play(unshard_aligned(rows())), Kind.UNSHARD)
    assert (found[:2] == 0).all()
    assert (found[2] == PP).all()


@pytest.mark.parametrize(("gather", "shown"), [(0.0, 0.0), (4.0, 4.0), (5.0, 6.0), (7.0, 10.0)])
def test_of_three_gatherings_the_first_shows_and_of_the_third_what_is_over_4_forwards(
    gather, shown
):
    alone = play(step_optimizer(rows())).makespan
    assert play(step_optimizer(unshard_aligned(rows())), gather=gather).makespan == alone + shown


def test_gathered_one_by_one_each_chunk_s_weights_show():
    alone = play(step_optimizer(rows())).makespan
    assert play(step_optimizer(unshard_ahead(rows())), gather=1.0).makespan > alone + 1.0


def test_of_three_reductions_of_2_to_16_backwards_the_last_alone_shows():
    alone = play(step_optimizer(rows())).makespan
    for seconds in (4.0, 8.0, 16.0):
        found = play(step_optimizer(reduce_aligned(rows())), reduce=seconds)
        assert found.makespan == alone + seconds


def job(**plan):
    sizes = {"pp": 4, "vpp": 4, "tp": 8, "dp": 4, "num_microbatches": 8, "zero_stage": 1}
    overlap = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    base = {"model": "llama3-70b", "cluster": "dgx-h100", "num_nodes": 16}
    base |= {"schedule": "interleaved", "framework": "megatron-core"}
    return job_from_options(base | sizes | overlap | plan)


def test_aligned_reductions_carry_all_gradients_and_the_first_chunk_gathers_beside_its_forward():
    costs, plain = estimate(job()), estimate(job(overlap_grad_reduce=False))
    np.testing.assert_array_equal(costs.reduce_bytes, plain.reduce_bytes)
    late = estimate(job(overlap_param_gather=False)).unshard_bytes
    np.testing.assert_array_equal(costs.unshard_bytes[4:], late[4:])
    assert (costs.unshard_bytes[:4] < late[:4]).all()


def test_what_runs_beside_collectives_is_slower_and_the_first_chunk_is_not():
    beside = estimate(job())
    apart = estimate(job(overlap_grad_reduce=False, overlap_param_gather=False))
    for kind in (Kind.F, Kind.B):
        slower = beside.seconds[kind] - apart.seconds[kind]
        assert (slower[:4] == 0).all()
        assert (slower[4:] > 0).all()
        assert (slower < 0.05 * apart.seconds[kind]).all()


def test_overlapped_collectives_of_chunks_leave_a_third_of_their_exposed_time_or_less():
    beside = simulate(job()).report
    apart = simulate(job(overlap_grad_reduce=False, overlap_param_gather=False)).report
    assert beside.split.data.sum() < apart.split.data.sum() / 3
    assert beside.step_time < apart.step_time


def test_the_step_with_aligned_collectives_on_shared_nics_is_the_engine_s():
    one, other = (simulate(job(), executor) for executor in ("events", "engine"))
    assert one.report.step_time == pytest.approx(other.report.step_time, rel=1e-9)
