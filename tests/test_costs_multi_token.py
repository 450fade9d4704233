"""Multi-token prediction: one layer, projection and logits more on the last stage."""

import pytest

from simulator.costs import estimate
from simulator.costs.activations import head_bytes, layer_bytes
from simulator.costs.compute import embedding_operators, head_operators, layer_operators
from simulator.costs.context import expert_exchange
from simulator.costs.flops import hardware_flops, layer_flops, logits_flops, model_flops
from simulator.costs.multi_token import join_bytes, join_operators
from simulator.costs.parameters import stage_experts, stage_parameters
from simulator.job import Job
from simulator.load import job_from_options, load_model
from simulator.schedule import Kind
from simulator.simulate import simulate

DEEPSEEK = {"cluster": "gb200-nvl72", "pp": 16, "dp": 8, "ep": 8, "num_microbatches": 32}
LAYERS = {"layers_per_stage": (4,) * 15 + (1,), "framework": "nemo-2"}
HIDDEN, VOCABULARY, TOKENS = 7168, 129280, 4096


def model(modules):
    return load_model("deepseek-v3").model_copy(update={"num_nextn_predict_layers": modules})


def job(modules, **options):
    made = job_from_options({"model": "deepseek-v3"} | DEEPSEEK | LAYERS | options)
    return Job(name=made.name, model=model(modules), cluster=made.cluster, plan=made.plan)


def difference(table, kind):
    """What a module adds to the last stage's op. [s]"""
    return table(job(1))[kind, -1] - table(job(0))[kind, -1]


def test_deepseek_v3_with_its_module_has_11_6_billion_parameters_more():
    """A layer of 11.5 billion, 2 x 7168 x 7168 and three norms; its checkpoint, which has copies of
    embedding and logits too, 685 billion in all."""
    more = model(1).num_parameters - model(0).num_parameters
    assert more == model(0).parameters_per_layer + 2 * HIDDEN**2 + 3 * HIDDEN
    copies = 2 * VOCABULARY * HIDDEN
    assert model(1).num_parameters + copies == pytest.approx(685e9, rel=0.001)


def test_stages_hold_all_parameters_and_the_last_a_copy_of_the_embedding():
    alone = job(1, ep=1)
    copy = VOCABULARY * HIDDEN
    assert sum(stage_parameters(alone)) == alone.model.num_parameters + copy
    one = job(1, pp=1, dp=64, ep=64, layers_per_stage=(61,))
    assert stage_experts(one)[0] == 59 * 256 * 3 * HIDDEN * 2048 / 64


def test_a_step_has_three_times_its_forward_flop_more():
    per = sum(layer_flops(model(1)).values()) + logits_flops(model(1))
    expected = 3 * (per + 2 * TOKENS * 2 * HIDDEN * HIDDEN)
    assert model_flops(model(1), 1) - model_flops(model(0), 1) == pytest.approx(expected)
    full = job(1, recompute="full")
    again = hardware_flops(full) - model_flops(full.model, full.plan.global_batch_size)
    layers = again / full.plan.global_batch_size / sum(layer_flops(model(1)).values())
    assert layers == pytest.approx(62, abs=0.01)  # the router's share of dense layers apart


def test_the_last_stage_runs_a_layer_a_projection_the_logits_and_the_loss_once_more():
    parts = (layer_operators, join_operators, head_operators, embedding_operators)
    operators = [operator for part in parts for operator in part(job(1))]
    exchange = expert_exchange(job(1))
    forward = sum(operator.forward for operator in operators) + exchange.forward
    back = sum(operator.input_grad + operator.weight_grad for operator in operators)
    found = difference(lambda j: estimate(j).seconds, Kind.F)
    assert found == pytest.approx(forward, rel=1e-9)
    backward = difference(lambda j: estimate(j).seconds, Kind.B)
    assert backward == pytest.approx(back + exchange.backward, rel=1e-9)
    first = estimate(job(1)).seconds[:, :-1] - estimate(job(0)).seconds[:, :-1]
    assert not first[Kind.F : Kind.W + 1].any()


def test_the_embeddings_gradient_is_summed_between_first_and_last_stage():
    """Two bytes of 129,280 x 7,168 over NVLink, once a step, as of tied logits."""
    more = estimate(job(1)).tensor_seconds[Kind.OPTIMIZER]
    assert not more[1:-1].any()
    link = job(1).cluster.inter_node  # 128 GPUs lie on two domains
    expected = link.latency + 2 * VOCABULARY * HIDDEN / (link.bandwidth * link.efficiency)
    assert more[0] == more[-1] == pytest.approx(expected)
    assert not estimate(job(0)).tensor_seconds[Kind.OPTIMIZER].any()


def test_the_last_stage_keeps_a_layer_two_states_and_logits_more():
    more = estimate(job(1)).activation_bytes - estimate(job(0)).activation_bytes
    assert not more[:-1].any()
    expected = layer_bytes(job(1)) + join_bytes(job(1)) + head_bytes(job(1))
    assert more[-1] == pytest.approx(expected)
    assert join_bytes(job(1)) == 2 * TOKENS * 4 * HIDDEN


def test_two_modules_cost_twice_what_one_costs():
    none, one, two = (estimate(job(n)) for n in (0, 1, 2))
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        first = one.seconds[kind, -1] - none.seconds[kind, -1]
        assert two.seconds[kind, -1] - one.seconds[kind, -1] == pytest.approx(first)


def test_a_short_last_stage_hides_the_module_a_full_one_does_not():
    """Layers (4, ..., 4, 1) leave it room; even ones make the last stage the slowest."""
    even = {"layers_per_stage": (4,) * 13 + (3, 3, 3)}
    short, full = (
        [simulate(job(n, num_microbatches=128, **layers)).report.step_time for n in (0, 1)]
        for layers in ({}, even)
    )
    assert short[1] / short[0] < 1.02
    assert full[1] / full[0] > 1.08
