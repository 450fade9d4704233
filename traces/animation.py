"""GIF: the schedule unfolding under a moving cursor.

The chart is drawn twice, with and without its contents; every frame is one beside the other, cut
at the cursor, so that a large timeline costs no more than a small one.
"""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from simulator.timeline import Timeline
from traces.colors import INK, rgb
from traces.labels import Labels

__all__ = ["SUFFIXES", "encode"]

SUFFIXES = (".gif",)
_FRAMES, _FRAMES_LARGE = 64, 32
_LARGE = 5000  # spans
_DPI = 90
_FRAME_MS, _LAST_MS = 90, 3000
_COLORS = 96  # [1] of the palette that all frames share

_METHOD = Image.Quantize.MAXCOVERAGE  # keeps the colours of small areas, such as the legend

Box = tuple[int, int, int, int]  # left, top, right, bottom [pixel]


def encode(timeline: Timeline, labels: Labels, _suffix: str) -> bytes:
    """Frames that end with the whole chart, which stays for a while before it starts again."""
    empty, full, boxes = _drawn(timeline, labels)
    num_frames = _FRAMES if timeline.num_spans < _LARGE else _FRAMES_LARGE
    whole = Image.fromarray(full).quantize(_COLORS, _METHOD, dither=Image.Dither.NONE)
    shares = np.linspace(0, 1, num_frames, endpoint=False)
    frames = [Image.fromarray(_frame(empty, full, boxes, share)) for share in shares.tolist()]
    palette = [frame.quantize(palette=whole, dither=Image.Dither.NONE) for frame in frames]
    buffer = io.BytesIO()
    palette[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=[*palette[1:], whole],
        duration=[_FRAME_MS] * num_frames + [_LAST_MS],
        loop=0,
        optimize=False,
    )
    return buffer.getvalue()


def _drawn(
    timeline: Timeline, labels: Labels
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[Box]]:
    """The chart without its contents, with them, and where they stand."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from traces import gantt

    with gantt.drawing():
        figure = gantt.figure(timeline, labels)
        figure.set_dpi(_DPI)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        full = np.asarray(canvas.buffer_rgba())[..., :3].copy()
        boxes = []
        for axes in figure.axes:
            left, bottom, right, top = axes.get_window_extent().extents
            height = len(full)
            boxes.append((round(left), round(height - top), round(right), round(height - bottom)))
            for artist in (
                *axes.collections,
                *axes.patches,
                *axes.images,
                *axes.lines,
                *axes.texts,
            ):
                artist.set_visible(False)
        canvas.draw()
        empty = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return empty, full, boxes


def _frame(
    empty: NDArray[np.uint8], full: NDArray[np.uint8], boxes: list[Box], share: float
) -> NDArray[np.uint8]:
    frame = empty.copy()
    for left, top, right, bottom in boxes:
        cursor = left + round(share * (right - left))
        frame[top:bottom, left:cursor] = full[top:bottom, left:cursor]
        frame[top:bottom, cursor : cursor + 2] = rgb(INK)
    return frame
