"""Context parallelism: what each GPU computes, keeps and passes on."""

import pytest

from simulator.costs import estimate
from simulator.costs.activations import layer_bytes
from simulator.costs.communication import Collective, group_of, group_seconds, p2p_seconds
from simulator.costs.compute import core_operators
from simulator.costs.context import context_exchange
from simulator.costs.layers import hidden_share
from simulator.load import job_from_options
from simulator.schedule import Kind
from simulator.simulate import simulate

LONG = {"model": "llama3-8b", "cluster": "dgx-h100", "num_nodes": 4, "attention": "flash"}


def job(**plan):
    return job_from_options(LONG | plan)


def test_two_gpus_keep_half_of_the_activations_each():
    assert layer_bytes(job(cp=2)) == layer_bytes(job()) / 2


def test_the_attention_of_8_gpus_over_64k_tokens_adds_up_to_that_of_one_within_10_percent():
    seconds = []
    for cp in (1, 8):
        plan = job(cp=cp)
        plan = plan.model_copy(update={"model": plan.model.model_copy(update={"seq_len": 2**16})})
        seconds.append(cp * sum(operator.forward for operator in core_operators(plan)))
    assert seconds[0] <= seconds[1] < 1.1 * seconds[0]


def test_a_gather_of_keys_and_values_moves_4_kv_bytes_a_token():
    plan = job(cp=4, cp_comm="all_gather")
    nbytes = 2 * 2 * 8 * 128 * 8192  # 16 bits, keys and values, 8 heads of 128, 8192 tokens
    group = group_of(4, 1, plan.cluster)
    gather, scatter = (
        group_seconds(kind, nbytes, group, plan.cluster)
        for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )
    assert context_exchange(plan) == (gather, gather + scatter)


def test_a_ring_inside_a_node_hides_behind_attention_but_for_the_sms_it_takes():
    plan = job(cp=4)
    nbytes = 2 * 2 * 8 * 128 * 2048
    passed = p2p_seconds(nbytes, plan.cluster.intra_node)
    assert passed < sum(operator.forward for operator in core_operators(plan)) / 4
    shown = context_exchange(plan)
    assert shown.forward == pytest.approx(3 * passed * (1 - hidden_share(plan)))


def test_a_ring_shows_more_where_sequences_are_short():
    share = []
    for seq_len in (2048, 32768):
        short = job_from_options({**LONG, "model": "llama3-8b", "cp": 16})
        model = short.model.model_copy(update={"seq_len": seq_len})
        short = short.model_copy(update={"model": model})
        core = sum(operator.forward for operator in core_operators(short))
        share.append(context_exchange(short).forward / core)
    assert share[0] > 2 * share[1]


def test_context_parallel_peers_reduce_gradients_like_data_parallel_ones():
    costs = [estimate(job(**plan)) for plan in ({"cp": 2, "dp": 4}, {"dp": 8})]
    assert (costs[0].reduce_bytes == costs[1].reduce_bytes).all()
    spans = [
        simulate(job(cp=c, dp=d, num_microbatches=2)).timeline.of(Kind.REDUCE_GRAD)
        for c, d in ((2, 4), (1, 8))
    ]
    assert spans[0].end[0] - spans[0].start[0] == pytest.approx(spans[1].end[0] - spans[1].start[0])


def test_a_sequence_over_4_gpus_takes_between_a_quarter_and_a_half_of_the_time():
    whole, cut = (simulate(job(cp=cp, num_microbatches=8)).report.step_time for cp in (1, 4))
    assert 0.25 * whole < cut < 0.5 * whole


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"cp": 3}, "2 x plan.cp is 6, but it must divide model.seq_len = 8192"),
        ({"cp_comm": "all_gather"}, "cp_comm is all_gather, but plan.cp is 1: it would have no"),
        (
            {"cp": 2, "num_slices": 4},
            "plan.num_slices is 4 and plan.cp is 2: both cut the sequence",
        ),
    ],
    ids=str,
)
def test_refusals_name_the_value_the_rule_and_the_way_out(plan, says):
    with pytest.raises(ValueError, match=says):
        job(**plan)
