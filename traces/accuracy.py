"""Predicted against measured step times: a plot for people, a CSV file for programs."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simulator.accuracy.predictions import Prediction
from simulator.accuracy.rows import load_table
from traces.replacing import replace_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_plot", "write_rows"]

KNOWN = (".pdf", ".png", ".svg")
BAND = 0.1  # shaded about the diagonal [1]
RATIOS = (0.25, 2.5)  # that the lower panel shows [1]
SEVERAL = 200  # rows from which a table's points are small and faint [1]
# one hue a table: Okabe and Ito's, then Paul Tol's muted ones; markers help where hues are near
HUES: tuple[str, ...] = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#882255",
    "#999933",
    "#332288",
    "#44aa99",
    "#ddcc77",
    "#cc6677",
    "#117733",
    "#aa4499",
    "#88ccee",
)
MARKERS = ("o", "D", "^", "s")


def write_rows(rows: Sequence[Prediction], path: Path) -> None:
    """Write one line a row: what was measured, what is predicted, and the plan. SI units.

    Raises:
        ValueError: the path cannot be written.
    """
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    plan = ("pp", "vpp", "tp", "cp", "ep", "dp", "num_microbatches", "micro_batch_size")
    out.writerow(["table", "row", "model", "gpu", *plan, "measured_s", "predicted_s", "error"])
    for one in rows:
        sizes = [getattr(one.job.plan, name) for name in plan]
        times = [f"{one.measured:.6g}", f"{one.predicted:.6g}", f"{one.error:.4f}"]
        out.writerow(
            [one.table, one.row, one.job.model.name, one.job.cluster.gpu.name, *sizes, *times]
        )
    replace_bytes(path, text.getvalue().encode())


def write_plot(rows: Sequence[Prediction], path: Path) -> None:
    """Draw every row, one colour a table, on logarithmic axes with a band of 10% about equality.

    Raises:
        ValueError: the suffix is not a picture's, or the path cannot be written.
    """
    if path.suffix.lower() not in KNOWN:
        raise ValueError(f"{path} cannot hold this picture; use one of {' '.join(KNOWN)}")
    replace_bytes(path, _draw(rows, path.suffix.lower()))


def _draw(rows: Sequence[Prediction], suffix: str) -> bytes:
    from matplotlib.figure import Figure

    from traces.colors import INK
    from traces.gantt import drawing

    buffer = io.BytesIO()
    with drawing():
        figure = Figure(figsize=(9.6, 8.4))
        figure.text(0.03, 0.965, _finding(rows), color=INK, fontsize=12, weight="bold")
        top = figure.add_axes((0.08, 0.37, 0.53, 0.56))
        _cloud(top, rows)
        _ratios(figure.add_axes((0.08, 0.07, 0.53, 0.23), sharex=top), rows)
        figure.savefig(buffer, format=suffix[1:], dpi=150)
    return buffer.getvalue()


def _finding(rows: Sequence[Prediction]) -> str:
    """The title: how many runs lie how near."""
    errors = np.abs([one.error for one in rows])
    tables = len({one.table for one in rows})
    half, most = np.quantile(errors, (0.5, 0.75))
    return (
        f"{len(rows):,} published measurements of {tables} tables: half within "
        f"{100 * half:.0f}%, three in four within {100 * most:.0f}%"
    )


def _cloud(axes: "Axes", rows: Sequence[Prediction]) -> None:
    """Predicted over measured times."""
    from traces.colors import INK, MUTED

    every = [value for one in rows for value in (one.measured, one.predicted)]
    ends = np.array([min(every) / 1.5, max(every) * 1.5])
    axes.fill_between(ends, (1 - BAND) * ends, (1 + BAND) * ends, color="#dddddd", lw=0, zorder=0)
    axes.plot(ends, ends, color=MUTED, lw=0.8, zorder=1)
    _points(axes, rows, lambda one: one.predicted)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_xlabel("measured step time [s]", color=MUTED)
    axes.set_ylabel("predicted step time [s]", color=MUTED)
    legend = axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.03, 1.02),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        labelspacing=0.9,
    )
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set(alpha=1.0, markersize=5)


def _ratios(axes: "Axes", rows: Sequence[Prediction]) -> None:
    """The same as ratios, so that a tenth can be seen."""
    from traces.colors import MUTED

    axes.axhspan(1 - BAND, 1 + BAND, color="#dddddd", lw=0, zorder=0)
    axes.axhline(1, color=MUTED, lw=0.8, zorder=1)
    low, high = RATIOS
    _points(axes, rows, lambda one: min(max(one.predicted / one.measured, low), high))
    axes.set(yscale="log", ylim=(low / 1.08, high * 1.08))
    axes.set_yticks((0.25, 0.5, 0.9, 1.1, 2.0), ("1/4", "1/2", "0.9", "1.1", "2"))
    axes.minorticks_off()
    axes.set_xlabel("measured step time [s]", color=MUTED)
    axes.set_ylabel("predicted over measured [1]", color=MUTED)
    beyond = sum(not low <= one.predicted / one.measured <= high for one in rows)
    if beyond:
        axes.annotate(
            f"{beyond} runs beyond the axis are drawn on its edge",
            (0.01, 0.1),
            xycoords="axes fraction",
            color=MUTED,
            fontsize=8,
        )


def _points(
    axes: "Axes", rows: Sequence[Prediction], height: Callable[[Prediction], float]
) -> None:
    """One table after the other, each in its colour."""
    from traces.colors import INK, MUTED

    names = list(dict.fromkeys(one.table for one in rows))
    for at, name in enumerate(names):
        mine = [one for one in rows if one.table == name]
        many = len(mine) >= SEVERAL
        axes.plot(
            [one.measured for one in mine],
            [height(one) for one in mine],
            ls="none",
            marker=MARKERS[at % len(MARKERS)],
            ms=2.2 if many else 5,
            mfc=HUES[at % len(HUES)],
            mec="none" if many else "white",
            mew=0.4,
            alpha=0.45 if many else 0.95,
            zorder=3 - len(mine) / len(rows),  # small tables above large ones
            label=_label(name, mine),
        )
    axes.tick_params(labelcolor=INK, color=MUTED)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)


def _label(name: str, rows: Sequence[Prediction]) -> str:
    errors = [abs(one.error) for one in rows]
    title = load_table(name).title
    noun = "layer times" if load_table(name).layers else "runs"
    if load_table(name).held_out:
        noun = "held-out runs"
    return f"{title}\n{len(rows)} {noun}, mean error {100 * np.mean(errors):.1f}%"
