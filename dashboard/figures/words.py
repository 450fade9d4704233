"""Words around the rows of a figure: a run's name above them, a word behind each.

What users call things is text, whatever it holds: plotly would read it as HTML.
"""

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard.theme import Look

__all__ = ["LEAST_TEXT", "add_title", "add_words"]

LEAST_TEXT = 12  # a row that has room for text [pixel]


def add_title(fig: go.Figure, name: str, note: str, top: float, look: Look) -> None:
    """Name and note over the rows; names are text, whatever they hold."""
    if not name:
        return
    shown = f'  <span style="color:{look.muted}">{html.escape(note)}</span>'
    fig.add_annotation(
        text=f"<b>{html.escape(name[:80])}</b>{shown if note else ''}",
        xref="paper",
        yref="paper",
        x=0,
        y=top,
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
        align="left",
        font={"size": 14, "color": look.ink},
    )


def add_words(fig: go.Figure, words: Sequence[str], axis: str, rows: float, look: Look) -> None:
    """A word at the right of each row that has room for one."""
    if rows < LEAST_TEXT:
        return
    for rank, text in enumerate(words):
        fig.add_annotation(
            text=html.escape(text),
            xref="paper",
            yref=f"y{axis}",
            x=1,
            y=rank,
            xanchor="left",
            xshift=8,
            showarrow=False,
            font={"size": 12, "color": look.muted},
        )
