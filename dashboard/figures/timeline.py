"""The step on one time axis: who does what, memory below it, and how busy the links are.

A window that holds few ops shows each as a bar with its number; a larger one shows an image whose
every slice has the colours mixed by what fills it, and answers the pointer with the shares. The
browser never holds one node per op of a large timeline, and an update stays below 1 MB.
"""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dashboard.figures.curves import add_links, add_memory
from dashboard.figures.detail import Window, around, numbered, spans_in, strips_in, whole
from dashboard.figures.hover import op_lines
from dashboard.figures.marks import add_marks
from dashboard.figures.shares import Shares, shares
from dashboard.figures.spec import Figure, add, started
from dashboard.links import LinkUse
from dashboard.theme import Look, axis, frame
from simulator.explain import Bubble
from simulator.schedule import Kind
from simulator.simulate import Run
from simulator.timeline import Timeline
from traces.colors import SHADED, color, rgb, text_color
from traces.labels import TRANSFERS, WORDS, Unit, byte_unit, time_unit
from traces.layout import BAR, BAR_OVER_STRIPS, LANES, Lane, labelled_ranks, lanes

__all__ = ["figure", "height", "legend"]

ROW, LEAST, MOST = 36, 110, 330  # [pixel] a row; the stack of rows
GAP, MEMORY, LINKS, FOOT, HEAD = 26, 104, 66, 40, 10  # [pixel]
LEFT, RIGHT = 66, 142  # [pixel]
NAMED_RANKS = 16  # rows that are called by name
BINS, HOVERED = 1_600, 640  # of an overview: its image, its answers to the pointer


def rows_height(num_ranks: int) -> int:
    """What the rows take. [pixel]"""
    height = max(LEAST, min(ROW * num_ranks, MOST))
    return height // num_ranks * num_ranks or height  # whole pixels a row


def height(num_ranks: int, has_links: bool = True) -> int:
    """What the figure takes. [pixel]"""
    below = GAP + MEMORY + (GAP + LINKS) * has_links
    return HEAD + rows_height(num_ranks) + below + FOOT


def figure(
    run: Run,
    look: Look,
    *,
    window: Window | None = None,
    links: LinkUse | None = None,
    critical_path: bool = False,
    bubble: Bubble | None = None,
) -> Figure:
    """Rows, memory and link use; `window` is what is in view, all of it when left out."""
    timeline = run.timeline
    unit = time_unit(timeline.makespan, "s" if run.job else "t")
    view = whole(timeline) if window is None else window
    fig = started(_layout(run, look, unit, view, links is not None))
    add_marks(fig, timeline, look, unit, critical_path=critical_path, bubble=bubble)
    ops = spans_in(timeline, view)
    if ops is None:
        _add_overview(fig, timeline, look, unit, view)
    else:
        _add_ops(fig, run, look, unit, view, ops)
    add_memory(fig, timeline, look, unit, "s" if run.job else "t")
    if links is not None:
        add_links(fig, links, look, unit)
    add(fig, "scatter", x=[0], y=[0], yaxis="y4", mode="none", hoverinfo="skip")
    return fig


def legend(timeline: Timeline) -> list[tuple[str, list[str]]]:
    """Each kind that is drawn, and its fills, one a chunk."""
    num_chunks = int(timeline.chunk.max(initial=0)) + 1
    entries: dict[str, list[str]] = {}
    for number in np.unique(timeline.kind).tolist():
        kind, several = Kind(number), range(num_chunks if number in SHADED else 1)
        name = TRANSFERS.get(kind, WORDS[kind])
        entries[name] = [color(kind, c, num_chunks) for c in several]
    return list(entries.items())


def _add_ops(
    fig: Figure, run: Run, look: Look, unit: Unit, view: Window, ops: NDArray[np.int64]
) -> None:
    timeline = run.timeline
    strips = strips_in(timeline, view, len(ops))
    lane = BAR_OVER_STRIPS if len(strips) else BAR
    num_chunks = int(timeline.chunk.max(initial=0)) + 1
    chunk = np.where(np.isin(timeline.kind[ops], SHADED), timeline.chunk[ops], 0)
    top, bottom = lanes(timeline.where(ops), lane)
    _add_idle(fig, timeline, look, unit, lane)
    for kind, c in sorted(set(zip(timeline.kind[ops].tolist(), chunk.tolist(), strict=True))):
        mine = (timeline.kind[ops] == kind) & (chunk == c)
        fill = color(Kind(kind), c, num_chunks)
        place = (top[mine], (bottom - top)[mine])
        _add_bars(fig, run, ops[mine], unit, fill, place)
    for kind in np.unique(timeline.kind[strips]).tolist():
        mine = strips[timeline.kind[strips] == kind]
        low, high = LANES[Kind(kind)]
        place = (np.full(len(mine), low), np.full(len(mine), high - low))
        _add_bars(fig, run, mine, unit, color(Kind(kind)), place)
    row = rows_height(timeline.num_ranks) / _rows_in(timeline, view)
    _add_numbers(fig, timeline, unit, numbered(timeline, ops, view, row), lane)


def _add_idle(fig: Figure, timeline: Timeline, look: Look, unit: Unit, lane: Lane) -> None:
    """A quiet bar under each row; what shows of it is idle."""
    every = np.arange(timeline.num_ranks)
    add(
        fig,
        "bar",
        orientation="h",
        y=every,
        x=np.full(len(every), timeline.makespan * unit.per_si),
        offset=lane[0],
        width=lane[1] - lane[0],
        marker={"color": look.idle, "line": {"width": 0}},
        hovertemplate="<b>idle</b>, rank %{y:d}<br>click to see why<extra></extra>",
    )


def _add_bars(
    fig: Figure,
    run: Run,
    spans: NDArray[np.int64],
    unit: Unit,
    fill: str,
    place: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    timeline = run.timeline
    add(
        fig,
        "bar",
        orientation="h",
        y=timeline.rank[spans],
        base=timeline.start[spans] * unit.per_si,
        x=(timeline.end[spans] - timeline.start[spans]) * unit.per_si,
        offset=place[0].astype(np.float32),
        width=place[1].astype(np.float32),
        marker={"color": fill, "line": {"width": 0}},
        hovertext=op_lines(run, spans),
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _add_numbers(
    fig: Figure, timeline: Timeline, unit: Unit, spans: NDArray[np.int64], lane: Lane
) -> None:
    """The microbatch in the middle of each bar."""
    if not len(spans):
        return
    t, num_chunks = timeline, int(timeline.chunk.max(initial=0)) + 1
    top, bottom = lanes(timeline.where(spans), lane)
    pairs = zip(t.kind[spans].tolist(), t.chunk[spans].tolist(), strict=True)
    fills = [text_color(color(Kind(kind), c, num_chunks)) for kind, c in pairs]
    add(
        fig,
        "scatter",
        mode="text",
        x=(t.start[spans] + t.end[spans]) / 2 * unit.per_si,
        y=t.rank[spans] + (top + bottom) / 2,
        text=[str(m) for m in t.microbatch[spans].tolist()],
        textfont={"color": fills, "size": 11},
        hoverinfo="skip",
    )


def _add_overview(fig: Figure, timeline: Timeline, look: Look, unit: Unit, view: Window) -> None:
    """An image of the whole step, a sharper one of the window, and answers to the pointer."""
    near = around(view, timeline)
    cuts = [shares(timeline, 0.0, timeline.makespan, BINS)]
    if view.length < timeline.makespan:
        cuts.append(shares(timeline, near.start, near.end, BINS))
    lines = max(1, rows_height(timeline.num_ranks) // timeline.num_ranks)
    for cut in cuts:
        bins = cut.filled.shape[1]
        image = {
            "source": _png(_pixels(cut, look), lines),
            "xref": "x",
            "yref": "y",
            "x": cut.start * unit.per_si,
            "y": -0.5,
            "sizex": bins * cut.width * unit.per_si,
            "sizey": timeline.num_ranks,
            "sizing": "stretch",
            "layer": "below",
        }
        fig["layout"].setdefault("images", []).append(image)
    answer = shares(timeline, near.start, near.end, HOVERED)
    kinds = sorted(set(answer.kinds))
    of_kind = [np.array([kind == other for other in answer.kinds]) for kind in kinds]
    columns = [answer.filled[..., mine].sum(axis=2) for mine in of_kind] + [answer.idle]
    percent = np.rint(100 * np.stack(columns, axis=2)).astype(np.uint8)
    words = [*(WORDS[kind] for kind in kinds), "idle"]
    text = "<br>".join(f"%{{customdata[{i}]}} % {word}" for i, word in enumerate(words))
    add(
        fig,
        "heatmap",
        z=np.zeros(percent.shape[:2], np.uint8),
        x0=(answer.start + answer.width / 2) * unit.per_si,
        dx=answer.width * unit.per_si,
        y0=0,
        dy=1,
        opacity=0,
        showscale=False,
        customdata=percent,
        hovertemplate=f"<b>rank %{{y:d}}</b> at %{{x:.5g}} {unit.name}<br>{text}<extra></extra>",
    )


def _pixels(cut: Shares, look: Look) -> NDArray[np.uint8]:
    """Colours mixed by what fills each bin, shape (num_ranks, num_bins, 3)."""
    palette = np.stack([rgb(fill) for fill in (*cut.colors, look.idle)]).astype(np.float32)
    every = np.concatenate([cut.filled, cut.idle[..., None]], axis=2)
    return np.clip(np.rint(every @ palette), 0, 255).astype(np.uint8)


def _png(pixels: NDArray[np.uint8], lines: int) -> str:
    """A data URI; where a row has lines enough, the last is clear, so that rows stand apart."""
    separate = lines >= 3
    rows = min(lines, 6) if separate else 1
    image = np.full((*pixels.shape[:2], 4), 255, np.uint8)
    image[..., :3] = pixels
    image = np.repeat(image, rows, axis=0)
    if separate:
        image[rows - 1 :: rows, :, 3] = 0
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="png", compress_level=2)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _layout(run: Run, look: Look, unit: Unit, view: Window, has_links: bool) -> dict[str, Any]:
    """Axes: rows on `y`, their figures at the right on `y4`, memory on `y2`, links on `y3`."""
    ranks, rows = run.timeline.num_ranks, rows_height(run.timeline.num_ranks)
    total = height(ranks, has_links)
    plot = total - HEAD - FOOT
    first, last = max(view.top, -0.5), min(view.bottom, ranks - 0.5)
    shown = labelled_ranks(ranks, 0.75 * rows / _rows_in(run.timeline, view))
    few = ranks <= NAMED_RANKS
    low = LINKS / plot if has_links else 0.0
    side: dict[str, Any] = {
        "range": [last, first],
        "tickvals": shown,
        "fixedrange": few,
        "minallowed": -0.5,
        "maxallowed": ranks - 0.5,
    }
    names = [f"rank {r}" if few else str(r) for r in shown]
    title = "" if few else "pipeline rank"
    top = (low + GAP / plot) if has_links else 0.0
    return frame(look) | {
        "margin": {"l": LEFT, "r": RIGHT, "t": HEAD, "b": FOOT},
        "height": total,
        "barmode": "overlay",
        "hovermode": "closest",
        "dragmode": "pan",
        "showlegend": False,
        "xaxis": axis(
            look,
            f"time [{unit.name}]" if unit.name else "time",
            range=[view.start * unit.per_si, view.end * unit.per_si],
            anchor="y3" if has_links else "y2",
            ticks="outside",
            minallowed=0,
            maxallowed=run.timeline.makespan * unit.per_si,
        ),
        "yaxis": axis(look, title, domain=[1 - rows / plot, 1], ticktext=names, **side),
        "yaxis2": axis(look, domain=[top, top + MEMORY / plot]),
        "yaxis3": axis(look, domain=[0.0, low or 1.0]),
        "yaxis4": axis(
            look, overlaying="y", matches="y", side="right", ticktext=_figures(run, shown), **side
        ),
    }


def _rows_in(timeline: Timeline, view: Window) -> float:
    """How many rows are in view. [1]"""
    return max(1.0, min(view.bottom, timeline.num_ranks - 0.5) - max(view.top, -0.5))


def _figures(run: Run, shown: list[int]) -> list[str]:
    """Each rank's idle share and peak memory."""
    idle = run.report.split.idle / run.timeline.makespan
    peak = run.timeline.peak_memory()
    unit = byte_unit(float(peak.max(initial=1.0)), "s" if run.job else "t")
    return [f"{100 * idle[r]:.1f} % idle  {unit.text(float(peak[r]))}" for r in shown]
