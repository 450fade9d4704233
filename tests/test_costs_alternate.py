"""Recomputation of every second product, experts issued one by one, inputs kept in fp8."""

import pytest

from simulator.costs.activations import saved_layer_bytes
from simulator.costs.compute import layer_operators
from simulator.costs.flops import hardware_flops, layer_flops
from simulator.costs.host import host_seconds
from simulator.costs.layers import layer_costs
from simulator.job import Job, Plan
from simulator.load import load_cluster, load_model


def job_of(model="llama3-8b", **plan):
    cluster = load_cluster("dgx-h100").model_copy(update={"num_nodes": 1})
    return Job(model=load_model(model), cluster=cluster, plan=Plan(**plan))


def test_alternate_repeats_keys_projection_one_way_up_and_what_is_no_product():
    """Of q, k, v, projection, gate, up and down the second, fourth and sixth: 1 + 4 + 14 of 53."""
    job = job_of(recompute="alternate")
    time = {operator.name: operator.forward for operator in layer_operators(job)}
    products = time["qkv"] / 6 + time["projection"] + time["mlp up"] / 2
    plain = ("attention norm", "mlp norm", "rotary positions", "activation", "attention residual")
    assert layer_costs(job).layer.again == pytest.approx(
        products + sum(time[name] for name in plain)
    )


def test_alternate_keeps_input_queries_values_context_one_wide_tensor_and_output():
    """2 (4096 + 4096 + 1024 + 4096 + 14336 + 4096) bytes a token, and 4 x 32 of flash attention."""
    tokens = 8192
    expected = tokens * (2 * (4096 + 4096 + 1024 + 4096 + 14336 + 4096) + 4 * 32)
    assert saved_layer_bytes(job_of(recompute="alternate")) == expected


def test_alternate_lies_between_none_and_full_in_time_and_memory():
    found = [job_of(recompute=how) for how in ("none", "alternate", "full")]
    again = [layer_costs(job).layer.again for job in found]
    kept = [saved_layer_bytes(job) for job in found]
    assert again[0] < again[1] < again[2]
    assert kept[0] > kept[1] > kept[2]
    flops = [hardware_flops(job) for job in found]
    model = found[0].model
    per = layer_flops(model)
    more = per["qkv"] / 6 + per["projection"] + per["mlp"] / 3
    assert flops[1] - flops[0] == pytest.approx(model.num_hidden_layers * more)
    assert flops[1] < flops[2]


@pytest.mark.parametrize(("ep", "local"), [(1, 128), (2, 64), (8, 16)])
def test_in_fp8_the_host_issues_two_grouped_products_expert_by_expert(ep, local):
    """2 (experts - 1) operators of 62 us more than in bf16."""
    times = [
        host_seconds(job_of("qwen3-30b-a3b", dtype=dtype, ep=ep, dp=8, framework="nemo-2"))
        for dtype in ("bf16", "fp8")
    ]
    assert times[1] - times[0] == pytest.approx(2 * (local - 1) * 62e-6)


def test_experts_over_gpus_cost_the_host_two_exchanges():
    one, two = (
        host_seconds(job_of("qwen3-30b-a3b", ep=ep, dp=8, framework="nemo-2")) for ep in (1, 8)
    )
    assert two - one == pytest.approx(2 * 62e-6)


def test_transformer_engine_keeps_inputs_of_fp8_products_in_8_bits():
    """Two norms' outputs, 2 x 4096, and the wide input, 14336, less 4096 kept twice."""
    kept = {
        (dtype, name): saved_layer_bytes(job_of(dtype=dtype, framework=name))
        for dtype in ("bf16", "fp8")
        for name in ("nemo-2", "torchtitan")
    }
    spared = kept["bf16", "nemo-2"] - kept["fp8", "nemo-2"]
    assert spared == 8192 * (2 * 4096 + 14336 - 4096)
    assert kept["bf16", "torchtitan"] == kept["fp8", "torchtitan"]


def test_flash_attention_cannot_be_selective_and_the_error_names_alternate():
    with pytest.raises(ValueError, match='use recompute = "none", "alternate" or "full"'):
        Plan(recompute="selective")
