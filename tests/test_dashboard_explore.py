"""Explore in a real Chromium: what a person does, and a console without errors."""

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.dashboard_page import (
    Watched,
    needs_chromium,
)

pytestmark = needs_chromium

DRAWN = "document.querySelector('#explore-run .bars path')"
AREA = '#explore-run .nsewdrag[data-subplot="xy"]'
PLOT = "document.querySelector('#explore-run .js-plotly-plot')"


@pytest.fixture
def watched(chromium):
    one = Watched(chromium)
    yield one
    one.close()


def opened(watched, url, query=""):
    watched.page.goto(f"{url}/{query}")
    watched.wait(DRAWN)
    watched.wait("document.querySelector('#explore-more .section')")
    return watched.page


def tile(page, name):
    return page.locator(".tile", has_text=name).locator(".tile-value")


def field(page, name):
    return page.locator(f'input[id*=\'"name":"{name}"\']')


def move(page, name="num_microbatches", key="ArrowRight"):
    page.locator(f'[role=slider][aria-label^="{name}"]').focus()
    page.keyboard.press(key)


def test_a_slider_moves_the_figures_and_the_address(watched, url):
    page = opened(watched, url)
    before = tile(page, "Bubble").inner_text()
    move(page)
    watched.wait("window.location.search.includes('plan.num_microbatches=48')")
    expect(tile(page, "Bubble")).not_to_have_text(before)
    assert float(tile(page, "Bubble").inner_text().split()[0]) < float(before.split()[0])


def test_a_bubble_explains_itself_when_it_is_clicked(watched, url):
    page = opened(watched, url)
    box = page.locator(AREA).bounding_box()
    page.mouse.click(box["x"] + 0.12 * box["width"], box["y"] + 12)
    watched.wait("document.querySelector('.chain li')")
    words = page.locator("#explore-inspector")
    expect(words).to_contain_text("on rank 0: warm-up")
    expect(words).to_contain_text("0B0 (backward) waits for 0RECV_B0 of rank 1")
    watched.wait("window.location.search.includes('bubble=')")
    watched.wait(f"{PLOT}.data[1].x.length > 4")  # the chain is drawn


def test_an_op_explains_itself_when_it_is_clicked(watched, url):
    page = opened(watched, url)
    box = page.locator(AREA).bounding_box()
    page.mouse.click(box["x"] + 5, box["y"] + 12)
    words = page.locator("#explore-inspector")
    expect(words).to_contain_text("forward of stage 0, microbatch 0, rank 0")
    expect(words).to_contain_text("of activations")


def test_a_click_on_a_timeline_that_is_gone_says_so(watched, url):
    page = opened(watched, url)
    page.evaluate(
        "dash_clientside.set_props('explore-spot',"
        " {data: {rank: 0, time: 1e9, key: 'of-another-job', at: 1}})"
    )
    watched.wait("document.querySelector('#explore-inspector').innerText.includes('has changed')")


def test_the_longest_bubbles_are_reached_with_the_keyboard(watched, url):
    page = opened(watched, url)
    page.locator(".gap").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#explore-inspector h3")).to_contain_text("Bubble of")


def test_an_illegal_value_is_marked_at_its_field_with_values_that_work(watched, url):
    page = opened(watched, url)
    field(page, "pp").fill("7")
    expect(page.locator(".fix").first).to_be_visible()
    said = "must divide model.num_hidden_layers = 96"
    expect(page.locator(".notices")).to_contain_text(said)
    expect(page.locator("#explore-results")).to_have_class("results stale")
    page.locator(".fix", has_text="12").first.click()
    watched.wait("document.querySelector('#explore-results').className === 'results'")
    watched.wait("window.location.search.includes('plan.pp=12')")
    expect(page.locator(".fix")).to_have_count(0)
    expect(page.locator(".notices")).to_be_empty()


def test_the_address_is_the_page_back_and_forward_work(watched, url):
    page = opened(watched, url)
    field(page, "pp").fill("4")
    watched.wait("window.location.search.includes('plan.pp=4')")
    page.wait_for_timeout(900)
    field(page, "pp").fill("6")
    watched.wait("window.location.search.includes('plan.pp=6')")
    watched.wait(f"{PLOT}.layout.yaxis.range[0] === 5.5")
    step, address = tile(page, "Step time").inner_text(), page.url
    page.go_back()
    watched.wait("window.location.search.includes('plan.pp=4')")
    watched.wait("document.querySelector('.slid-field input').value === '4'")
    page.go_forward()
    watched.wait("document.querySelector('.slid-field input').value === '6'")
    page.go_back()
    page.go_back()
    expect(field(page, "pp")).to_have_value("8")
    assert urlsplit(page.url).query == ""
    other = page.context.new_page()
    other.goto(address)
    expect(tile(other, "Step time")).to_have_text(step)


def test_a_pasted_config_takes_the_place_of_the_preset(watched, url):
    page = opened(watched, url)
    page.get_by_role("button", name="Paste a config.json").click()
    box = page.locator("textarea[id=explore-paste]")
    box.fill('{"model_type": "llama"')
    watched.wait("document.body.innerText.includes('paste a whole config.json')")
    box.fill(
        '{"model_type":"llama","hidden_size":4096,"num_hidden_layers":48,'
        '"num_attention_heads":32,"intermediate_size":11008,"vocab_size":32000,'
        '"max_position_embeddings":4096}'
    )
    watched.wait("window.location.search.includes('config.hidden_size=4096')")
    expect(page.locator("#explore-model")).to_have_value("")


def test_the_critical_path_is_on_a_switch(watched, url):
    page = opened(watched, url)
    page.get_by_label("Critical path").check(force=True)
    drawn = "document.querySelector('#explore-run .js-plotly-plot').data[2].x.length > 2"
    watched.wait(drawn)
    watched.wait("window.location.search.includes('critical=true')")


def test_a_switch_in_the_same_moment_as_a_resize_is_not_lost(watched, url):
    page = opened(watched, url)
    page.evaluate(
        "dash_clientside.set_props('explore-run', {relayoutData: {autosize: true}});"
        "dash_clientside.set_props('explore-critical', {checked: true});"
    )
    watched.wait("window.location.search.includes('critical=true')")


def test_65536_ops_draw_as_an_image_and_as_ops_when_zoomed(watched, url):
    query = "?v=1&model=gpt-1t&plan.pp=64&plan.tp=8&plan.num_microbatches=512&plan.recompute=full"
    page = watched.page
    page.goto(f"{url}/{query}")
    watched.wait("document.querySelector('#explore-run image')")
    nodes = "document.querySelectorAll('#explore-run path, #explore-run text').length"
    assert page.evaluate(nodes) < 2000
    page.goto(f"{url}/{query}&window=[40,41.2]&ranks=[9.5,17.5]")
    watched.wait(DRAWN)
    assert page.evaluate(nodes) < 4000
    assert page.locator("#explore-run .textpoint").count() > 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1920])
def test_both_themes_at_both_widths_without_a_sideways_scroll(chromium, url, scheme, width):
    watched = Watched(chromium, scheme=scheme, width=width)
    page = opened(watched, url)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ink = page.evaluate("document.querySelector('#explore-run .js-plotly-plot').layout.font.color")
    assert ink == {"light": "#666666", "dark": "#a6a7ab"}[scheme]
    page.locator("#theme-toggle").click()
    other = {"light": "#a6a7ab", "dark": "#666666"}[scheme]
    watched.wait(
        f"document.querySelector('#explore-run .js-plotly-plot').layout.font.color === '{other}'"
    )
    watched.close()


def test_nothing_is_fetched_from_anywhere_else(watched, url):
    opened(watched, url)
    elsewhere = [
        one for one in watched.fetched if urlsplit(one).scheme.startswith("http")
        and not one.startswith(url)
    ]  # fmt: skip
    assert not elsewhere


def test_an_address_that_is_none_says_so_and_shows_the_page(watched, url):
    page = watched.page
    page.goto(f"{url}/?v=1&tokens=<script>alert(1)</script>")
    watched.wait("document.querySelector('.notices').innerText.includes('tokens')")
    watched.wait(DRAWN)
    assert page.locator(".notices script").count() == 0


@pytest.mark.parametrize(
    ("path", "figure"), [("/learn", "learn-figure"), ("/design", "design-figure")]
)
def test_a_theme_stands_in_the_address_and_goes_with_back(chromium, url, path, figure):
    watched = Watched(chromium)
    page = watched.page
    page.goto(f"{url}{path}?v=1&theme=dark")
    ink = f"document.querySelector('#{figure} .js-plotly-plot').layout.font.color"
    scheme = "document.documentElement.getAttribute('data-mantine-color-scheme')"
    watched.wait(f"{ink} === '#a6a7ab' && {scheme} === 'dark'")
    page.wait_for_timeout(1000)  # changes within 0.8 s share one entry of the history
    page.locator("#theme-toggle").click()
    watched.wait("window.location.search === '?v=1&theme=light'")
    watched.wait(f"{ink} === '#666666' && {scheme} === 'light'")
    page.go_back()
    watched.wait(f"{ink} === '#a6a7ab' && {scheme} === 'dark'")
    assert page.url.endswith("?v=1&theme=dark")
    watched.close()


def test_a_theme_that_was_chosen_goes_along_to_the_next_page(watched, url):
    page = opened(watched, url)
    assert "theme" not in page.url
    page.locator("#theme-toggle").click()
    watched.wait("window.location.search === '?v=1&theme=dark'")
    page.locator("[data-page='/compare']").click()
    watched.wait("window.location.href.endsWith('/compare?v=1&theme=dark')")


def test_the_keyboard_zooms_and_pans_by_half_of_what_is_in_view(watched, url):
    page = opened(watched, url)
    middle = f"{PLOT}._fullLayout.xaxis.range.reduce((a, b) => a + b) / 2"
    length = f"{PLOT}._fullLayout.xaxis.range.reduce((a, b) => b - a)"
    whole, at = page.evaluate(length), page.evaluate(middle)
    for _ in range(2):
        page.locator("#zoom-in").press("Enter")
    watched.wait(f"Math.abs({length} - {whole} / 4) < 1e-6")
    page.locator("#pan-on").press("Enter")
    watched.wait(f"Math.abs({middle} - {at + whole / 8}) < 1e-6")
    for _ in range(9):  # no further than the step begins
        page.locator("#pan-back").press("Enter")
    watched.wait(f"Math.abs({middle} - {whole / 8}) < 1e-6")
    watched.wait("decodeURIComponent(window.location.search).includes('window=[0')")


def test_a_zoom_and_a_resize_of_one_moment_are_both_kept(watched, url):
    page = opened(watched, url)
    page.evaluate(
        f"Plotly.relayout({PLOT}, {{'xaxis.range[0]': 2, 'xaxis.range[1]': 4}});"
        "dash_clientside.set_props('explore-run', {relayoutData: {autosize: true}});"
    )
    watched.wait("window.location.search.includes('window=')")
    page.locator("#explore-whole").click()
    watched.wait("!window.location.search.includes('window=')")
    watched.wait(f"{PLOT}.layout.meta.window === null")
