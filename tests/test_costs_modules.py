"""Selective recomputation of single modules: time, memory and FLOP of each."""

import pytest

from simulator.costs import estimate
from simulator.costs.activations import core_bytes, layer_bytes, saved_layer_bytes
from simulator.costs.compute import dense_layer_operators, layer_operators
from simulator.costs.context import expert_exchange
from simulator.costs.flops import attention_core_flops, hardware_flops, model_flops
from simulator.costs.layers import layer_costs
from simulator.costs.modules import dense_of
from simulator.job import Plan
from simulator.load import job_from_options
from simulator.schedule import Kind
from simulator.search.space import with_plan
from simulator.search.values import all_values
from simulator.simulate import simulate

DEEPSEEK = {"model": "deepseek-v3", "cluster": "gb200-nvl72", "pp": 16, "dp": 8, "ep": 8}
LAYERS = {"layers_per_stage": (4,) * 15 + (1,), "framework": "megatron-core"}
TOKENS = 4096


def job(*modules, base=None, **options):
    table = (DEEPSEEK | LAYERS if base is None else base) | options
    if modules:
        table |= {"recompute": "selective", "recompute_modules": modules}
    return job_from_options(table)


def spared(*modules):
    """Bytes that one layer with experts keeps less of. [bytes]"""
    return saved_layer_bytes(job()) - saved_layer_bytes(job(*modules))


@pytest.mark.parametrize(
    ("module", "elements"),
    [
        ("layernorm", 2 * 7168),  # outputs of two norms
        ("mla_up_proj", 128 * (192 + 192 + 128)),  # queries, keys and values of 128 heads
        ("moe_act", 8 * 2048),  # input of the second product, of 8 experts
        ("shared_experts", 3 * 2048),  # two ways up and the input of the way down
        ("moe", 2 * 8 * 7168 + 9 * 3 * 2048),  # tokens sent and returned, and 9 experts
    ],
)
def test_a_module_of_deepseek_v3_spares_two_bytes_of_each_of_its_elements(module, elements):
    assert spared(module) == 2 * TOKENS * elements


def test_the_core_of_flash_attention_spares_one_statistic_a_row_and_repeats_the_kernel():
    assert spared("core_attn") == core_bytes(job()) == 4 * TOKENS * 128
    core = next(o for o in layer_operators(job()) if o.name == "flash attention")
    assert layer_costs(job("core_attn")).layer.again == core.forward


def test_dense_layers_alone_repeat_mlp_which_spares_three_times_their_width():
    one, plain = (layer_costs(j) for j in (job("mlp"), job()))
    assert (one.layer.again, one.layer.saved) == (0.0, plain.layer.saved)
    assert plain.dense_layer.saved - one.dense_layer.saved == 2 * TOKENS * 3 * 18432
    by = {operator.name: operator.forward for operator in dense_layer_operators(job())}
    assert one.dense_layer.again == pytest.approx(by["mlp up"] + by["activation"] + by["mlp down"])
    stages = estimate(job("mlp")).recompute_seconds
    assert stages[0] == pytest.approx(3 * one.dense_layer.again)  # three dense layers come first
    assert not stages[1:].any()


def test_a_dense_layer_keeps_no_tokens_for_experts():
    apart = layer_bytes(job()) - layer_bytes(dense_of(job()))
    assert apart == 2 * TOKENS * 2 * 8 * 7168  # its width is that of 9 experts


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("layernorm", ("attention norm", "mlp norm")),
        (
            "mla_up_proj",
            (
                "query norm",
                "query up",
                "key and value norm",
                "key and value up",
                "rotary positions",
            ),
        ),
        ("shared_experts", ("shared expert up", "shared expert down")),
    ],
)
def test_a_module_repeats_the_forward_of_its_operators(module, names):
    operators = layer_operators(job())
    expected = sum(o.forward for o in operators if o.name in names)
    if module == "shared_experts":
        expected += operators[-3].forward  # their own activation, the last before the residual
        assert operators[-3].name == "activation"
    assert layer_costs(job(module)).layer.again == pytest.approx(expected)


def test_all_modules_of_a_layer_repeat_its_forward_but_for_what_no_module_names():
    names = ("core_attn", "layernorm", "mla_up_proj", "moe")
    again = layer_costs(job(*names)).layer.again
    left = ("query down", "key and value down", "projection", "attention residual", "mlp residual")
    rest = sum(o.forward for o in layer_operators(job()) if o.name in left)
    assert again + rest == pytest.approx(layer_costs(job()).layer.forward)


def test_moe_sends_tokens_to_experts_once_more():
    plain, moe, act = (estimate(j) for j in (job(), job("moe"), job("moe_act")))
    once = 4 * expert_exchange(job()).forward
    assert moe.tensor_seconds[Kind.B, 1] - plain.tensor_seconds[Kind.B, 1] == pytest.approx(once)
    assert act.tensor_seconds[Kind.B, 1] == plain.tensor_seconds[Kind.B, 1]


def test_what_is_dropped_is_live_for_one_layer_while_a_backward_runs():
    """1F1B holds 16 microbatches of stage 0, and makes one layer's part again at a time."""
    plain, one = (estimate(j) for j in (job(), job("moe_act")))
    dropped = 2 * TOKENS * 8 * 2048
    assert plain.activation_bytes[1] - one.activation_bytes[1] == 4 * dropped
    assert one.transient_bytes[1] - plain.transient_bytes[1] == dropped


def test_hardware_flops_count_the_products_that_modules_repeat():
    base = job(num_microbatches=16)
    sequences, model = base.plan.global_batch_size, base.model
    up = 2 * TOKENS * (1536 * 128 * 192 + 512 * 128 * 256)
    shared, routed, dense = (2 * 3 * TOKENS * 7168 * width for width in (2048, 8 * 2048, 18432))
    router = 2 * TOKENS * 7168 * 256
    expected = {
        "core_attn": 61 * attention_core_flops(model),
        "layernorm": 0,
        "mla_up_proj": 61 * up,
        "mlp": 3 * dense,
        "moe_act": 0,
        "moe": 58 * (shared + routed + router),
        "shared_experts": 58 * shared,
    }
    for module, again in expected.items():
        found = hardware_flops(job(module, num_microbatches=16)) - model_flops(model, sequences)
        assert found == pytest.approx(sequences * again, abs=1e6)


def test_eager_attention_with_its_core_named_is_selective_recomputation_as_ever():
    gpt = {"model": "gpt-22b", "cluster": "selene", "tp": 8, "attention": "eager"}
    named, plain = job("core_attn", base=gpt), job(base=gpt, recompute="selective")
    a, b = simulate(named).report, simulate(plain).report
    assert a.step_time == b.step_time
    assert (a.peak_memory == b.peak_memory).all()


def test_memory_falls_and_time_grows_with_each_module():
    reports = [simulate(job(*names, num_microbatches=32)).report for names in ((), ("moe_act",))]
    reports.append(simulate(job("moe_act", "mla_up_proj", num_microbatches=32)).report)
    assert reports[0].step_time < reports[1].step_time < reports[2].step_time
    peaks = [report.peak_memory.max() for report in reports]
    assert peaks[0] > peaks[1] > peaks[2]


def test_words_of_one_string_are_modules():
    plan = Plan(recompute="selective", recompute_modules="mla_up_proj, mlp")
    assert plan.recompute_modules == ("mla_up_proj", "mlp")
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_a_search_keeps_the_modules_where_it_recomputes_selectively_alone():
    base = job("moe_act")
    assert all_values(base, 512, 128)["recompute"] == ("none", "selective", "full")
    base = job("moe_act", base=DEEPSEEK | {"pp": 1, "dp": 64, "ep": 64})
    assert with_plan(base, {"recompute": "full"}).plan.recompute_modules is None
    assert with_plan(base, {"recompute": "selective"}).plan.recompute_modules == ("moe_act",)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"recompute_modules": "mlp"}, 'plan.recompute is none.*use recompute = "selective"'),
        ({"recompute": "selective", "recompute_modules": ()}, "names none"),
        ({"recompute": "selective", "recompute_modules": "mlp,mlp"}, "names mlp twice"),
        ({"recompute": "selective", "recompute_modules": "moe,moe_act"}, "moe_act is a part of"),
        ({"recompute": "selective", "recompute_modules": "core"}, "'core_attn', 'layernorm'"),
        ({"recompute": "selective"}, "name recompute_modules"),
    ],
)
def test_modules_that_make_no_sense_are_refused(plan, words):
    with pytest.raises(ValueError, match=words):
        Plan(**plan)


@pytest.mark.parametrize(
    ("model", "module", "words"),
    [
        ("llama3-8b", "mla_up_proj", "has no latent attention"),
        ("llama3-8b", "moe_act", "has no experts"),
        ("mixtral-8x7b", "shared_experts", "has no shared experts"),
        ("mixtral-8x7b", "mlp", "has no layer without experts"),
    ],
)
def test_a_module_that_no_layer_has_is_refused(model, module, words):
    with pytest.raises(ValueError, match=f"{words}: it would have no effect"):
        job(module, base={"model": model, "cluster": "dgx-h100"})
