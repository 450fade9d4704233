"""ZeRO, FSDP, buckets and offload: bytes, times, and what of them hides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs import buckets as filling
from simulator.costs import estimate, sharding
from simulator.costs.buckets import Held
from simulator.costs.communication import Collective, group_of, group_seconds
from simulator.costs.memory import static_bytes
from simulator.costs.parameters import layer_parameters, stage_parameters
from simulator.job import Link
from simulator.load import job_from_options
from simulator.schedule import Kind
from simulator.simulate import simulate

BASE = {"model": "llama3-8b", "cluster": "dgx-h100", "num_nodes": 16, "recompute": "full"}
HOST = Link(bandwidth=50e9, latency=10e-6)
DRIVES = Link(bandwidth=25e9, latency=100e-6)


def job(**plan):
    return job_from_options(BASE | plan)


def with_cluster(base, **changes):
    return base.model_copy(update={"cluster": base.cluster.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("zero_stage", "nbytes"), [(0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)]
)
def test_a_parameter_takes_18_bytes_less_what_8_gpus_split(zero_stage, nbytes):
    assert sum(static_bytes(1.0, job(dp=8, zero_stage=zero_stage))) == nbytes


def test_hybrid_sharding_splits_over_the_node_alone():
    assert sum(static_bytes(1.0, job(dp=64, zero_stage=3, shard_size=8))) == 18 / 8


def test_gathering_every_layer_twice_and_reducing_it_once_bounds_a_slow_network():
    plan = job(dp=8, zero_stage=3)
    slow = plan.cluster.intra_node.model_copy(update={"bandwidth": 1e9})
    plan = with_cluster(plan, intra_node=slow, switch_reduces=False)
    costs, group = estimate(plan), group_of(8, 1, plan.cluster)
    whole = stage_parameters(plan)[0]
    gather = group_seconds(Collective.ALL_GATHER, 2 * whole, group, plan.cluster)
    reduce = group_seconds(Collective.REDUCE_SCATTER, 4 * whole, group, plan.cluster)
    assert costs.seconds[Kind.F, 0] == pytest.approx(gather, rel=0.1)
    assert costs.seconds[Kind.B, 0] == pytest.approx(gather + reduce, rel=0.1)


def test_a_fast_network_costs_only_its_slow_down():
    alone = estimate(job())
    fast = job(dp=8, zero_stage=3, micro_batch_size=1)
    shared = estimate(fast)
    for kind in (Kind.F, Kind.B):
        assert alone.seconds[kind, 0] < shared.seconds[kind, 0] < 1.15 * alone.seconds[kind, 0]


def test_keeping_the_weights_after_the_forward_saves_the_second_gather():
    again, kept = (
        estimate(job(dp=64, zero_stage=3, reshard_after_forward=reshard)).seconds[Kind.B, 0]
        for reshard in (True, False)
    )
    assert kept < again


def test_hybrid_sharding_gathers_inside_the_node_and_reduces_an_eighth_between_nodes():
    plan = job(dp=64, zero_stage=3, shard_size=8)
    layer = layer_parameters(plan.model)
    inner, outer = group_of(8, 1, plan.cluster), group_of(8, 8, plan.cluster)
    assert (inner.num_nodes, outer.num_nodes) == (1, 8)
    gather = group_seconds(Collective.ALL_GATHER, 2 * layer, inner, plan.cluster)
    assert sharding._gather(layer, plan) == gather
    scatter = group_seconds(Collective.REDUCE_SCATTER, 4 * layer, inner, plan.cluster)
    reduce = group_seconds(Collective.ALL_REDUCE, 4 * layer / 8, outer, plan.cluster)
    assert sharding._reduce(layer, plan) == scatter + reduce


@pytest.mark.parametrize(
    ("zero_stage", "kinds"),
    [
        (0, {Kind.REDUCE_GRAD}),
        (1, {Kind.REDUCE_GRAD, Kind.UNSHARD}),
        (2, {Kind.UNSHARD}),
        (3, set()),
    ],
)
def test_what_is_left_at_the_end_of_a_step_depends_on_what_is_split(zero_stage, kinds):
    timeline = simulate(job(dp=8, zero_stage=zero_stage, num_microbatches=2)).timeline
    found = {kind for kind in (Kind.REDUCE_GRAD, Kind.UNSHARD) if (timeline.kind == kind).any()}
    assert found == kinds


@given(st.integers(1, 60), st.floats(0.01, 10.0), st.floats(0.01, 10.0))
def test_buckets_end_when_walking_them_one_by_one_ends(num_buckets, backward, total):
    plan = job(dp=8)
    parameters = num_buckets * filling._mean_bucket(filling._weights(plan), 40e6)
    clock = 0.0
    for ready in np.arange(1, num_buckets + 1) * backward / num_buckets:
        clock = max(clock, ready) + total / num_buckets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "_reduce", lambda *_: total / num_buckets)
        patch.setattr(sharding, "overlap_share", lambda *_: 1.0)
        shown = sharding._bucketed(Held(parameters, 0.0), 0.0, backward, plan)
    assert shown == pytest.approx(clock - backward)


@pytest.mark.parametrize(
    ("tp", "per_layer"),
    [(1, 3), (2, 2), (8, 1 / 2)],  # tp = 1: down; up and gate; projection with qkv
)
def test_a_layer_of_llama_3_8b_closes_3_buckets_of_40_million_2_at_tp_2_and_half_of_one_at_tp_8(
    tp, per_layer
):
    plan = job(tp=tp, dp=8)
    weights = filling._weights(plan)
    assert sum(weights) == pytest.approx(layer_parameters(plan.model, tp), rel=1e-3)
    buckets = filling._num_buckets(64 * sum(weights), weights, plan)
    assert buckets == pytest.approx(64 * per_layer, rel=0.02)


@given(
    st.lists(st.floats(1.0, 100.0), min_size=1, max_size=5),
    st.floats(0.5, 500.0),
    st.integers(100, 200),
)
def test_buckets_are_as_many_as_filling_them_weight_by_weight_makes(weights, full, layers):
    buckets, held = 0, 0.0
    for weight in weights * layers:
        held += weight
        if held >= full:
            buckets, held = buckets + 1, 0.0
    mean = filling._mean_bucket(tuple(weights), full)
    assert sum(weights) * layers / mean == pytest.approx(buckets, rel=0.15, abs=1.1)


def test_overlapped_buckets_hide_most_of_a_reduction_behind_the_last_backward():
    after, beside = (
        simulate(job(dp=64, num_microbatches=4, overlap_grad_reduce=overlap)).report
        for overlap in (False, True)
    )
    assert beside.split.data.sum() < 0.4 * after.split.data.sum()
    assert beside.step_time < after.step_time


def test_weights_gathered_beside_the_next_forward_show_less():
    shown, hidden = (
        estimate(job(dp=64, zero_stage=1, overlap_param_gather=ahead)).unshard_bytes[0]
        for ahead in (False, True)
    )
    assert hidden < 0.5 * shown


def test_an_offloaded_optimizer_takes_the_hosts_memory_and_its_links_in_the_flows():
    plan = with_cluster(job(dp=8, zero_stage=1), host_link=HOST)
    plan = plan.model_copy(update={"plan": plan.plan.model_copy(update={"offload": "cpu"})})
    costs, share = estimate(plan), stage_parameters(plan)[0] / 8
    assert costs.seconds[Kind.OPTIMIZER, 0] == pytest.approx(30 * share * 8 / 200e9)
    assert costs.optimizer_bytes[0] == 0
    gather = simulate(plan).timeline.of(Kind.UNSHARD)
    port = 8.4e-6 + 7 * plan.cluster.intra_node.latency
    assert (gather.end - gather.start)[0] == pytest.approx(port + 10e-6 + 2 * share / 50e9)


@pytest.mark.parametrize("memory", [200e9, 10e9])
def test_the_slower_of_drives_and_host_bounds_the_step_and_its_copies_are_beside_it(memory):
    plan = with_cluster(
        job(dp=8, zero_stage=1), host_link=HOST, nvme=DRIVES, host_memory_bandwidth=memory
    )
    plan = plan.model_copy(update={"plan": plan.plan.model_copy(update={"offload": "nvme"})})
    share = stage_parameters(plan)[0] / 8
    timeline = simulate(plan).timeline
    took = timeline.of(Kind.UNSHARD).end[0] - timeline.of(Kind.OPTIMIZER).start[0]
    port = 8.4e-6 + 7 * plan.cluster.intra_node.latency
    slower = max(24 * share * 8 / 25e9, 30 * share * 8 / memory)
    assert took == pytest.approx(port + 10e-6 + 100e-6 + slower)


def test_offloaded_activations_leave_two_layers_of_32_on_the_gpu():
    plan = job(recompute="none")
    away = with_cluster(plan, host_link=HOST)
    away = away.model_copy(
        update={"plan": away.plan.model_copy(update={"offload_activations": True})}
    )
    kept, left = (estimate(one).activation_bytes[0] for one in (plan, away))
    assert left == pytest.approx(kept * 2 / 32)
    assert estimate(away).seconds[Kind.F, 0] > estimate(plan).seconds[Kind.F, 0]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"zero_stage": 3}, "zero_stage is 3, but plan.dp is 1: it would have no effect"),
        ({"dp": 4, "zero_stage": 2, "pp": 2}, "use zero_stage 1, or 3"),
        ({"dp": 4, "shard_size": 2}, "shard_size is 2, but plan.zero_stage is 0"),
        ({"dp": 4, "zero_stage": 3, "shard_size": 3}, "plan.shard_size is 3, but it must divide"),
        (
            {"offload": "cpu", "cluster": "cloud-a100-4x100"},
            "plan.offload is cpu, but AWS p4d, 8 A100 40GB states no cluster.host_link",
        ),
        ({"dp": 2, "overlap_param_gather": True}, "overlap_param_gather is true, but plan.zero"),
        ({"recompute": "none", "recompute_method": "block"}, "are ways of full recomputation"),
    ],
    ids=str,
)
def test_refusals_name_the_value_the_rule_and_the_way_out(plan, says):
    with pytest.raises(ValueError, match=says):
        job(**plan)


def test_a_schedule_that_holds_stages_twice_cannot_split_gradients():
    with pytest.raises(ValueError, match="holds every stage on 2 ranks"):
        simulate(job(schedule="chimera", pp=4, dp=2, zero_stage=3, num_microbatches=4))


def test_blocks_recompute_the_first_layers_and_keep_the_rest():
    every, five = (estimate(job(recompute_method="block", recompute_num_layers=n)) for n in (32, 5))
    whole = estimate(job())
    assert every.seconds[Kind.B, 0] == whole.seconds[Kind.B, 0]
    assert five.recompute_seconds[0] == pytest.approx(whole.recompute_seconds[0] * 5 / 32)
    none = estimate(job(recompute="none"))
    assert whole.activation_bytes[0] < five.activation_bytes[0] < none.activation_bytes[0]


def test_uniform_chunks_of_4_layers_keep_a_quarter_of_the_inputs_and_recompute_4_at_once():
    one, four = (estimate(job(recompute_num_layers=n)) for n in (1, 4))
    plan = job()
    inputs = 2 * plan.model.seq_len * plan.model.hidden_size
    assert one.activation_bytes[0] - four.activation_bytes[0] == 24 * inputs
    assert four.seconds[Kind.B, 0] == one.seconds[Kind.B, 0]
