"""HTML that goes into the page as one piece: it says what the components say, and runs nothing."""

import pytest

pytest.importorskip("dash")

import json

from dash import html

from dashboard.answer import answer
from dashboard.app import server
from dashboard.exploration import ExploreState
from dashboard.layout.headline import legend
from dashboard.layout.markup import Markup, markup
from dashboard.theme import LIGHT


def test_a_text_that_looks_like_html_is_shown_as_text_in_elements_and_attributes():
    made = markup(html.B("<script>1 & 2</script>", title='"><img src=x>'))
    assert made == (
        '<b title="&quot;&gt;&lt;img src=x&gt;">&lt;script&gt;1 &amp; 2&lt;/script&gt;</b>'
    )


def test_a_legend_of_2_entries_with_3_fills_has_3_swatches():
    made = markup(legend([("forward", ["#0072b2", "#56b4e9"]), ("idle < 1", ["#eee"])]))
    assert made.count("<i style=") == 3
    assert made.count('class="entry"') == 2
    assert "idle &lt; 1" in made


def test_the_answer_of_explore_holds_8_tiles_and_6_gaps_as_html():
    parts = answer(ExploreState(), LIGHT)
    assert parts[1].count('class="tile"') + parts[1].count('class="tile alarm"') == 8
    assert parts[1].count('role="progressbar"') == 1
    assert parts[6].count("<button ") == parts[6].count("data-time=") == 6


def test_a_place_for_html_travels_by_its_name_and_attributes():
    place = Markup(html="<b>1</b>", id="here", className="x", **{"aria-live": "polite"})
    props = {"html": "<b>1</b>", "id": "here", "className": "x", "aria-live": "polite"}
    made = json.loads(json.dumps(place.to_plotly_json()))
    assert made == {"props": props, "type": "Markup", "namespace": "bubblescope"}


@pytest.mark.parametrize("path", ["/", "/compare", "/search", "/design", "/measure", "/learn"])
def test_no_page_loads_the_polyfills_and_each_loads_what_it_needs_of_them(path):
    page = server.test_client().get(path).text
    assert "deps/polyfill@" not in page
    assert "assets/regenerator.js" in page
    assert "assets/markup.js" in page
