"""Uploads: what cannot be read says why, what can is laid over its simulation, op by op."""

import gzip
import io
import json
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

from dashboard.figures.errors import errors
from dashboard.measurement import (
    MeasureState,
    measured,
    op_errors,
    predictions,
    rows_of,
)
from dashboard.shelf import folder_of, new_folder
from dashboard.state import decode, encode
from dashboard.theme import LIGHT
from dashboard.uploads import MOST_FILES, keep, uploaded
from simulator.job import Plan
from simulator.schedules import build
from simulator.simulate import simulate_uniform
from simulator.timeline import Timeline
from tests.dashboard_page import until
from tests.pages_served import browser, needs_chromium
from traces import write

GRAPH = "document.querySelector('#measure-figure .js-plotly-plot')"
DATA = Path(__file__).parent / "data" / "traces"


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A shelf of this test alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def saved(tmp_path, run, name="run.json"):
    path = tmp_path / name
    write(run.timeline, path, about={"report": run.report.to_dict(), "job": ""})
    return path


def sent(*paths):
    return keep([(path.name, io.BytesIO(path.read_bytes())) for path in paths])


def run_of(schedule="1f1b", pp=4, m=8, vpp=1):
    plan = Plan(schedule=schedule, pp=pp, num_microbatches=m, vpp=vpp)
    return simulate_uniform(plan, 1.0, 2.0, weight_grad=1.0)


def test_a_saved_run_comes_back_bit_for_bit_with_its_report(shelf):
    run = run_of()
    found = uploaded(sent(saved(shelf, run)))
    assert found.timeline == run.timeline
    assert found.report.to_dict() == run.report.to_dict()
    assert not found.is_measured


@pytest.mark.usefixtures("shelf")
def test_two_ranks_of_pytorchs_profiler_make_one_measured_run():
    found = uploaded(sent(*(DATA / f"1f1b_rank{rank}.json.gz" for rank in (0, 1))))
    assert found.is_measured
    assert found.timeline.num_ranks == 2
    assert found.name == "1f1b_rank0.json.gz and 1 more"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b""),
        ("a.json", b"{}"),
        ("a.json", b"[" * 100_000),
        ("a.json", b"\xff\xfe\x00"),
        ("a.json", b'{"traceEvents": [{"ph": "X"}]}'),
        ("a.json", b'{"traceEvents": [{"ph": "X", "name": 3, "ts": "x", "dur": {}}]}'),
        ("a.json.gz", b"no gzip"),
        ("a.json.gz", gzip.compress(b"{}", mtime=0)[:-6]),  # without the time: workers agree on it
        ("../../etc/passwd", b"root"),
        ("a.sqlite", b"SQLite format 3"),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence_and_not_kept(shelf, name, data):
    with pytest.raises(ValueError, match=r"\w+ .*") as refused:
        keep([(name, io.BytesIO(data))])
    assert str(shelf) not in str(refused.value)
    assert not list(next(shelf.glob("bubblescope-dashboard-*")).glob("*"))


@pytest.mark.usefixtures("shelf")
def test_a_file_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr("dashboard.uploads.MOST_UNPACKED", 10_000_000)
    bomb = gzip.compress(b" " * 11_000_000)
    assert len(bomb) < 20_000
    with pytest.raises(ValueError, match="unpack to more than 10 MB"):
        keep([("bomb.json.gz", io.BytesIO(bomb))])


@pytest.mark.usefixtures("shelf")
def test_too_many_or_too_large_files_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="65 files"):
        keep([("a.json", io.BytesIO(b"{}"))] * (MOST_FILES + 1))
    monkeypatch.setattr("dashboard.uploads.MOST_UPLOAD", 1000)
    with pytest.raises(ValueError, match="larger than"):
        keep([("a.json", io.BytesIO(b" " * 1001))])


def test_names_of_files_are_words_and_never_paths(shelf):
    run = run_of(pp=2, m=2)
    path = saved(shelf, run)
    found = uploaded(keep([("../../<img src=x>.json", io.BytesIO(path.read_bytes()))]))
    assert found.name == "<img src=x>.json"
    kept = {file.name for file in next(shelf.glob("bubblescope-dashboard-*/*")).iterdir()}
    assert kept == {"0.json", "names.json"}


@pytest.mark.usefixtures("shelf")
def test_a_token_is_no_path_and_cannot_be_guessed():
    token, folder = new_folder()
    assert folder_of(token) == folder
    for other in ("..", "../" + token, token[:-1], "0" * 32, "", "A" * 32):
        with pytest.raises(ValueError, match="no longer on the server"):
            folder_of(other)


@pytest.mark.usefixtures("shelf")
def test_the_oldest_folders_leave_a_full_shelf(monkeypatch):
    monkeypatch.setattr("dashboard.shelf.MOST_FOLDERS", 3)
    made = [new_folder() for _ in range(3)]
    folder_of(made[0][0])  # asked for, so that the second is the oldest
    new_folder()
    assert [folder.exists() for _, folder in made] == [True, False, True]


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("dualpipe", 1)]
)
def test_rows_are_read_back_from_a_timeline(schedule, vpp):
    run = run_of(schedule, vpp=vpp)
    assert rows_of(run.timeline) == run.schedule


def test_a_simulated_run_calibrates_on_itself_without_error(shelf):
    run = run_of("zb-h1")
    token = sent(saved(shelf, run))
    one = measured(token)
    assert one.replayed.makespan == pytest.approx(run.report.step_time)
    found = op_errors(one.timeline, one.replayed)
    assert len(found) == 12  # F, I and W of four stages
    assert max(abs(error.median) for error in found) < 1e-12


def test_an_op_that_takes_a_quarter_longer_is_told_as_minus_20_percent():
    timeline = run_of().timeline
    longer = np.where((timeline.kind == 0) & (timeline.stage == 2), 0.25, 0.0)
    columns = ("rank", "stage", "kind", "microbatch", "start")
    slow = Timeline(
        **{name: getattr(timeline, name) for name in columns},
        end=timeline.end + longer * (timeline.end - timeline.start),
    )
    found = {(e.stage, e.kind.name): e for e in op_errors(slow, timeline)}
    assert found[2, "F"].median == pytest.approx(1 / 1.25 - 1)
    assert found[1, "F"].median == 0
    assert found[2, "F"].count == 8


def test_predictions_on_measured_costs_are_the_schedules_own_steps(shelf):
    token = sent(saved(shelf, run_of()))
    steps = {p.schedule: p.timeline.makespan for p in predictions(token) if p.timeline is not None}
    assert steps["1f1b"] == pytest.approx(33)
    assert steps["gpipe"] == pytest.approx(33)
    assert steps["zb-h1"] == pytest.approx(27)  # I and W count as half of B each
    reasons = {p.schedule: p.reason for p in predictions(token) if p.timeline is None}
    assert "stages" in reasons["interleaved"]


def test_the_figure_of_errors_holds_every_kind_of_every_stage():
    timeline = run_of("zb-h1").timeline
    fig = errors(op_errors(timeline, timeline), LIGHT)
    assert sum(len(trace.x) for trace in fig.data) == 12


def test_a_measurement_survives_the_address():
    state = MeasureState(
        trace="0123456789abcdef" * 2, schedule="zb-h1", view=(0.001, 0.5), theme="dark"
    )
    assert decode(MeasureState, encode(state)) == state
    with pytest.raises(ValueError, match="trace"):
        decode(MeasureState, "?v=1&trace=../../etc/passwd")


@needs_chromium
@pytest.mark.usefixtures("shelf")
def test_traces_are_uploaded_laid_over_their_simulation_and_calibrated(tmp_path):
    files = [DATA / f"1f1b_rank{rank}.json.gz" for rank in (0, 1)]
    here = measured(sent(*files))
    less = 100 * (1 - here.replayed.makespan / here.timeline.makespan)
    assert 0.05 < less < 5
    finding = f"{less:.1f} % less than was measured"
    with browser() as page:
        page.goto("/measure")
        page.set_input_files(
            "#measure-trace-file-drop input", [DATA / f"1f1b_rank{rank}.json.gz" for rank in (0, 1)]
        )
        expect(page.locator("#measure-finding")).to_contain_text(finding)
        expect(page.locator("#measure-costs")).to_contain_text("8.52 ms")
        page.wait_for_url("**trace=*")
        page.reload()
        expect(page.locator("#measure-finding")).to_contain_text(finding)
        area = page.locator("#measure-figure .nsewdrag").first
        box = area.bounding_box()
        page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 30, steps=5)
        page.mouse.up()
        page.wait_for_url("**view=*")
        view = decode(MeasureState, urlsplit(page.url).query).view
        assert view[1] - view[0] == pytest.approx(0.5 * here.timeline.makespan, rel=0.05)
        page.reload()
        expect(page.locator("#measure-finding")).to_contain_text(finding)
        until(page, f"{GRAPH}.layout.meta.view")
        shown = page.evaluate(f"{GRAPH}.layout.xaxis.range")
        assert shown == pytest.approx([1e3 * view[0], 1e3 * view[1]])
        with page.expect_download() as got:
            page.click("#measure-exports a")
        table = json.loads(got.value.path().read_text())
        assert table["num_stages"] == 2
        run = saved(tmp_path, simulate_uniform(Plan(pp=2, num_microbatches=4), 0.004, 0.01))
        page.set_input_files("#measure-run-file-drop input", run)
        expect(page.locator("#measure-finding")).to_contain_text("The simulation takes")


@needs_chromium
def test_uploads_that_cannot_be_read_say_so_at_their_place(tmp_path):
    large, broken = tmp_path / "large.json", tmp_path / "<img src=x onerror=alert(1)>.json"
    with large.open("wb") as file:
        file.truncate(200_000_000)
    broken.write_text('{"traceEvents": [{"ph": "X", "name": "<b>"}]}')
    with browser("dark") as page:
        page.goto("/measure")
        said = page.locator("#measure-trace-file-upload-problem")
        page.set_input_files("#measure-trace-file-drop input", large)
        expect(said).to_contain_text("at most 50 MB")
        page.set_input_files("#measure-trace-file-drop input", broken)
        expect(said).to_contain_text("holds no timeline")
        assert page.locator("img[src=x]").count() == 0


def test_the_rows_of_a_plan_and_of_its_run_are_equal():
    assert rows_of(run_of(pp=8, m=16).timeline) == build(Plan(pp=8, num_microbatches=16))
