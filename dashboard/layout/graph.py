"""How a figure stands on a page."""

from typing import Any

__all__ = ["GRAPH"]

GRAPH: Any = {  # plotly's config
    "displaylogo": False,
    "displayModeBar": "hover",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "responsive": True,
    "scrollZoom": False,
    "topojsonURL": "/assets/",  # never asked for; plotly's default is a CDN
}
