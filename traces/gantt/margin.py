"""What stands beside the rows: the ranks' names, their idle shares and peak memory."""

from matplotlib.axes import Axes

from simulator.timeline import Timeline
from traces.colors import INK, MUTED
from traces.labels import Labels, byte_unit
from traces.layout import labelled_ranks
from traces.raster import idle_shares

__all__ = ["draw"]

_IDLE, _PEAK = 44, 100  # [pt] from the rows to the columns' right ends


def draw(axes: Axes, timeline: Timeline, labels: Labels, row_points: float) -> None:
    """Write both margins; low rows get one line of text every few ranks."""
    ranks = labelled_ranks(timeline.num_ranks, row_points)
    few = timeline.num_ranks <= 16
    axes.set_yticks(ranks, [f"rank {rank}" if few else str(rank) for rank in ranks])
    axes.tick_params(axis="y", length=0, pad=5)
    if not few:
        axes.set_ylabel("pipeline rank")
    idle = idle_shares(timeline)
    columns = [("no compute", _IDLE, [f"{100 * idle[rank]:.1f} %" for rank in ranks])]
    if len(timeline.memory_rank):
        peak = timeline.peak_memory()
        unit = byte_unit(float(peak.max()), labels.unit)
        columns.append(("peak", _PEAK, [unit.text(float(peak[rank])) for rank in ranks]))
    for title, right, texts in columns:
        _write(axes, title, (right, 9), -0.5, MUTED)
        for rank, text in zip(ranks, texts, strict=True):
            _write(axes, text, (right, 0), rank, INK)


def _write(axes: Axes, text: str, offset: tuple[float, float], row: float, color: str) -> None:
    axes.annotate(
        text,
        (1, row),
        offset,
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        va="center_baseline",
        size=8.5,
        color=color,
        annotation_clip=False,
    )
