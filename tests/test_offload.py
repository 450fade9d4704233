"""An offloaded optimizer's copies are flows on host links and drives, which they share."""

import numpy as np
import pytest

from dashboard.links import link_use
from simulator.costs import estimate
from simulator.costs.communication import Collective, bytes_on_wire
from simulator.costs.parameters import stage_experts, stage_parameters
from simulator.execution import homes_of
from simulator.fabric import connect
from simulator.job import Link
from simulator.load import job_from_options
from simulator.schedule import Kind
from simulator.schedules import build
from simulator.search.known import Known
from simulator.search.shape import shape_of
from simulator.search.space import with_plan
from simulator.search.wires import wires_of
from simulator.simulate import simulate

DRIVES = Link(bandwidth=25e9, latency=100e-6)
BASE = {"model": "llama3-8b", "cluster": "dgx-h100", "recompute": "full"}
EACH = ("longest_path", "events", "engine")


def job(offload, **options):
    """A job whose nodes have drives."""
    made = job_from_options(BASE | options)
    cluster = made.cluster.model_copy(update={"nvme": DRIVES})
    plan = made.plan.model_copy(update={"offload": offload})
    return made.model_copy(update={"cluster": cluster, "plan": plan})


def spans(run, kind):
    """Start and end of a kind's spans by stage, shape (2, num_stages). [s]"""
    found = run.timeline.of(kind)
    times = np.zeros((2, run.timeline.num_stages))
    times[:, found.stage] = found.start, found.end
    return times


def rate(made):
    link = made.cluster.host_link
    return link.bandwidth * link.efficiency


def kept(made):
    """Parameters whose states a GPU of each stage keeps on its host. [1]"""
    plan, whole = made.plan, np.array(stage_parameters(made))
    if plan.zero_stage == 0:
        return whole
    experts = np.array(stage_experts(made)) if plan.ep > 1 else 0.0
    return (whole + (plan.ep - 1) * experts) / plan.shards


def test_one_gpu_13b_zero_offload_takes_two_copies_of_26_gb_and_adam():
    made, plain = (job(one, model="llama2-13b") for one in ("cpu", "none"))
    run, parameters = simulate(made), stage_parameters(made)[0]
    copy = 10e-6 + 2 * parameters / rate(made)
    adam = 30 * parameters / made.cluster.host_memory_bandwidth
    step = estimate(plain).seconds[Kind.OPTIMIZER, 0]
    whole = simulate(plain).report.step_time - step + 2 * copy + adam
    assert run.report.step_time == pytest.approx(whole, rel=1e-12)
    assert run.report.split.data[0] == pytest.approx(2 * copy, rel=1e-9)
    assert run.report.split.optimizer[0] == pytest.approx(adam, rel=1e-9)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_n_gpus_of_a_node_that_share_its_drives_take_n_times_as_long(gpus):
    alone, shared = (simulate(job("nvme", dp=dp)) for dp in (1, gpus))
    took = [np.diff(spans(run, Kind.UNSHARD), axis=0)[0, 0] - 110e-6 for run in (alone, shared)]
    assert took[0] == pytest.approx(24 * stage_parameters(alone.job)[0] / 25e9, rel=1e-9)
    assert took[1] == pytest.approx(gpus * took[0], rel=1e-9)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_pipeline_ranks_of_a_node_keep_its_drives_busy_until_all_states_are_written(pp):
    run = simulate(job("nvme", pp=pp, num_microbatches=2 * pp))
    start, end = spans(run, Kind.UNSHARD)
    states = 24 * np.array(stage_parameters(run.job))
    assert run.report.executor == "events"
    busy = end.max() - start.min() - 110e-6
    assert busy == pytest.approx(states.sum() / 25e9, rel=1e-9)
    lone = np.diff(spans(simulate(run.job, "longest_path"), Kind.UNSHARD), axis=0)[0]
    assert lone == pytest.approx(110e-6 + states / 25e9, rel=1e-9)


def test_pipeline_ranks_on_nodes_of_their_own_do_not_slow_each_other():
    run = simulate(job("nvme", tp=8, pp=2, num_nodes=2, num_microbatches=4))
    took = np.diff(spans(run, Kind.UNSHARD), axis=0)[0]
    states = 8 * 24 * np.array(stage_parameters(run.job))
    assert took == pytest.approx(110e-6 + states / 25e9, rel=1e-9)
    assert run.report.executor == "longest_path"


def test_two_chunks_of_a_gpu_share_its_host_link():
    made = job("cpu", schedule="interleaved", pp=2, vpp=2, num_microbatches=4)
    down = spans(simulate(made), Kind.REDUCE_GRAD)
    copied = 2 * np.array(stage_parameters(made)) / rate(made)
    for chunks in ([0, 2], [1, 3]):
        begin, end = down[0, chunks], down[1, chunks]
        assert begin[0] == begin[1]
        assert end.max() - begin[0] == pytest.approx(10e-6 + copied[chunks].sum(), rel=1e-9)
        assert end.min() - begin[0] == pytest.approx(10e-6 + 2 * copied[chunks].min(), rel=1e-9)


def test_copies_go_beside_the_ring_and_the_slower_of_both_counts():
    made = job("cpu", dp=8, zero_stage=1)
    run, plain = simulate(made), simulate(job("none", dp=8, zero_stage=1))
    copy = 2 * kept(made)[0] / rate(made)
    for kind in (Kind.REDUCE_GRAD, Kind.UNSHARD):
        ring, both = (np.diff(spans(one, kind), axis=0)[0, 0] for one in (plain, run))
        wire = _wire(plain, kind)
        assert both == pytest.approx(10e-6 + (ring - wire) + max(wire, copy), rel=1e-9)
        assert (wire > copy) == (kind == Kind.REDUCE_GRAD)  # 4 bytes x 7 / 8 over the ports


def _wire(run, kind):
    """Time of a collective's bytes over the ports of a node. [s]"""
    costs, port = run.costs, run.job.cluster.intra_node
    buffer = (costs.reduce_bytes if kind == Kind.REDUCE_GRAD else costs.unshard_bytes)[0]
    sent = bytes_on_wire(Collective.ALL_GATHER, buffer, run.plan.dp)
    return sent / (port.bandwidth * port.efficiency)


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"pp": 4, "num_microbatches": 4, "grad_dtype": "bf16"},
        {"dp": 6, "pp": 4, "tp": 2},
        {"dp": 3, "pp": 4, "zero_stage": 1},
        {"dp": 16, "cp": 2, "zero_stage": 1},
        {"dp": 4, "zero_stage": 2},
        {"dp": 16, "zero_stage": 3, "shard_size": 8},
        {"pp": 4, "schedule": "chimera", "num_microbatches": 4, "dp": 2, "zero_stage": 1},
        {"model": "mixtral-8x7b", "dp": 16, "ep": 8, "pp": 2, "zero_stage": 1},
        {"model": "mixtral-8x7b", "dp": 16, "ep": 8, "pp": 2},
    ],
    ids=str,
)
def test_every_gpu_moves_2_bytes_each_way_and_24_to_its_drives_for_each_parameter_it_keeps(plan):
    made = job("nvme", num_nodes=16, **plan)
    costs, homes = estimate(made), homes_of(build(made.plan, estimate(made), 0.0))
    fabric = connect(made, [], homes)
    gpus = made.plan.num_gpus // made.plan.pp  # of a pipeline rank
    for stage, ranks in homes.items():
        held = np.concatenate([np.arange(rank * gpus, (rank + 1) * gpus) for rank in ranks])
        on_node = np.bincount(held // 8)
        moved = []
        for ring, nbytes in (
            (fabric.reduces[stage], costs.reduce_bytes[stage]),
            (fabric.gathers[stage], costs.unshard_bytes[stage]),
        ):
            loads = np.array(ring.route.copies) * ring.share * nbytes
            names = [fabric.names[link] for link in ring.route.links]
            moved.append(dict(zip(names, loads.tolist(), strict=True)))
        down, up = moved
        for rank in ranks:
            each = 2 * kept(made)[stage]
            assert down[f"GPU {rank * gpus} host link out"] == pytest.approx(each, rel=1e-12)
            assert up[f"GPU {rank * gpus} host link in"] == pytest.approx(each, rel=1e-12)
        drives = {name: nbytes for name, nbytes in up.items() if name.endswith("drives")}
        assert not any(name.endswith("drives") for name in down)
        for name, nbytes in drives.items():
            count = on_node[int(name.split()[1])]
            assert nbytes == pytest.approx(12 * each * count, rel=1e-12)
        assert max(drives.values()) == pytest.approx(12 * each * on_node.max(), rel=1e-12)
        shared = {
            int(node) for rank in ranks for node in (rank * gpus // 8, ((rank + 1) * gpus - 1) // 8)
        }
        assert {f"node {node} drives" for node in shared} <= set(drives)


@pytest.mark.parametrize("offload", ["cpu", "nvme"])
@pytest.mark.parametrize(
    ("plan", "contends"),
    [
        ({}, ()),
        ({"dp": 8, "zero_stage": 3}, ()),
        ({"tp": 8, "pp": 2, "num_microbatches": 4}, ()),
        ({"tp": 2, "pp": 4, "num_microbatches": 8}, ("nvme",)),
        ({"pp": 4, "num_microbatches": 8, "p2p": "blocking", "dp": 3, "zero_stage": 1}, ("nvme",)),
        ({"tp": 8, "pp": 2, "dp": 2, "num_microbatches": 4, "zero_stage": 1}, ("cpu", "nvme")),
        (
            {"pp": 2, "vpp": 2, "num_microbatches": 4, "schedule": "interleaved", "dp": 3},
            ("cpu", "nvme"),
        ),
        (
            {"pp": 4, "schedule": "chimera", "num_microbatches": 4, "dp": 2, "zero_stage": 1},
            ("cpu", "nvme"),
        ),
    ],
    ids=str,
)
def test_executors_agree_on_offloaded_jobs_to_1e_9(offload, plan, contends):
    made = job(offload, num_nodes=8, **plan)
    alone, events, engine = (simulate(made, one) for one in EACH)
    assert (alone.report.executor != "longest_path") == (offload in contends)
    pairs = [(events, engine), (simulate(made), engine)]
    if offload not in contends:
        pairs.append((alone, engine))
    for one, other in pairs:
        for column in ("rank", "stage", "kind", "microbatch"):
            assert np.array_equal(getattr(one.timeline, column), getattr(other.timeline, column))
        step = other.report.step_time
        for column in ("start", "end"):
            ours, theirs = getattr(one.timeline, column), getattr(other.timeline, column)
            assert np.abs(ours - theirs).max() <= 1e-9 * step
    assert alone.report.step_time <= engine.report.step_time * (1 + 1e-12)


def test_bucketed_gradients_go_down_beside_the_last_backward():
    late = job("cpu", num_microbatches=2)
    early = with_plan(late, {"overlap_grad_reduce": True})  # kept on one GPU, where it has effect
    assert early.plan.overlap_grad_reduce
    slow, fast = simulate(late), simulate(early)
    gain = slow.report.step_time - fast.report.step_time
    copy = 2 * stage_parameters(late)[0] / rate(late)
    assert 0.5 * copy < gain < copy
    assert fast.costs.unshard_bytes[0] == slow.costs.unshard_bytes[0]


def test_updates_within_the_rows_keep_their_copies_in_the_optimizers_time():
    made = job("nvme", pp=4, num_microbatches=8, schedule="pipedream")
    seconds = estimate(made).seconds[Kind.OPTIMIZER]
    parameters = np.array(stage_parameters(made))
    copies = 2 * (10e-6 + 2 * parameters / rate(made))
    drives = 100e-6 + 24 * parameters * 4 / 25e9
    assert seconds == pytest.approx(copies + drives)
    assert not (simulate(made).timeline.kind == Kind.UNSHARD).any()


def test_what_is_known_of_wires_tells_offloaded_plans_apart():
    known, found = Known(), []
    for offload in ("none", "cpu", "nvme", "cpu"):
        made = job(offload, pp=4, num_microbatches=8, dp=2, zero_stage=1)
        shape = shape_of(made.plan)
        wires = known.wire(made, shape)
        fresh = wires_of(made, shape)
        assert all(np.array_equal(ours, new) for ours, new in zip(wires, fresh, strict=True))
        found.append(wires.sync_pace)
    assert (found[0] <= found[1]).all()
    assert (found[1][1] < found[2][1]).all()
    assert np.array_equal(found[1], found[3])


def test_the_busiest_link_of_a_zero_infinity_step_is_the_nodes_drives():
    run = simulate(job("nvme", pp=4, num_microbatches=8))
    use = link_use(run, 200)
    assert use.names[use.busiest] == "node 0 drives"
    seconds = use.share[use.busiest].sum() * use.width
    assert seconds == pytest.approx(24 * sum(stage_parameters(run.job)) / 25e9, rel=1e-3)
    assert {"GPU 0 host link out", "GPU 3 host link in"} <= set(use.names)
