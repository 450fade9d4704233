"""What is pointed out on a timeline: a bubble with the chain that made it, the critical path.

They are the first three traces, always there, so that a click changes them and nothing else.
"""

from typing import Any

import numpy as np

from dashboard.figures.spec import Figure, add
from dashboard.theme import Look
from simulator.explain import Bubble, critical_line
from simulator.timeline import Timeline
from traces.labels import Unit
from traces.layout import LOW

__all__ = ["BUBBLE", "CHAIN", "CRITICAL", "add_marks", "bubble_marks", "critical_mark"]

BUBBLE, CHAIN, CRITICAL = 0, 1, 2  # places among a figure's traces


def add_marks(
    fig: Figure,
    timeline: Timeline,
    look: Look,
    unit: Unit,
    *,
    critical_path: bool,
    bubble: Bubble | None,
) -> None:
    """The three traces, empty where there is nothing to point out."""
    box, chain = bubble_marks(bubble, unit)
    line = critical_mark(timeline, unit) if critical_path else {"x": [], "y": []}
    style: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip"}
    add(
        fig,
        "scatter",
        **box,
        **style,
        fill="toself",
        fillcolor=_faint(look),
        line={"color": look.alarm, "width": 2},
    )
    add(fig, "scatter", **chain, **style, line={"color": look.alarm, "width": 2})
    add(fig, "scatter", **line, **style, line={"color": look.ink, "width": 2})


def bubble_marks(bubble: Bubble | None, unit: Unit) -> tuple[dict[str, Any], dict[str, Any]]:
    """Corners of a bubble's box, and of the line through the ops that led to it."""
    if bubble is None:
        return {"x": [], "y": []}, {"x": [], "y": []}
    a, b, r = bubble.start * unit.per_si, bubble.end * unit.per_si, bubble.rank
    box = {"x": [a, b, b, a, a], "y": [r - 0.44, r - 0.44, r + 0.44, r + 0.44, r - 0.44]}
    line = [(t * unit.per_si, rank) for rank, _, start, end in bubble.chain for t in (start, end)]
    if line:
        line.append((b, r))
    return box, {"x": [x for x, _ in line], "y": [y for _, y in line]}


def critical_mark(timeline: Timeline, unit: Unit) -> dict[str, Any]:
    """The line of the critical path."""
    at, rank = critical_line(timeline)
    keep = np.ones(len(at), bool)
    keep[1:-1] = (rank[1:-1] != rank[:-2]) | (rank[1:-1] != rank[2:])  # corners alone
    return {"x": (at[keep] * unit.per_si).tolist(), "y": (rank[keep] + LOW).tolist()}


def _faint(look: Look) -> str:
    red, green, blue = (int(look.alarm[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.15)"
