"""The Gantt chart of a timeline, drawn with matplotlib as the pipeline papers draw theirs.

A row per rank, rank 0 on top; forward and backward in two hues, a shade per model chunk, idle
hatched; each rank's idle share and peak memory at the right; the memory curves below. Timelines
with more spans than the page has room for are drawn as an image of what fills each slice of time.

Source of the look: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", SC 2021, Fig. 4.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simulator.timeline import Timeline
from traces.colors import INK, MUTED
from traces.gantt import bars, curves, key, margin
from traces.labels import Labels, time_unit

__all__ = ["drawing", "figure"]

WIDTH = 12.0  # [inch], as all lengths here
LEFT, RIGHT = 0.85, 1.5
TOP, TITLE, SUBTITLE, KEY, KEY_LINE, HEAD = 0.16, 0.30, 0.24, 0.34, 0.22, 0.2
ROW, ROWS = 0.46, 5.6  # the highest row; the highest stack of rows
GAP, CURVES, BOTTOM = 0.22, 1.45, 0.62


@contextmanager
def drawing() -> Iterator[None]:
    """The settings to draw and save under: text stays text, equal input gives equal bytes."""
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.linewidth": 0.6,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "hatch.linewidth": 0.6,
        "svg.fonttype": "none",
        "svg.hashsalt": "bubblescope",
        "pdf.fonttype": 42,
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield


def figure(timeline: Timeline, labels: Labels | None = None) -> Figure:
    """Draw a timeline; call it and save the figure within `drawing()`.

    Raises:
        ValueError: the timeline has no span to draw.

    """
    labels = labels or Labels()
    if timeline.makespan <= 0:
        raise ValueError("the timeline has no span that lasts, so there is nothing to draw")
    rows = min(ROW * timeline.num_ranks, ROWS)
    head = TOP + TITLE * bool(labels.title) + SUBTITLE * bool(labels.subtitle)
    has_memory = len(timeline.memory_rank) > 0
    below = GAP + CURVES if has_memory else 0.0
    width = WIDTH - LEFT - RIGHT
    entries = key.lines(timeline, 72 * width, 72 * (width + RIGHT))
    height = head + KEY + KEY_LINE * (len(entries) - 1) + HEAD + rows + below + BOTTOM
    page = Figure(figsize=(WIDTH, height))
    box = (LEFT / WIDTH, (BOTTOM + below) / height, width / WIDTH, rows / height)
    axes = page.add_axes(box)
    bars.draw(axes, timeline, points=(72 * width, 72 * rows / timeline.num_ranks))
    if labels.critical_path:
        bars.draw_critical_path(axes, timeline)
    margin.draw(axes, timeline, labels, row_points=72 * rows / timeline.num_ranks)
    _head(page, labels, height)
    for line, some in enumerate(entries):
        middle = head + KEY / 2 + KEY_LINE * line
        key.draw(page, some, (LEFT / WIDTH, 1 - middle / height))
    lowest = axes
    if has_memory:
        axes.tick_params(labelbottom=False)
        box = (LEFT / WIDTH, BOTTOM / height, width / WIDTH, CURVES / height)
        lowest = page.add_axes(box, sharex=axes)
        curves.draw(lowest, timeline, labels)
    _time_axis(lowest, timeline, labels)
    return page


def _head(page: Figure, labels: Labels, height: float) -> None:
    top = TOP
    for text, space, size, color, weight in (
        (labels.title, TITLE, 13, INK, "bold"),
        (labels.subtitle, SUBTITLE, 10, MUTED, "normal"),
    ):
        if text:
            page.text(
                LEFT / WIDTH,
                1 - (top + space / 2) / height,
                text,
                va="center",
                ha="left",
                size=size,
                color=color,
                weight=weight,
                parse_math=False,
            )
            top += space


def _time_axis(axes: Axes, timeline: Timeline, labels: Labels) -> None:
    unit = time_unit(timeline.makespan, labels.unit)
    axes.set_xlim(0, timeline.makespan)
    axes.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x * unit.per_si:.6g}"))
    axes.set_xlabel(f"time [{unit.name}]" if unit.name else "time")
