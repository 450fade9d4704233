"""The figures that a plan is judged by, and the legends of the charts."""

from collections.abc import Iterable
from typing import Any

from dash import html

from dashboard.figures.split import CAUSES, shares_of
from simulator.report import Report
from traces.labels import byte_unit, time_unit

__all__ = ["headline", "legend", "money", "split_key"]


def headline(report: Report, tokens: float, price: float) -> list[Any]:
    """One tile a figure."""
    tiles = [
        _tile("Step time", *_parted(time_unit(report.step_time).text(report.step_time))),
        _tile("Per GPU", f"{report.tflops_per_gpu or 0:.1f}", "TFLOP/s"),
        _tile("MFU", f"{100 * (report.mfu or 0):.1f}", "%"),
        _tile("Bubble", f"{100 * report.bubble_fraction:.1f}", "%"),
        _memory(report),
        _tile("Speed", *_short(report.tokens_per_second or 0.0), note="tokens/s"),
    ]
    days = report.days(tokens)
    cost = days * 24 * (report.num_gpus or 0) * price
    tiles.append(_tile(f"{_words(tokens)} tokens", _rounded(days), "days"))
    tiles.append(_tile("Cost", money(cost), note=f"{report.num_gpus:,} GPUs"))
    return tiles


def _memory(report: Report) -> Any:  # noqa: ANN401 - a component
    """Peak against capacity, with a bar that turns when it is over."""
    assert report.peak_memory is not None
    assert report.memory_capacity is not None
    peak, room = float(report.peak_memory.max()), report.memory_capacity
    fits = bool(report.fits)
    value, unit = _parted(byte_unit(peak).text(peak))
    full = {"width": f"{min(100.0, 100 * peak / room):.1f}%"}
    named: Any = {
        "role": "progressbar",
        "aria-label": "peak memory over capacity",
        "aria-valuenow": f"{min(100.0, 100 * peak / room):.0f}",
    }
    bar = html.Div(html.Div(style=full, **named), className="meter")
    note = f"of {room / 1e9:.0f} GB" if fits else f"over {room / 1e9:.0f} GB: does not fit"
    return _tile("Peak memory", value, unit, note=note, more=bar, alarm=not fits)


def _tile(
    name: str,
    value: str,
    unit: str = "",
    *,
    note: str = "",
    more: Any = None,  # noqa: ANN401 - a component
    alarm: bool = False,
) -> Any:  # noqa: ANN401 - a component
    return html.Div(
        [
            html.Div(name, className="tile-name"),
            html.Div([value, html.Span(f" {unit}", className="tile-unit")], className="tile-value"),
            more,
            html.Div(note, className="tile-note"),
        ],
        className="tile alarm" if alarm else "tile",
    )


def legend(entries: Iterable[tuple[str, list[str]]]) -> list[Any]:
    """A swatch of one or more fills, and a word, each."""
    return [
        html.Span(
            [
                html.Span(
                    [html.I(style={"background": fill}) for fill in fills], className="swatch"
                ),
                words,
            ],
            className="entry",
        )
        for words, fills in entries
    ]


def split_key(report: Report) -> list[Any]:
    """The causes with their mean shares."""
    parts = shares_of(report)
    return legend(
        (f"{CAUSES[name][0]} {100 * share.mean():.1f} %", [CAUSES[name][1]])
        for name, share in parts.items()
    )


def money(dollars: float) -> str:
    """An amount that can be read.

    >>> money(1_234_567), money(950.4)
    ('$1.23 M', '$950')
    """
    for size, word in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if dollars >= size:
            return f"${dollars / (1e3 if word == 'k' else size):.3g} {word}"
    return f"${dollars:,.0f}"


def _parted(text: str) -> tuple[str, str]:
    value, _, unit = text.partition(" ")
    return value, unit


def _short(value: float) -> tuple[str, str]:
    for size, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}", word
    return f"{value:.3g}", ""


def _words(value: float) -> str:
    for size, word in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:g} {word}"
    return f"{value:,.0f}"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
