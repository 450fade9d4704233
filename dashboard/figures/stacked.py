"""Runs one over the other on one time axis: bars with numbers, or an image where bars are many.

A run's rows end where it ends, so that the eye sees who is faster. Seen from afar a large run is
an image whose every pixel has the colours of what fills it, by share; `view` is the part of the
time axis that is looked at, and few enough ops in it are bars again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from dashboard.figures.pixels import add_image
from dashboard.figures.words import LEAST_TEXT, add_title, add_words
from dashboard.theme import Look, axis, frame
from simulator.schedule import NO_MICROBATCH, Kind, Op
from simulator.timeline import Timeline
from traces.colors import SHADED, color, text_color
from traces.labels import WORDS, Unit, time_unit
from traces.layout import BAR, labelled_ranks, lanes
from traces.raster import chunks_of

__all__ = ["Band", "stacked"]

WIDTH = 1150  # of the rows in a common window [pixel]
MOST_BARS = 2_500  # in all bands [1]
MOST_MOMENTS = 4_000  # at which an op starts, for stepping through [1]
NARROWEST = 1.5  # of half of the bars [pixel]
TALLEST, STACK = 44, 380  # of a row; of all rows [pixel]
HEAD, TITLE, GAP, FOOT = 34, 26, 14, 46  # [pixel]
NO_RIGHT, RIGHT = 18, 96  # without and with words at the right [pixel]


@dataclass(frozen=True, eq=False)
class Band:
    """A run in the figure."""

    name: str
    timeline: Timeline
    note: str = ""  # behind the name
    held: tuple[str, ...] = ()  # at the right of each rank's row


def stacked(
    bands: Sequence[Band],
    look: Look,
    *,
    unit: str = "s",
    view: tuple[float, float] | None = None,
) -> go.Figure:
    """Draw runs from top to bottom.

    Args:
        bands: the runs.
        look: light or dark.
        unit: "s", or "t" for an axis without a unit.
        view: the part of the time axis to show; all of it when left out. [s]

    Raises:
        ValueError: no run has a span that lasts.
    """
    longest = max((band.timeline.makespan for band in bands), default=0.0)
    if longest <= 0:
        raise ValueError("there is no span that lasts, so there is nothing to draw")
    low, high = _within(view, longest)
    time = time_unit(longest, unit)
    fig = go.Figure()
    rows = _row_height([band.timeline.num_ranks for band in bands])
    tops, height = _places(bands, rows)
    cuts = [_cut(band.timeline, low, high, whole=view is None) for band in bands]
    bars = _as_bars(cuts, low, high)
    shown: set[Kind] = set()
    for at, (band, cut) in enumerate(zip(bands, cuts, strict=True)):
        name = "" if at == 0 else str(at + 1)
        _add_axis(fig, band.timeline, name, look, (tops[at], rows, height))
        _add_idle(fig, band.timeline, name, time, look)
        if bars:
            scale = WIDTH / (high - low)
            _add_bars(fig, band.timeline, cut, name, time, look, (scale, rows), shown)
        else:
            add_image(fig, cut, name, time, look, (len(bands), rows), shown)
        add_title(fig, band.name, band.note, tops[at] / height, look)
        add_words(fig, band.held, name, rows, look)
    _add_frame(fig, look, height, (low * time.per_si, high * time.per_si), time)
    fig.update_layout(margin_r=RIGHT if any(band.held for band in bands) else NO_RIGHT)
    drawn = {"range": [low * time.per_si, high * time.per_si], "view": view}
    fig.update_layout(meta=_meta(bands, time, longest) | drawn)
    return fig


def _within(view: tuple[float, float] | None, longest: float) -> tuple[float, float]:
    """The part to show, as far as there is something."""
    if view is None:
        return 0.0, longest * 1.004
    low, high = max(0.0, min(view)), min(longest * 1.004, max(view))
    return (low, high) if high - low > 1e-9 * longest else (0.0, longest * 1.004)


def _row_height(ranks: Sequence[int]) -> float:
    """As high as there is room, and less where runs share it. [pixel]"""
    tallest = TALLEST if len(ranks) == 1 else TALLEST * 2 / 3
    return float(min(tallest, max(STACK / sum(ranks), 1.5)))


def _places(bands: Sequence[Band], rows: float) -> tuple[list[float], float]:
    """Height of each band's top over the plot's bottom, and the plot's height. [pixel]"""
    titles = [TITLE if band.name else 0 for band in bands]
    heights = [t + rows * b.timeline.num_ranks for t, b in zip(titles, bands, strict=True)]
    total = sum(heights) + GAP * (len(bands) - 1)
    tops, at = [], total
    for title, height in zip(titles, heights, strict=True):
        tops.append(at - title)
        at -= height + GAP
    return tops, total


def _cut(timeline: Timeline, low: float, high: float, *, whole: bool) -> Timeline:
    """The compute in the part that is looked at, and in as much on either side."""
    compute = timeline.where((timeline.kind <= Kind.OPTIMIZER) | (timeline.kind >= Kind.UNSHARD))
    compute = compute.where(compute.kind != Kind.WAIT)
    if whole:
        return compute
    more = high - low
    return compute.where((compute.end > low - more) & (compute.start < high + more))


def _as_bars(cuts: Sequence[Timeline], low: float, high: float) -> bool:
    """Whether ops are few and wide enough to be seen one by one."""
    if sum(cut.num_spans for cut in cuts) > MOST_BARS:
        return False
    lengths = [cut.end - cut.start for cut in cuts if cut.num_spans]
    widths = np.concatenate(lengths) * WIDTH / (high - low) if lengths else np.ones(1) * NARROWEST
    return float(np.median(widths)) >= NARROWEST


def _add_axis(
    fig: go.Figure, timeline: Timeline, name: str, look: Look, place: tuple[float, float, float]
) -> None:
    top, rows, height = place
    ranks = labelled_ranks(timeline.num_ranks, 0.75 * rows)
    fig.update_layout(
        {
            f"yaxis{name}": axis(
                look,
                domain=[max(0.0, (top - rows * timeline.num_ranks) / height), top / height],
                range=[timeline.num_ranks - 0.5, -0.5],
                tickvals=ranks,
                ticktext=[f"rank {r}" if timeline.num_ranks <= 16 else str(r) for r in ranks],
                showline=False,
                fixedrange=True,
                anchor="x",
            )
        }
    )


def _add_idle(fig: go.Figure, timeline: Timeline, name: str, time: Unit, look: Look) -> None:
    """A hatched bar under each row, as long as the run; what shows of it is idle."""
    fig.add_bar(
        orientation="h",
        yaxis=f"y{name}",
        y=np.arange(timeline.num_ranks),
        x=np.full(timeline.num_ranks, timeline.makespan * time.per_si),
        offset=BAR[0],
        width=BAR[1] - BAR[0],
        showlegend=False,
        hoverinfo="skip",
        marker={
            "color": look.idle,
            "line": {"width": 0},
            "pattern": {
                "shape": "/",
                "fgcolor": look.hatch,
                "bgcolor": look.idle,
                "size": 7,
                "solidity": 0.15,
            },
        },
    )


def _add_bars(
    fig: go.Figure,
    whole: Timeline,
    cut: Timeline,
    name: str,
    time: Unit,
    look: Look,
    size: tuple[float, float],
    shown: set[Kind],
) -> None:
    """A trace for each kind and chunk; `size` is pixels a second and pixels a row."""
    scale, rows = size
    chunk, num_chunks = chunks_of(cut, whole)
    chunk = np.where(np.isin(cut.kind, SHADED), chunk, 0)
    top, bottom = lanes(cut, BAR)
    pixels = (cut.end - cut.start) * scale
    letters = max(8, min(15, round(0.42 * rows)))
    edge = 0.0 if not cut.num_spans else min(1.0, 0.06 * float(np.median(pixels)))
    for kind, c in sorted(set(zip(cut.kind.tolist(), chunk.tolist(), strict=True))):
        mine = (cut.kind == kind) & (chunk == c)
        spans = cut.where(mine)
        fill = color(Kind(kind), c, num_chunks)
        start, end = spans.start * time.per_si, spans.end * time.per_si
        columns = (spans.stage.tolist(), spans.kind.tolist(), spans.microbatch.tolist())
        ops = [str(Op(s, Kind(k), m)) for s, k, m in zip(*columns, strict=True)]
        numbers = [
            str(m) if m != NO_MICROBATCH and w >= 0.72 * letters * len(str(m)) + 2 else ""
            for m, w in zip(spans.microbatch.tolist(), pixels[mine].tolist(), strict=True)
        ]
        fig.add_bar(
            orientation="h",
            yaxis=f"y{name}",
            y=spans.rank,
            base=start,
            x=end - start,
            offset=top[mine],
            width=(bottom - top)[mine],
            name=WORDS[Kind(kind)],
            legendgroup=Kind(kind).name,
            legendrank=kind,
            showlegend=Kind(kind) not in shown,
            marker={"color": fill, "line": {"color": look.edge, "width": edge}},
            text=numbers if rows >= LEAST_TEXT else None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            insidetextfont={"color": text_color(fill), "size": letters},
            hovertext=ops,
            customdata=np.stack([start, end, end - start], axis=1),
            hovertemplate=f"<b>%{{hovertext}}</b> {WORDS[Kind(kind)]}, rank %{{y:d}}<br>"
            f"%{{customdata[0]:.5g}} to %{{customdata[1]:.5g}} {time.name}, "
            f"lasts %{{customdata[2]:.4g}}<extra></extra>",
        )
        shown.add(Kind(kind))


def _add_frame(
    fig: go.Figure, look: Look, height: float, shown: tuple[float, float], time: Unit
) -> None:
    fig.update_layout(frame(look))
    fig.update_layout(
        height=height + HEAD + FOOT,
        margin={"l": 58, "r": NO_RIGHT, "t": HEAD, "b": FOOT},
        barmode="overlay",
        bargap=0,
        hovermode="closest",
        dragmode="zoom",
        legend={
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 1 + 2 / height,
            "yanchor": "bottom",
            "itemclick": False,
            "itemdoubleclick": False,
            "font": {"size": 12, "color": look.ink},
        },
        xaxis=axis(
            look,
            range=list(shown),
            title=f"time [{time.name}]" if time.name else "time",
            ticks="outside",
            anchor="free",
            position=0,
        ),
    )


def _meta(bands: Sequence[Band], time: Unit, longest: float) -> dict[str, object]:
    """What the player needs: the moments at which ops start, in the axis's unit.

    With what is drawn, it is also what assets/zoom.js tells the reader's own zoom by.
    """
    moments = np.unique(np.concatenate([b.timeline.compute.start for b in bands])) * time.per_si
    if len(moments) > MOST_MOMENTS:
        moments = moments[np.linspace(0, len(moments) - 1, MOST_MOMENTS).round().astype(int)]
    digits = np.round(moments, 6).tolist()
    return {"moments": digits, "end": longest * time.per_si, "per_si": time.per_si}
