"""Which scripts a page waits for, and that the smaller plotly is plotly."""

import json
import re

import pytest

pytest.importorskip("dash")

from dashboard import scripts
from dashboard.app import server
from dashboard.scripts import PLOTLY, WITHOUT_TABLES, smaller
from tests.dashboard_page import Watched, needs_chromium

TABLES = re.compile(r'<script src="[^"]*dash_ag_grid')
LATE = re.compile(r'<script type="text/late" data-src="[^"]*dash_ag_grid')


def test_plotly_comes_in_the_version_of_the_installed_one_and_at_a_third_of_its_size():
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    answer = server.test_client().get(PLOTLY)
    assert answer.data == smaller()
    assert f"v{get_plotlyjs_version()}" in answer.text[:200]
    assert len(answer.data) < len(get_plotlyjs()) / 3


def test_plotly_that_the_browser_has_is_not_sent_again():
    client = server.test_client()
    tag = client.get(PLOTLY).headers["ETag"]
    assert client.get(PLOTLY, headers={"If-None-Match": tag}).status_code == 304


def test_with_another_plotly_installed_its_own_is_served(monkeypatch):
    from dash import Dash, html
    from plotly.offline import get_plotlyjs

    monkeypatch.setattr(scripts, "get_plotlyjs_version", lambda: "99.0.0")
    other = Dash("other", serve_locally=True)
    other.layout = html.Div()
    scripts.serve_plotly(other)
    client = other.server.test_client()
    client.get("/")  # from here on Dash serves what the page asks for
    assert client.get(PLOTLY).text == get_plotlyjs()


@pytest.mark.parametrize("path", ["/", "/design", "/learn", "/compare", "/search", "/measure"])
def test_a_page_without_tables_does_not_wait_for_their_script(path):
    page = server.test_client().get(path).text
    assert bool(TABLES.search(page)) == (path not in WITHOUT_TABLES)
    assert bool(LATE.search(page)) == (path in WITHOUT_TABLES)


def test_pages_without_tables_have_none():
    from dashboard.pages import pages
    from dashboard.theme import LIGHT

    for path in WITHOUT_TABLES:
        page = pages()[path]
        assert "AgGrid" not in json.dumps(page.layout(page.state(), LIGHT), default=_plain)


def _plain(part):
    return part.to_plotly_json()


@needs_chromium
def test_a_page_with_a_table_opens_from_one_that_has_not_loaded_it(url, chromium):
    watched = Watched(chromium)
    page = watched.page
    page.goto(url)
    page.wait_for_selector(".js-plotly-plot")
    page.click("text=Compare")
    page.wait_for_selector(".ag-row")
    watched.close()
