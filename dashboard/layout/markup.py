"""HTML that is put into a page as one piece.

Each of Dash's components is told of every change of the page; a hundred that show words alone make
each change slow. What they say is therefore written as HTML, every text in it escaped, and one
component of our own, drawn by assets/markup.js, puts it in.
"""

from collections.abc import Iterable
from html import escape
from typing import Any

from dash.development.base_component import Component

__all__ = ["Markup", "markup"]

VOID = ("br", "hr", "img")
NAMES = {"className": "class"}


class Markup(Component):
    """A place for HTML, and its attributes. A class as Dash asks."""

    _base_nodes: list[str] = []  # noqa: RUF012 - as Dash reads them
    _namespace = "bubblescope"
    _type = "Markup"
    _prop_names = ["id", "html", "className"]  # noqa: RUF012 - as Dash reads them
    _valid_wildcard_attributes = ["data-", "aria-"]  # noqa: RUF012 - as Dash reads them
    available_wildcard_properties = ["data-", "aria-"]  # noqa: RUF012 - as Dash reads them

    def __init__(self, **props: Any) -> None:  # noqa: ANN401 - attributes
        super().__init__(**props)  # type: ignore[no-untyped-call]


def markup(parts: Any) -> str:  # noqa: ANN401 - a component, a text, or several
    """What Dash's HTML components show, as HTML.

    >>> from dash import html
    >>> markup([html.I("a < b", className="x", style={"background": "#fff"}), None])
    '<i class="x" style="background:#fff">a &lt; b</i>'
    """
    if parts is None:
        return ""
    if isinstance(parts, Component):
        return _element(parts)
    if isinstance(parts, Iterable) and not isinstance(parts, str):
        return "".join(map(markup, parts))
    return escape(str(parts))


def _element(component: Component) -> str:
    assert component._namespace == "dash_html_components"
    name = component._type.lower()
    props = component.to_plotly_json()["props"]  # type: ignore[no-untyped-call]
    inside = markup(props.pop("children", None))
    words = "".join(
        f' {NAMES.get(key, key)}="{escape(_value(value))}"' for key, value in props.items()
    )
    return f"<{name}{words}>" if name in VOID else f"<{name}{words}>{inside}</{name}>"


def _value(value: Any) -> str:  # noqa: ANN401 - of an attribute
    """An attribute's text; a style is a table of properties by their CSS names."""
    if isinstance(value, dict):
        return ";".join(f"{name}:{one}" for name, one in value.items())
    return str(value)
