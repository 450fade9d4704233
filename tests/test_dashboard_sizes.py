"""Pages in windows of every size: nothing is cut, and figures stay as high as they say."""

from pathlib import Path

import pytest

from tests.dashboard_page import Watched, needs_chromium

pytestmark = needs_chromium
TRACES = sorted((Path(__file__).parent / "data" / "traces").glob("1f1b_rank*.json.gz"))[:2]
HEIGHT = "document.querySelector('#{} .js-plotly-plot')._fullLayout.height"
WIDTH = "document.querySelector('#{} .js-plotly-plot')._fullLayout.width"


@pytest.mark.parametrize("name", ["compare", "design", "learn", "measure"])
def test_a_figure_keeps_its_height_when_the_window_changes(name, url, chromium):
    watched = Watched(chromium)
    page, graph = watched.page, f"{name}-figure"
    page.goto(f"{url}/{name}")
    if name == "measure":
        page.locator("input[type=file]").first.set_input_files(TRACES)
    page.wait_for_selector(f"#{graph} .trace", state="attached")
    height, width = (page.evaluate(text.format(graph)) for text in (HEIGHT, WIDTH))
    assert height > 200
    for size in (1280, 1280 + 320):
        page.set_viewport_size({"width": size, "height": 900})
        watched.wait(f"{WIDTH.format(graph)} !== {width}")
        width = page.evaluate(WIDTH.format(graph))
        assert page.evaluate(HEIGHT.format(graph)) == height
    watched.close()


@pytest.mark.parametrize("width", [1280, 1440, 1920])
@pytest.mark.parametrize("path", ["", "compare", "search", "design", "measure", "learn"])
def test_no_page_is_wider_than_its_window(path, width, url, chromium):
    watched = Watched(chromium, width=width)
    watched.page.goto(f"{url}/{path}")
    watched.page.wait_for_selector("#content > div")
    assert watched.page.evaluate("document.documentElement.scrollWidth") == width
    watched.close()
