"""Gantt chart with the memory curves below, to zoom and to point at.

Up to a few thousand spans are bars, one trace for each kind and chunk. Above that it is a raster:
time is cut in bins, a bin has the colour of what fills most of it, and the pointer reads the
shares of the kinds. The browser never holds one node per op of a large timeline.
"""

import base64
import html
import io
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from PIL import Image

from dashboard.frame import framed
from simulator.explain import critical_line
from simulator.schedule import NO_MICROBATCH, Kind, Op
from simulator.timeline import Timeline
from traces.colors import HATCH, IDLE, SHADED, color, ranks, text_color
from traces.labels import TRANSFERS, WORDS, Labels, Unit, byte_unit, time_unit
from traces.layout import (
    BAR,
    BAR_OVER_STRIPS,
    LANES,
    LOW,
    Lane,
    is_image,
    lanes,
    median_width,
    strip_kinds,
)
from traces.memory import MOST_LINES, band, steps
from traces.raster import Raster, chunks_of, idle_shares, raster
from traces.replacing import replace_bytes

__all__ = ["figure", "write_html"]

WIDTH = 1100 * 0.75  # [pt] of the rows in a common window
MOST_BINS = 4096
LINES = 5  # of an image, for one row; the last one is white
MOST_SEPARATE = 128  # ranks; the rows of more have no line between them
MOST_BYTES = 1_900_000  # of a raster, to keep a page below 8 MB
CONFIG = {
    "displaylogo": False,
    "displayModeBar": "hover",
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
    "responsive": True,
    "scrollZoom": True,
}


def figure(
    timeline: Timeline,
    *,
    title: str = "",
    subtitle: str = "",
    unit: str = "s",
    critical_path: bool = False,
) -> go.Figure:
    """Rows above, memory below, on one time axis; `unit` is "s", or "t" for no unit.

    Raises:
        ValueError: the timeline has no span to draw.

    """
    if timeline.makespan <= 0:
        raise ValueError("the timeline has no span that lasts, so there is nothing to draw")
    labels = Labels(title, subtitle, unit)
    time = time_unit(timeline.makespan, unit)
    fig = go.Figure()
    if is_image(timeline, WIDTH):
        _add_raster(fig, timeline, time)
    else:
        _add_bars(fig, timeline, time)
    if len(timeline.memory_rank):
        _add_memory(fig, timeline, time, byte_unit(float(timeline.peak_memory().max()), unit))
    if critical_path:
        at, rank = critical_line(timeline)
        fig.add_scatter(
            x=at * time.per_si,
            y=rank + LOW,
            mode="lines",
            line={"color": "black", "width": 2},
            name="critical path",
            hoverinfo="skip",
        )
    return framed(fig, timeline, labels)


def write_html(
    timeline: Timeline,
    path: str | Path,
    *,
    title: str = "",
    subtitle: str = "",
    unit: str = "s",
    critical_path: bool = False,
) -> None:
    """Save the figure as one page that needs no network; a failure leaves an old file as it was.

    Raises:
        ValueError: the timeline has no span to draw, or the path cannot be written.

    """
    fig = figure(timeline, title=title, subtitle=subtitle, unit=unit, critical_path=critical_path)
    page = fig.to_html(
        include_plotlyjs=True,
        config=CONFIG,
        div_id="gantt",
        default_height=f"{fig.layout.height}px",
    )
    name = html.escape(title or "Gantt chart")
    head = f"<head><title>{name}</title><style>body {{margin: 0}}</style>"
    replace_bytes(Path(path), page.replace("<head>", head, 1).encode())


def _add_bars(fig: go.Figure, timeline: Timeline, time: Unit) -> None:
    strips = strip_kinds(timeline, WIDTH)
    lane = BAR_OVER_STRIPS if strips else BAR
    _add_idle(fig, timeline, time, lane)
    compute = timeline.compute
    chunk, num_chunks = chunks_of(compute, timeline)
    chunk = np.where(np.isin(compute.kind, SHADED), chunk, 0)
    several = num_chunks > 1
    top, bottom = lanes(compute, lane)
    digits = len(str(int(compute.microbatch.max(initial=0))))
    shown: set[int] = set()
    for kind, c in sorted(set(zip(compute.kind.tolist(), chunk.tolist(), strict=True))):
        mine = (compute.kind == kind) & (chunk == c)
        spans = compute.where(mine)
        fill = color(Kind(kind), c, num_chunks)
        name = WORDS[Kind(kind)] + (f", chunk {c}" if several and kind in SHADED else "")
        edge = min(0.5, 0.12 * median_width(spans, timeline, WIDTH))
        numbers = [_number(m, digits) for m in spans.microbatch.tolist()]
        _add_spans(fig, spans, time, fill, name).update(
            **_entry(Kind(kind), num_chunks),
            showlegend=kind not in shown,
            offset=top[mine],
            width=(bottom - top)[mine],
            marker_line={"color": "white", "width": edge},
            text=numbers,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": text_color(fill), "size": 13},
        )
        shown.add(kind)
    for name in dict.fromkeys(TRANSFERS.get(kind, WORDS[kind]) for kind in strips):
        kinds = [kind for kind in strips if TRANSFERS.get(kind, WORDS[kind]) == name]
        spans = timeline.of(*kinds)
        places = np.array([LANES[Kind(kind)] for kind in spans.kind.tolist()])
        _add_spans(fig, spans, time, color(kinds[0]), name).update(
            offset=places[:, 0], width=places[:, 1] - places[:, 0], marker_line={"width": 0}
        )


def _add_idle(fig: go.Figure, timeline: Timeline, time: Unit, lane: Lane) -> None:
    """A hatched bar under each row; what shows of it is idle."""
    every = np.arange(timeline.num_ranks)
    fig.add_bar(
        orientation="h",
        y=every,
        x=np.full(len(every), timeline.makespan * time.per_si),
        offset=lane[0],
        width=lane[1] - lane[0],
        name="idle",
        legendrank=2000,
        marker={
            "color": IDLE,
            "line": {"width": 0},
            "pattern": {
                "shape": "/",
                "fgcolor": HATCH,
                "bgcolor": IDLE,
                "size": 7,
                "solidity": 0.15,
            },
        },
        customdata=100 * idle_shares(timeline),
        hovertemplate="<b>rank %{y:d}</b> idles for %{customdata:.1f} % of the step<extra></extra>",
    )


def _add_spans(fig: go.Figure, spans: Timeline, time: Unit, fill: str, name: str) -> go.Bar:
    columns = (spans.stage.tolist(), spans.kind.tolist(), spans.microbatch.tolist())
    ops = [str(Op(s, Kind(k), m)) for s, k, m in zip(*columns, strict=True)]
    start, end = spans.start * time.per_si, spans.end * time.per_si
    unit = f" {time.name}" if time.name else ""
    fig.add_bar(
        orientation="h",
        y=spans.rank,
        base=start,
        x=end - start,
        name=name,
        marker={"color": fill},
        hovertext=ops,
        customdata=np.stack([start, end, end - start, spans.rank], axis=1),
        hoverlabel={"font": {"color": text_color(fill)}},
        hovertemplate="<b>%{hovertext}</b> " + name + ", rank %{customdata[3]}<br>"
        f"from %{{customdata[0]:.5g}} to %{{customdata[1]:.5g}}{unit}<br>"
        f"lasts %{{customdata[2]:.4g}}{unit}<extra></extra>",
    )
    return fig.data[-1]


def _number(microbatch: int, digits: int) -> str:
    """A microbatch's number, as wide as the widest, so that all show or none does."""
    if microbatch == NO_MICROBATCH:
        return ""
    pad = "\u2005" * (digits - len(str(microbatch)))  # two quarter-ems are about one digit
    return f"{pad}{microbatch}{pad}"


def _add_raster(fig: go.Figure, timeline: Timeline, time: Unit) -> None:
    """An image of the rows, and over it an unseen one that answers the pointer."""
    lines = LINES if timeline.num_ranks <= MOST_SEPARATE else 1
    bytes_a_bin = timeline.num_ranks * (lines + 1 + len(np.unique(timeline.kind)) + 1)
    num_bins = min(MOST_BINS, max(64, MOST_BYTES // bytes_a_bin))
    cut = raster(timeline, num_bins)
    width = timeline.makespan * time.per_si / num_bins
    bins = {"x0": width / 2, "dx": width, "showscale": False}
    pixels = np.repeat(cut.image, lines, axis=0)  # colours mixed, so that nothing beats
    if lines > 1:
        pixels[lines - 1 :: lines] = 255  # the white line between two rows
    fig.add_layout_image(
        source=_png(pixels),
        xref="x",
        yref="y",
        x=0,
        y=-0.5,
        sizex=timeline.makespan * time.per_si,
        sizey=timeline.num_ranks,
        sizing="stretch",
        layer="below",
    )
    kinds, percent = _percent(cut)
    words = [*(WORDS[kind] for kind in kinds), "idle"]
    shares = "<br>".join(f"{word} %{{customdata[{i}]}} %" for i, word in enumerate(words))
    unit = f" {time.name}" if time.name else ""
    fig.add_heatmap(
        z=np.zeros(cut.main.shape, np.uint8),
        y0=0,
        dy=1,
        opacity=0,
        customdata=percent,
        hovertemplate=f"<b>rank %{{y:d}}</b> at %{{x:.5g}}{unit}<br>{shares}<extra></extra>",
        **bins,
    )
    shown: set[Kind] = set()
    for kind, _, fill in sorted(zip(cut.kinds, cut.chunks, cut.colors, strict=False)):
        if kind not in shown:
            _add_entry(fig, fill, _entry(kind, cut.num_chunks))
        shown.add(kind)
    _add_entry(fig, IDLE, {"name": "idle"})
    fig.update_layout(legend={"itemclick": False, "itemdoubleclick": False})


def _png(pixels: NDArray[np.uint8]) -> str:
    """An image of shape (rows, columns, 3) as a data URI; the browser smooths it when it scales."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _entry(kind: Kind, num_chunks: int) -> dict[str, str]:
    """The legend's line for a kind, which all of its chunks share."""
    several = num_chunks > 1 and kind in SHADED
    name = WORDS[kind] + (f", chunks 0 to {num_chunks - 1}" if several else "")
    return {"name": name, "legendgroup": kind.name}


def _add_entry(fig: go.Figure, fill: str, entry: dict[str, str]) -> None:
    """A line of the legend."""
    marker = {"symbol": "square", "size": 12, "color": fill}
    fig.add_scatter(x=[None], y=[None], mode="markers", marker=marker, **entry)


def _percent(cut: Raster) -> tuple[list[Kind], NDArray[np.uint8]]:
    """Kinds, and their shares over all chunks, then idle's: (num_ranks, num_bins, kinds + 1)."""
    kinds = sorted(set(cut.kinds))
    of_kind = [np.array([kind == other for other in cut.kinds]) for kind in kinds]
    shares = [cut.shares[..., :-1][..., mine].sum(axis=2) for mine in of_kind]
    together = np.stack([*shares, cut.shares[..., -1]], axis=2)
    return kinds, np.rint(100 * together).astype(np.uint8)


def _add_memory(fig: go.Figure, timeline: Timeline, time: Unit, unit: Unit) -> None:
    shown = range(timeline.num_ranks)
    style = {"legend": "legend2", "yaxis": "y2", "mode": "lines"}
    if timeline.num_ranks > MOST_LINES:
        shown = range(0, timeline.num_ranks, timeline.num_ranks - 1)
        edges, low, high = (np.asarray(a) for a in band(timeline))
        line = {"width": 0, "shape": "hv"}
        for values, fill in ((low, None), (high, "tonexty")):
            fig.add_scatter(
                x=edges * time.per_si,
                y=values * unit.per_si,
                line=line,
                fill=fill,
                fillcolor="#dfe5ec" if fill else None,
                name="all ranks",
                showlegend=fill is not None,
                hoverinfo="skip",
                **style,
            )
    for rank, fill in zip(shown, ranks(len(shown)), strict=True):
        x, y = steps(timeline, rank)
        fig.add_scatter(
            x=x * time.per_si,
            y=y * unit.per_si,
            line={"color": fill, "width": 1.6, "shape": "hv"},
            name=f"rank {rank}",
            hovertemplate=f"<b>rank {rank}</b> %{{y:.4g}} {unit.name}<extra></extra>",
            **style,
        )
