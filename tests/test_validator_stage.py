"""The validator's stages are the Model's: its parameters, its layers, whatever the cut."""

import pytest
import torch

from simulator.job import Plan
from simulator.load import load_model
from validator.asked import SMALL, scaled, session_of
from validator.stage import Stage, cut, loss_of, tokens_of

CPU = torch.device("cpu")
TINY = scaled(
    SMALL, 1.0, {"num_hidden_layers": 4, "hidden_size": 32, "seq_len": 16} | {"vocab_size": 64}
)
LLAMA = TINY.model_copy(
    update={"gated_mlp": True, "num_key_value_heads": 2, "norm": "rmsnorm", "bias": False}
)
GPT2 = TINY.model_copy(update={"learned_positions": True})
QWEN = LLAMA.model_copy(update={"qkv_bias": True, "qk_norm": True})
MODELS = {"GPT": TINY, "Llama": LLAMA, "GPT-2": GPT2, "Qwen": QWEN}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_whole_stage_has_the_models_parameters(model):
    whole = Stage(model, range(4), torch.float64)
    assert sum(p.numel() for p in whole.parameters()) == model.num_parameters


@pytest.mark.parametrize("layers", [(4,), (2, 2), (1, 1, 1, 1), (3, 1)])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_cut_computes_the_same_loss(model, layers):
    inputs, targets = tokens_of(model, 2, CPU)
    x = inputs
    stages = cut(model, layers, range(len(layers)), torch.float64, CPU)
    for stage in stages.values():
        x = stage(x)
    whole = Stage(model, range(4), torch.float64)(inputs)
    assert torch.equal(x, whole)
    assert x.shape == (2, 16, 64)
    assert loss_of(x, targets, 0.5).item() == pytest.approx(loss_of(x, targets, 1.0).item() / 2)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_attention_is_causal(model):
    whole = Stage(model, range(4), torch.float64)
    inputs, _ = tokens_of(model, 1, CPU)
    other = inputs.clone()
    other[0, 9] = (other[0, 9] + 1) % model.vocab_size
    a, b = whole(inputs), whole(other)
    assert torch.allclose(a[:, :9], b[:, :9], atol=1e-12)
    assert not torch.allclose(a[:, 9:], b[:, 9:], atol=1e-6)


def test_rotary_positions_change_the_order_of_tokens():
    whole = Stage(LLAMA, range(4), torch.float64)
    inputs, _ = tokens_of(LLAMA, 1, CPU)
    turned = inputs.flip(1)
    assert not torch.allclose(whole(inputs)[:, -1], whole(turned)[:, -1], atol=1e-6)


def test_half_the_width_keeps_the_width_of_a_head_and_grouped_queries():
    llama = load_model("llama3-70b")
    half = scaled(llama, 0.5, {})
    assert half.head_dim == llama.head_dim
    assert half.hidden_size == llama.hidden_size // 2
    assert half.num_attention_heads // half.num_key_value_heads == 8
    assert half.num_hidden_layers == llama.num_hidden_layers


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5])
def test_a_scale_outside_0_to_1_is_refused(scale):
    with pytest.raises(ValueError, match="--scale is"):
        scaled(SMALL, scale, {})


def test_a_width_that_its_heads_do_not_divide_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="even multiple of 4 heads; use 48"):
        scaled(SMALL, 1.0, {"hidden_size": 50})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_experts": 8, "num_experts_per_tok": 2}, "8 experts in a layer.*use a dense model"),
        ({"kv_lora_rank": 16}, "latent attention.*use a dense model"),
        ({"sliding_window": 64}, "within 64 of 128 tokens.*use --seq-len 64"),
    ],
)
def test_layers_that_are_not_built_are_refused_and_never_run_as_others(change, said):
    model = SMALL.model_copy(update=change)
    with pytest.raises(ValueError, match=said):
        session_of(model, Plan(num_microbatches=4), ["1f1b"], 2, device="cpu", dtype="fp32")
