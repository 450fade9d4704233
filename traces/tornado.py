"""A tornado chart: what each quantity and each neighbouring plan would do to the step time."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simulator.sensitivity import Sensitivities
from traces.replacing import replace_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_tornado"]

KNOWN = (".pdf", ".png", ".svg")
BLUE, ORANGE = "#0072b2", "#d55e00"  # faster, slower; Okabe and Ito
LEAST, MOST_CHANGE = 5e-4, 0.5  # a bar no wider than a line, or one that dwarfs the rest [1]
MOST_BARS = 14  # of one panel [1]
MOST_SCHEDULES = 3
ROW = 0.27  # height of a bar [inch]


class Bar(NamedTuple):
    """One change of the step time."""

    name: str
    change: float  # negative is faster [1]
    predicted: float | None  # by the critical path [1]
    hollow: bool  # it does not fit the memory


def write_tornado(found: Sensitivities, path: Path) -> None:
    """Draw what is worth what. A failure leaves an old file as it was.

    Raises:
        ValueError: the suffix is not a picture's, or the path cannot be written.
    """
    if path.suffix.lower() not in KNOWN:
        raise ValueError(f"{path} cannot hold this picture; use one of {' '.join(KNOWN)}")
    replace_bytes(path, _draw(found, path.suffix.lower()))


def _draw(found: Sensitivities, suffix: str) -> bytes:
    import io

    from matplotlib.figure import Figure

    from traces.colors import INK
    from traces.gantt import drawing

    amount = f"{100 * found.change:g}% faster"
    panels = [
        (f"one quantity {amount}", _quantities(found)),
        ("one knob turned, same GPUs and batch; of schedules the fastest", _plans(found)),
    ]
    panels = [(title, bars) for title, bars in panels if bars]
    heights = [0.75 + ROW * len(bars) for _, bars in panels]
    total = sum(heights) + 0.75
    buffer = io.BytesIO()
    with drawing():
        figure = Figure(figsize=(9, total))
        figure.text(0.02, 1 - 0.28 / total, _finding(found), color=INK, fontsize=12, weight="bold")
        top = total - 0.4
        for (title, bars), height in zip(panels, heights, strict=True):
            top -= height
            box = (0.4, (top + 0.4) / total, 0.55, (height - 0.75) / total)
            _panel(figure.add_axes(box), title, bars)
        figure.savefig(buffer, format=suffix[1:], dpi=150)
    return buffer.getvalue()


def _quantities(found: Sensitivities) -> list[Bar]:
    """The hardware; with uniform costs ranks, and what runs between them."""
    rows = found.family("hardware") or found.family("rank")
    rows = tuple(row for row in rows if row.simulated is not None)
    bars = [Bar(row.name, row.simulated or 0.0, row.predicted, False) for row in rows]
    return [bar for bar in bars if abs(bar.change) >= LEAST][:MOST_BARS]


def _plans(found: Sensitivities) -> list[Bar]:
    """The plans that change most either way, fastest first; of schedules only the fastest."""
    names = [one for one in found.neighbours if one.knob == "plan.schedule"]
    left_out = {one.value for one in names[MOST_SCHEDULES:]}
    bars = [
        Bar(f"{one.knob}={one.value}".removeprefix("plan."), one.simulated, None, not one.fits)
        for one in found.neighbours
        if one.simulated is not None
        and LEAST <= abs(one.simulated) <= MOST_CHANGE
        and not (one.knob == "plan.schedule" and one.value in left_out)
    ]
    largest = sorted(bars, key=lambda bar: -abs(bar.change))[:MOST_BARS]
    return sorted(largest, key=lambda bar: bar.change)


def _finding(found: Sensitivities) -> str:
    """The title."""
    bars = _quantities(found)
    legal = [one for one in found.neighbours if one.fits and one.simulated is not None]
    best = min(legal, key=lambda one: one.simulated or 0.0, default=None)
    name = bars[0].name.rpartition(".")[2].replace("_", " ") if bars else "nothing"
    text = (
        f"{100 * found.change:g}% faster {name} saves {-100 * bars[0].change:.1f}%" if bars else ""
    )
    if best is not None and (best.simulated or 0.0) < 0:
        text += f", {best.knob.removeprefix('plan.')}={best.value} {-100 * best.simulated:.1f}%"  # type: ignore[operator]
    return f"{found.name}: {text} of the step"


def _panel(axes: "Axes", title: str, bars: list[Bar]) -> None:
    """Bars left of zero are faster."""
    from traces.colors import INK, MUTED

    widest = max(abs(bar.change) for bar in bars)
    axes.set_title(title, loc="left", fontsize=10, color=MUTED)
    for at, bar in enumerate(bars):
        fill = BLUE if bar.change < 0 else ORANGE
        axes.barh(at, 100 * bar.change, 0.68, color="white" if bar.hollow else fill, edgecolor=fill)
        side = -1 if bar.change < 0 else 1
        words = f"{100 * bar.change:+.1f}%"
        axes.annotate(
            words,
            (100 * bar.change, at),
            (4 * side, 0),
            textcoords="offset points",
            ha="right" if side < 0 else "left",
            va="center",
            fontsize=8.5,
            color=INK,
        )
        if bar.predicted is not None and abs(bar.predicted - bar.change) >= LEAST:
            axes.plot(100 * bar.predicted, at, marker="D", mfc="white", mec=INK, ms=5)
            widest = max(widest, abs(bar.predicted))
    names = [bar.name + (" (does not fit)" if bar.hollow else "") for bar in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=9, color=INK)
    axes.invert_yaxis()
    low = any(bar.change < 0 for bar in bars)
    high = any(bar.change > 0 for bar in bars)
    room = 130 * widest
    axes.set_xlim(-room if low else 0, room * (1.1 if low else 1) if high else 0)
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_xlabel("change of the step time [%]", fontsize=9, color=MUTED)
    axes.tick_params(length=0, labelcolor=INK)
    for edge in ("top", "right", "left"):
        axes.spines[edge].set_visible(False)
