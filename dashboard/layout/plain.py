"""Small things that several pages show: a blank figure, a number to change, an alert in place."""

import time
from collections.abc import Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import html

from dashboard.jobs import Told
from dashboard.layout.graph import GRAPH

__all__ = ["BLANK", "STILL", "ZOOMED", "attributes", "beat", "number", "problem", "queued"]

BLANK: dict[str, Any] = {  # before the first update
    "data": [],
    "layout": {
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": 200,
    },
}
ZOOMED: Any = {**GRAPH, "doubleClick": "autosize"}  # of a figure that is zoomed into
STILL: Any = {**GRAPH, "displayModeBar": False}


def number(
    name: Any,  # noqa: ANN401 - an id
    label: str,
    value: Any,  # noqa: ANN401 - whatever was given
    about: str = "",
    *,
    whole: bool = True,
) -> Any:  # noqa: ANN401 - a component
    """A box for a number; anything may be typed, and what cannot be is told below it."""
    return dmc.NumberInput(
        id=name,
        label=label,
        description=about or None,
        value="" if value is None else value,
        allowDecimal=not whole,
        min=0,
        step=1 if whole else 0.1,
        clampBehavior="none",
        debounce=250,
        size="xs",
    )


def problem(text: str) -> Any:  # noqa: ANN401 - a component
    """What is wrong here, as text; nothing for an empty one."""
    return html.Div(text, className="problem", role="alert") if text else None


def queued(told: Told) -> str:
    """What a job says that has found nothing yet: its place among those that wait, or that it runs.

    >>> queued(Told("waiting", {}, num_before=2))
    'waiting: as many run as this server takes at once, and 2 wait before it'
    """
    if told.state == "waiting":
        before = f", and {told.num_before} wait before it" if told.num_before else "; it is next"
        return f"waiting: as many run as this server takes at once{before}"
    return "starting ..." if told.is_running else ""


def beat(tick: str, place: str, after: int | None) -> dict[str, Any]:
    """When assets/pace.js sets the store `tick` again: `after` this answer [ms], or no more.

    It ends when `place` is no longer on the page.
    """
    return {"tick": tick, "place": place, "after": after, "at": time.time()}


def attributes(words: Mapping[str, str]) -> dict[str, Any]:
    """Attributes of HTML whose names are no names in Python, as `aria-label`."""
    return dict(words)
