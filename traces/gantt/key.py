"""The legend of a Gantt chart: one entry a kind, with the shades of its chunks side by side."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path

from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.colors import HATCH, IDLE, SHADED, color, hexadecimal, rgb
from traces.labels import TRANSFERS, WORDS
from traces.layout import is_blurred, is_image, strip_kinds
from traces.raster import COLLECTIVES, raster

__all__ = ["Entry", "draw", "lines"]

Entry = tuple[tuple[Patch, ...], str]
SIZE = 9.0  # [pt]
HANDLE, PAD, SPACE = 1.8, 0.5, 1.4  # in sizes of the font


def lines(timeline: Timeline, points: float, line_points: float) -> list[list[Entry]]:
    """The entries for rows that are `points` wide, in as many lines as they need. [pt]"""
    num_chunks = int(timeline.chunk.max(initial=0)) + 1
    entries: list[Entry] = []
    for kind in _kinds(timeline, points):
        shades = range(num_chunks) if kind in SHADED else (0,)
        patches = [Patch(facecolor=color(kind, c, num_chunks), linewidth=0) for c in shades]
        chunks = f", chunks 0 to {num_chunks - 1}" if len(patches) > 1 else ""
        entries.append((tuple(patches), TRANSFERS.get(kind, WORDS[kind]) + chunks))
    if is_blurred(timeline, points):
        entries.append(((Patch(facecolor=_mix(timeline), linewidth=0),), "mixed, finer than a dot"))
    hatch = None if is_image(timeline, points) else "//////"
    idle = Patch(facecolor=IDLE, edgecolor=HATCH, hatch=hatch, linewidth=0.5)
    return _wrapped([*entries, ((idle,), "idle")], line_points)


def draw(page: Figure, entries: list[Entry], place: tuple[float, float]) -> None:
    """Write one line of entries from `place` on."""
    handles: list[Any] = [patches for patches, _ in entries]  # tuples, which the stubs do not know
    legend = page.legend(
        handles,
        [word for _, word in entries],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="center left",
        bbox_to_anchor=place,
        ncol=len(entries),
        frameon=False,
        fontsize=SIZE,
        handlelength=HANDLE,
        handletextpad=PAD,
        columnspacing=SPACE,
        borderpad=0,
        borderaxespad=0,
    )
    legend.set_in_layout(False)


def _wrapped(entries: list[Entry], points: float) -> list[list[Entry]]:
    prop = FontProperties(family="DejaVu Sans", size=SIZE)
    wrapped: list[list[Entry]] = [[]]
    used = 0.0
    for entry in entries:
        text = text_to_path.get_text_width_height_descent(entry[1], prop, False)[0]
        width = text + SIZE * (HANDLE + PAD + SPACE)
        if wrapped[-1] and used + width > points:
            wrapped.append([])
            used = 0.0
        wrapped[-1].append(entry)
        used += width
    return wrapped


def _mix(timeline: Timeline) -> str:
    """What the eye sees where all compute alternates faster than the page can show."""
    whole = raster(timeline, 1)
    weights = whole.shares[:, 0, :-1].sum(axis=0)
    palette = np.stack([rgb(fill) for fill in whole.colors[:-1]])
    return hexadecimal(weights @ palette / weights.sum())


def _kinds(timeline: Timeline, points: float) -> list[Kind]:
    """The kinds that the rows show; a send has its receive's colour, so one entry is enough."""
    present = {Kind(k) for k in np.unique(timeline.kind).tolist()}
    if is_image(timeline, points):
        strips = present & set(COLLECTIVES)
    else:
        strips = {k for k in strip_kinds(timeline, points) if not k.is_receive}
    return [k for k in Kind if k in present and (k.is_compute or k in strips)]
