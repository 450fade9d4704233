"""The plans that none beats: throughput against free memory, with the stairs between them."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dashboard.planning import knob_words
from dashboard.theme import Look, axis, frame

__all__ = ["pareto"]

HEIGHT = 380  # [pixel]


def pareto(front: Sequence[Mapping[str, Any]], look: Look, chosen: int | None = None) -> go.Figure:
    """Draw a front; a point's `customdata` is the plan's number.

    Args:
        front: points with `index`, `knobs`, `tokens_per_second` and `headroom`, fast ones first.
        look: light or dark.
        chosen: the number of the plan that is marked.
    """
    fig = go.Figure()
    x = [point["headroom"] / 1e9 for point in front]
    y = [point["tokens_per_second"] for point in front]
    words = [html.escape(knob_words(point["knobs"])) for point in front]
    fig.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"shape": "vh", "color": look.accent, "width": 1.5},
        fill="tozeroy",
        fillcolor="rgba(86,180,233,0.10)",
        hoverinfo="skip",
    )
    marked = [point["index"] == chosen for point in front]
    fig.add_scatter(
        x=x,
        y=y,
        mode="markers",
        marker={
            "size": [15 if one else 9 for one in marked],
            "symbol": ["diamond" if one else "circle" for one in marked],
            "color": ["#d55e00" if one else look.accent for one in marked],
            "line": {"color": look.paper, "width": 1},
        },
        hovertext=words,
        customdata=[point["index"] for point in front],
        hovertemplate="<b>%{y:,.0f} tokens/s</b>, %{x:.1f} GB free<br>%{hovertext}<extra></extra>",
    )
    ends = [(0, "bottom", f"fastest: {y[0]:,.0f} tokens/s")] if front else []
    if len(front) > 1:
        ends.append((-1, "top", f"roomiest: {x[-1]:.1f} GB free"))
    for end, side, text in ends:
        right = x[end] > 0.5 * x[-1]  # of the figure: the text goes to the left
        fig.add_annotation(
            x=x[end],
            y=y[end],
            text=text,
            xanchor="right" if right else "left",
            yanchor=side,
            yshift=8 if side == "bottom" else -8,
            showarrow=False,
            font={"color": look.ink, "size": 13},
        )
    fig.update_layout(frame(look))
    fig.update_layout(
        height=HEIGHT,
        margin={"l": 84, "r": 20, "t": 34, "b": 48},
        showlegend=False,
        hovermode="closest",
        uirevision="front",
        xaxis=axis(look, title="free memory on the fullest GPU [GB]", rangemode="tozero"),
        yaxis=axis(look, title="tokens/s", rangemode="tozero", showgrid=True, tickformat=",d"),
    )
    return fig
