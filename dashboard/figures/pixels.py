"""Many ops as pixels: an image with the colours of what fills each, that answers the pointer."""

import base64
import io

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from PIL import Image

from dashboard.theme import Look
from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.colors import color, rgb
from traces.labels import WORDS, Unit
from traces.raster import Raster, raster

__all__ = ["add_image"]

MOST_BINS = 2_400  # of an image, along time [1]
MOST_PIXELS = 700_000  # of all images [1]
MOST_CELLS = 40_000  # that answer the pointer, in all bands [1]
SEPARATE = 7  # rows that are lower have no line between them [pixel]
LINE = 4  # pixels of an image for one rank; the last one stands between two rows


def add_image(
    fig: go.Figure,
    cut: Timeline,
    name: str,
    time: Unit,
    look: Look,
    size: tuple[int, float],
    shown: set[Kind],
) -> None:
    """Pixels with the colours of what fills them, and cells under them that answer the pointer.

    `size` is the number of bands and the pixels of a row.
    """
    num_bands, rows = size
    if not cut.num_spans:
        return
    low = float(cut.start.min())
    moved = Timeline(
        **{n: getattr(cut, n) for n in ("rank", "stage", "kind", "microbatch")},
        start=cut.start - low,
        end=cut.end - low,
    )
    ranks = moved.num_ranks
    bins = int(min(MOST_BINS, max(200, MOST_PIXELS / num_bands / ranks / LINE)))
    seen = raster(moved, bins)
    palette = np.stack([rgb(c) for c in [*seen.colors[:-1], look.idle]]).astype(np.float32)
    pixels = np.repeat(np.rint(seen.shares @ palette).astype(np.uint8), LINE, axis=0)
    if rows >= SEPARATE:
        pixels[LINE - 1 :: LINE] = rgb(look.paper).astype(np.uint8)
    fig.add_layout_image(
        source=_png(pixels),
        xref="x",
        yref=f"y{name}",
        x=low * time.per_si,
        y=-0.5,
        sizex=moved.makespan * time.per_si,
        sizey=ranks,
        sizing="stretch",
        layer="above",
    )
    _add_cells(fig, moved, low, name, time, num_bands)
    for kind in sorted(set(seen.kinds)):
        if kind not in shown:
            marker = {"symbol": "square", "size": 11, "color": color(kind)}
            fig.add_scatter(
                x=[None], y=[None], mode="markers", marker=marker, name=WORDS[kind], legendrank=kind
            )
            shown.add(kind)


def _add_cells(
    fig: go.Figure, moved: Timeline, low: float, name: str, time: Unit, num_bands: int
) -> None:
    """An unseen grid that tells the shares of the kinds under the pointer."""
    bins = int(max(8, min(400, MOST_CELLS / num_bands / moved.num_ranks)))
    cells = raster(moved, bins)
    kinds, percent = _percent(cells)
    words = [*(WORDS[kind] for kind in kinds), "idle"]
    shares = "<br>".join(f"{word} %{{customdata[{i}]}} %" for i, word in enumerate(words))
    width = moved.makespan * time.per_si / bins
    fig.add_heatmap(
        z=np.zeros(percent.shape[:2], np.uint8),
        x0=low * time.per_si + width / 2,
        dx=width,
        y0=0,
        dy=1,
        yaxis=f"y{name}",
        opacity=0,
        showscale=False,
        customdata=percent,
        hovertemplate=f"<b>rank %{{y:d}}</b> at %{{x:.5g}} {time.name}<br>{shares}<extra></extra>",
    )


def _percent(cells: Raster) -> tuple[list[Kind], NDArray[np.uint8]]:
    """Kinds, and their shares over all chunks, then idle's, in percent."""
    kinds = sorted(set(cells.kinds))
    of_kind = [np.array([kind == other for other in cells.kinds]) for kind in kinds]
    parts = [cells.shares[..., :-1][..., mine].sum(axis=2) for mine in of_kind]
    together = np.stack([*parts, cells.shares[..., -1]], axis=2)
    return kinds, np.rint(100 * together).astype(np.uint8)


def _png(pixels: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png", compress_level=6)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
