"""Measured costs: robust figures, and runs that come out as those they were measured on."""

import numpy as np
import pytest

from simulator.calibrate import (
    Calibration,
    OpTime,
    calibrate,
    dump_calibration,
    load_calibration,
    play,
    predict,
)
from simulator.cli import main
from simulator.job import Plan
from simulator.load import load_job
from simulator.lower import lower
from simulator.robust import fit_link, spread, theil_sen
from simulator.schedule import Kind
from simulator.schedules import build
from simulator.simulate import simulate, simulate_uniform
from simulator.timeline import Timeline
from tests.plans import QUICK, nearest
from traces import write


def uniform_calibration(num_stages, forward, backward, **more):
    times = (("F", forward), ("B", backward))
    ops = [
        OpTime(kind=k, stage=s, seconds=t, low=t, high=t, count=1)
        for s in range(num_stages)
        for k, t in times
    ]
    return Calibration(name="uniform", num_stages=num_stages, ops=ops, **more)


def test_1f1b_pp4_m8_predicted_on_1_and_2_seconds_takes_33():
    found = predict(Plan(pp=4, num_microbatches=8), uniform_calibration(4, 1.0, 2.0))
    assert found.makespan == 3 * (8 + 4 - 1)


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "1f1b"])
def test_calibrated_on_1f1b_a_schedule_takes_what_uniform_costs_give(name):
    measured = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0).timeline
    predicted = predict(Plan(schedule=name, pp=4, num_microbatches=8), calibrate([measured]))
    expected = simulate_uniform(Plan(schedule=name, pp=4, num_microbatches=8), 1.0, 2.0)
    assert predicted.makespan == pytest.approx(expected.timeline.makespan, rel=1e-12)


@pytest.mark.parametrize("name", [n for n in QUICK if n not in ("chimera", "dualpipe")])
def test_a_schedule_calibrated_on_itself_takes_as_long(name):
    plan = nearest(name, 2, 2, 2)
    run = simulate_uniform(plan, 1.0, 2.0)
    if (run.timeline.kind == Kind.OPTIMIZER).any() or run.timeline.pairs().size:
        return  # rows with updates, or ops whose own time is not seen
    if plan.num_slices is not None or "num_slices" in plan.schedule:
        return
    found = predict(plan, calibrate([run.timeline]))
    assert found.makespan == pytest.approx(run.timeline.makespan, rel=1e-9)


def test_one_step_in_five_that_takes_ten_times_as_long_moves_nothing():
    quiet = simulate_uniform(Plan(pp=2, num_microbatches=4), 1.0, 2.0).timeline
    columns = ("rank", "stage", "kind", "microbatch", "start", "end")
    values = {name: getattr(quiet, name) for name in columns}
    values |= {"start": 10 * quiet.start, "end": 10 * quiet.end}
    found = calibrate([quiet] * 4 + [Timeline(**values)])
    assert found == calibrate([quiet] * 5)


def test_memory_of_a_simulated_run_is_found_again_stage_by_stage():
    run = simulate(load_job("examples/small_8_gpus.toml"))
    found = calibrate([run.timeline])
    assert np.allclose(found.activation_bytes, run.costs.activation_bytes, rtol=1e-6)
    static = run.costs.weight_bytes + run.costs.gradient_bytes + run.costs.optimizer_bytes
    assert np.allclose(found.static_bytes, static + run.costs.fixed_bytes, rtol=1e-6)
    assert np.allclose(found.transient_bytes, run.costs.transient_bytes, atol=1e3)
    assert run.costs.transient_bytes.any()  # the last stage's, of the loss


def test_4_backwards_that_keep_5_bytes_each_end_the_step_20_bytes_higher():
    measured = uniform_calibration(
        2, 1.0, 2.0, activation_bytes=(10.0, 10.0), kept_bytes=(0.0, 5.0)
    )
    rows = lower(build(Plan(pp=2, num_microbatches=4)))
    memory = play(rows, measured, np.array([100.0, 200.0]))
    assert memory.memory_of(0)[1][-1] == 100.0
    assert memory.memory_of(1)[1][-1] == 220.0
    assert memory.peak_memory().tolist() == [120.0, 225.0]  # rank 1: fourth F, three kept


def test_theil_sen_keeps_its_line_with_a_fifth_of_the_points_anywhere():
    x = np.arange(20.0)
    y = 3.0 + 0.5 * x
    y[[1, 7, 12, 19]] = [1e3, -50.0, 7e2, 1e4]
    intercept, slope = theil_sen(x.tolist(), y.tolist())
    assert slope == pytest.approx(0.5, rel=0.05)
    assert intercept == pytest.approx(3.0, abs=0.3)


def test_a_line_through_one_place_is_refused():
    with pytest.raises(ValueError, match="two different places"):
        theil_sen([1.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize("latency", [0.0, 2e-5, 1e-3])
def test_a_link_of_2_gb_per_second_is_found_through_hiccups(latency):
    sizes = (1e4, 1e5, 4e5, 1e6)
    samples = [(n, latency + n / 2e9) for n in sizes for _ in range(9)]
    samples += [(n, 0.5) for n in sizes for _ in range(3)]
    link = fit_link(samples, 4e5)
    assert link.bandwidth == pytest.approx(2e9, rel=1e-6)
    assert link.latency == pytest.approx(latency, abs=1e-12)


def test_a_calibration_is_read_back_as_it_was_written(tmp_path):
    measured = uniform_calibration(2, 1.0, 2.0, latency=1e-5, kept_bytes=(0.0, 1.0))
    (tmp_path / "costs.json").write_text(dump_calibration(measured))
    assert load_calibration(tmp_path / "costs.json") == measured


@pytest.mark.parametrize(("text", "said"), [("{}", "no calibration"), ("[", "complete")])
def test_another_file_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        load_calibration(tmp_path / "costs.json")


def test_a_trace_without_one_stages_forward_is_refused():
    whole = simulate_uniform(Plan(pp=2, num_microbatches=2), 1.0, 2.0).timeline
    with pytest.raises(ValueError, match="stage 0 has no forward"):
        calibrate([whole.where(whole.stage == 1)])


def test_nothing_measured_is_refused():
    with pytest.raises(ValueError, match="nothing was measured"):
        spread([])


def test_the_command_fits_a_saved_run_and_predicts_gpipe(tmp_path, capsys):
    run = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0)
    write(run.timeline, tmp_path / "run.json")
    words = [str(tmp_path / "run.json"), "--schedules", "gpipe"]
    assert main(["calibrate", *words, "-o", str(tmp_path / "costs.json")]) == 0
    out = capsys.readouterr().out
    assert "3B" in out
    assert out.rstrip().endswith("33.0 s")
    assert load_calibration(tmp_path / "costs.json").num_stages == 4


def test_the_command_refuses_ranks_that_do_not_divide_the_stages(tmp_path, capsys):
    run = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0)
    write(run.timeline, tmp_path / "run.json")
    words = ["calibrate", str(tmp_path / "run.json"), "--schedules", "gpipe", "--pp", "3"]
    assert main(words) == 2
    assert "--pp is 3, but it must divide the 4 stages" in capsys.readouterr().err
