"""Answers that come late, not at all or in another order than was asked: nothing is lost."""

import json

import pytest
from playwright.sync_api import expect

from tests.dashboard_page import (
    Watched,
    await_held,
    hold_answers,
    needs_chromium,
    release,
)

pytestmark = needs_chromium

PLOT = "document.querySelector('#{}  .js-plotly-plot')"
RUN, SPLIT = PLOT.format("explore-run"), PLOT.format("explore-split")
DARK_INK = "#a6a7ab"


@pytest.fixture
def watched(chromium):
    one = Watched(chromium)
    hold_answers(one.page)
    yield one
    one.close()


def opened(watched, url, query=""):
    watched.page.goto(f"{url}/{query}")
    watched.wait("document.querySelector('#explore-run .bars path')")
    watched.wait("document.querySelector('#explore-more .section')")
    return watched.page


def move(page, name="num_microbatches", times=1):
    """Press a slider's key; its box says when the page has taken it."""
    page.locator(f'[role=slider][aria-label^="{name}"]').focus()
    box = page.locator(f'input[id*=\'"name":"{name}"\']')
    for _ in range(times):
        before = box.input_value()
        page.keyboard.press("ArrowRight")
        expect(box).not_to_have_value(before)


def test_a_theme_that_is_toggled_while_an_answer_is_on_its_way_reaches_every_figure(watched, url):
    page = opened(watched, url)
    page.evaluate("window.hold = 'explore-request'")
    page.get_by_label("Critical path").check(force=True)
    await_held(page)
    page.locator("#theme-toggle").click()
    release(page)
    for plot in (RUN, SPLIT):
        watched.wait(f"{plot}.layout.font.color === '{DARK_INK}'")
    watched.wait("window.location.search.includes('critical=true')")
    watched.wait("window.location.search.includes('theme=dark')")


def test_a_theme_that_is_toggled_while_the_page_is_on_its_way_reaches_its_figures(watched, url):
    page = watched.page
    page.goto(f"{url}/search")
    page.locator("#search-start").wait_for()
    page.evaluate("window.hold = 'route.data'")
    page.locator("[data-page='/']").click()
    await_held(page)
    page.locator("#theme-toggle").click()
    release(page)
    for plot in (RUN, SPLIT):
        watched.wait(f"{plot}.layout.font.color === '{DARK_INK}'")


def test_a_theme_that_is_toggled_leaves_the_bubble_that_explains_itself(watched, url):
    page = opened(watched, url)
    page.locator(".gap").first.click()
    watched.wait("window.location.search.includes('bubble=')")
    words = page.locator("#explore-inspector").inner_text()
    page.locator("#theme-toggle").click()
    watched.wait(f"{RUN}.layout.font.color === '{DARK_INK}'")
    watched.wait(f"{RUN}.data[0].x.length > 4")
    assert "bubble=" in page.url
    expect(page.locator("#explore-inspector")).to_have_text(words.replace("\n", ""))


def test_a_click_on_a_bubble_while_the_job_changes_is_not_taken_for_the_new_job(watched, url):
    page = opened(watched, url)
    page.evaluate("window.hold = 'explore-request'")
    move(page)
    await_held(page)
    page.locator(".gap").first.click()
    expect(page.locator("#explore-inspector")).to_contain_text("has changed since that click")
    release(page)
    watched.wait("window.location.search.includes('plan.num_microbatches=48')")
    assert "bubble" not in page.url
    assert page.evaluate(f"{RUN}.data[0].x.length") == 0


def test_moves_while_an_answer_is_on_its_way_end_where_the_slider_stands(watched, url):
    page = opened(watched, url)
    page.evaluate("window.hold = 'explore-request'")
    move(page)
    await_held(page)
    move(page, times=3)
    assert page.evaluate("window.held.length") == 1  # one at a time
    release(page)
    watched.wait("window.location.search.includes('plan.num_microbatches=128')")
    watched.wait("document.querySelector('#explore-results').className === 'results'")


def test_a_move_there_and_back_while_an_answer_is_on_its_way_is_undone(watched, url):
    page = opened(watched, url)
    before = page.locator(".tile").all_inner_texts()
    page.evaluate("window.hold = 'explore-request'")
    move(page)
    await_held(page)
    page.keyboard.press("ArrowLeft")
    release(page)
    watched.wait(
        f"JSON.stringify([...document.querySelectorAll('.tile')].map((one) => one.innerText))"
        f" === {json.dumps(json.dumps(before, ensure_ascii=False, separators=(',', ':')))}"
        f" && window.location.search === ''"
    )


def test_a_failed_answer_does_not_hold_up_what_was_moved_meanwhile(chromium, url):
    watched = Watched(chromium)
    hold_answers(watched.page)
    page = opened(watched, url)
    page.evaluate("window.hold = window.broken = 'explore-request'")
    move(page)
    page.wait_for_timeout(300)
    move(page)
    watched.wait("document.querySelector('.notices .banner')")
    page.evaluate("window.broken = null")
    move(page)
    release(page)
    watched.wait("window.location.search.includes('plan.num_microbatches=96')")
    expect(page.locator(".notices")).to_be_empty()
    watched.context.close()  # the browser tells of the failed request in its console


def test_an_answer_that_comes_after_the_reader_went_back_leaves_the_address(watched, url):
    page = opened(watched, url)
    move(page)
    watched.wait("window.location.search.includes('plan.num_microbatches=48')")
    page.wait_for_timeout(1000)  # changes within 0.8 s share one entry of the history
    move(page)
    watched.wait("window.location.search.includes('plan.num_microbatches=64')")
    page.evaluate("window.hold = 'explore-request'")
    move(page, "micro_batch_size")
    await_held(page)
    page.go_back()
    expect(page.locator('input[id*=\'"name":"num_microbatches"\']')).to_have_value("48")
    release(page)
    page.get_by_label("Critical path").check(force=True)
    watched.wait("window.location.search.includes('critical=true')")
    assert "micro_batch_size" not in page.url
    assert "num_microbatches=48" in page.url


def test_an_answer_that_comes_on_another_page_leaves_its_address(watched, url):
    page = opened(watched, url)
    page.evaluate("window.hold = 'explore-request'")
    move(page)
    await_held(page)
    page.locator("[data-page='/compare']").click()
    expect(page.locator("#compare-finding")).to_contain_text("is the fastest")
    release(page)
    page.get_by_label("message").fill("0.5")
    watched.wait("window.location.search.includes('latency')")
    assert "plan." not in page.url


def test_fields_that_come_after_the_answer_are_marked_too(watched, url):
    page = watched.page
    page.goto(f"{url}/?v=1&plan.tp=7")
    tp = page.locator(".slid-field", has=page.locator('input[id*=\'"name":"tp"\']'))
    expect(tp.locator(".fix").first).to_be_visible()
    expect(page.locator(".notices")).to_contain_text("tp")
