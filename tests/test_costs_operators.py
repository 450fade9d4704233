"""Operators: fused or not, experts, latent attention, fp8; and the host that issues them."""

import numpy as np
import pytest

from simulator import frameworks
from simulator.costs import estimate, host, operators
from simulator.costs.compute import (
    core_operators,
    dense_layer_operators,
    head_operators,
    layer_operators,
)
from simulator.costs.flops import layer_flops
from simulator.costs.layers import layer_costs
from simulator.frameworks import PLAIN
from simulator.job import Job, Model, Plan
from simulator.load import load_cluster
from simulator.schedule import Kind

LLAMA = Model(
    name="Llama",
    num_hidden_layers=8,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14336,
    vocab_size=128256,
    seq_len=8192,
    gated_mlp=True,
)
MIXTRAL = LLAMA.model_copy(update={"num_experts": 8, "num_experts_per_tok": 2})


def job_of(model=LLAMA, cluster="dgx-h100", **plan):
    made = Plan(**plan)
    node = load_cluster(cluster)
    nodes = -(-made.num_gpus // node.gpus_per_node)
    return Job(model=model, cluster=node.model_copy(update={"num_nodes": nodes}), plan=made)


@pytest.fixture
def profile(monkeypatch):
    """Every plan follows a profile with some switches changed."""

    def follow(**switches):
        made = PLAIN.model_copy(update=switches)
        for module in (frameworks, operators):
            monkeypatch.setattr(module, "load_framework", lambda _name: made)

    return follow


def seconds_of(job, name, part="forward"):
    return sum(getattr(o, part) for o in layer_operators(job) if o.name == name)


def bandwidth(job):
    gpu = job.cluster.gpu
    return gpu.memory_bandwidth * gpu.memory_efficiency


def test_apart_swiglu_moves_10_bytes_an_element_forward_instead_of_6(profile):
    job = job_of()
    elements = 8192 * 14336
    fused = seconds_of(job, "activation")
    profile(fused_activation=False)
    more = seconds_of(job, "activation") - fused
    assert more * bandwidth(job) / elements == pytest.approx(10 - 6, rel=0.05)


def test_apart_a_gradient_is_added_with_10_bytes_a_parameter_instead_of_3(profile):
    job = job_of()
    fused = seconds_of(job, "mlp down", "weight_grad")
    profile(fused_accumulation=False)
    more = seconds_of(job, "mlp down", "weight_grad") - fused
    assert more * bandwidth(job) / (4096 * 14336) == pytest.approx(10 - 3, rel=1e-6)


def test_the_loss_moves_8_36_or_52_bytes_a_logit(profile):
    job = job_of(micro_batch_size=4)
    logits = 4 * 8192 * 128256
    for switches, nbytes in (
        ({}, 52),
        ({"sharded_cross_entropy": False}, 36),
        ({"fused_cross_entropy": True}, 8),
    ):
        profile(**switches)
        loss = head_operators(job)[-1]
        found = (loss.forward + loss.input_grad) * bandwidth(job) / logits
        assert found == pytest.approx(nbytes, rel=0.01)


def test_norms_and_rotary_positions_in_plain_kernels_cost_over_4_times_as_much(profile):
    job = job_of()
    fused = [seconds_of(job, name) for name in ("mlp norm", "rotary positions")]
    profile(fused_norm=False, fused_rotary=False)
    for name, before in zip(("mlp norm", "rotary positions"), fused, strict=True):
        assert seconds_of(job, name) > 2.5 * before


def test_megatron_of_2021_overlaps_no_tensor_communication_and_its_norms_backward_are_slower():
    new, old = (
        layer_costs(
            job_of(cluster="selene", tp=8, framework=name, attention="eager", dtype="fp16")
        ).layer
        for name in ("megatron-lm-2022", "megatron-lm-2021")
    )
    assert old.overlapped == 0 < new.overlapped
    assert old.forward == new.forward
    assert 1 < old.input_grad / new.input_grad < 1.1
    assert old.forward_tensor == new.forward_tensor


def test_two_of_eight_experts_take_the_time_of_twice_the_products_within_a_quarter():
    sparse, dense = layer_operators(job_of(MIXTRAL)), dense_layer_operators(job_of(MIXTRAL))
    experts = sum(o.forward for o in sparse if o.name in ("experts up", "experts down"))
    mlp = sum(o.forward for o in dense if o.name in ("mlp up", "mlp down"))
    assert 1.95 < experts / mlp < 2.5
    assert sum(o.forward for o in sparse) > sum(o.forward for o in dense)


def test_a_small_share_of_tokens_for_each_of_256_experts_wastes_tiles():
    few = MIXTRAL.model_copy(update={"seq_len": 1024, "moe_intermediate_size": 2048})
    many = few.model_copy(update={"num_experts": 256})
    ups = [seconds_of(job_of(model), "experts up") for model in (few, many)]
    assert (
        ups[1] > 3 * ups[0]
    )  # 8 tokens an expert fill a sixteenth of a tile, and read all weights


def test_expert_parallelism_keeps_the_rows_of_a_gpu_and_divides_its_weights():
    one, split = (job_of(MIXTRAL, ep=ep, dp=8) for ep in (1, 4))
    assert seconds_of(split, "experts up") <= seconds_of(one, "experts up")
    assert seconds_of(split, "permute") > seconds_of(one, "permute")


def test_imbalance_slows_the_experts_and_nothing_else():
    even, skewed = (
        {o.name: o.forward for o in layer_operators(job_of(MIXTRAL, expert_imbalance=x))}
        for x in (1.0, 1.5)
    )
    changed = {name for name in even if skewed[name] > even[name]}
    assert changed == {"permute", "experts up", "activation", "experts down", "unpermute"}


def test_latent_attention_has_the_products_that_its_flops_count():
    deepseek = Model(
        name="DeepSeek",
        num_hidden_layers=4,
        hidden_size=7168,
        num_attention_heads=128,
        head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        intermediate_size=18432,
        vocab_size=129280,
        seq_len=4096,
        gated_mlp=True,
    )
    job = job_of(deepseek)
    peak = job.cluster.gpu.peak_flops["bf16"]
    names = ("query down", "query up", "key and value down", "key and value up")
    spent = sum(seconds_of(job, name) for name in names)
    flops = layer_flops(deepseek)["qkv"]
    assert 0.5 < flops / spent / peak < 0.8


def test_fp8_makes_a_layer_1_3_to_1_8_times_as_fast_and_leaves_attention_alone():
    wide, narrow = job_of(dtype="bf16"), job_of(dtype="fp8")
    ratio = layer_costs(wide).layer.forward / layer_costs(narrow).layer.forward
    assert 1.3 < ratio < 1.8
    assert core_operators(wide) == core_operators(narrow)


def test_context_parallelism_halves_the_tokens_and_the_attention_of_each_gpu():
    whole, half = (layer_costs(job_of(cp=cp)).layer.forward for cp in (1, 2))
    assert 0.48 < half / whole < 0.55


def small(**plan):
    tiny = LLAMA.model_copy(update={"hidden_size": 1024, "seq_len": 256, "vocab_size": 1024})
    sizes = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64}
    return job_of(tiny.model_copy(update={**sizes, "intermediate_size": 2048}), **plan)


def test_a_cuda_graph_frees_a_small_model_from_its_host(profile):
    waiting = estimate(small()).seconds[Kind.F, 0]
    profile(cuda_graph=True)
    assert host.host_seconds(small()) == 0
    assert estimate(small()).seconds[Kind.F, 0] < waiting / 3


def test_blocking_launches_add_the_hosts_time_to_the_gpus(profile):
    job = job_of()
    hidden = estimate(job).seconds
    profile(blocking_launches=True)
    added = estimate(job).seconds - hidden
    times = host.host_times(job)
    forward = 8 * times.layer + times.embedding + times.head
    assert added[Kind.F, 0] == pytest.approx(forward, rel=1e-9)
    assert added[Kind.B, 0] == pytest.approx(1.5 * forward, rel=1e-9)


def test_the_head_hides_in_the_time_that_a_stages_layers_wait_for_the_host():
    with_head = small(pp=2, layers_per_stage=(4, 4))
    seconds = estimate(with_head).seconds
    whole = (seconds[Kind.F] + seconds[Kind.B])[1]
    times = host.host_times(with_head)
    assert whole == pytest.approx(2.5 * (4 * times.layer + times.head), rel=1e-9)


def test_a_half_of_the_lift_goes_to_each_gradient():
    seconds = estimate(small()).seconds
    assert np.allclose(seconds[Kind.I] + seconds[Kind.W], seconds[Kind.B], rtol=1e-9)
