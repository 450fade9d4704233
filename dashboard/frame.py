"""What stands around an interactive Gantt chart: size, axes, title, legend and margin."""

import plotly.graph_objects as go

from simulator.timeline import Timeline
from traces.colors import INK, MUTED
from traces.labels import Labels, Unit, byte_unit, time_unit
from traces.layout import labelled_ranks
from traces.raster import idle_shares

__all__ = ["framed"]

ROW, ROWS = 56, 480  # [pixel] the highest row; the highest stack of rows
HEAD, GAP, CURVES, FOOT = 120, 34, 150, 58  # [pixel]
TITLE, SUBTITLE = 38, 22  # [pixel] that the head saves without them
LEFT, RIGHT = 74, 172  # [pixel]
ENTRY, LETTER, LINE, PAGE = 52, 8, 21, 1150  # [pixel] of the legend
_AXIS = {"showgrid": False, "zeroline": False, "linecolor": MUTED, "ticks": "outside"}


def framed(fig: go.Figure, timeline: Timeline, labels: Labels) -> go.Figure:
    """Give a figure with rows on `y` and memory on `y2` its frame, and return it."""
    rows = min(ROW * timeline.num_ranks, ROWS)
    has_memory = len(timeline.memory_rank) > 0
    plot = rows + (GAP + CURVES if has_memory else 0)
    head = HEAD - TITLE * (not labels.title) - SUBTITLE * (not labels.subtitle)
    head += LINE * int(_legend_width(fig) / PAGE)
    fig.update_layout(
        height=head + plot + FOOT,
        margin={"l": LEFT, "r": RIGHT, "t": head, "b": FOOT},
        template="none",
        barmode="overlay",
        hovermode="closest",
        dragmode="zoom",
        font={"family": "DejaVu Sans, Verdana, sans-serif", "size": 13, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        uniformtext={"minsize": 8, "mode": "hide"},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1 + 26 / plot,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        xaxis=_time_axis(timeline, time_unit(timeline.makespan, labels.unit), has_memory),
    )
    shown = labelled_ranks(timeline.num_ranks, 0.75 * rows / timeline.num_ranks)
    _add_rank_axis(fig, timeline, shown, 1 - rows / plot)
    if has_memory:
        _add_memory_axis(fig, timeline, labels, CURVES / plot)
    _add_head(fig, labels)
    _add_margin(fig, timeline, labels, shown)
    return fig


def _legend_width(fig: go.Figure) -> float:
    """About what the legend of the rows needs in one line. [pixel]"""
    rows = [t for t in fig.data if t.yaxis != "y2" and t.showlegend is not False and t.name]
    return float(sum(ENTRY + LETTER * len(trace.name) for trace in rows))


def _time_axis(timeline: Timeline, unit: Unit, has_memory: bool) -> dict[str, object]:
    title = f"time [{unit.name}]" if unit.name else "time"
    return {
        **_AXIS,
        "range": [0, timeline.makespan * unit.per_si],
        "title": {"text": title, "standoff": 8, "font": {"size": 13}},
        "anchor": "y2" if has_memory else "y",
    }


def _add_rank_axis(fig: go.Figure, timeline: Timeline, shown: list[int], bottom: float) -> None:
    few = timeline.num_ranks <= 16
    fig.update_layout(
        yaxis={
            **_AXIS,
            "domain": [bottom, 1],
            "range": [timeline.num_ranks - 0.5, -0.5],
            "tickvals": shown,
            "ticktext": [f"rank {r}" if few else str(r) for r in shown],
            "title": {"text": "" if few else "pipeline rank", "font": {"size": 13}},
            "showline": False,
            "tickcolor": "white",
            "fixedrange": few,
        }
    )


def _add_memory_axis(fig: go.Figure, timeline: Timeline, labels: Labels, top: float) -> None:
    largest = float(timeline.peak_memory().max())
    unit = byte_unit(largest, labels.unit)
    title = f"memory [{unit.name}]" if unit.name else "memory"
    fig.update_layout(
        yaxis2={
            **_AXIS,
            "domain": [0, top],
            "range": [0, 1.08 * largest * unit.per_si or 1],
            "title": {"text": title, "font": {"size": 13}},
            "showgrid": True,
            "gridcolor": "#e8e8e8",
            "nticks": 5,
            "anchor": "x",
            "fixedrange": True,
        },
        legend2={
            "x": 1.01,
            "xanchor": "left",
            "y": top / 2,
            "yanchor": "middle",
            "traceorder": "normal",
            "font": {"size": 11, "color": MUTED},
        },
    )


def _add_head(fig: go.Figure, labels: Labels) -> None:
    lines = [f"<b>{labels.title}</b>"] if labels.title else []
    if labels.subtitle:
        lines.append(f'<span style="font-size:14px;color:{MUTED}">{labels.subtitle}</span>')
    fig.update_layout(
        title={
            "text": "<br>".join(lines),
            "font": {"size": 20, "color": INK},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1 - 30 / fig.layout.height,
            "yref": "container",
            "yanchor": "top",
        }
    )


def _add_margin(fig: go.Figure, timeline: Timeline, labels: Labels, shown: list[int]) -> None:
    """Each rank's idle share and peak memory, at the right."""
    idle = idle_shares(timeline)
    columns = [("no compute", 66, [f"{100 * idle[rank]:.1f} %" for rank in shown])]
    if len(timeline.memory_rank):
        peak = timeline.peak_memory()
        unit = byte_unit(float(peak.max()), labels.unit)
        columns.append(("peak", 142, [unit.text(float(peak[rank])) for rank in shown]))
    for name, shift, texts in columns:
        style = {"xref": "paper", "x": 1, "xanchor": "right", "xshift": shift, "showarrow": False}
        fig.add_annotation(
            text=name, yref="y domain", y=1, yanchor="bottom", font={"color": MUTED}, **style
        )
        for rank, text in zip(shown, texts, strict=True):
            fig.add_annotation(text=text, yref="y", y=rank, font={"size": 12}, **style)
