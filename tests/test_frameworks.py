"""Frameworks are data with a source, and their defaults make plans that a job accepts."""

import pytest

from simulator.frameworks import (
    FUSED_BY_COMPILER,
    PLAIN,
    framework_names,
    load_framework,
    plan_defaults,
)
from simulator.job import Job
from simulator.load import load_cluster, load_model
from simulator.plan import Plan
from simulator.simulate import simulate

WANTED = {
    "colossal-ai",
    "deepspeed",
    "deepspeed-blocking",
    "llm-foundry",
    "megatron-core",
    "megatron-lm-2021",
    "megatron-lm-2022",
    "mindspeed",
    "nanotron",
    "torchtitan",
    "torchtitan-eager",
}


def test_nine_frameworks_and_their_variants_are_there():
    assert set(framework_names()) >= WANTED


@pytest.mark.parametrize("name", framework_names())
def test_every_framework_names_its_source(name):
    assert len(load_framework(name).source) > 20


@pytest.mark.parametrize("name", framework_names())
@pytest.mark.parametrize(("tp", "pp", "vpp", "dp"), [(1, 1, 1, 8), (2, 2, 1, 2), (2, 2, 2, 2)])
def test_the_defaults_of_a_framework_make_a_job(name, tp, pp, vpp, dp):
    defaults = plan_defaults(load_framework(name), dtype="bf16", tp=tp, pp=pp, vpp=vpp, dp=dp)
    if defaults.get("zero_stage", 0) > 1 and pp > 1:
        defaults["zero_stage"] = 1
    schedule = "interleaved" if vpp > 1 else "1f1b"
    sizes = {"tp": tp, "pp": pp, "vpp": vpp, "dp": dp, "num_microbatches": 2 * pp}
    plan = Plan(schedule=schedule, dtype="bf16", **sizes, **defaults)
    job = Job(model=load_model("llama2-7b"), cluster=load_cluster("dgx-h100"), plan=plan)
    assert job.plan.num_gpus == tp * pp * dp


def test_a_framework_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean nanotron"):
        load_framework("nanotrn")


def test_no_name_means_the_programs_own_defaults():
    assert load_framework(None) is PLAIN


def test_selective_recomputation_needs_eager_attention():
    defaults = plan_defaults(
        load_framework("megatron-core"), dtype="bf16", tp=8, dp=1, pp=8, recompute="selective"
    )
    assert defaults["attention"] == "eager"


def test_megatron_pads_50257_words_to_51200_at_tp_8_and_50304_at_1():
    framework = load_framework("megatron-lm-2022")
    assert [framework.padded_vocab(50257, tp) for tp in (1, 8)] == [50304, 51200]


def test_the_all_reduce_beside_the_weight_gradient_came_after_sc21():
    assert not load_framework("megatron-lm-2021").overlap_tensor_backward
    assert load_framework("megatron-lm-2022").overlap_tensor_backward


def test_a_compiled_framework_fuses_what_its_eager_twin_leaves_apart():
    compiled, eager = (load_framework(name) for name in ("torchtitan", "torchtitan-eager"))
    assert all(getattr(compiled, name) for name in FUSED_BY_COMPILER)
    apart = {name for name in FUSED_BY_COMPILER if not getattr(eager, name)}
    assert apart == {"fused_norm", "fused_activation", "fused_rotary"}
    fused = dict.fromkeys(FUSED_BY_COMPILER, True) | {"compiled": True}
    same = eager.model_copy(update=fused | {"name": compiled.name})
    assert same == compiled


@pytest.mark.parametrize(("gpus", "measured"), [(8, 6667 / 5762), (128, 6514 / 5605)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_compiling_llama_3_8b_gains_what_torchtitan_measured_16_percent(gpus, measured, recompute):
    """Tables 1 and 3 of its benchmark of December 2024, whose recomputation lies between."""
    rates = []
    for name in ("torchtitan", "torchtitan-eager"):
        defaults = plan_defaults(load_framework(name), dtype="bf16", tp=1, dp=gpus, pp=1)
        plan = Plan(framework=name, dp=gpus, micro_batch_size=2, recompute=recompute, **defaults)
        cluster = load_cluster("dgx-h100").model_copy(update={"num_nodes": gpus // 8})
        job = Job(model=load_model("llama3-8b"), cluster=cluster, plan=plan)
        rates.append(simulate(job).report.tokens_per_second)
    assert rates[0] / rates[1] == pytest.approx(measured, abs=0.03)
