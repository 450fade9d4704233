"""Where each rank's time goes, by cause: bars for a few ranks, areas for many."""

from typing import Any

import numpy as np

from dashboard.figures.spec import Figure, add, started
from dashboard.theme import Look, axis, frame
from simulator.report import Report
from simulator.split import SPLIT

__all__ = ["CAUSES", "figure", "shares_of"]

CAUSES = {  # what a part is called, and its colour: work in blues and greens, waiting in reds
    "compute": ("compute", "#0072b2"),
    "recompute": ("recomputation", "#56b4e9"),
    "optimizer": ("optimizer", "#cc79a7"),
    "tensor": ("tensor-parallel comm.", "#009e73"),
    "pipeline": ("pipeline comm.", "#7fcdbb"),
    "data": ("data-parallel comm.", "#7b3f76"),
    "warm_up": ("idle: warm-up", "#f0b429"),
    "drain": ("idle: drain", "#e69f00"),
    "dependency": ("idle: dependency", "#d55e00"),
    "link": ("idle: link busy", "#8c2d04"),
}
MOST_BARS = 32  # ranks; more are an area
NAMED_RANKS = 16  # rows that are called by name
HEIGHT = 260  # [pixel]


def shares_of(report: Report) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The parts of the step that are there, shape (num_ranks,) each. [1]"""
    total = report.split.total
    parts = {name: getattr(report.split, name) / total for name in SPLIT}
    return {name: parts[name] for name in CAUSES if parts[name].max() > 0.0005}


def figure(report: Report, look: Look) -> Figure:
    """Shares of the step, one row a rank. [%]"""
    fig = started(_layout(report, look))
    every = np.arange(report.num_ranks)
    parts = shares_of(report)
    for name, share in parts.items():
        words, fill = CAUSES[name]
        entry = f"{words} {100 * share.mean():.1f} %"
        percent = (100 * share).astype(np.float32)
        hover = f"{words}: %{{x:.2f}} % of rank %{{y:d}}'s step<extra></extra>"
        if report.num_ranks <= MOST_BARS:
            add(
                fig,
                "bar",
                orientation="h",
                x=percent,
                y=every,
                name=entry,
                marker={"color": fill, "line": {"color": look.edge, "width": 0.5}},
                hovertemplate=hover,
            )
        else:
            add(
                fig,
                "scatter",
                x=percent,
                y=every,
                name=entry,
                orientation="h",
                stackgroup="step",
                line={"width": 0},
                fillcolor=fill,
                hovertemplate=hover,
            )
    few = report.num_ranks <= NAMED_RANKS
    fig["layout"]["bargap"] = 0.22 if few else 0.05
    return fig


def _layout(report: Report, look: Look) -> dict[str, Any]:
    ranks, few = report.num_ranks, report.num_ranks <= NAMED_RANKS
    names = {"tickvals": list(range(ranks)), "ticktext": [f"rank {r}" for r in range(ranks)]}
    title = "" if few else "pipeline rank"
    return frame(look) | {
        "margin": {"l": 66, "r": 12, "t": 6, "b": 40},
        "barmode": "stack",
        "height": HEIGHT,
        "showlegend": False,
        "xaxis": axis(look, "share of the step [%]", range=[0, 100]),
        "yaxis": axis(look, title, range=[ranks - 0.5, -0.5], **(names if few else {})),
    }
