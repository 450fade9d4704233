"""What a Job refuses, and what it counts."""

import re

import pytest

from simulator.job import Cluster, Job, Link, Model, Plan
from simulator.load import load_cluster, load_gpu, load_model

GPT = {
    "name": "GPT",
    "num_hidden_layers": 12,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "seq_len": 32,
}


def gpt(**fields: object) -> Model:
    return Model.model_validate(GPT | fields)


def job(plan: Plan, **model: object) -> Job:
    cluster = load_cluster("dgx-a100").model_copy(update={"num_nodes": 1000})
    return Job(model=gpt(**model), cluster=cluster, plan=plan)


def test_model_fills_hugging_face_defaults():
    model = gpt()
    assert (model.num_key_value_heads, model.head_dim, model.intermediate_size) == (4, 16, 256)


def test_megatron_gpt_has_12lh2_13lh_embeddings_and_final_norm():
    model = gpt(bias=True, norm="layernorm", learned_positions=True, tie_word_embeddings=True)
    l, h, v, s = 12, 64, 100, 32
    assert model.num_parameters == 12 * l * h**2 + 13 * l * h + (v + s) * h + 2 * h


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"tie_word_embeddings": True}, -100 * 64),
        ({"learned_positions": True}, 32 * 64),
        ({"norm": "layernorm"}, 25 * 64),
        ({"gated_mlp": True}, 12 * 64 * 256),
        ({"num_key_value_heads": 2}, -12 * 64 * 2 * 2 * 16),
        ({"qkv_bias": True}, 12 * 3 * 64),
        ({"qk_norm": True}, 12 * 2 * 16),
        ({"bias": True}, 12 * (3 * 64 + 64 + 256 + 64)),
        ({"bias": True, "qkv_bias": True}, 12 * (3 * 64 + 64 + 256 + 64)),
        ({"bias": True, "gated_mlp": True}, 12 * (64 * 256 + 3 * 64 + 64 + 2 * 256 + 64)),
    ],
    ids=str,
)
def test_num_parameters_counts_each_operator_once(change, more):
    assert gpt(**change).num_parameters - gpt().num_parameters == more


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (
            {"pp": 5},
            "plan.pp x plan.vpp is 5, but it must divide model.num_hidden_layers = 12; "
            "use one of 1, 2, 3, 4, 6, 12",
        ),
        (
            {"pp": 8, "vpp": 2},
            "plan.pp x plan.vpp is 16 stages, but model.num_hidden_layers is 12: a stage would "
            "hold no layer; use at most 12 stages",
        ),
        (
            {"tp": 3},
            "plan.tp is 3, but it must divide model.num_attention_heads = 4; use one of 1, 2, 4",
        ),
        (
            {"pp": 2, "layers_per_stage": (6, 5)},
            "plan.layers_per_stage adds up to 11, but model.num_hidden_layers is 12; "
            "the two must be equal",
        ),
        (
            {"pp": 2, "layers_per_stage": (12,)},
            "plan.layers_per_stage has 1 entries, but there are 2 stages (pp x vpp); "
            "give one number for each",
        ),
        (
            {"dp": 8001},
            "the plan uses pp x tp x cp x dp = 8001 GPUs, but DGX A100 has 8000; "
            "use at least num_nodes = 1001",
        ),
    ],
    ids=str,
)
def test_job_refuses_sizes_that_do_not_fit(plan, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        job(Plan.model_validate(plan))


def test_job_refuses_sequences_that_tensor_parallel_peers_cannot_split():
    with pytest.raises(ValueError, match=r"plan.tp is 4, but it must divide model.seq_len = 30"):
        job(Plan(tp=4, sequence_parallel=True), seq_len=30)


def test_job_refuses_a_straggler_outside_the_pipeline():
    cluster = load_cluster("dgx-a100").model_copy(update={"stragglers": {2: 1.5}})
    says = "cluster.stragglers names rank 2, but the pipeline has ranks 0 to 1; name one of them"
    with pytest.raises(ValueError, match=says):
        Job(model=gpt(), cluster=cluster, plan=Plan(pp=2))


def test_job_refuses_a_dtype_without_a_peak():
    gpu = load_gpu("a100-sxm-80gb").model_copy(update={"peak_flops": {"fp16": 312e12}})
    cluster = load_cluster("dgx-a100").model_copy(update={"gpu": gpu})
    with pytest.raises(ValueError, match=r"plan.dtype is bf16, but .* has no such peak; use one"):
        Job(model=gpt(), cluster=cluster, plan=Plan(dtype="bf16"))


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (
            {"recompute_num_layers": 2},
            "plan.recompute is none, but recompute_method and recompute_num_layers are ways of",
        ),
        ({"grad_dtype": "fp16"}, "plan.grad_dtype is fp16, but weights are bf16; use fp32 or bf16"),
        ({"recompute": "selective"}, "flash attention already recomputes the attention core; use"),
    ],
    ids=str,
)
def test_plan_refuses_what_contradicts_itself(plan, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Plan.model_validate(plan)


def test_layers_per_stage_is_even_when_left_out():
    assert job(Plan(pp=2, vpp=3)).layers_per_stage == (2,) * 6


def test_global_batch_is_microbatches_times_size_times_replicas():
    plan = Plan(pp=2, tp=4, dp=3, num_microbatches=5, micro_batch_size=7)
    assert (plan.global_batch_size, plan.num_gpus, plan.num_stages) == (105, 24, 2)


@pytest.mark.parametrize("value", [True, float("nan"), float("inf"), 0, -1])
def test_a_bandwidth_is_a_positive_number(value):
    with pytest.raises(ValueError, match="bandwidth"):
        Link(bandwidth=value, latency=0)


@pytest.mark.parametrize("value", [True, float("nan"), 0, 1.01])
def test_an_efficiency_is_a_share(value):
    with pytest.raises(ValueError, match="efficiency"):
        Link(bandwidth=1, latency=0, efficiency=value)


def test_values_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Plan().tp = 2  # type: ignore[misc]


def test_huge_sizes_are_refused_at_once():
    with pytest.raises(ValueError, match=r"model.num_attention_heads is 7"):
        gpt(hidden_size=10**15, num_attention_heads=7)


def test_every_field_has_a_description():
    for kind in (Model, Link, Cluster, Plan, Job):
        assert all(field.description for field in kind.model_fields.values())


def test_head_dim_may_differ_from_hidden_over_heads():
    assert load_model("gpt-22b").head_dim == 96
    assert gpt(head_dim=32).num_parameters - gpt().num_parameters == 12 * 4 * 64 * 4 * 16
