"""Published runs of more machines and frameworks: transcribed rightly, read as they were run."""

from dataclasses import replace
from itertools import groupby

import pytest

from simulator.accuracy.jobs import job_of_row, measured_seconds
from simulator.accuracy.outside import outside
from simulator.accuracy.predictions import predict
from simulator.accuracy.rows import load_table
from simulator.frameworks import load_framework
from simulator.load import job_from_options, load_gpu
from simulator.simulate import simulate

TABLES = (
    "mlperf-v4-0",
    "internlm",
    "simumax-b200",
    "simumax-a100-pcie",
    "zero-bubble",
    "mt-nlg",
    "alps-gh200",
    "google-recipes",
    "dgx-cloud",
)


def row_of(table, name):
    return next(row for row in load_table(table).rows if row.id == name)


def job_of(table, name):
    return job_of_row(load_table(table), row_of(table, name))


def megatron_flops(row, passes):
    """A step's FLOP as Megatron's formula counts them: SC'21, eq. 3, with `passes` of 24."""
    b, s, l, h, v = (
        row.number(name) for name in ("global_batch", "seq_len", "layers", "hidden", "vocab")
    )
    return 24 * passes * b * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_held_out_and_every_row_has_a_job_or_a_reason(name):
    table = load_table(name)
    assert table.held_out
    for row in table.rows:
        if not row.text("omitted"):
            job = job_of_row(table, row)
            assert job.plan.num_gpus == row.count("gpus")
            assert job.plan.global_batch_size == row.count("global_batch")
            assert measured_seconds(row) > 0


def test_internlms_printed_tflops_are_its_tokens_times_megatrons_formula_to_4_percent():
    """A second way to the printed throughput; it says that attention reaches 2,048 tokens."""
    checked = 0
    for row in load_table("internlm").rows:
        printed = row.number("tflops_per_gpu")
        if printed is not None:
            passes = 4 if row.text("recompute") == "full" else 3
            flops = megatron_flops(row, passes) / row.count("gpus") / measured_seconds(row)
            assert flops / 1e12 == pytest.approx(printed, rel=0.04), row.id
            checked += 1
    assert checked == 22


def test_mt_nlgs_printed_tflops_count_full_recomputation():
    for row in load_table("mt-nlg").rows:
        flops = megatron_flops(row, 4) / row.count("gpus") / measured_seconds(row)
        assert flops / 1e12 == pytest.approx(row.number("tflops_per_gpu"), rel=0.01)
    assert job_of("mt-nlg", "mtnlg_280").plan.micro_batch_size == 1


def test_mlperf_v4_logs_72_6_and_6_accumulations():
    jobs = [job_of("mlperf-v4-0", f"mlperf40_{n}") for n in (64, 1344, 1452)]
    assert [job.plan.num_microbatches for job in jobs] == [72, 6, 6]
    assert [job.plan.framework for job in jobs] == ["nemo", "nemo-graph", "nemo-graph"]


def test_llamas_on_gh200_keep_gradients_in_16_bits_and_fit():
    for number in (1, 2, 3):
        job = job_of("alps-gh200", f"alps_{number}")
        assert (job.plan.grad_dtype, job.plan.recompute) == ("bf16", "none")
        assert simulate(job).report.fits


def test_googles_recipes_run_the_chunks_and_precisions_of_their_configurations():
    jobs = [job_of("google-recipes", f"google_{number}") for number in range(1, 10)]
    assert [job.plan.vpp for job in jobs] == [2, 5, 4, 20, 14, 1, 9, 20, 1]
    assert [job.plan.dtype for job in jobs if job.plan.dtype != "fp8"] == ["bf16", "bf16"]
    overlaps = [load_framework(job.plan.framework).overlap_tensor_forward for job in jobs[:5]]
    assert overlaps == [False] * 4 + [True]
    assert jobs[2].plan.grad_dtype == "fp32"
    assert [job.cluster.inter_node.bandwidth for job in jobs[2:4]] == [25e9, 50e9]


def test_dgx_cloud_accumulates_what_its_pages_print():
    printed = {"Llama 3.1 8B": 32, "Llama 3.1 70B": 64, "Llama 3.1 405B": 63, "GPT3-175B": 64}
    table = load_table("dgx-cloud")
    rows = [row for row in table.rows if row.text("model") in printed]
    assert len(rows) == 44
    for row in rows:
        job = job_of_row(table, row)
        assert job.plan.num_microbatches == printed[row.text("model")]
        flash = load_framework(job.plan.framework).flash_version
        assert flash == (2 if row.text("model") == "GPT3-175B" else 3)


def test_hybrid_zero_splits_over_a_node_and_plain_zero_over_all():
    assert job_of("internlm", "intern_16").plan.shards == 8
    assert job_of("internlm", "intern_8").plan.shards == 1024


def test_slices_on_b200_fill_the_memory_that_was_measured_to_9_percent():
    """Dense, latent and expert layers; pipelines, tensor and expert parallelism."""
    found = predict(load_table("simumax-b200")).predictions
    assert len(found) == 36
    for one in found:
        assert one.predicted_memory == pytest.approx(one.measured_memory, rel=0.09), one.row


def test_four_schedules_fill_the_memory_that_was_measured_to_12_percent():
    """30 to 74 GB: eager attention without recomputation, which the paper does not print."""
    table = load_table("zero-bubble")
    rows = tuple(row for row in table.rows if row.count("num_microbatches") in (32, 64, 128))
    for one in predict(replace(table, rows=rows)).predictions:
        assert one.predicted_memory == pytest.approx(one.measured_memory, rel=0.12), one.row


def test_zb_2p_is_measured_and_predicted_to_be_the_fastest_of_four_schedules():
    table = load_table("zero-bubble")
    rows = tuple(row for row in table.rows if row.count("num_microbatches") in (24, 48, 96))
    found = predict(replace(table, rows=rows)).predictions
    groups = [list(g) for _, g in groupby(found, key=lambda one: one.job.model.name)]
    assert [len(group) for group in groups] == [4] * 4
    for group in groups:
        for time in ("measured", "predicted"):
            best = min(group, key=lambda one: getattr(one, time))
            assert best.job.plan.schedule == "zb-2p"


def test_post_validation_takes_the_longest_rank_not_the_step():
    table = load_table("zero-bubble")
    row = row_of("zero-bubble", "zb_10")
    (found,) = predict(replace(table, rows=(row,))).predictions
    whole = simulate(found.job).report
    assert 0.88 * whole.step_time < found.predicted < 0.97 * whole.step_time
    (plain,) = predict(replace(table, rows=(row_of("zero-bubble", "zb_1"),))).predictions
    assert plain.predicted == simulate(plain.job).report.step_time


def test_a_pipeline_of_two_over_pcie_is_predicted_within_4_percent():
    """Its transfers alone cross a link: what is left are the card's own products."""
    table = load_table("simumax-a100-pcie")
    rows = tuple(row_of("simumax-a100-pcie", name) for name in ("sma_1", "sma_2", "sma_3"))
    found = predict(replace(table, rows=rows)).predictions
    assert max(abs(one.error) for one in found) < 0.04


@pytest.mark.parametrize(
    ("cluster", "gpu", "framework"),
    [
        ("dgx-h800", "H800 SXM", None),
        ("hgx-h20", "H20", None),
        ("l40s", "L40S", "torchtitan"),
        ("frontier", "MI250X GCD", "deepspeed"),
        ("mi300x-8", "MI300X", "torchtitan"),
        ("mi355x-8", "MI355X", None),
        ("atlas-800t-a2", "Ascend 910B", "mindspeed"),
    ],
)
def test_a_machine_that_was_never_measured_is_simulated_and_flagged(cluster, gpu, framework):
    options = {"model": "llama2-7b", "cluster": cluster, "gpus": 16, "tp": 2, "pp": 2}
    if framework is not None:
        options["framework"] = framework
    job = job_from_options(options | {"global_batch_size": 64, "dtype": "bf16"})
    report = simulate(job).report
    assert 0.1 < report.mfu < 0.8
    flags = outside(job)
    assert f"no kernel was measured on {gpu}: its efficiencies are another GPU's" in flags
    assert f"no training run on {gpu} is among the measured" in flags


def test_an_h800_is_an_h100_but_for_its_links():
    one, two = load_gpu("h800-sxm"), load_gpu("h100-sxm")
    rename = {"name": "", "source": ""}
    assert one.model_copy(update=rename) == two.model_copy(update=rename)
