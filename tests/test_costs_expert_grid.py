"""Experts on a grid of their own: which GPUs, what each holds, and what crosses which links."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs import estimate
from simulator.costs.activations import layer_bytes
from simulator.costs.communication import (
    EXCHANGE_SHARE,
    Collective,
    bytes_on_wire,
    group_of,
    group_seconds,
)
from simulator.costs.context import expert_exchange
from simulator.costs.expert_rings import expert_pace, expert_ring_seconds
from simulator.costs.experts import routed_tokens
from simulator.costs.parameters import expert_parameters, stage_experts, stage_parameters
from simulator.job import Link
from simulator.load import job_from_options, load_cluster
from simulator.schedule import Kind
from simulator.simulate import simulate

DEEPSEEK = {"model": "deepseek-v3", "cluster": "dgx-h100", "num_nodes": 512}
SPLIT = (4,) * 15 + (1,)
MIXTRAL = {"model": "mixtral-8x7b", "cluster": "dgx-h100", "num_nodes": 16}
SPREAD = {"tp": 4, "sequence_parallel": True, "etp": 1}
PARAMETERS = 7168, 2048, 256  # of DeepSeek-V3: hidden size, an expert's width, experts


def job(base=MIXTRAL, **plan):
    return job_from_options(base | plan)


def groups(shape, axis):
    """The GPUs of each group along one axis of a grid, (edp, ep, etp), the last fastest."""
    gpus = np.arange(np.prod(shape)).reshape(shape)
    return np.moveaxis(gpus, axis, -1).reshape(-1, shape[axis])


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 6))
def test_groups_of_the_expert_grid_lie_on_the_nodes_that_counting_them_finds(etp, ep, edp):
    cluster = load_cluster("dgx-h100")
    for axis, size, stride in ((1, ep, etp), (0, edp, etp * ep)):
        members = groups((edp, ep, etp), axis)[0] // 8
        group = group_of(size, stride, cluster)
        assert group.num_nodes == len(np.unique(members))
        assert group.nics_share == np.bincount(members).max()  # a NIC for each GPU


@pytest.mark.parametrize(
    ("plan", "edp"),
    [
        ({"tp": 2, "dp": 16, "ep": 8}, 2),
        ({"tp": 2, "dp": 16, "ep": 8, "etp": 1, "sequence_parallel": True}, 4),
        ({"tp": 8, "dp": 1, "ep": 8, "etp": 1, "sequence_parallel": True}, 1),
        ({"tp": 8, "dp": 2, "ep": 1, "etp": 1, "sequence_parallel": True}, 16),
    ],
)
def test_etp_times_ep_times_edp_are_the_gpus_of_a_pipeline_rank(plan, edp):
    made = job(**plan).plan
    assert made.expert_replicas == edp
    assert made.expert_tp * made.ep * edp == made.tp * made.cp * made.dp


def test_experts_split_as_the_rest_are_the_default():
    plan = {"tp": 2, "dp": 8, "ep": 4, "sequence_parallel": True, "zero_stage": 1}
    ours, theirs = (estimate(job(**plan, **more)) for more in ({}, {"etp": 2}))
    for name in ("seconds", "reduce_bytes", "optimizer_bytes", "activation_bytes"):
        assert (getattr(ours, name) == getattr(theirs, name)).all()


@pytest.mark.parametrize(("etp", "ep"), [(None, 64), (1, 64), (1, 256), (4, 16)])
def test_deepseek_v3_has_671e9_parameters_whatever_gpus_hold_them(etp, ep):
    plan = {"pp": 16, "tp": 4, "dp": 64, "sequence_parallel": True, "layers_per_stage": SPLIT}
    made = job(DEEPSEEK, **plan, ep=ep, etp=etp)
    experts, whole = sum(stage_experts(made)), sum(stage_parameters(made))
    gpus = made.plan.tp * made.plan.dp  # of each pipeline rank
    hidden, width, count = PARAMETERS
    assert experts * gpus == 58 * count * 3 * hidden * width * made.plan.expert_replicas
    # what is left is split over tp alone, but for norms, routers and ways down to latent vectors
    twice = sum(stage_parameters(job(DEEPSEEK, **plan | {"tp": 1, "sequence_parallel": False})))
    left = twice - 58 * count * 3 * hidden * width
    assert left / 4 < whole - experts < left / 4 * 1.5
    assert made.model.num_parameters == 58 * count * 3 * hidden * width + left


def test_a_gpu_of_deepseek_v3_holds_4_experts_of_each_layer_at_ep_64_and_1_at_256():
    one = 3 * 7168 * 2048
    model = job(DEEPSEEK, pp=16, dp=64, ep=64, layers_per_stage=SPLIT).model
    assert expert_parameters(model, ep=64) == 4 * one
    assert expert_parameters(model, etp=4, ep=64) == one
    assert expert_parameters(model, ep=256) == one


def bytes_dealt(tokens, copies, experts, ep, rng):
    """Bytes that GPU 0 sends to others, each token's copies dealt to experts one by one."""
    home = np.arange(experts) // (experts // ep)
    chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :copies]
    return 2 * 7168 * np.count_nonzero(home[chosen] != 0)


@pytest.mark.parametrize(("tp", "etp", "ep"), [(1, 1, 8), (4, 1, 32), (4, 4, 8), (2, 1, 64)])
def test_bytes_of_deepseek_v3s_all_to_all_are_those_of_tokens_dealt_one_by_one(tp, etp, ep):
    """Slow links without latency: time is bytes. The H100's nodes are made one large node."""
    plan = {"pp": 16, "tp": tp, "dp": 64, "ep": ep, "sequence_parallel": tp > 1}
    made = job(DEEPSEEK, **plan, etp=etp, layers_per_stage=SPLIT)
    slow = Link(bandwidth=1e6, latency=0)
    cluster = made.cluster.model_copy(update={"intra_node": slow, "gpus_per_node": 256})
    made = made.model_copy(update={"cluster": cluster})
    dealt = bytes_dealt(4096 // tp, 8, 256, ep, np.random.default_rng(0))
    closed = 2 * 7168 * 8 * (4096 / tp) * (ep - 1) / ep
    assert dealt == pytest.approx(closed, rel=0.02)
    gathered = 2 * bytes_on_wire(Collective.ALL_GATHER, 2 * 7168 * 8 * 4096, etp) if etp > 1 else 0
    seconds = 2 * closed / (EXCHANGE_SHARE * 1e6) + gathered / 1e6
    copied = 0.45 / etp * 2 * 7168 * 8 * 4096 / 1e6 * 2 * (etp > 1)  # a ring copies its own part
    assert expert_exchange(made).forward == pytest.approx(seconds + copied, rel=1e-3)


def test_whole_experts_in_a_tensor_parallel_group_need_no_gather():
    made = job(**SPREAD, dp=4, ep=8)
    nbytes = 2 * 2 * 4096 * 4096 / 4  # two experts for each of a quarter of the tokens
    once = group_seconds(Collective.ALL_TO_ALL, nbytes, group_of(8, 1, made.cluster), made.cluster)
    assert expert_exchange(made) == (2 * once, 2 * once)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_experts_multiply_as_much_at_any_etp(tp, ep):
    plan = {"tp": tp, "dp": 8, "ep": ep, "sequence_parallel": tp > 1}
    split, whole = (job(**plan, etp=etp) for etp in (tp, 1))
    flops = [routed_tokens(one) * 14336 / one.plan.expert_tp for one in (split, whole)]
    assert flops[0] == flops[1] == 2 * 4096 * 14336 / tp


def test_a_gpu_with_whole_experts_keeps_the_rows_of_its_own_tokens_alone():
    split, whole = (job(tp=4, dp=4, ep=4, sequence_parallel=True, etp=etp) for etp in (4, 1))
    rows = 2 * 2 * 4096 * 4096 * 2  # come and gone, two copies of 4096 tokens in 16 bits
    assert layer_bytes(split) - layer_bytes(whole) == pytest.approx(rows * 3 / 4)


def test_rings_of_experts_have_one_nic_each_where_the_rest_has_8():
    """ep = 8 fills a node: each of 8 rings goes over its own NIC, through 8 nodes."""
    made = job(dp=64, ep=8)
    rest, nic = np.arange(64), 50e9 * 0.95
    crossing = np.count_nonzero(rest // 8 != np.roll(rest, -1) // 8) / 8  # hops out of each node
    by_rest = 63 / 64 * crossing / 8 / nic  # of the buffer, on each of 8 NICs
    by_rest = max(by_rest, 63 / 64 / (450e9 * 0.81))  # which are a little faster than a port
    own = groups((8, 8, 1), 0)
    hops = np.stack([own, np.roll(own, -1, axis=1)])
    out = np.bincount(own[hops[0] // 8 != hops[1] // 8], minlength=64)
    by_experts = 7 / 8 * out.max() / nic
    assert expert_pace(made) == pytest.approx(by_experts / by_rest, rel=0.01)
    assert by_experts / by_rest == pytest.approx(6.82, abs=0.01)


def test_gradients_of_experts_take_as_long_as_their_rings_do():
    """Nothing overlaps: 63/64 of the rest over 8 NICs, 7/8 of the experts over one."""
    made = job(dp=64, ep=8, pp=1, zero_stage=1, grad_dtype="bf16")
    experts = stage_experts(made)[0]
    rest = stage_parameters(made)[0] - experts
    nic = 50e9 * 0.95
    expected = 2 * rest * 63 / 64 / (8 * nic) + 2 * experts * 7 / 8 / nic
    timeline = simulate(made).timeline
    reduce = timeline.kind == Kind.REDUCE_GRAD
    assert (timeline.end - timeline.start)[reduce][0] == pytest.approx(expected, rel=0.01)


def test_experts_on_all_gpus_once_have_nothing_to_reduce():
    made = job(tp=2, dp=4, ep=8, etp=1, sequence_parallel=True)
    assert made.plan.expert_replicas == 1
    assert expert_pace(made) == 0
    rest = stage_parameters(made)[0] - stage_experts(made)[0]
    assert estimate(made).reduce_bytes[0] == pytest.approx(4 * rest)


@pytest.mark.parametrize(("etp", "edp"), [(None, 2), (1, 4)])
def test_the_optimizer_of_experts_is_split_over_edp(etp, edp):
    made = job(tp=2, dp=16, ep=8, etp=etp, sequence_parallel=True, zero_stage=1)
    experts = stage_experts(made)[0]
    rest = stage_parameters(made)[0] - experts
    costs = estimate(made)
    assert costs.optimizer_bytes[0] == pytest.approx(12 * (rest / 16 + experts / edp))


def test_copies_of_experts_within_one_tensor_parallel_group_are_reduced_there():
    made = job(tp=8, dp=1, ep=4, etp=1, sequence_parallel=True)
    alone = job(tp=8, dp=1, ep=8, etp=1, sequence_parallel=True)
    nbytes = 4 * stage_experts(made)[0]
    seconds = expert_ring_seconds(Collective.ALL_REDUCE, nbytes, made)
    assert seconds > 0.05
    assert estimate(made).tensor_seconds[Kind.OPTIMIZER, 0] == pytest.approx(seconds)
    assert estimate(alone).tensor_seconds[Kind.OPTIMIZER, 0] == 0


def test_whole_experts_are_faster_than_split_ones_where_tensor_parallelism_is_wide():
    """Four quarters of an expert take all tokens of four GPUs, gathered; four experts do not."""
    split, whole = (
        estimate(job(tp=4, dp=8, ep=8, sequence_parallel=True, etp=etp)).seconds[Kind.F, 0]
        for etp in (4, 1)
    )
    assert whole < 0.9 * split


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"tp": 4, "dp": 2, "etp": 2}, "plan.etp is 2, but plan.tp is 4; experts are whole"),
        (SPREAD | {"ep": 8}, "ep is 8, but it must divide plan.tp x plan.cp x plan.dp = 4"),
        ({"tp": 2, "dp": 8, "ep": 8, "etp": 1}, "without plan.sequence_parallel"),
        ({"model": "llama3-8b", "etp": 1}, "plan.etp is 1, but Llama 3 8B has no experts"),
        (
            SPREAD | {"dp": 8, "zero_stage": 3, "shard_size": 4},
            "plan.shard_size is 4 and plan.etp is 1",
        ),
    ],
    ids=str,
)
def test_refusals_name_the_value_the_rule_and_the_way_out(plan, says):
    with pytest.raises(ValueError, match=says):
        job(**plan)
