"""How far each op's simulated time is from its measured one: a dot for the median, quartiles."""

from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard.measurement import OpError
from dashboard.theme import Look, axis, frame
from simulator.schedule import Kind
from traces.colors import color
from traces.labels import WORDS

__all__ = ["errors"]

ROW, REST = 24, 90  # [pixel]
MOST_ROWS = 48


def errors(found: Sequence[OpError], look: Look) -> go.Figure:
    """A row for each kind of op on each stage; right of zero the simulation takes longer."""
    shown = found[:MOST_ROWS]
    fig = go.Figure()
    names = [f"stage {one.stage} {WORDS[one.kind]}" for one in shown]
    for kind in sorted({one.kind for one in shown}):
        mine = [at for at, one in enumerate(shown) if one.kind == kind]
        middle = [100 * shown[at].median for at in mine]
        fig.add_scatter(
            x=middle,
            y=[names[at] for at in mine],
            mode="markers",
            name=WORDS[Kind(kind)],
            marker={"color": color(kind), "size": 11, "line": {"color": look.ink, "width": 0.5}},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [100 * shown[at].high - m for at, m in zip(mine, middle, strict=True)],
                "arrayminus": [m - 100 * shown[at].low for at, m in zip(mine, middle, strict=True)],
                "color": look.muted,
                "thickness": 1.2,
                "width": 3,
            },
            customdata=[
                [shown[at].count, 1e3 * shown[at].measured, 1e3 * shown[at].simulated]
                for at in mine
            ],
            hovertemplate="<b>%{y}</b>, %{customdata[0]} ops: %{x:+.1f} %<br>"
            "measured %{customdata[1]:.4g} ms, simulated %{customdata[2]:.4g} ms<extra></extra>",
        )
    fig.add_vline(x=0, line={"color": look.ink, "width": 1})
    fig.update_layout(frame(look))
    fig.update_layout(
        height=ROW * len(shown) + REST,
        margin={"l": 190, "r": 20, "t": 34, "b": 48},
        xaxis=axis(look, title="simulated over measured time [%]", showgrid=True, ticksuffix=" %"),
        yaxis=axis(look, categoryarray=names[::-1], categoryorder="array", automargin=True),
    )
    return fig
