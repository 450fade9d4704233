"""What is clicked, typed or uploaded while an answer is on its way is not lost, nor done twice."""

from pathlib import Path

from playwright.sync_api import expect

from dashboard.state import encode
from tests.dashboard_page import await_held, release
from tests.pages_served import browser, needs_chromium
from tests.test_dashboard_search import SMALL

pytestmark = needs_chromium
TRACES = Path(__file__).parent / "data" / "traces"


def test_two_clicks_on_add_while_the_first_is_on_its_way_add_two_runs():
    with browser(held=True) as page:
        page.goto("/compare")
        expect(page.locator("#compare-finding")).to_contain_text("is the fastest")
        page.evaluate("window.hold = 'compare-add.n_clicks'")
        page.click("#compare-add")
        await_held(page)
        page.click("#compare-add")
        await_held(page, 2)
        release(page)
        expect(page.locator("#compare-runs .run")).to_have_count(6)
        page.click("#compare-add")
        expect(page.locator("#compare-full")).to_contain_text("6 runs are compared at most")
        page.locator("#compare-runs .remove").nth(0).click()
        expect(page.locator("#compare-runs .run")).to_have_count(5)
        expect(page.locator("#compare-full")).to_be_empty()


def test_two_runs_are_removed_while_the_first_is_on_its_way():
    with browser(held=True) as page:
        page.goto("/compare")
        expect(page.locator("#compare-finding")).to_contain_text("is the fastest")
        page.evaluate("window.hold = 'compare-runs.children'")
        page.locator("#compare-runs .remove").nth(0).click()
        await_held(page)
        page.locator("#compare-runs .remove").nth(2).click()
        release(page)
        expect(page.locator("#compare-runs .run")).to_have_count(2)
        expect(page.locator("#compare-table")).to_contain_text("zb-h1")


def test_a_search_is_followed_on_a_server_that_answers_more_slowly_than_it_is_asked():
    with browser(held=True) as page:
        page.goto("/search" + encode(SMALL))
        page.locator("#search-start").wait_for()
        page.evaluate("window.late = 2000")
        page.click("#search-start")
        expect(page.locator("#search-progress")).to_contain_text("Done", timeout=120_000)


def test_a_double_click_starts_one_search():
    with browser() as page:
        started = []
        page.on(
            "request",
            lambda one: (
                started.append(one)
                if '"changedPropIds":["search-start.n_clicks"]' in (one.post_data or "")
                else None
            ),
        )
        page.goto("/search" + encode(SMALL))
        page.locator("#search-start").dblclick()
        expect(page.locator("#search-progress")).to_contain_text("Done", timeout=120_000)
        assert len(started) == 1


def test_a_trace_and_a_run_that_are_uploaded_at_once_are_both_shown():
    with browser(held=True) as page:
        page.goto("/measure")
        page.evaluate("window.hold = 'measure-trace.data'")
        files = [TRACES / f"1f1b_rank{rank}.json.gz" for rank in (0, 1)]
        page.set_input_files("#measure-trace-file-drop input", files)
        page.set_input_files("#measure-run-file-drop input", files)
        await_held(page)
        expect(page.locator("#measure-own")).to_be_enabled()
        release(page)
        expect(page.locator("#measure-finding")).to_contain_text("as long as was measured")
        page.wait_for_url("**trace=*")
        page.wait_for_url("**run=*")


def test_rows_that_have_just_been_typed_are_those_that_are_improved():
    with browser() as page:
        page.goto("/design?v=1&pp=2&m=2")
        expect(page.locator("#design-result")).to_contain_text("step 9")
        page.fill("#design-rows", "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1")
        with page.expect_request(
            lambda one: '["design-start.n_clicks"]' in (one.post_data or "")
        ) as got:
            page.click("#design-start")
        assert "0F0,0B0,0F1,0B1" in got.value.post_data
