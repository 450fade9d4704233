"""Real processes over gloo: numerics, memory, order. No test asserts a wall-clock time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.job import Plan
from simulator.schedule import Kind
from validator.analysis import analyse
from validator.asked import SMALL, scaled, session_of
from validator.events import load
from validator.launch import run_ranks
from validator.replay import analyse_ranks
from validator.session import TOLERANCE

ANY = "9"  # a tolerance that even a very noisy machine keeps
TINY = [
    "--layers",
    "4",
    "--microbatches",
    "4",
    "--hidden",
    "32",
    "--seq-len",
    "16",
    "--vocab",
    "64",
]
TINY += ["--dtype", "fp64", "--rounds", "1", "--tolerance", ANY]
MODEL = scaled(
    SMALL, 1.0, {"num_hidden_layers": 6, "hidden_size": 32, "seq_len": 16, "vocab_size": 64}
)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Five schedules on two ranks, from the command."""
    path = tmp_path_factory.mktemp("two") / "events.json.gz"
    assert main(["validate", "--cpus", "2", *TINY, "-o", str(path)]) == 0
    return load(path)


def test_gradients_of_all_five_schedules_are_the_unpipelined_models(two):
    runs = analyse(two)
    assert [run.name for run in runs] == ["1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"]
    for run in runs:
        assert run.gradient_error is not None
        assert run.gradient_error < 1e-12, run.name


def test_peak_memory_of_every_rank_and_schedule_is_predicted_within_4_percent(two):
    for run in analyse(two):
        assert len(run.peak) == 2
        assert abs(run.peak_errors).max() < 0.04, run.name


def test_ranks_ran_the_rows_that_they_were_handed(two):
    for run, play in zip(analyse(two), two.session.plays, strict=True):
        compute = run.measured.of(Kind.F, Kind.B, Kind.I, Kind.W)
        for rank in range(2):
            mine = compute.where(compute.rank == rank)
            row = list(play.schedule.row(rank))
            assert list(zip(mine.stage, mine.kind, mine.microbatch, strict=True)) == row


def test_every_lowered_transfer_was_posted_once_at_both_ends(two):
    for run, play in zip(analyse(two), two.session.plays, strict=True):
        moved = run.measured.of(Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)
        lowered = play.lowered
        assert moved.num_spans == (lowered.kind > Kind.OPTIMIZER).sum()
        assert (moved.end >= moved.start).all()


def test_ops_of_a_rank_do_not_overlap_and_none_begins_before_its_input(two):
    for run in analyse(two):
        for rank in range(2):
            compute = run.measured.compute
            mine = compute.where(compute.rank == rank)
            assert (mine.start[1:] >= mine.end[:-1] - 1e-9).all()
        forward = run.measured.of(Kind.F)
        ends = {
            (s, m): e
            for s, m, e in zip(forward.stage, forward.microbatch, forward.end, strict=True)
        }
        begins = zip(forward.stage, forward.microbatch, forward.start, strict=True)
        assert all(begin >= ends[s - 1, m] - 1e-3 for s, m, begin in begins if s)


def test_predictions_are_finite_and_of_the_measured_order(two):
    for run in analyse(two):
        assert 0.1 < run.predicted.makespan / run.step.median < 10


def gradient_errors(model, names, num_ranks, num_microbatches, **options):
    """The worst gradient of each rank and schedule, from a session that times whole steps only."""
    plan = Plan(num_microbatches=num_microbatches, micro_batch_size=1)
    options = {"device": "cpu", "rounds": 1, "timeout": 60.0, "tracing": False, **options}
    asked = session_of(model, plan, names, num_ranks, **options)
    records = list(run_ranks(asked).of("numerics"))
    assert len(records) == len(names) * num_ranks
    return [record["error"] for record in records]


def test_three_ranks_in_bf16_have_the_gradients_of_no_pipeline():
    errors = gradient_errors(MODEL, ["1f1b", "bfs"], 3, 6, dtype="bf16")
    assert max(errors) <= TOLERANCE["bf16"]


def test_transfers_staged_through_host_memory_give_the_same_gradients():
    model = MODEL.model_copy(update={"num_hidden_layers": 4})
    names = ["1f1b", "zb-v"]
    errors = gradient_errors(model, names, 2, 4, dtype="fp64", transfers="staged")
    assert max(errors) < 1e-12


def test_one_process_plays_rank_1_of_a_pipeline_of_two(tmp_path, capsys):
    path = tmp_path / "events.json.gz"
    words = ["--cpus", "1", "--pp", "2", *TINY, "--rank", "1", "--schedules", "1f1b,gpipe,zb-h1"]
    assert main(["validate", *words, "-o", str(path)]) == 0
    assert "neighbours are looped back" in capsys.readouterr().out
    replays = analyse_ranks(load(path))
    assert [(r.schedule, r.rank) for r in replays] == [(n, 1) for n in ("1f1b", "gpipe", "zb-h1")]
    for replay in replays:
        assert abs(replay.peak_error) < 0.04, replay


def test_under_torchrun_the_first_rank_reports(tmp_path):
    path = tmp_path / "events.json.gz"
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words += ["-m", "validator", "--cpus", "2", *TINY, "--schedules", "1f1b", "-o", str(path)]
    run = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parent.parent,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("the furthest step") == 1
    assert analyse(load(path))[0].gradient_error < 1e-12
