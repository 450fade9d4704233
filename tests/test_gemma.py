"""Gemma 2 and 3 and gpt-oss: their config.json, norms behind, soft caps, sinks and windows."""

import pytest

from simulator.accuracy.outside import outside
from simulator.costs.activations import core_bytes, head_bytes, layer_parts
from simulator.costs.attention import core_operators
from simulator.costs.compute import head_operators, layer_operators
from simulator.costs.kernels import flash_seconds
from simulator.costs.operators import soft_cap
from simulator.costs.parameters import stage_parameters
from simulator.huggingface import model_from_config
from simulator.job import Job, Model, Plan
from simulator.load import load_cluster, load_model
from simulator.simulate import simulate

GEMMA2_2B = {
    "model_type": "gemma2",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
GEMMA2_9B = GEMMA2_2B | {
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
GEMMA2_27B = GEMMA2_9B | {
    "hidden_size": 4608,
    "intermediate_size": 36864,
    "num_hidden_layers": 46,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
}
GEMMA3_270M = {
    "model_type": "gemma3_text",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "vocab_size": 262144,
}
GEMMA3_1B = GEMMA3_270M | {
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "layer_types": None,
}
GPT_OSS_120B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "sliding_window": 128,
    "vocab_size": 201088,
}
GPT_OSS_20B = GPT_OSS_120B | {
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "layer_types": None,
}


def job(model, framework="torchtitan", cluster="dgx-h100", **plan):
    nodes = load_cluster(cluster).model_copy(update={"num_nodes": 4})
    return Job(model=model, cluster=nodes, plan=Plan(framework=framework, **plan))


def small(**fields):
    sizes = {"num_hidden_layers": 4, "hidden_size": 2048, "num_attention_heads": 16}
    return Model(name="x", vocab_size=32768, seq_len=4096, gated_mlp=True, **sizes, **fields)


@pytest.mark.parametrize(
    ("config", "parameters", "full"),
    [
        (GEMMA2_2B, 2_614_341_888, 13),
        (GEMMA2_9B, 9_241_705_984, 21),
        (GEMMA2_27B, 27_227_128_320, 23),
        (GEMMA3_270M, 268_098_176, 3),
        (GEMMA3_1B, 999_885_952, 4),
        (GPT_OSS_120B, 116_829_156_672, 18),
        (GPT_OSS_20B, 20_914_757_184, 12),
    ],
)
def test_a_config_has_as_many_parameters_as_its_published_weights(config, parameters, full):
    model = model_from_config(config, "x")
    assert model.num_parameters == parameters
    assert model.num_full_attention_layers == full
    assert model.sliding_window == config["sliding_window"]


def test_gemma_3_with_pictures_is_read_as_its_text_with_transformers_defaults():
    """Gemma 3 4B states four sizes of its text alone."""
    stated = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    whole = {"model_type": "gemma3", "text_config": stated | {"sliding_window": 1024}}
    model = model_from_config(whole, "x")
    assert model.num_parameters == 3_880_099_328 + 64 * 2560  # its table is padded to 262,208
    assert (model.sliding_window, model.num_full_attention_layers) == (1024, 5)
    assert (model.num_attention_heads, model.num_key_value_heads, model.head_dim) == (8, 4, 256)


def test_gemma_2_bounds_scores_and_logits_and_gemma_3_neither():
    two, three = (model_from_config(config, "x") for config in (GEMMA2_2B, GEMMA3_1B))
    assert (two.attn_logit_softcapping, two.final_logit_softcapping) == (50.0, 30.0)
    assert (three.attn_logit_softcapping, three.final_logit_softcapping) == (None, None)
    assert (two.qk_norm, three.qk_norm) == (False, True)
    assert all((two.post_norm, three.post_norm, two.tie_word_embeddings))


def test_the_preset_of_gpt_oss_is_its_config():
    model = model_from_config(GPT_OSS_120B, "gpt-oss 120B", seq_len=4096)
    preset = load_model("gpt-oss-120b")
    assert model.model_copy(update={"source": preset.source}) == preset


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_stages_hold_all_parameters_and_heads_share_the_sinks(tp):
    model = model_from_config(GPT_OSS_20B, "x", seq_len=4096)
    held = sum(stage_parameters(job(model, tp=tp, pp=2)))
    router = 24 * 32 * 2881
    whole = 24 * (2 * 2880 + 2 * 2880) + 2880  # norms, and biases of row-parallel products
    apart = model.num_parameters - router - whole
    assert held == pytest.approx(apart / tp + router + whole)


def test_two_more_norms_of_a_layer_cost_what_the_others_cost():
    plain, more = job(small()), job(small(post_norm=True))
    by = [{o.name: o for o in layer_operators(one)} for one in (plain, more)]
    assert set(by[1]) - set(by[0]) == {"attention output norm", "mlp output norm"}
    assert by[1]["mlp output norm"].forward == by[0]["mlp norm"].forward
    kept = [layer_parts(one)["norm inputs"] for one in (plain, more)]
    assert kept[1] - kept[0] == 2 * 2 * 4096 * 2048
    assert more.model.num_parameters - plain.model.num_parameters == 4 * 2 * 2048


def test_a_soft_cap_in_flash_attention_takes_a_tanh_beside_each_exponential():
    """Half the speed is lost at twice the head width: (1 + 2 half / d) / (1 + half / d) longer."""
    gpu = load_cluster("dgx-h100").gpu
    one, two = (
        flash_seconds(512, 8192, gpu, head_dim=256, exponentials=n) - gpu.launch_overhead
        for n in (1, 2)
    )
    half = gpu.flash_half_dim / 256
    assert two / one == pytest.approx((1 + 2 * half) / (1 + half))
    plain, capped = (
        core_operators(job(small(attn_logit_softcapping=cap)))[0].forward for cap in (None, 50.0)
    )
    assert capped > plain


def test_eager_attention_caps_its_scores_in_kernels_of_their_own_and_keeps_the_tanh():
    plain, capped = (
        job(small(attn_logit_softcapping=cap), framework="nanotron", attention="eager")
        for cap in (None, 50.0)
    )
    matrix = 16 * 4096 * 4096
    more = {o.name for o in core_operators(capped)} - {o.name for o in core_operators(plain)}
    assert more == {"soft cap"}
    assert core_bytes(capped) - core_bytes(plain) == 2 * matrix
    one = soft_cap(capped, matrix)
    gpu = capped.cluster.gpu
    stream = gpu.memory_bandwidth * gpu.memory_efficiency
    assert one.forward == pytest.approx(3 * gpu.launch_overhead + 12 * matrix / stream)
    assert one.input_grad == pytest.approx(3 * gpu.launch_overhead + 14 * matrix / stream)


def test_capped_logits_pass_once_more_in_compiled_kernels_and_keep_their_tanh():
    plain, capped = (job(small(final_logit_softcapping=cap)) for cap in (None, 30.0))
    logits = 4096 * 32768
    more = {o.name: o for o in head_operators(capped)}["soft cap"]
    gpu = capped.cluster.gpu
    stream = gpu.memory_bandwidth * gpu.memory_efficiency
    assert more.forward == pytest.approx(gpu.launch_overhead + 4 * logits / stream)
    assert head_bytes(capped) - head_bytes(plain) == 2 * logits


def test_sinks_take_no_time():
    plain, sinks = (job(small(attention_sinks=on)) for on in (False, True))
    assert core_operators(plain) == core_operators(sinks)
    assert sinks.model.num_parameters - plain.model.num_parameters == 4 * 16


def test_megatrons_kernels_beside_gpt_oss_experts_move_each_tensor_as_often_as_its_code_does():
    """8 tokens' rows of 2,880 columns, tensor by tensor, in bytes: reads, then writes."""
    model = model_from_config(GPT_OSS_20B, "x", seq_len=4096)
    plain = job(model.model_copy(update={"swiglu_limit": None}), framework="nemo-2", ep=8, dp=8)
    clamped = job(model, framework="nemo-2", ep=8, dp=8)
    parts = {o.name: o for o in layer_operators(clamped)}
    assert set(parts) - {o.name for o in layer_operators(plain)} == {"clamps"}
    rows = 4 * 4096  # as many come from eight GPUs as go
    half = rows * 2880
    both, wide = 2 * 2 * half, 4 * half  # 16 bits of two halves, 32 bits
    forward = 2 * (2 * half + 2 * half) + (both + both)
    masked = 2 * (2 * half + 2 * half + 2 * half)
    gpu = clamped.cluster.gpu
    stream = gpu.memory_bandwidth * gpu.memory_efficiency
    late = 3 * gpu.launch_overhead
    assert parts["clamps"].forward == pytest.approx(late + forward / stream)
    assert parts["clamps"].input_grad == pytest.approx(late + (masked + both + both) / stream)
    weighted, summed = wide, 2 * half + wide + wide
    ahead = weighted + summed + (wide + wide) + (wide + 2 * half)
    products = 2 * (wide + wide + wide)
    back = (2 * half + wide) + (wide + 2 * half) + (2 * half + 2 * half) + products
    late = 10 * gpu.launch_overhead  # four experts, each a product and a sum; and two for all
    assert parts["expert biases"].forward == pytest.approx(late + ahead / stream)
    assert parts["expert biases"].input_grad == pytest.approx(late + back / stream)
    kept = [layer_parts(one)["clamped"] for one in (plain, clamped)]
    assert kept == [0.0, both]
    other = {o.name for o in layer_operators(job(model, framework="megatron-core", ep=8, dp=8))}
    assert not other & {"clamps", "expert biases"}


def test_capped_scores_are_flagged_as_beyond_what_was_measured():
    flag = "no kernel that caps the scores of attention was measured"
    assert flag in outside(job(small(attn_logit_softcapping=50.0)))
    assert flag not in outside(job(small()))


def test_gemma_2_9b_trains_on_32_h100():
    model = model_from_config(GEMMA2_9B, "Gemma 2 9B")
    made = job(model, dp=32, zero_stage=3, num_microbatches=2, recompute="alternate")
    report = simulate(made).report
    assert report.fits
    assert 0.2 < report.mfu < 0.6


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (GEMMA2_2B | {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        (GPT_OSS_20B | {"attention_bias": False}, "make the two agree"),
        (GPT_OSS_20B | {"swiglu_limit": -1.0}, "swiglu_limit"),
        (GEMMA2_2B | {"attn_logit_softcapping": -1.0}, "model.attn_logit_softcapping is -1"),
        ({"model_type": "gemma3", "text_config": {}}, "config.json has no num_hidden_layers"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(config, says):
    with pytest.raises(ValueError, match=says):
        model_from_config(config, "x")
