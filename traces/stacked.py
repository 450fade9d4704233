"""Several runs one over the other on a shared time axis, to compare schedules at a glance."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.replacing import replace_bytes

__all__ = ["write_stacked"]

KNOWN = (".pdf", ".png", ".svg")
ROW, GAP = 0.11, 0.32  # height of a rank and of a title [inch]


def write_stacked(runs: Sequence[tuple[str, Timeline]], path: Path) -> None:
    """Draw named runs, in order; one time axis, no unit. A failure leaves an old file as it was.

    The axis ends at 1.25 times the median run; longer runs go on beyond it, and say so.

    Raises:
        ValueError: the suffix is not a picture's, or the path cannot be written.
    """
    if path.suffix.lower() not in KNOWN:
        raise ValueError(f"{path} cannot hold this picture; use one of {' '.join(KNOWN)}")
    replace_bytes(path, _draw(runs, path.suffix.lower()))


def _draw(runs: Sequence[tuple[str, Timeline]], suffix: str) -> bytes:
    import io

    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from traces.colors import INK, MUTED, color
    from traces.gantt import drawing
    from traces.labels import WORDS
    from traces.raster import raster

    typical = float(np.median([timeline.makespan for _, timeline in runs]))
    longest = min(max(timeline.makespan for _, timeline in runs), 1.25 * typical)
    heights = [ROW * timeline.num_ranks for _, timeline in runs]
    total = sum(heights) + GAP * (len(runs) + 1)
    buffer = io.BytesIO()
    with drawing():
        figure = Figure(figsize=(12, total))
        top = total
        for (name, timeline), height in zip(runs, heights, strict=True):
            top -= GAP + height
            axes = figure.add_axes((0.06, top / total, 0.9, height / total))
            image = raster(timeline, int(min(20_000, 2400 * timeline.makespan / longest))).image
            rows = np.repeat(image, 8, axis=0)
            rows[7::8] = 255  # a white line between two ranks
            box = (0.0, timeline.makespan, timeline.num_ranks - 0.5, -0.5)
            axes.imshow(rows, extent=box, aspect="auto", interpolation="antialiased")
            axes.set_xlim(0, longest)
            axes.set_ylim(timeline.num_ranks - 0.5, -0.5)
            axes.set_yticks([0, timeline.num_ranks - 1])
            axes.tick_params(colors=MUTED, labelsize=7, length=0)
            axes.spines[:].set_visible(False)
            cut = ", goes on" if timeline.makespan > longest * (1 + 1e-9) else ""
            axes.set_title(name + cut, loc="left", fontsize=9, color=INK, pad=3)
            last = name == runs[-1][0]
            axes.tick_params(labelbottom=last, length=3 if last else 0)
        kinds = [k for k in Kind if k.is_compute and any((t.kind == k).any() for _, t in runs)]
        fills = [Patch(facecolor=color(kind), label=WORDS[kind]) for kind in kinds]
        figure.legend(handles=fills, loc="upper right", ncols=len(fills), frameon=False, fontsize=8)
        figure.savefig(buffer, format=suffix[1:], dpi=130)
    return buffer.getvalue()
