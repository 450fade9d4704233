"""Runs side by side: the figures of the table are the reports', uploads join, bad plans say why."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from dashboard.comparison import CompareState, Entry, compared, figure_rows, finding
from dashboard.figures.stacked import Band, stacked
from dashboard.layout import compare as page_of
from dashboard.state import decode, encode
from dashboard.theme import DARK, LIGHT
from simulator.job import Plan
from simulator.simulate import simulate_uniform
from tests.pages_served import browser, needs_chromium

DATA = Path(__file__).parent / "data" / "traces"


def uniform(schedule, pp, m, vpp=1):
    plan = Plan(schedule=schedule, pp=pp, num_microbatches=m, vpp=vpp)
    return simulate_uniform(plan, 1.0, 2.0, weight_grad=1.0)


def test_four_schedules_of_4_ranks_and_8_microbatches_take_33_33_28_5_and_27():
    found = compared(CompareState())
    assert [one.report.step_time for one in found] == [33, 33, 28.5, 27]
    rows = figure_rows(found)
    assert rows[0] == {
        "figure": "step time", "same": False, "best": "run3",
        "run0": "33", "run1": "33", "run2": "28.5", "run3": "27",
    }  # fmt: skip
    same = [row["same"] for row in rows]
    assert same == sorted(same), "figures that differ stand first"
    assert finding(found) == "zb-h1 is the fastest: gpipe takes 1.22 times as long."


def test_a_plan_that_cannot_be_says_why_and_the_others_stay():
    entries = (
        Entry(plan={"schedule": "1f1b", "pp": 4, "num_microbatches": 8}),
        Entry(plan={"schedule": "<b>", "pp": 4}),
        Entry(plan={"schedule": "gpipe", "pp": "four"}),
        Entry(plan={"schedule": "gpipe", "pp": 512, "num_microbatches": 1000}),
        Entry(token="0" * 32),
    )
    found = compared(CompareState(runs=entries))
    assert found[0].report is not None
    words = ("unknown", "whole number", "at most 400,000", "no longer on the server")
    for one, word in zip(found[1:], words, strict=True):
        assert one.report is None
        assert word in one.error


def test_times_without_unit_are_not_ranked_against_seconds():
    one = compared(CompareState())[0]
    other = type(one)(name="run", timeline=one.timeline, report=one.report, unit="s")
    assert "no unit" in finding([one, other])
    assert figure_rows([one, other])[0]["best"] is None


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 64), (64, 128)])
def test_a_figure_of_six_runs_weighs_less_than_a_megabyte_whole_and_zoomed(pp, m):
    bands = [Band(f"run {i}", uniform("1f1b", pp, m).timeline) for i in range(6)]
    end = bands[0].timeline.makespan
    for view in (None, (0.4 * end, 0.45 * end)):
        assert len(stacked(bands, DARK, view=view).to_json()) < 1e6


def test_zooming_into_64_ranks_turns_the_image_into_bars_with_every_op_in_view():
    timeline = uniform("1f1b", 64, 128).timeline
    whole = stacked([Band("", timeline)], LIGHT, unit="t")
    assert len(whole.layout.images) == 1
    view = (300.0, 308.0)
    seen = stacked([Band("", timeline)], LIGHT, unit="t", view=view)
    assert not seen.layout.images
    drawn = {text for trace in seen.data for text in (trace.hovertext or ())}
    inside = timeline.where((timeline.end > view[0]) & (timeline.start < view[1])).compute
    assert inside.num_spans <= len(drawn)
    assert tuple(seen.layout.xaxis.range) == view


def test_a_hostile_name_is_text_in_the_figure():
    fig = stacked([Band("<a href='javascript:x'>", uniform("1f1b", 2, 2).timeline)], LIGHT)
    assert "<a" not in fig.to_json().replace("\\u003c", "<")


def test_a_comparison_survives_the_address():
    state = CompareState(
        costs="model", runs=(Entry(plan={"schedule": "1f1b", "pp": 8}),), view=(0.5, 1.5)
    )
    assert decode(CompareState, encode(state)) == state


def test_every_run_has_a_column_and_no_name_is_a_field():
    found = compared(CompareState())
    fields = [column["field"] for column in page_of.columns(found)]
    assert fields == ["figure", "run0", "run1", "run2", "run3"]


@needs_chromium
def test_a_run_is_changed_removed_and_a_measured_one_is_added():
    with browser() as page:
        page.goto("/compare")
        finding_text = page.locator("#compare-finding")
        expect(finding_text).to_have_text("zb-h1 is the fastest: gpipe takes 1.22 times as long.")
        box = page.locator("#compare-runs .run").nth(0).get_by_label("microbatches")
        box.fill("16")
        expect(finding_text).to_contain_text("takes 2.1")
        page.locator("#compare-runs .remove").nth(0).click()
        expect(page.locator("#compare-runs .run")).to_have_count(3)
        page.set_input_files(
            "#compare-drop input", [DATA / f"interleaved_rank{rank}.json.gz" for rank in (0, 1)]
        )
        expect(page.locator("#compare-runs .run")).to_have_count(4)
        expect(finding_text).to_contain_text("no unit")
        page.wait_for_url("**token*")
        page.reload()
        expect(page.locator("#compare-figure")).to_contain_text("measured: interleaved_rank0")


@needs_chromium
def test_a_bad_number_is_told_under_its_run_and_the_page_lives_on():
    with browser("dark") as page:
        page.goto("/compare")
        expect(page.locator("#compare-table")).to_contain_text("28.5")
        run = page.locator("#compare-runs .run").nth(2)
        run.get_by_label("microbatches").fill("100000000")
        expect(run.locator(".problem")).to_contain_text("at most")
        run.get_by_label("microbatches").fill("8")
        expect(run.locator(".problem")).to_have_count(0)
        expect(page.locator("#compare-table")).to_contain_text("28.5")


def test_the_state_holds_json_alone():
    assert json.loads(CompareState().model_dump_json())["costs"] == "textbook"
