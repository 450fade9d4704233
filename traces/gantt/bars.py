"""The rows of a Gantt chart: a bar per span, or an image where spans are finer than the page."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path

from simulator.explain import critical_line
from simulator.schedule import NO_MICROBATCH, Kind
from simulator.timeline import Timeline
from traces.colors import HATCH, IDLE, color, text_color
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
from traces.pairs import halves
from traces.raster import chunks_of, raster

__all__ = ["draw", "number_size"]

SMALLEST, LARGEST = 5.5, 9.0  # [pt] of numbers
PADDING = 1.5  # [pt] beside a number
DOTS = 320  # bins an inch of an image


def draw(axes: Axes, timeline: Timeline, points: tuple[float, float]) -> None:
    """Fill the axes; `points` are their width and the height of one row. [pt]"""
    axes.set_ylim(timeline.num_ranks - 0.5, -0.5)
    axes.tick_params(length=3, width=0.6)
    if is_image(timeline, points[0]):
        _image(axes, timeline, points)
        return
    axes.spines[["top", "right", "left"]].set_visible(False)
    strips = strip_kinds(timeline, points[0])
    bar = BAR_OVER_STRIPS if strips else BAR
    _background(axes, timeline, bar)
    _bars(axes, timeline.compute, bar, timeline, points[0])
    _numbers(axes, timeline, bar, points)
    for kind in strips:
        _bars(axes, timeline.of(kind), LANES[kind], timeline, points[0])


def draw_critical_path(axes: Axes, timeline: Timeline) -> None:
    """A line over the rows, black on white, so that it shows on every colour."""
    time, rank = critical_line(timeline)
    for width, ink in ((3.2, "white"), (1.6, "black")):
        axes.plot(time, rank + LOW, color=ink, linewidth=width, solid_joinstyle="round", zorder=4)


def number_size(timeline: Timeline, points: tuple[float, float]) -> float:
    """The largest size at which the microbatch numbers fit their bars, 0 if none does. [pt]"""
    numbered = timeline.compute.where(timeline.compute.microbatch != NO_MICROBATCH)
    if not numbered.num_spans:
        return 0.0
    text = str(numbered.microbatch.max())
    prop = FontProperties(family="DejaVu Sans", size=100)
    width, height, _ = text_to_path.get_text_width_height_descent(text, prop, False)
    # The narrowest one in twenty may stay blank: a measured timeline always has a few.
    narrow = float(np.quantile(numbered.end - numbered.start, 0.05))
    room = narrow * points[0] / timeline.makespan - 2 * PADDING
    high = points[1] * (0.35 if halves(numbered).any() else 0.7) - PADDING
    size = min(100 * room / width, 100 * high / height, LARGEST)
    return size if size >= SMALLEST else 0.0


def _background(axes: Axes, timeline: Timeline, bar: Lane) -> None:
    for rank in range(timeline.num_ranks):
        corner = (0, rank + bar[0])
        axes.add_patch(
            Rectangle(
                corner,
                timeline.makespan,
                bar[1] - bar[0],
                facecolor=IDLE,
                edgecolor=HATCH,
                hatch="////",
                linewidth=0,
                zorder=1,
            )
        )


def _bars(axes: Axes, spans: Timeline, bar: Lane, whole: Timeline, width_points: float) -> None:
    """One collection for each kind and chunk; the shade comes from the whole timeline's chunks."""
    shades, num_chunks = chunks_of(spans, whole)
    top, bottom = lanes(spans, bar)
    for kind in np.unique(spans.kind).tolist():
        for chunk in np.unique(shades[spans.kind == kind]).tolist():
            mine = (spans.kind == kind) & (shades == chunk)
            some = spans.where(mine)
            low, high = some.rank + top[mine], some.rank + bottom[mine]
            x = np.stack([some.start, some.end, some.end, some.start], axis=1)
            y = np.stack([low, low, high, high], axis=1)
            collection = PolyCollection(
                list(np.stack([x, y], axis=2)),
                facecolors=color(Kind(kind), chunk, num_chunks),
                edgecolors="white",
                linewidths=min(0.5, 0.12 * median_width(some, whole, width_points)),
                zorder=2,
            )
            axes.add_collection(collection, autolim=False)


def _numbers(axes: Axes, timeline: Timeline, bar: Lane, points: tuple[float, float]) -> None:
    size = number_size(timeline, points)
    if not size:
        return
    prop = FontProperties(family="DejaVu Sans", size=size)
    spans = timeline.compute.where(timeline.compute.microbatch != NO_MICROBATCH)
    shades, num_chunks = chunks_of(spans, timeline)
    y = spans.rank + sum(lanes(spans, bar)) / 2
    middle, width = (spans.start + spans.end) / 2, spans.end - spans.start
    room = width * points[0] / timeline.makespan - PADDING
    wide: dict[int, float] = {}
    for height, x, kind, chunk, microbatch, space in zip(
        *(c.tolist() for c in (y, middle, spans.kind, shades, spans.microbatch, room)),
        strict=True,
    ):
        if microbatch not in wide:
            text = str(microbatch)
            wide[microbatch] = text_to_path.get_text_width_height_descent(text, prop, False)[0]
        if wide[microbatch] <= space:
            axes.text(
                x,
                height,
                str(microbatch),
                size=size,
                color=text_color(color(Kind(kind), chunk, num_chunks)),
                ha="center",
                va="center_baseline",
                zorder=3,
            )


def _image(axes: Axes, timeline: Timeline, points: tuple[float, float]) -> None:
    pixels = raster(timeline, round(points[0] / 72 * DOTS)).image
    num_ranks = timeline.num_ranks
    extent = (0, timeline.makespan, num_ranks - 0.5, -0.5)
    repeats = max(1, round(points[1] / 72 * DOTS / 2))
    axes.imshow(
        np.repeat(pixels, min(repeats, 16), axis=0) if num_ranks < 200 else pixels,
        extent=extent,
        aspect="auto",
        interpolation="antialiased",
        interpolation_stage="rgba",
        zorder=1,
    )
    if points[1] >= 5:
        for boundary in range(1, num_ranks):
            axes.axhline(boundary - 0.5, color="white", linewidth=0.5, zorder=2)
