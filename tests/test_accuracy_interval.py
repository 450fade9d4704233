"""Intervals keep their promise on rows that they never saw, and flags name what was never seen."""

import math
import random

import pytest

from simulator.accuracy.coverage import coverage_of_rows, coverage_of_tables
from simulator.accuracy.experience import (
    Experience,
    Kind,
    experience,
    kind_of,
    written,
)
from simulator.accuracy.interval import interval, interval_of_kind
from simulator.accuracy.learning import learnt
from simulator.accuracy.outside import outside
from simulator.accuracy.predictions import predict
from simulator.accuracy.rows import load_table
from simulator.cli import main
from simulator.load import load_cluster, load_job

KIND = Kind(framework="f", gpu="A100", network="one node", size="large")


def known(errors, table="t", kind=KIND):
    return [
        Experience(
            table=table,
            row=f"{table}{at}",
            framework=kind.framework,
            gpu=kind.gpu,
            network=kind.network,
            size=kind.size,
            gpu_name="A100 SXM 80GB",
            dtype="bf16",
            schedule="1f1b",
            hidden_size=4096,
            seq_len=2048,
            micro_batch_size=1,
            num_gpus=8,
            tp=1,
            pp=1,
            cp=1,
            ep=1,
            zero_stage=0,
            log_error=error,
        )
        for at, error in enumerate(errors)
    ]


def test_the_interval_of_39_errors_is_from_the_second_to_the_38th():
    """k of n + 1: 0.05 x 40 = 2 and 0.95 x 40 = 38."""
    rows = known([math.log(1 + n / 100) for n in range(1, 40)])
    found = interval_of_kind(KIND, 10.0, rows)
    assert (found.low, found.high) == (pytest.approx(10.2), pytest.approx(13.8))
    assert (found.rows, found.tables) == (39, 1)


def test_intervals_of_errors_without_a_pattern_cover_nine_in_ten():
    draw = random.Random(7)
    rows = known([draw.gauss(0.05, 0.1) for _ in range(400)])
    assert coverage_of_rows(rows).inside == pytest.approx(0.9, abs=0.02)


def test_a_framework_that_was_never_scored_is_compared_with_whole_tables():
    rows = []
    for at, shift in enumerate((-0.2, 0.0, 0.2)):
        kind = Kind(framework=f"f{at}", gpu="A100", network="one node", size="large")
        rows += known([shift] * (3 if at else 300), table=f"t{at}", kind=kind)
    new = Kind(framework="new", gpu="A100", network="one node", size="large")
    found = interval_of_kind(new, 1.0, rows)
    assert (found.low, found.high) == (pytest.approx(math.exp(-0.2)), pytest.approx(math.exp(0.2)))
    assert found.tables == 3


def test_nothing_known_is_refused():
    with pytest.raises(ValueError, match="no measured run is known"):
        interval_of_kind(KIND, 1.0, [])


def test_90_percent_intervals_of_the_published_rows_cover_85_to_95_percent():
    found = coverage_of_rows(experience())
    assert found.rows > 1000
    assert 0.85 <= found.inside <= 0.95


def test_a_table_left_out_whole_is_reported_for_every_table():
    found = coverage_of_tables(experience())
    assert set(found.by_table) == {one.table for one in experience()}
    assert 0 < found.inside <= 1


@pytest.mark.parametrize("name", ["megatron-sc21", "korthikanti-table-5", "megatron-2020-09"])
def test_what_is_known_is_what_the_model_predicts_today(name):
    """Else run benchmarks/learn_errors.py."""
    stored = {one.row: one.log_error for one in experience() if one.table == name}
    today = {one.row: one.log_error for one in learnt(predict(load_table(name)).predictions)}
    assert today == pytest.approx(stored, abs=2e-3)


def test_the_command_prints_the_coverage_of_every_table(capsys):
    assert main(["accuracy", "--intervals"]) == 0
    out = capsys.readouterr().out
    assert all(one.table in out for one in experience())
    assert "row left out" in out


def test_what_is_written_reads_back_the_same():
    assert written(experience()).count("\n") == len(experience()) + 1


def test_a_job_like_sc21_has_an_interval_about_its_prediction():
    job = load_job("examples/sc21_76_1b.toml")
    found = interval(job, 16.0)
    assert found.low < found.high < 2 * found.low
    assert f"from {found.rows} measured of" in str(found)


def test_sizes_and_gpus_that_were_never_measured_are_flagged():
    job = load_job("examples/sc21_7_5b.toml")
    assert outside(job) == ()
    long = job.model.model_copy(update={"seq_len": 1_048_576})
    flags = outside(job.model_copy(update={"model": long}))
    assert any("1,048,576 tokens in a sequence" in flag for flag in flags)
    v100 = load_cluster("dgx1-v100")
    flags = outside(job.model_copy(update={"cluster": v100}))
    assert any("no kernel was measured on V100" in flag for flag in flags)


def test_two_gpu_families_and_networks_are_different_kinds():
    first, last = load_job("examples/small_8_gpus.toml"), load_job("examples/sc21_1008b.toml")
    assert kind_of(first).network == "one node"
    assert kind_of(last).network == "several nodes"
    assert kind_of(last).gpu == "A100"
