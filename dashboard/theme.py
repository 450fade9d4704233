"""How the pages look: one accent, much space, numbers that line up; light and dark.

Colours of ops are those of every picture, `traces.colors`, on either background.
"""

from dataclasses import dataclass
from typing import Any

from traces.colors import HATCH, IDLE, INK, MUTED

__all__ = ["ACCENT", "DARK", "FONT", "LIGHT", "MANTINE", "Look", "axis", "frame", "look"]

FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'
ACCENT = "#0072b2"


@dataclass(frozen=True, kw_only=True)
class Look:
    """The colours around the data."""

    name: str  # light or dark
    ink: str  # titles and numbers
    muted: str  # captions and ticks
    grid: str
    paper: str  # what a figure stands on
    idle: str  # a row where nothing runs
    hatch: str
    edge: str  # between two ops
    accent: str
    alarm: str  # above a limit


LIGHT = Look(
    name="light",
    ink=INK,
    muted=MUTED,
    grid="#e9ecef",
    paper="#ffffff",
    idle=IDLE,
    hatch=HATCH,
    edge="#ffffff",
    accent=ACCENT,
    alarm="#c92a2a",
)
DARK = Look(
    name="dark",
    ink="#e9ecef",
    muted="#a6a7ab",
    grid="#373a40",
    paper="#1a1b1e",
    idle="#2c2e33",
    hatch="#3b3e44",
    edge="#1a1b1e",
    accent="#56b4e9",
    alarm="#ff8787",
)
MANTINE: dict[str, Any] = {
    "fontFamily": FONT,
    "primaryColor": "accent",
    "primaryShade": {"light": 6, "dark": 4},
    "colors": {
        "accent": [
            "#e6f3fb",
            "#cde6f5",
            "#9bccea",
            "#7cc0e8",
            "#56b4e9",
            "#2a8fc7",
            "#0072b2",
            "#00609a",
            "#004f80",
            "#003d63",
        ],
        "dark": [
            "#e9ecef",
            "#a6a7ab",
            "#909296",
            "#5c5f66",
            "#373a40",
            "#2c2e33",
            "#25262b",
            "#1a1b1e",
            "#141517",
            "#101113",
        ],
    },
    "defaultRadius": "sm",
}


def look(name: str | None) -> Look:
    """The look of a theme's name; anything that is not "dark" is light."""
    return DARK if name == "dark" else LIGHT


def frame(look: Look) -> dict[str, Any]:
    """What every figure's layout begins with: transparent, no title, our font and colours."""
    return {
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": look.muted},
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": look.muted,
            "activecolor": look.accent,
        },
        "margin": {"l": 64, "r": 16, "t": 8, "b": 40},
        "hoverlabel": {
            "bgcolor": look.paper,
            "bordercolor": look.grid,
            "font": {"family": FONT, "size": 12, "color": look.ink},
            "align": "left",
        },
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 12}},
    }


def axis(look: Look, title: str = "", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plotly's
    """An axis with quiet lines."""
    return {
        "title": {"text": title, "standoff": 6, "font": {"size": 12, "color": look.muted}},
        "showgrid": False,
        "zeroline": False,
        "linecolor": look.grid,
        "tickcolor": look.grid,
        "gridcolor": look.grid,
        "tickfont": {"color": look.muted},
        "ticklabeloverflow": "allow",  # else the browser lays the page out for each of them
        **more,
    }
