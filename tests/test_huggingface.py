"""Published `config.json` files, in their real keys, give the published parameter counts."""

import re

import pytest

from simulator.huggingface import model_from_config

LLAMA3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN2_05B = QWEN2_7B | {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_06B = QWEN3_8B | {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "tie_word_embeddings": True,
}
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "vocab_size": 50257,
}
GPT_NEOX_20B = {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "vocab_size": 50432,
}
GEMMA_7B = {
    "architectures": ["GemmaForCausalLM"],
    "head_dim": 256,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "max_position_embeddings": 8192,
    "model_type": "gemma",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "vocab_size": 256000,
}
PHI3_MINI = {
    "architectures": ["Phi3ForCausalLM"],
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "vocab_size": 32064,
}
MIXTRAL = MISTRAL_7B | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
MIXTRAL_8X7B = MIXTRAL | {"sliding_window": None}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA3_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
        (QWEN2_7B, 7_615_616_512),
        (QWEN2_05B, 494_032_768),
        (QWEN3_8B, 8_190_735_360),
        (QWEN3_06B, 596_049_920),
        (GPT2, 124_439_808),
        (MIXTRAL_8X7B, 46_702_792_704),
        (DEEPSEEK_V3, 671_026_404_352),
        (GPT_NEOX_20B, 20_554_567_680),
        (GEMMA_7B, 8_537_680_896),
        (PHI3_MINI, 3_821_079_552),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_published_config_gives_the_published_number_of_parameters(config, parameters):
    model = model_from_config(config, "model", seq_len=None if "n_embd" in config else 2048)
    reference = model if "n_embd" in config else model.model_copy(update={"seq_len": 1})
    assert reference.num_parameters == parameters


@pytest.mark.parametrize(
    "config", [LLAMA3_8B, QWEN2_7B, QWEN3_8B, GPT2, GPT_NEOX_20B, GEMMA_7B, PHI3_MINI]
)
def test_model_type_may_be_read_from_the_architecture(config):
    bare = {key: value for key, value in config.items() if key != "model_type"}
    assert model_from_config(bare, "x") == model_from_config(config, "x")


def test_sequences_are_as_long_as_the_positions_unless_stated():
    assert model_from_config(LLAMA3_8B, "x").seq_len == 8192
    assert model_from_config(LLAMA3_8B, "x", seq_len=4096).seq_len == 4096
    assert model_from_config(GPT2, "x").seq_len == 1024


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize(
    ("config", "tied"),
    [(LLAMA3_8B, False), (QWEN3_8B, False), (GPT_NEOX_20B, False), (GPT2, True), (GEMMA_7B, True)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_absent_tie_word_embeddings_is_transformers_default(config, tied):
    absent = without(config, "tie_word_embeddings")
    assert model_from_config(absent, "x").tie_word_embeddings is tied
    stated = absent | {"tie_word_embeddings": not tied}
    assert model_from_config(stated, "x").tie_word_embeddings is not tied


@pytest.mark.parametrize(
    ("config", "heads"),
    [(LLAMA3_8B, 32), (MISTRAL_7B, 8), (QWEN3_8B, 32), (GEMMA_7B, 16)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_absent_key_value_heads_are_transformers_default(config, heads):
    absent = without(config, "num_key_value_heads")
    assert model_from_config(absent, "x", seq_len=1024).num_key_value_heads == heads
    null = config | {"num_key_value_heads": None}
    model = model_from_config(null, "x", seq_len=1024)
    assert model.num_key_value_heads == config["num_attention_heads"]


def test_absent_head_dim_is_128_for_qwen3_and_hidden_over_heads_for_llama():
    qwen = without(QWEN3_06B, "head_dim")
    assert model_from_config(qwen, "x").head_dim == 128
    assert model_from_config(LLAMA3_8B | {"hidden_size": 2048}, "x").head_dim == 64


def test_gpt2_inner_size_is_four_times_hidden_unless_stated():
    assert model_from_config(GPT2 | {"n_inner": None}, "x").intermediate_size == 3072
    assert model_from_config(GPT2 | {"n_inner": 1000}, "x").intermediate_size == 1000


def test_gpt2_trains_with_dropout_unless_all_are_zero():
    assert model_from_config(without(GPT2, "attn_pdrop", "embd_pdrop", "resid_pdrop"), "x").dropout
    zero = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    assert not model_from_config(GPT2 | zero, "x").dropout
    assert not model_from_config(LLAMA3_8B, "x").dropout


def test_qwen2_has_a_bias_on_query_key_and_value_alone_and_qwen3_has_none():
    qwen2, qwen3 = model_from_config(QWEN2_7B, "x"), model_from_config(QWEN3_8B, "x")
    assert (qwen2.qkv_bias, qwen2.bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.bias, qwen3.qk_norm) == (False, False, True)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            LLAMA3_8B | {"num_local_experts": 8},
            "config.json's num_local_experts is 8, but experts of model_type llama are not read "
            "yet; use one of deepseek_v2, deepseek_v3, gpt_oss, mixtral, qwen3_moe, or write a",
        ),
        (
            {"model_type": "bert"},
            "config.json's model_type is bert, which is not read yet; use one of "
            "deepseek_v2, deepseek_v3, gemma, gemma2, gemma3, gemma3_text, gpt2, gpt_neox, "
            "gpt_oss, llama, mistral, mixtral, phi3, qwen2, qwen3, qwen3_moe, or write a [model] "
            "table",
        ),
        (
            {"architectures": ["OPTForCausalLM"]},
            "config.json's model_type is OPTForCausalLM, which is not read yet; use one of",
        ),
        (
            {"hidden_size": 64},
            "config.json has no model_type and no architectures; it must state model_type, one of",
        ),
        (
            without(LLAMA3_8B, "hidden_size"),
            "config.json has no hidden_size; the model's sizes must be stated; add hidden_size",
        ),
        (without(GPT2, "n_positions"), "config.json has no n_positions; the model's sizes must"),
        (
            LLAMA3_8B | {"num_hidden_layers": "many"},
            'model.num_hidden_layers is "many" (transformer layers [1]); it must be a whole number',
        ),
        (
            LLAMA3_8B | {"num_attention_heads": 31},
            "model.num_attention_heads is 31, but it must divide model.hidden_size = 4096",
        ),
        (
            LLAMA3_8B | {"attention_bias": True},
            "config.json (model_type llama) has attention_bias = True but feed-forward biases = "
            "False; a model has biases on all linear layers or on none; make the two agree",
        ),
    ],
)
def test_refusal_names_the_key_its_value_the_rule_and_the_way_out(config, says):
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        model_from_config(config, "x")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "window", "full"),
    [
        (MISTRAL_7B, 4096, 0),
        (without(MISTRAL_7B, "sliding_window"), 4096, 0),
        (MISTRAL_7B | {"sliding_window": None}, None, 0),
        (MIXTRAL, 4096, 0),
        (MIXTRAL_8X7B, None, 0),
        (QWEN2_7B, None, 0),
        (QWEN2_7B | {"use_sliding_window": True, "sliding_window": 4096}, None, 0),
        (
            QWEN2_7B
            | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 21},
            4096,
            21,
        ),
        (LLAMA3_8B, None, 0),
    ],
)
def test_the_window_is_read_and_qwen_has_it_after_its_first_layers_alone(config, window, full):
    model = model_from_config(config, "x")
    assert (model.sliding_window, model.num_full_attention_layers) == (window, full)


def test_deepseek_v3_states_its_module_for_multi_token_prediction():
    model = model_from_config(DEEPSEEK_V3 | {"num_nextn_predict_layers": 1}, "x")
    assert model.num_nextn_predict_layers == 1
    assert model.num_parameters - 671_026_404_352 == model.multi_token_parameters
