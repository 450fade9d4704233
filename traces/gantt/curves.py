"""Memory of the ranks over time, under the rows: a line each, or the band they fill."""

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simulator.timeline import Timeline
from traces.colors import MUTED, ranks
from traces.labels import Labels, byte_unit
from traces.memory import MOST_LINES, band, steps

__all__ = ["draw"]


def draw(axes: Axes, timeline: Timeline, labels: Labels) -> None:
    """Fill the axes; they share their time axis with the rows."""
    num_ranks = timeline.num_ranks
    shown = range(num_ranks)
    if num_ranks > MOST_LINES:
        shown = range(0, num_ranks, num_ranks - 1)
        time, low, high = band(timeline)
        axes.fill_between(
            time, low, high, step="post", color="#dfe5ec", linewidth=0, label="all ranks"
        )
    for rank, color in zip(shown, ranks(len(shown)), strict=True):
        time, nbytes = steps(timeline, rank)
        axes.step(time, nbytes, where="post", color=color, linewidth=1.1, label=f"rank {rank}")
    peak = float(timeline.peak_memory().max(initial=0.0))
    unit = byte_unit(peak, labels.unit)
    axes.set_ylim(0, 1.08 * peak if peak else 1)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y * unit.per_si:.4g}"))
    axes.set_ylabel(f"memory [{unit.name}]" if unit.name else "memory")
    axes.tick_params(length=3, width=0.6)
    axes.grid(axis="y", color="#e8e8e8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=8,
        labelcolor=MUTED,
        handlelength=1.2,
        labelspacing=0.25,
    )
