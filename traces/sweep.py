"""Pictures of a search: throughput against each knob, or one against another."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.colors import INK, MUTED
from traces.replacing import replace_bytes

__all__ = ["PICTURES", "Line", "Sweep", "finding", "write_lines", "write_sweep"]

PICTURES = (".pdf", ".png", ".svg")
CLOUD, BEST, POINT = "#9ecae1", "#0072b2", "#d55e00"  # plans, the best of each value, of all
LINES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
MARKS = "osD^vP"
ACROSS = 4  # panels in a row [1]
SMALL = {"fontsize": 7, "color": MUTED}
MOST_DOTS = 4000  # plans that a panel draws, every so-manieth beyond that [1]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Simulated plans: throughput, and what each knob was."""

    title: str
    rate: NDArray[np.float64]  # of each plan [tokens/s]
    knobs: Mapping[str, Sequence[Any]]  # name -> each plan's value
    order: Mapping[str, Sequence[Any]]  # name -> the values that were searched, in order


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve of a figure."""

    name: str
    x: Sequence[str]
    y: Sequence[float | None]  # None where no plan is


def finding(sweep: Sweep) -> str:
    """The knob whose value matters most, in words: its best value against its worst.

    >>> a = Sweep(title="", rate=np.array([1.0, 3.0, 2.9]), knobs={"tp": [1, 2, 2],
    ...     "pp": [1, 1, 2]}, order={"tp": [1, 2], "pp": [1, 2]})
    >>> finding(a)
    'tp matters most: 2 reaches 3.00x the rate of 1'
    """
    most = ("no knob matters", 1.0)
    for name in sweep.knobs:
        pairs = sorted((rate, value) for value, rate in _best(sweep, name) if rate is not None)
        (worst, low), (best, high) = pairs[0], pairs[-1]
        if best / worst > most[1]:
            most = (
                f"{name} matters most: {high} reaches {best / worst:.2f}x the rate of {low}",
                best / worst,
            )
    return most[0]


def write_sweep(sweep: Sweep, path: Path) -> None:
    """Draw throughput against each knob. A failure leaves an old file as it was.

    Raises:
        ValueError: no knob varies, the suffix is not a picture's, or the path cannot be written.
    """
    if not sweep.knobs:
        raise ValueError("no knob has two values, so there is nothing to draw; list more values")
    _check(path)
    replace_bytes(path, _draw_sweep(sweep, path.suffix.lower()))


def write_lines(
    lines: Sequence[Line], path: Path, *, title: str, x: str, y: str, note: str = ""
) -> None:
    """Draw curves over categories, as the figures of a paper. A failure leaves an old file.

    Raises:
        ValueError: the suffix is not a picture's, or the path cannot be written.
    """
    _check(path)
    replace_bytes(path, _draw_lines(lines, path.suffix.lower(), title, x, y, note))


def _check(path: Path) -> None:
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path} cannot hold this picture; use one of {' '.join(PICTURES)}")


def _best(sweep: Sweep, name: str) -> list[tuple[Any, float | None]]:
    """Each value of a knob with the best throughput that any plan reaches there."""
    found: dict[Any, float] = {}
    for value, rate in zip(sweep.knobs[name], sweep.rate.tolist(), strict=True):
        found[value] = max(rate, found.get(value, 0.0))
    return [(value, found.get(value)) for value in sweep.order[name]]


def _draw_sweep(sweep: Sweep, suffix: str) -> bytes:
    from matplotlib.figure import Figure

    from traces.gantt import drawing

    names = list(sweep.knobs)
    across = min(ACROSS, len(names))
    down = -(-len(names) // across)
    with drawing():
        figure = Figure(figsize=(max(6.0, 3.1 * across), 2.5 * down + 0.9), layout="constrained")
        panels = figure.subplots(down, across, sharey=True, squeeze=False)
        for axes, name in zip(panels.flat, names, strict=False):
            _panel(axes, sweep, name)
        for axes in panels.flat[len(names) :]:
            axes.set_visible(False)
        for row in panels:
            row[0].set_ylabel("tokens/s", color=MUTED)
        title = f"{sweep.title}: {finding(sweep)}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
        figure.supxlabel(
            f"{len(sweep.rate):,} plans, a dot each; line: the best plan with that value; "
            "orange: the best of all",
            x=0.01,
            ha="left",
            fontsize=8,
            color=MUTED,
        )
        return _saved(figure, suffix)


def _panel(axes: Any, sweep: Sweep, name: str) -> None:  # noqa: ANN401 - matplotlib has no types
    """One knob: every plan as a dot, the best of each value as a line."""
    values = list(sweep.order[name])
    place = {value: at for at, value in enumerate(values)}
    step = max(1, len(sweep.rate) // MOST_DOTS)
    x = np.array([place[value] for value in sweep.knobs[name]], float)
    spread = 0.5 * ((np.arange(len(x)) * 0.6180339887) % 1 - 0.5)  # side by side, never at random
    dots = {"s": 4, "color": CLOUD, "linewidths": 0, "rasterized": True}
    axes.scatter((x + spread)[::step], sweep.rate[::step], **dots)
    pairs = _best(sweep, name)
    best = [(place[value], rate) for value, rate in pairs if rate is not None]
    for value, rate in pairs:
        if rate is None:
            axes.annotate("no plan", (place[value], 0), ha="center", va="bottom", **SMALL)
    axes.plot(*zip(*best, strict=True), "o-", color=BEST, markersize=4, linewidth=1.4)
    top = max(best, key=lambda pair: pair[1])
    axes.plot(*top, "o", color=POINT, markersize=7)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    if max(len(str(value)) for value in values) * len(values) > 30:
        axes.tick_params(axis="x", rotation=35)
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.set_ylim(0, 1.08 * float(sweep.rate.max()))
    axes.set_title(name, loc="left", fontsize=9, color=INK)
    axes.tick_params(colors=MUTED, labelsize=7)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_lines(lines: Sequence[Line], suffix: str, title: str, x: str, y: str, note: str) -> bytes:
    from matplotlib.figure import Figure

    from traces.gantt import drawing

    with drawing():
        figure = Figure(figsize=(6.4, 3.7), layout="constrained")
        axes = figure.subplots()
        for line, color, mark in zip(lines, LINES, MARKS, strict=False):
            y_values = [np.nan if value is None else value for value in line.y]
            axes.plot(line.x, y_values, mark + "-", color=color, label=line.name, markersize=5)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x, color=INK)
        axes.set_ylabel(y, color=INK)
        axes.tick_params(colors=MUTED, labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8)
        if note:
            figure.supxlabel(note, fontsize=7, color=MUTED, x=0.01, ha="left")
        return _saved(figure, suffix)


def _saved(figure: Any, suffix: str) -> bytes:  # noqa: ANN401 - matplotlib has no types
    buffer = io.BytesIO()
    metadata = {"Date": None} if suffix == ".svg" else None
    figure.savefig(buffer, format=suffix[1:], dpi=150, metadata=metadata)
    return buffer.getvalue()
