"""Which links a message crosses, and what sharing them does to a step."""

import numpy as np
import pytest

from simulator.fabric import connect, gpus_of_plan
from simulator.job import Job
from simulator.load import job_from_options
from simulator.simulate import simulate

PLAN = {"model": "gpt3-175b", "tp": 8, "pp": 2, "num_microbatches": 4}


def job(**options) -> Job:
    return job_from_options({"cluster": "selene", **PLAN, **options})


def with_cluster(base, **changes):
    return base.model_copy(update={"cluster": base.cluster.model_copy(update=changes)})


def test_ranks_follow_megatrons_order_tensor_fastest_pipeline_slowest():
    gpus = gpus_of_plan(pp=2, dp=2, cp=1, tp=4)
    assert gpus[0, 0, 0].tolist() == [0, 1, 2, 3]
    assert gpus[0, 1, 0].tolist() == [4, 5, 6, 7]
    assert gpus[1, 0, 0].tolist() == [8, 9, 10, 11]


def test_a_send_between_nodes_crosses_the_nic_of_each_end():
    fabric = connect(job(), [(0, 1)])
    route = fabric.sends[0, 1]
    assert [fabric.names[link] for link in route.links] == ["node 0 NIC 0 out", "node 1 NIC 0 in"]
    assert route.copies == (1.0, 1.0)


def test_a_send_within_a_node_crosses_the_ports():
    fabric = connect(job(tp=4), [(0, 1)])
    assert [fabric.names[link] for link in fabric.sends[0, 1].links] == [
        "GPU 0 port out",
        "GPU 4 port in",
    ]


def test_8_tensor_parallel_peers_share_4_nics_two_and_two():
    base = job()
    four = connect(with_cluster(base, nics_per_node=4), [(0, 1)])
    assert four.sends[0, 1].copies == (2.0, 2.0)
    assert four.sends[0, 1].alone(
        1e9, four.capacity
    ) - base.cluster.inter_node.latency == pytest.approx(
        2
        * (
            connect(base, [(0, 1)]).sends[0, 1].alone(1e9, four.capacity)
            - base.cluster.inter_node.latency
        )
    )


def test_more_nics_than_gpus_are_shared_evenly():
    base = job()
    many = connect(with_cluster(base, nics_per_node=32), [(0, 1)])
    one = connect(base, [(0, 1)])
    assert many.capacity[0] == pytest.approx(4 * one.capacity[0])


def test_a_4_nic_node_with_8_gpus_shows_it_in_the_timeline():
    base = job(scatter_gather=False)
    eight, four = simulate(base), simulate(with_cluster(base, nics_per_node=4))
    spans = [
        run.timeline.of(*(k for k in set(run.timeline.kind.tolist()) if k == 6))
        for run in (eight, four)
    ]
    slow = (spans[1].end - spans[1].start).min() - base.cluster.inter_node.latency
    fast = (spans[0].end - spans[0].start).min() - base.cluster.inter_node.latency
    assert slow == pytest.approx(2 * fast, rel=1e-6)
    assert four.report.step_time > eight.report.step_time


def test_an_oversubscribed_uplink_carries_the_nodes_8_copies():
    base = job()
    narrow = connect(with_cluster(base, oversubscription=4.0), [(0, 1)])
    route = narrow.sends[0, 1]
    assert [narrow.names[link] for link in route.links][2:] == [
        "node 0 uplink out",
        "node 1 uplink in",
    ]
    assert route.copies == (1.0, 1.0, 8.0, 8.0)
    alone, wide = (f.sends[0, 1].alone(1e9, f.capacity) for f in (narrow, connect(base, [(0, 1)])))
    assert alone - route.latency == pytest.approx(4 * (wide - route.latency))


def test_scatter_gather_sends_an_eighth_and_gathers_at_the_receiver():
    plain, scattered = simulate(job(scatter_gather=False)), simulate(job(scatter_gather=True))
    assert scattered.costs.boundary_bytes[0] == plain.costs.boundary_bytes[0] / 8
    assert scattered.costs.boundary_gather[0] > 0
    assert plain.costs.boundary_gather[0] == 0
    assert scattered.report.step_time < plain.report.step_time


def test_data_parallel_rings_leave_a_node_over_every_nic_of_their_members():
    # tp 2: a node holds 4 members of each of the 2 rings; every NIC carries a quarter of one ring
    fabric = connect(job(tp=2, pp=1, dp=8), [])
    route = fabric.reduces[0]
    loads = dict(zip((fabric.names[link] for link in route.links), route.copies, strict=True))
    assert loads["node 0 NIC 0 out"] == loads["node 0 NIC 7 in"] == 0.25
    assert loads["GPU 0 port out"] == 1.0


def test_gradients_meet_the_pipelines_own_traffic_on_the_same_nics():
    """Rank 1 reduces as soon as it ends, while its last gradients still go to rank 0."""
    quiet, busy = job(dp=2, overlap_grad_reduce=True), job(dp=2, overlap_grad_reduce=True, pp=4)
    for run in (simulate(quiet), simulate(busy)):
        names = connect(run.job, [(0, 1), (1, 0)])
        sends, reduces = set(names.sends[1, 0].links), set(names.reduces[1].links)
        assert sends & reduces


def test_reducing_when_ready_hides_communication_that_reducing_at_the_end_exposes():
    options = {"pp": 4, "vpp": 2, "schedule": "interleaved", "num_microbatches": 8, "dp": 4}
    late = simulate(job(**options, overlap_grad_reduce=False)).report
    early = simulate(job(**options, overlap_grad_reduce=True)).report
    assert early.split.data.sum() < late.split.data.sum()
    assert early.step_time < late.step_time


def test_a_reduction_takes_the_rings_bytes_over_the_nic():
    run = simulate(job(dp=2))
    reduce = run.timeline.where(run.timeline.kind == 11)
    link = run.job.cluster.inter_node
    wire = 2 * (2 - 1) / 2 * run.costs.reduce_bytes[1]
    last = reduce.where(reduce.rank == 1)
    expected = wire / (link.bandwidth * link.efficiency)
    assert float((last.end - last.start)[0]) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_straggler_slows_the_whole_step(rank):
    base = job()
    slow = simulate(with_cluster(base, stragglers={rank: 1.2})).report.step_time
    fast = simulate(base).report.step_time
    assert 1.1 < slow / fast < 1.2


def test_the_split_adds_up_to_the_step_on_every_rank():
    report = simulate(job(dp=2, pp=4, num_microbatches=8, overlap_grad_reduce=True)).report
    np.testing.assert_allclose(report.split.total, report.step_time, rtol=1e-9)
