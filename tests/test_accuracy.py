"""Rows become the jobs that they measured, and errors become the figures that are printed."""

import json
from collections import Counter

import numpy as np
import pytest

from simulator.accuracy.jobs import job_of_row, measured_seconds
from simulator.accuracy.layouts import layers_of_stages
from simulator.accuracy.null import null_errors, scaled_errors
from simulator.accuracy.ordering import ordering
from simulator.accuracy.predictions import Prediction, _judged, predict
from simulator.accuracy.rows import Row, load_table, table_names
from simulator.accuracy.scores import score
from simulator.cli import main
from simulator.costs.flops import hardware_flops
from simulator.load import load_model

SMALL = ("megatron-sc21", "korthikanti-table-5", "korthikanti-table-4", "megatron-2021-01")


def row_of(table, name):
    return next(row for row in load_table(table).rows if row.id == name)


def job_of(table, name):
    return job_of_row(load_table(table), row_of(table, name))


def prediction(row="a", measured=1.0, predicted=1.0, flops=1.0, **plan):
    job = job_of("megatron-sc21", "sc21_t1_1")
    job = job.model_copy(update={"plan": job.plan.model_copy(update=plan)})
    return Prediction(
        table="x", row=row, job=job, measured=measured, predicted=predicted, flops=flops
    )


@pytest.mark.parametrize("name", table_names())
def test_a_table_is_cited_and_its_rows_have_names_of_their_own(name):
    table = load_table(name)
    assert table.citation
    assert max(Counter(row.id for row in table.rows).values()) == 1


@pytest.mark.parametrize("name", ["megatron-sc21", "nemo-h100", "bloom", "nemo-launcher-a100"])
def test_every_row_is_scored_or_left_out_with_a_reason(name):
    scored = predict(load_table(name))
    assert len(scored.predictions) + len(scored.skipped) == len(load_table(name).rows)
    assert all(one.reason for one in scored.skipped)


def test_a_table_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean megatron-sc21"):
        load_table("megatron-sc22")


def test_sc21_row_7_is_its_scripts_plan():
    plan = job_of("megatron-sc21", "sc21_t1_7").plan
    sizes = (plan.tp, plan.pp, plan.vpp, plan.dp, plan.micro_batch_size, plan.num_microbatches)
    assert sizes == (8, 8, 2, 24, 2, 48)
    assert (plan.schedule, plan.recompute, plan.attention) == ("interleaved", "full", "eager")
    assert (plan.dtype, plan.grad_dtype, plan.overlap_grad_reduce) == ("fp16", "fp16", False)


def test_ddp_kind_torch_overlaps_and_local_does_not():
    assert job_of("megatron-sc21", "sc21_t1_3").plan.overlap_grad_reduce
    assert not job_of("megatron-sc21", "sc21_t1_5").plan.overlap_grad_reduce


def test_january_2021_takes_the_microbatch_of_the_same_hidden_size_in_sc21():
    assert job_of("megatron-2021-01", "mlm2101_4").plan.micro_batch_size == 8


def test_korthikanti_selective_rows_split_the_sequence_and_keep_fp32_gradients():
    plan = job_of("korthikanti-table-5", "kor_t5_4").plan
    assert (plan.recompute, plan.sequence_parallel, plan.grad_dtype) == ("selective", True, "fp32")
    assert not job_of("korthikanti-table-5", "kor_t5_3").plan.sequence_parallel


def test_vtrain_pads_50257_words_to_a_multiple_of_128_tp():
    for row in load_table("vtrain").rows[:40]:
        job = job_of_row(load_table("vtrain"), row)
        assert job.model.vocab_size % (128 * job.plan.tp) == 0
        assert 0 <= job.model.vocab_size - 50257 < 128 * job.plan.tp


def test_llm_foundry_models_have_the_parameters_that_their_rows_print():
    table = load_table("llm-foundry")
    for row in table.rows:
        printed = row.number("params_b") * 1e9
        assert job_of_row(table, row).model.num_parameters == pytest.approx(printed, rel=1e-3)


def test_nanotron_models_tie_their_logits_below_4_billion_parameters_alone():
    table = load_table("nanotron")
    for row in table.rows[:300]:
        try:
            model = job_of_row(table, row).model
        except ValueError:
            continue
        printed = row.number("params_b")
        assert model.num_parameters == pytest.approx(printed * 1e9, rel=4e-3)
        assert model.tie_word_embeddings == (printed < 4)


def test_nanotron_gives_llama_3_8b_five_layers_on_the_first_of_8_ranks_and_then_four():
    """As its own documentation prints: the logits weigh as much as two layers."""
    layers = layers_of_stages("nanotron", load_model("llama3-8b"), 8)
    assert layers[:2] == (5, 4)
    assert sum(layers) == 32
    assert layers[-1] < 4


def test_bloom_counts_embedding_and_logits_as_a_layer_each():
    assert job_of("bloom", "bl_145").plan.layers_per_stage == (5, *[6] * 10, 5)


def test_a_row_without_heads_is_left_out():
    with pytest.raises(ValueError, match="heads not printed"):
        job_of("bloom", "bl_7")


def test_a_constant_rate_of_140_tflops_is_5_percent_off_on_sc21_table_1():
    """5.35% of the rate, by the printed rates alone; so rows and FLOP count are the paper's."""
    table = load_table("megatron-sc21")
    errors = []
    for row in table.rows:
        job = job_of_row(table, row)
        rate = hardware_flops(job) / job.plan.num_gpus / measured_seconds(row)
        assert rate == pytest.approx(1e12 * row.number("tflops_per_gpu"), rel=0.005)
        errors.append(abs(140e12 / rate - 1))
    assert np.mean(errors) == pytest.approx(0.0535, abs=0.001)


def test_null_of_a_row_is_the_others_rate():
    rows = [prediction(measured=1.0, flops=2.0), prediction(measured=2.0, flops=2.0)]
    assert null_errors(rows) == pytest.approx([1.0, -0.5])  # rates 2 and 1, swapped


def test_one_scalar_mends_a_constant_factor():
    rows = [prediction(measured=float(n), predicted=0.8 * n) for n in (1, 2, 5)]
    assert scaled_errors(rows) == pytest.approx([0, 0, 0])
    assert null_errors(rows[:1]) is None


def test_a_pick_that_is_third_of_three_regrets_what_it_lost():
    found = ordering([[(1.0, 3.0), (2.0, 2.0), (4.0, 1.0)], [(1.0, 1.0), (3.0, 2.0)]])
    assert (found.groups, found.pairs, found.right) == (2, 4, 0.25)
    assert (found.regret, found.worst_regret) == (1.5, 3.0)
    assert ordering([[(1.0, 1.0)]]) is None


def test_a_row_at_twice_its_siblings_pace_is_contradicted():
    made = _judged(
        [
            prediction("fast", measured=8.0, num_microbatches=8),
            prediction("slow", measured=8.8, num_microbatches=4),
            prediction("fixed cost", measured=2.5, num_microbatches=1),
        ]
    )
    assert [one.contradicted for one in made] == [False, True, False]


@pytest.mark.parametrize("name", SMALL)
def test_a_score_is_what_its_rows_say(name):
    scored = predict(load_table(name))
    found = score(scored)
    errors = [one.predicted / one.measured - 1 for one in scored.predictions]
    assert found.error == pytest.approx(np.mean(np.abs(errors)))
    assert found.bias == pytest.approx(np.mean(errors))
    assert abs(found.worst) == pytest.approx(np.max(np.abs(errors)))
    assert found.rows == len(errors)


def test_a_cell_that_is_no_number_names_its_row():
    with pytest.raises(ValueError, match="tp of row r is 'eight'"):
        Row(id="r", cells={"tp": "eight"}).number("tp")


def test_the_command_prints_tables_rows_json_csv_and_a_plot(tmp_path, capsys):
    words = ["accuracy", "--table", "korthikanti-table-5", "--table", "korthikanti-table-4"]
    plot, rows = tmp_path / "plot.svg", tmp_path / "rows.csv"
    assert main([*words, "--rows", "--csv", str(rows), "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "korthikanti-table-5     9" in out
    assert "kor_t5_9" in out
    assert "null: one constant TFLOP/s for the table, leave-one-out" in out
    assert len(rows.read_text().splitlines()) == 1 + 9 + 10
    assert plot.read_text().count("<svg") == 1
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 19


def test_the_command_refuses_what_it_cannot_do(capsys, tmp_path):
    assert main(["accuracy", "--plot", str(tmp_path / "plot.gif")]) == 2
    assert "use one of .pdf .png .svg" in capsys.readouterr().err
    assert main(["accuracy", "--csv", str(tmp_path / "no" / "rows.csv")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err
    assert main(["accuracy", "--table", "sc-22"]) == 2
