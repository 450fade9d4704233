"""Held-out rows are transcribed rightly, predicted as they were run, and covered by intervals."""

from contextlib import suppress

import pytest

from simulator.accuracy.coverage import coverage_held_out
from simulator.accuracy.experience import experience, kind_of
from simulator.accuracy.jobs import job_of_row
from simulator.accuracy.outside import outside
from simulator.accuracy.predictions import predict
from simulator.accuracy.rows import load_table, table_names
from simulator.accuracy.scores import score
from simulator.cli import main
from simulator.costs.flops import attention_core_flops, model_flops
from simulator.load import load_job
from simulator.simulate import simulate

HELD_OUT = tuple(name for name in table_names() if load_table(name).held_out)


def jobs(name):
    """Rows that can be scored, with their jobs."""
    found = []
    for row in load_table(name).rows:
        with suppress(ValueError):
            found.append((row, job_of_row(load_table(name), row)))
    return found


def test_a_hundred_rows_of_five_sources_are_held_out():
    rows = {name: len(jobs(name)) for name in HELD_OUT}
    assert sum(rows.values()) >= 100
    assert sum(count > 0 for count in rows.values()) >= 5


@pytest.mark.parametrize("name", ["megatron-bridge", "nemo-2025"])
def test_printed_tokens_and_printed_flops_agree_to_2_percent(name):
    """A second way to the same number: the source counts attention whole or its causal half."""
    checked = 0
    for row, job in jobs(name):
        printed, model = row.number("tflops_per_gpu"), job.model
        if printed is None or model.name.startswith("gpt-oss"):
            continue
        whole = model_flops(model, 1)
        causal = whole - 1.5 * model.num_hidden_layers * attention_core_flops(model)
        tokens = row.number("tokens_per_s_per_gpu")
        shares = [tokens * flops / model.seq_len / 1e12 / printed for flops in (whole, causal)]
        assert min(abs(share - 1) for share in shares) < 0.02, row.id
        checked += 1
    assert checked >= 15


def test_printed_accumulations_are_batch_over_microbatch_and_replicas():
    """A second way to the plan; two rows whose source contradicts itself say so in their notes."""
    found = [
        (row.count("num_microbatches"), job.plan.num_microbatches)
        for name in ("megatron-bridge", "nemo-2025")
        for row, job in jobs(name)
        if row.text("num_microbatches")
    ]
    assert len(found) >= 50
    assert all(printed == ours for printed, ours in found)
    notes = [row.text("notes") for row in load_table("megatron-bridge").rows]
    assert sum("do not give" in note for note in notes) == 2


def test_a_preset_stands_for_a_model_of_experts_with_the_rows_sequence():
    _, job = next(one for one in jobs("nemo-2025") if one[0].text("model") == "Mixtral-8x22B")
    assert (job.model.num_experts, job.model.seq_len, job.plan.ep) == (8, 65536, 8)


def test_what_a_row_cannot_say_leaves_it_out_with_the_reason():
    reasons = score(predict(load_table("torchtitan"))).skipped
    assert reasons["micro_batch not printed"] == 6
    assert reasons["rowwise scaling of fp8 is not simulated"] == 4
    skipped = {row.id for row in load_table("megatron-bridge").rows if row.text("omitted")}
    assert skipped == set()
    rowwise = {row.id for row in load_table("torchtitan").rows if row.text("omitted")}
    assert "titan_25" in rowwise


def test_torchtitan_means_alternate_where_it_says_selective():
    _, job = next(one for one in jobs("torchtitan") if one[0].id == "titan_2")
    assert (job.plan.recompute, job.plan.attention, job.plan.zero_stage) == (
        "alternate",
        "flash",
        3,
    )


def test_fully_sharded_data_is_split_over_context_parallel_gpus_too():
    _, job = next(one for one in jobs("torchtitan") if one[0].id == "titan_10")
    assert (job.plan.dp, job.plan.cp, job.plan.zero_stage, job.plan.shards) == (1, 8, 3, 8)


def test_hybrid_sharding_splits_over_a_node():
    _, job = next(one for one in jobs("fms-fsdp") if one[0].id == "fms_1")
    assert (job.plan.zero_stage, job.plan.shard_size, job.plan.dp) == (3, 8, 128)


def test_gpt3_on_512_to_10752_h100_is_predicted_within_4_percent():
    found = predict(load_table("mlperf-v3-1")).predictions
    assert [one.job.plan.num_gpus for one in found] == [512, 4096, 6144, 8192, 10752]
    assert max(abs(one.error) for one in found) < 0.04


def test_intervals_learnt_without_any_held_out_table_hold_85_percent_of_their_rows():
    found = coverage_held_out(experience())
    assert set(found.by_table) <= set(HELD_OUT)
    assert found.rows >= 100
    assert found.inside >= 0.85


def test_a_framework_that_was_never_measured_is_flagged():
    job = load_job("examples/sc21_7_5b.toml")
    plan = job.plan.model_copy(update={"framework": "colossal-ai"})
    assert "no measured run is of colossal-ai" in outside(job.model_copy(update={"plan": plan}))


def test_blackwell_is_one_family_and_experts_are_a_size_of_their_own():
    kinds = {
        (job.cluster.gpu.name, job.model.is_sparse): kind_of(job)
        for _, job in jobs("megatron-bridge")
    }
    assert kinds["B200", False].gpu == kinds["GB300", True].gpu == "Blackwell"
    assert kinds["GB300", True].size == "expert" != kinds["GB300", False].size


def test_the_report_sets_held_out_tables_apart(capsys):
    assert main(["accuracy", "--table", "mlperf-v3-1", "--table", "megatron-2021-01"]) == 0
    out = capsys.readouterr().out
    assert out.index("megatron-2021-01") < out.index("held out:") < out.index("mlperf-v3-1")
    assert "held out: no constant was fitted on these rows" in out


def test_dropped_tokens_are_a_capacity_of_one_and_graphs_are_by_the_recipe():
    dropped = {
        (job.model.name, job.cluster.gpu.name): job.plan.framework
        for row, job in jobs("megatron-bridge")
        if row.text("notes") == "tokendrop" and job.plan.capacity_factor == 1
    }
    assert dropped == {
        ("DeepSeek-V3", "B200"): "nemo-2",
        ("DeepSeek-V3", "GB200"): "nemo-2",
        ("Qwen3 30B-A3B", "GB200"): "nemo-2-graph",
        ("Qwen3 30B-A3B", "B200"): "nemo-2-graph",
        ("Qwen3 235B-A22B", "GB200"): "nemo-2-graph",
        ("Qwen3 235B-A22B", "B200"): "nemo-2",
        ("Qwen3 235B-A22B", "H100 SXM"): "nemo-2",
        ("Qwen3 30B-A3B", "H100 SXM"): "nemo-2",
    }


def test_experts_are_whole_in_tensor_parallel_groups_where_the_recipe_says_so():
    found = {row.id: job.plan for row, job in jobs("megatron-bridge") if job.plan.etp is not None}
    copies = {row: plan.expert_replicas for row, plan in found.items()}
    assert copies == dict.fromkeys((f"bridge_{n}" for n in (33, 65, 76, 77, 92)), 1) | {
        "bridge_90": 2
    }
    assert all(plan.tp == 2 for plan in found.values())


def test_seven_rows_hide_the_exchange_of_experts_as_their_recipes_do():
    found = {row.id for row, job in jobs("megatron-bridge") if job.plan.schedule == "1f1b-overlap"}
    assert found == {f"bridge_{n}" for n in (28, 31, 33, 59, 64, 65, 90)}


def test_the_host_of_overlapped_pairs_gives_the_17_2_s_of_a_run_that_no_table_has():
    """Qwen3 235B in BF16 on 64 B200, before and after Megatron-Bridge's pull request 1760."""
    _, job = next(one for one in jobs("megatron-bridge") if one[0].id == "bridge_59")
    plan = job.plan.model_copy(update={"dtype": "bf16"})
    with_overlap = simulate(job.model_copy(update={"plan": plan})).report.step_time
    assert with_overlap == pytest.approx(17.2, rel=0.005)
    plan = plan.model_copy(update={"schedule": "interleaved"})
    without = simulate(job.model_copy(update={"plan": plan})).report.step_time
    assert without < with_overlap  # which was disabled "due to CPU overhead": 16 s


def test_deepseek_printed_flops_count_multi_token_prediction_as_ours_do():
    """Printed TFLOP/s are our FLOP with causal attention counted once, with the module or not."""
    found = {}
    for row, job in jobs("megatron-bridge"):
        if job.model.name != "DeepSeek-V3":
            continue
        layers = job.model.num_hidden_layers + job.model.num_nextn_predict_layers
        causal = model_flops(job.model, 1) - 1.5 * layers * attention_core_flops(job.model)
        ours = causal / job.model.seq_len * row.number("tokens_per_s_per_gpu") / 1e12
        found[row.id] = (job.model.num_nextn_predict_layers, ours / row.number("tflops_per_gpu"))
    assert sum(with_module for with_module, _ in found.values()) == 9
    assert all(ratio == pytest.approx(1, abs=0.02) for _, ratio in found.values())


def test_rows_are_predicted_with_the_modules_and_layers_that_their_recipes_name():
    plans = {row.id: job.plan for row, job in jobs("megatron-bridge")}
    assert plans["bridge_90"].recompute_modules == ("mla_up_proj", "mlp")
    assert plans["bridge_90"].layers_per_stage == (1, *[2] * 30, 0)
    assert plans["bridge_20"].recompute_modules == ("layernorm", "moe_act")
    assert plans["bridge_20"].attention == "flash"
    assert (plans["bridge_6"].offload_activations, plans["bridge_6"].offload_num_layers) == (
        True,
        40,
    )
    assert plans["bridge_16"].layers_per_stage == (*[4] * 15, 1)
