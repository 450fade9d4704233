"""`bubblescope calibrate` on traces: all complete steps, and what was not measured is said."""

import pytest

from simulator.calibrate import load_calibration
from simulator.cli import main
from simulator.job import Plan
from simulator.simulate import simulate_uniform
from tests.recordings import Setting, documents, write_documents


@pytest.fixture
def paths(tmp_path):
    run = simulate_uniform(Plan(pp=2, num_microbatches=4), 1e-3, 2e-3, latency=1e-4)
    made, _ = documents(run.timeline, Setting(offsets=(0.0, 0.0), same_host=True, steps=3))
    return [str(path) for path in write_documents(tmp_path, made)]


def test_three_steps_of_four_microbatches_are_twelve_measurements(paths, tmp_path, capsys):
    out = tmp_path / "costs.json"
    assert main(["calibrate", *paths, "-o", str(out)]) == 0
    assert "rank0.json and 1 more, 3 steps" in capsys.readouterr().out
    found = load_calibration(out)
    assert {(op.stage, op.kind, op.count) for op in found.ops} == {
        (stage, kind, 12) for stage in (0, 1) for kind in "FB"
    }


def test_halves_of_a_backward_that_were_not_measured_are_said(paths, capsys):
    assert main(["calibrate", *paths, "--schedules", "zb-h1,1f1b"]) == 0
    text = capsys.readouterr().out
    assert text.endswith(
        "note: I and W of stages 0, 1 were not measured; in zb-h1 each takes half of B\n"
    )
    assert main(["calibrate", *paths, "--schedules", "1f1b"]) == 0
    assert "note:" not in capsys.readouterr().out


def test_why_a_schedule_is_left_out_stands_there_in_full(paths, capsys):
    assert main(["calibrate", *paths, "--schedules", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    reasons = [line for line in lines if "not with 1 stages a rank" in line]
    assert max(map(len, reasons)) > 100
    alone = next(line for line in reasons if line.startswith("zb-v"))
    assert main(["calibrate", *paths, "--schedules", "zb-v"]) == 2
    assert alone.partition("a rank: ")[2] in capsys.readouterr().err


def test_json_that_is_nested_too_deeply_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    for verb in ("calibrate", "trace"):
        assert main([verb, str(tmp_path / "deep.json")]) == 2
        error = capsys.readouterr().err
        assert "it is no JSON, or is cut off" in error
        assert error.count("\n") == 1
