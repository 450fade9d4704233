"""Explore in a real Chromium: what a person does, and a console without errors."""

from urllib.parse import urlsplit

import pytest

from tests.dashboard_page import Watched, browsing, needs_chromium, serving

pytestmark = needs_chromium

DRAWN = "document.querySelector('#explore-run .bars path')"
AREA = '#explore-run .nsewdrag[data-subplot="xy"]'
SETTLED = "window.location.search.includes('{}')"


@pytest.fixture(scope="module")
def url():
    with serving() as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    with browsing() as browser:
        yield browser


@pytest.fixture
def watched(chromium):
    one = Watched(chromium)
    yield one
    one.context.close()
    assert not one.errors


def opened(watched, url, query=""):
    watched.page.goto(f"{url}/{query}")
    watched.wait(DRAWN)
    watched.wait("document.querySelector('#explore-more .section')")
    return watched.page


def tile(page, name):
    return page.locator(".tile", has_text=name).locator(".tile-value").inner_text()


def field(page, name):
    return page.locator(f'input[id*=\'"name":"{name}"\']')


def test_a_slider_moves_the_figures_and_the_address(watched, url):
    page = opened(watched, url)
    before = tile(page, "Bubble")
    page.locator('[role=slider][aria-label^="num_microbatches"]').focus()
    page.keyboard.press("ArrowRight")
    watched.wait("window.location.search.includes('plan.num_microbatches=48')")
    watched.wait(f"document.querySelectorAll('.tile-value')[3].innerText !== {before!r}")
    assert float(tile(page, "Bubble").split()[0]) < float(before.split()[0])


def test_a_bubble_explains_itself_when_it_is_clicked(watched, url):
    page = opened(watched, url)
    box = page.locator(AREA).bounding_box()
    page.mouse.click(box["x"] + 0.12 * box["width"], box["y"] + 12)
    watched.wait("document.querySelector('.chain li')")
    words = page.locator("#explore-inspector").inner_text()
    assert "on rank 0: warm-up" in words
    assert "0B0 (backward) waits for 0RECV_B0 of rank 1" in words
    watched.wait("window.location.search.includes('bubble=')")
    line = page.evaluate("document.querySelector('#explore-run .js-plotly-plot').data[1].x.length")
    assert line > 4  # the chain is drawn


def test_an_op_explains_itself_when_it_is_clicked(watched, url):
    page = opened(watched, url)
    box = page.locator(AREA).bounding_box()
    page.mouse.click(box["x"] + 5, box["y"] + 12)
    watched.wait("document.querySelector('#explore-inspector h3')")
    words = page.locator("#explore-inspector").inner_text()
    assert "forward of stage 0, microbatch 0, rank 0" in words
    assert "of activations" in words


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
    watched.wait("document.querySelector('#explore-inspector h3')")
    assert "Bubble of" in page.locator("#explore-inspector").inner_text()


def test_an_illegal_value_is_marked_at_its_field_with_values_that_work(watched, url):
    page = opened(watched, url)
    field(page, "pp").fill("7")
    watched.wait("document.querySelector('.fix')")
    assert "must divide model.num_hidden_layers = 96" in page.locator(".notices").inner_text()
    assert page.locator("#explore-results").get_attribute("class") == "results stale"
    page.locator(".fix", has_text="12").first.click()
    watched.wait("document.querySelector('#explore-results').className === 'results'")
    watched.wait("window.location.search.includes('plan.pp=12')")
    assert page.locator(".fix").count() == 0


def test_the_address_is_the_page_back_and_forward_work(watched, url):
    page = opened(watched, url)
    field(page, "pp").fill("4")
    watched.wait("window.location.search.includes('plan.pp=4')")
    page.wait_for_timeout(900)
    field(page, "pp").fill("6")
    watched.wait("window.location.search.includes('plan.pp=6')")
    step, address = tile(page, "Step time"), page.url
    page.go_back()
    watched.wait("window.location.search.includes('plan.pp=4')")
    watched.wait("document.querySelector('.slid-field input').value === '4'")
    page.go_forward()
    watched.wait("document.querySelector('.slid-field input').value === '6'")
    other = page.context.new_page()
    other.goto(address)
    other.wait_for_selector("#explore-run .bars path", state="attached")
    assert tile(other, "Step time") == step


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
    assert page.locator("#explore-model").input_value() == ""


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
    watched.context.close()
    assert not watched.errors


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
