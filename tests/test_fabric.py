"""Which links a message crosses, and what sharing them does to a step."""

import numpy as np
import pytest

from simulator.fabric import connect, gpus_of_plan
from simulator.job import Job
from simulator.load import job_from_options
from simulator.schedule import Kind
from simulator.simulate import simulate
from tests import greedy

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
    assert four.sends[0, 1].together(
        1e9, four.capacity
    ) - base.cluster.inter_node.latency == pytest.approx(
        2
        * (
            connect(base, [(0, 1)]).sends[0, 1].together(1e9, four.capacity)
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
    spans = [run.timeline.of(Kind.RECV_F) for run in (eight, four)]
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
    alone, wide = (
        f.sends[0, 1].together(1e9, f.capacity) for f in (narrow, connect(base, [(0, 1)]))
    )
    assert alone - route.latency == pytest.approx(4 * (wide - route.latency))


def test_scatter_gather_sends_an_eighth_and_gathers_at_the_receiver():
    plain, scattered = simulate(job(scatter_gather=False)), simulate(job(scatter_gather=True))
    assert scattered.costs.boundary_bytes[0] == plain.costs.boundary_bytes[0] / 8
    assert scattered.costs.boundary_gather[0] > 0
    assert plain.costs.boundary_gather[0] == 0
    assert scattered.report.step_time < plain.report.step_time


def test_data_parallel_rings_leave_a_node_over_every_nic_of_their_members():
    # tp 2: a node holds 4 members of each of the 2 rings; every NIC carries a quarter of one ring
    fabric = connect(job(tp=2, pp=1, dp=8), [], {0: (0,)})
    route = fabric.reduces[0].route
    loads = dict(zip((fabric.names[link] for link in route.links), route.copies, strict=True))
    assert loads["node 0 NIC 0 out"] == loads["node 0 NIC 7 in"] == 0.25
    assert loads["GPU 0 port out"] == 1.0


@pytest.mark.parametrize(
    ("tp", "dp", "pp"),
    [(1, 9, 4), (2, 5, 2), (4, 3, 4), (2, 6, 2), (8, 3, 2), (1, 12, 1), (2, 3, 3)],
)
def test_a_ring_is_as_slow_as_its_worst_node(tp, dp, pp):
    """Every member sends its ring's bytes; a node's members share the leaving bytes evenly."""
    made = job(model="gpt-1-7b", tp=tp, dp=dp, pp=pp, num_microbatches=4)
    homes = {rank: (rank,) for rank in range(pp)}
    fabric = connect(made, [], homes)
    nic_rate = made.cluster.inter_node.bandwidth * made.cluster.inter_node.efficiency
    for rank, reduces in fabric.reduces.items():
        load = {}
        for peer in range(tp):
            group = [peer + tp * (d + dp * rank) for d in range(dp)]
            nodes = [gpu // 8 for gpu in group]
            if len(set(nodes)) > 1:
                for gpu, node in zip(group, nodes, strict=True):
                    key = node, gpu % 8
                    load[key] = load.get(key, 0.0) + 1 / nodes.count(node)
        if load:
            seconds = reduces.route.together(1.0, fabric.capacity) - reduces.route.latency
            assert seconds == pytest.approx(max(load.values()) / nic_rate)


def test_a_gradient_that_meets_a_reduction_on_its_nic_is_slower_than_alone():
    """Rank 1's chunk 3 is reduced while its gradients of chunk 1 still go to rank 0."""
    made = job(
        pp=2,
        vpp=2,
        schedule="interleaved",
        num_microbatches=8,
        dp=2,
        overlap_grad_reduce=True,
        scatter_gather=False,
    )
    timeline = simulate(made).timeline
    reduces = timeline.of(Kind.REDUCE_GRAD)
    sends = timeline.of(Kind.SEND_B)
    first = reduces.where(reduces.stage == 3)
    during = (sends.rank == 1) & (sends.start > first.start[0]) & (sends.end < first.end[0])
    before = (sends.rank == 1) & (sends.end < first.start[0])
    assert during.any()
    took = sends.end - sends.start
    assert took[during].min() > 1.5 * took[before].min()


def test_a_stage_on_two_ranks_is_reduced_over_both():
    rows = "0F0,1F1,1B1,0B0\n1F0,1B0,0F1,0B1"
    base = job(num_microbatches=2, pp=2, schedule="custom", rows=rows)
    timeline = simulate(base).timeline
    reduces = timeline.of(Kind.REDUCE_GRAD)
    assert sorted(zip(reduces.rank.tolist(), reduces.stage.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    for stage in (0, 1):
        both = reduces.where(reduces.stage == stage)
        assert both.start[0] == both.start[1]
        assert both.end[0] == both.end[1] > both.start[0]


def test_reducing_when_ready_hides_communication_that_reducing_at_the_end_exposes():
    options = {"pp": 4, "vpp": 2, "schedule": "interleaved", "num_microbatches": 8, "dp": 4}
    late = simulate(job(**options, overlap_grad_reduce=False)).report
    early = simulate(job(**options, overlap_grad_reduce=True)).report
    assert early.split.data.sum() < late.split.data.sum()
    assert early.step_time < late.step_time


def test_a_reduction_takes_the_rings_bytes_over_the_nic():
    run = simulate(job(dp=2))
    reduce = run.timeline.of(Kind.REDUCE_GRAD)
    link = run.job.cluster.inter_node
    wire = 2 * (2 - 1) / 2 * run.costs.reduce_bytes[1]
    last = reduce.where(reduce.rank == 1)
    expected = wire / (link.bandwidth * link.efficiency)
    assert float((last.end - last.start)[0]) == pytest.approx(expected, rel=0.02)


def test_a_straggler_slows_the_step_as_slower_stage_costs_would():
    base = job(pp=4, num_microbatches=8)
    slow = simulate(with_cluster(base, stragglers={1: 1.2}))
    costs = slow.costs
    factor = np.array([1.0, 1.2, 1.0, 1.0])
    seconds = (costs.seconds - costs.tensor_seconds) * factor + costs.tensor_seconds
    compute = greedy.run(slow.schedule, seconds, memory=False).makespan
    last = slow.timeline.of(Kind.F, Kind.B).makespan
    assert compute < last < 1.04 * compute  # transfers beside
    assert slow.report.step_time > 1.05 * simulate(base).report.step_time


def test_the_split_adds_up_to_the_step_on_every_rank():
    report = simulate(job(dp=2, pp=4, num_microbatches=8, overlap_grad_reduce=True)).report
    np.testing.assert_allclose(report.split.total, report.step_time, rtol=1e-9)


def test_an_overlapped_pair_hides_communication_and_computes_as_much():
    """Against 1F1B: compute is equal on every rank, exposed communication is less."""
    sizes = {"pp": 4, "num_microbatches": 16, "recompute": "full"}
    plain = simulate(job(schedule="1f1b", **sizes)).report
    paired = simulate(job(schedule="1f1b-overlap", **sizes)).report
    np.testing.assert_allclose(paired.split.compute, plain.split.compute, rtol=1e-9)
    np.testing.assert_allclose(paired.split.recompute, plain.split.recompute, rtol=1e-9)
    assert (paired.split.tensor < 0.9 * plain.split.tensor).all()
    np.testing.assert_allclose(paired.split.total, paired.makespan, rtol=1e-9)
