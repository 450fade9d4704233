"""Experts: parameters, FLOPs, memory, and what an expert-parallel group exchanges."""

import pytest

from simulator.costs import estimate
from simulator.costs.activations import layer_bytes
from simulator.costs.communication import Collective, group_of, group_seconds
from simulator.costs.context import expert_exchange
from simulator.costs.flops import layer_flops, model_flops
from simulator.costs.host import host_times
from simulator.costs.parameters import expert_parameters, layer_parameters, stage_parameters
from simulator.job import Model
from simulator.load import job_from_options, load_model
from simulator.schedule import Kind
from simulator.simulate import simulate

MIXTRAL = {"model": "mixtral-8x7b", "cluster": "dgx-h100", "num_nodes": 8}
DEEPSEEK = {"model": "deepseek-v3", "cluster": "dgx-h100", "num_nodes": 256}
SPLIT = (4,) * 15 + (1,)


def job(base=MIXTRAL, **plan):
    return job_from_options(base | plan)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("mixtral-8x7b", 46.7e9, 12.9e9),
        ("mixtral-8x22b", 141e9, 39e9),
        ("deepseek-v3", 671e9, 37.5e9),
    ],
)
def test_parameters_are_those_published(name, total, active):
    model = load_model(name)
    assert model.num_parameters == pytest.approx(total, rel=0.003)
    assert model.num_active_parameters == pytest.approx(active, rel=0.005)


def test_a_step_takes_six_flops_an_active_parameter_besides_attention():
    for name in ("mixtral-8x7b", "deepseek-v3"):
        model = load_model(name)
        core = 3 * model.num_hidden_layers * layer_flops(model)["core"]
        embedding = model.vocab_size * model.hidden_size  # looked up, not multiplied
        weights = model.num_active_parameters - embedding
        rest = (model_flops(model, 1) - core) / (6 * model.seq_len * weights)
        assert rest == pytest.approx(1, rel=1e-4)  # norms have parameters, but no products


def test_eight_gpus_hold_an_expert_of_each_layer_each():
    model = load_model("mixtral-8x7b")
    assert expert_parameters(model, ep=8) == 3 * 4096 * 14336
    less = layer_parameters(model) - layer_parameters(model, ep=8)
    assert less == 7 * 3 * 4096 * 14336


def test_stages_hold_all_parameters_of_a_model_whose_first_layers_are_dense():
    plan = job(DEEPSEEK, pp=16, dp=1, layers_per_stage=SPLIT)
    assert sum(stage_parameters(plan)) == plan.model.num_parameters


def test_experts_of_one_gpu_need_no_reduction_over_their_expert_parallel_group():
    apart, whole = (estimate(job(pp=4, dp=8, ep=ep)) for ep in (8, 1))
    assert apart.reduce_bytes[1] < 0.2 * whole.reduce_bytes[1]
    dense = layer_parameters(load_model("mixtral-8x7b"), ep=8) - 3 * 4096 * 14336
    assert apart.reduce_bytes[1] == pytest.approx(4 * 8 * dense)


def test_the_optimizer_of_experts_is_split_over_dp_by_ep_gpus():
    plan = job(pp=4, dp=16, ep=8, zero_stage=1)
    experts = 8 * 3 * 4096 * 14336
    dense = stage_parameters(plan)[1] - experts
    expected = 12 * (dense / 16 + experts / 2)
    assert estimate(plan).optimizer_bytes[1] == pytest.approx(expected)


def test_two_copies_of_every_token_go_to_the_experts_and_back_twice():
    plan = job(pp=4, dp=8, ep=8)
    nbytes = 2 * 2 * 4096 * 4096  # 16 bits, two experts, 4096 tokens of 4096 elements
    group = group_of(8, 1, plan.cluster)
    once = group_seconds(Collective.ALL_TO_ALL, nbytes, group, plan.cluster)
    assert expert_exchange(plan) == (2 * once, 2 * once)
    costs = estimate(plan)
    assert costs.tensor_seconds[Kind.F, 1] == pytest.approx(8 * 2 * once)


def test_the_busiest_gpu_takes_longer_and_a_capacity_bounds_it():
    steps = [
        simulate(job(pp=4, dp=8, ep=8, num_microbatches=8, **plan)).report.step_time
        for plan in ({}, {"capacity_factor": 1.25}, {"expert_imbalance": 2.0})
    ]
    assert steps[0] < steps[1] < steps[2]


def test_experts_keep_their_inputs_and_outputs_besides_what_a_dense_layer_keeps():
    plan = job()
    tokens, h, f = 4096, 4096, 14336
    attention = 2 * 32 * 128 + 2 * 8 * 128
    expected = 2 * tokens * (4 * h + attention + 2 * 3 * f + 2 * 2 * h) + 4 * tokens * 32
    assert layer_bytes(plan) == expected


def test_outputs_of_experts_are_not_kept_where_their_activation_weights_them():
    kept, spared = (job(framework=name) for name in (None, "nemo-2"))
    assert layer_bytes(kept) - layer_bytes(spared) == 2 * 4096 * 2 * 4096


def test_tokens_that_go_to_at_most_4_nodes_cross_the_network_4_times():
    plan = job(DEEPSEEK, pp=16, dp=64, ep=64, layers_per_stage=SPLIT)
    free = plan.model.model_copy(update={"topk_group": None})
    limited, whole = (
        expert_exchange(one) for one in (plan, plan.model_copy(update={"model": free}))
    )
    assert limited.forward == pytest.approx(whole.forward / 2, rel=0.05)


def test_peers_of_a_tensor_parallel_group_send_their_share_and_gather_the_rest():
    alone, peers = (
        expert_exchange(job(pp=4, dp=4, ep=4, tp=tp, sequence_parallel=tp > 1)) for tp in (1, 2)
    )
    assert peers.forward != alone.forward


def test_an_overlapped_pair_hides_the_exchange():
    plan = {"pp": 8, "dp": 128, "ep": 64, "layers_per_stage": SPLIT, "num_microbatches": 32}
    hidden, shown = (
        simulate(job(DEEPSEEK, vpp=2, schedule=name, **plan)).report.step_time
        for name in ("dualpipe-v", "zb-v")
    )
    assert hidden < 0.95 * shown


@pytest.mark.parametrize(
    ("base", "plan", "says"),
    [
        (MIXTRAL, {"ep": 3, "dp": 3}, "plan.ep is 3, but it must divide model.num_experts = 8"),
        (MIXTRAL, {"ep": 8, "dp": 4}, "plan.ep is 8, but it must divide plan.cp x plan.dp = 4"),
        (MIXTRAL | {"model": "llama3-8b"}, {"ep": 2, "dp": 2}, "has no experts"),
        (MIXTRAL | {"model": "llama3-8b"}, {"capacity_factor": 1.5}, "it would have no effect"),
    ],
    ids=str,
)
def test_refusals_name_the_value_the_rule_and_the_way_out(base, plan, says):
    with pytest.raises(ValueError, match=says):
        job(base, **plan)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok is 8, but there are 4"),
        ({"num_shared_experts": 1}, "num_shared_experts is 1, but model.num_experts is 1"),
        ({"q_lora_rank": 8}, "q_lora_rank is 8, but model.kv_lora_rank is left out"),
        ({"num_experts": 4, "num_dense_layers": 2}, "num_dense_layers is 2 of 2 layers"),
    ],
    ids=str,
)
def test_models_that_contradict_themselves_are_refused(changes, says):
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    with pytest.raises(ValueError, match=says):
        Model.model_validate({"name": "x", "vocab_size": 64, "seq_len": 32, **sizes, **changes})


def test_no_overlapped_pair_is_faster_than_the_host_issues_its_pieces():
    """8 layers of Mixtral on a stage, 6.4 ms more for each than forward and backward alone."""
    plan = job(pp=4, dp=8, ep=8, framework="nemo-2", dtype="bf16", seq_len=256)
    costs, host = estimate(plan), host_times(plan).layer * 2.5
    whole = costs.seconds[Kind.F, 1] + costs.seconds[Kind.B, 1]
    assert costs.pair_time[1] * whole == pytest.approx(8 * (host + 6.4e-3))
    assert costs.pair_time[1] > 1  # of small microbatches: slower than one after the other
    long = estimate(job(pp=4, dp=8, ep=8, framework="nemo-2", dtype="bf16", seq_len=16384))
    assert long.pair_time[1] < 1
