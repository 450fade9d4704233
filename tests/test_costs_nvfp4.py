"""Products in nvfp4: their time, the casts that they need, what is kept, and what stays in bf16."""

import pytest

from simulator.accuracy.jobs import job_of_row
from simulator.accuracy.outside import outside
from simulator.accuracy.predictions import predict
from simulator.accuracy.rows import load_table
from simulator.costs import estimate
from simulator.costs.activations import layer_parts
from simulator.costs.attention import core_operators
from simulator.costs.compute import head_operators, layer_operators, optimizer_seconds
from simulator.costs.kernels import ELEMENT_BYTES, gemm_seconds
from simulator.costs.operators import linear
from simulator.load import job_from_options, load_cluster

WIDE = 0.5 + 1 / 16  # bytes of an element with its share of a scale


def job(dtype, gpu="gb200", **options):
    table = {"model": "llama3-70b", "cluster": {"preset": "gb200-nvl72", "gpu": gpu}}
    return job_from_options(table | {"dtype": dtype, "framework": "nemo-2"} | options)


@pytest.mark.parametrize(
    ("gpu", "pflops"), [("b200", 9), ("gb200", 10), ("b300", 13.5), ("gb300", 15)]
)
def test_peaks_are_those_of_the_datasheets_half_as_much_again_on_blackwell_ultra(gpu, pflops):
    cluster = job("nvfp4", gpu).cluster
    assert cluster.gpu.peak_flops["nvfp4"] == pflops * 1e15
    assert cluster.gpu.peak_flops["nvfp4"] in (
        4 * cluster.gpu.peak_flops["bf16"],
        6 * cluster.gpu.peak_flops["bf16"],
    )


def test_a_large_product_on_gb200_takes_half_of_fp8_and_a_third_on_gb300():
    times = {
        (gpu, dtype): gemm_seconds(65536, 8192, 65536, job("bf16", gpu).cluster.gpu, dtype=dtype)
        for gpu in ("gb200", "gb300")
        for dtype in ("fp8", "nvfp4")
    }
    assert times["gb200", "fp8"] / times["gb200", "nvfp4"] == pytest.approx(2, rel=0.01)
    assert times["gb300", "fp8"] / times["gb300", "nvfp4"] == pytest.approx(3, rel=0.01)


def test_filling_a_tile_costs_the_same_time_at_any_width():
    """A tile of 128 x 256 on each SM: its k columns and half_k of bf16, at four times the rate."""
    gpu = load_cluster("gb200-nvl72").gpu.model_copy(
        update={"sustained_share": 1.0, "launch_overhead": 0.0, "memory_bandwidth": 1e18}
    )
    m = 128 * gpu.num_sms
    for k in (512, 4096):
        expected = 2 * 128 * 256 * gpu.num_sms * (k + 4 * gpu.gemm_half_k)
        expected /= gpu.peak_flops["nvfp4"] * gpu.fp8_efficiency
        assert gemm_seconds(m, 256, k, gpu, dtype="nvfp4") == pytest.approx(expected)


def test_inputs_are_read_three_times_and_written_twice():
    """For the largest element, for the cast, and for the turned one: 6 + 2 x 9 / 16 bytes."""
    one = job("nvfp4")
    gpu, tokens, rows, columns = one.cluster.gpu, 8192, 8192, 28672
    product = gemm_seconds(tokens, columns, rows, gpu, dtype="nvfp4")
    stream = gpu.memory_bandwidth * gpu.memory_efficiency
    cast = gpu.launch_overhead + (3 * 2 + 2 * WIDE) * tokens * rows / stream
    assert linear(one, "mlp up", columns, rows).forward == pytest.approx(product + cast)


def test_weights_are_cast_once_a_step_both_ways_and_kept():
    one, other = job("nvfp4"), job("fp8")
    more = optimizer_seconds(1e9, one) - optimizer_seconds(1e9, other)
    stream = one.cluster.gpu.memory_bandwidth * one.cluster.gpu.memory_efficiency
    assert more == pytest.approx(1e9 * (2 * 2 + 2 * WIDE) / stream)
    parameters = one.model.num_parameters
    kept = estimate(one).weight_bytes - estimate(other).weight_bytes
    assert kept[0] == pytest.approx(2 * WIDE * parameters, rel=1e-3)


def test_products_keep_their_inputs_in_nine_sixteenths_of_a_byte():
    parts = {dtype: layer_parts(job(dtype)) for dtype in ("bf16", "fp8", "nvfp4")}
    tokens = 8192
    assert ELEMENT_BYTES["nvfp4"] == WIDE
    assert parts["nvfp4"]["inner"] == WIDE * tokens * 28672
    assert parts["nvfp4"]["norm outputs"] == 2 * WIDE * tokens * 8192
    assert parts["nvfp4"]["context"] == (2 + WIDE) * tokens * 8192
    for name in ("ups", "norm inputs", "queries, keys, values", "core"):
        assert parts["nvfp4"][name] == parts["bf16"][name]
    whole = {dtype: sum(each.values()) for dtype, each in parts.items()}
    assert whole["nvfp4"] < whole["fp8"] < whole["bf16"]


def test_attention_logits_and_loss_stay_in_bf16():
    assert core_operators(job("nvfp4")) == core_operators(job("bf16"))
    assert head_operators(job("nvfp4")) == head_operators(job("bf16"))
    by = [{o.name: o.forward for o in layer_operators(job(d))} for d in ("fp8", "nvfp4")]
    slower = {name for name in by[0] if by[0][name] != by[1][name]}
    assert slower == {"qkv", "projection", "mlp up", "mlp down"}


def test_experts_route_in_bf16_and_compute_in_nvfp4():
    made = [
        {o.name: o.forward for o in layer_operators(job(d, model="qwen3-30b-a3b", ep=8, dp=8))}
        for d in ("bf16", "nvfp4")
    ]
    assert made[0]["router"] == made[1]["router"]
    assert made[0]["experts up"] != made[1]["experts up"]


def test_gradients_of_nvfp4_plans_are_kept_in_fp32_or_bf16():
    assert job("nvfp4").plan.grad_dtype == "bf16"  # as its framework keeps them
    with pytest.raises(ValueError, match="weights are bf16; use fp32 or bf16"):
        job("nvfp4", grad_dtype="fp16")


def test_a_gpu_without_such_a_peak_is_refused():
    with pytest.raises(ValueError, match="H100 SXM has no such peak; use one of bf16, fp16, fp8"):
        job_from_options({"model": "llama3-8b", "cluster": "dgx-h100", "dtype": "nvfp4"})


def test_a_job_in_nvfp4_is_flagged_as_beyond_what_was_measured():
    flag = "no product in nvfp4 was measured: its efficiency is that of fp8"
    assert flag in outside(job("nvfp4"))
    assert flag not in outside(job("fp8"))


def test_llama_in_nvfp4_on_gb200_and_gb300_is_predicted_within_15_percent():
    """Four held-out rows of 64 and 256 GPUs, faster than their own fp8 by 23 to 46%."""
    table = load_table("megatron-bridge")
    rows = tuple(row for row in table.rows if row.text("precision") == "NVFP4")
    assert {job_of_row(table, row).plan.dtype for row in rows} == {"nvfp4"}
    found = predict(type(table)(**{**vars(table), "rows": rows})).predictions
    assert len(found) == 4
    assert max(abs(one.error) for one in found) < 0.15
