"""Reports as plain text: one run, or several side by side with the differences first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.report import IDLE, SPLIT, Report, fraction

__all__ = ["columns", "compare_table", "percent", "report_table"]

MOST_RANKS = 16  # rows of the split before ranks are left out

NAMES = {
    "compute": "compute",
    "recompute": "recompute",
    "tensor": "tp comm.",
    "optimizer": "optimizer",
    "pipeline": "pp comm.",
    "data": "dp comm.",
    "warm_up": "warm-up",
    "drain": "drain",
    "dependency": "dependency",
    "link": "busy link",
}


def report_table(report: Report, tokens: float | None = None) -> str:
    """One run's figures and where each rank's step goes; with `tokens`, the days they take."""
    lines = [_title(report), ""]
    for figure in FIGURES:
        text = figure.text(report)
        if text:
            lines.append(f"{figure.name:<20}{text}")
    if tokens is not None:
        lines.append(
            f"{'training time':<20}{report.days(tokens):,.1f} days for {tokens:.4g} tokens"
        )
    if report.verdict is not None:
        lines.append(f"{'memory':<20}{report.verdict}")
    if report.interval_from is not None:
        lines.append(f"{'interval from':<20}{report.interval_from}")
    for at, flag in enumerate(report.outside):
        lines.append(f"{'' if at else 'never measured':<20}{flag}")
    gaps = [f"  {gap}" for gap in report.longest_gaps]
    if gaps:
        gaps = ["longest gaps, one a rank:", *gaps]
    return "\n".join([*lines, "", *_split_rows(report), *gaps])


def compare_table(reports: Sequence[Report], names: Sequence[str]) -> str:
    """Runs side by side under these names: the figures that differ first, then the others."""
    header = ["", *names]
    differs: list[list[str]] = []
    same: list[list[str]] = []
    for figure in (*FIGURES, *SHARES):
        row = [figure.text(report) for report in reports]
        if any(row):
            (same if len(set(row)) == 1 else differs).append(
                [figure.name, *(cell or "-" for cell in row)]
            )
    if not differs:
        differs = [["no figure differs", *[""] * len(reports)]]
    lines = columns([header, *differs])
    if same:
        lines += ["", "the same in all"] + [f"  {row[0]:<20}{row[1]}" for row in same]
    return "\n".join(lines)


@dataclass(frozen=True)
class Figure:
    """A named figure of a report, as text; empty where the report has none."""

    name: str
    text: Callable[[Report], str]


def seconds(value: float) -> str:
    """A time with a fitting unit.

    >>> seconds(0.0123), seconds(33.0)
    ('12.3 ms', '33 s')
    """
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value * 1e6:.4g} us"


def percent(value: float) -> str:
    """A share with two digits."""
    return f"{100 * value:.2f}%"


def _is_textbook(report: Report) -> bool:
    """Whether its times have no unit worth printing: neither a job's nor measured."""
    return report.num_gpus is None and report.executor != "trace"


def _bubble(value: float, of: str, report: Report) -> str:
    exact = fraction(value) if _is_textbook(report) else ""
    return f"{percent(value)}{f' = {exact}' if exact else ''} of {of}"


def _interval(report: Report) -> str:
    if report.step_time_low is None or report.step_time_high is None:
        return ""
    return f"{seconds(report.step_time_low)} to {seconds(report.step_time_high)}"


def _throughput(report: Report) -> str:
    if report.tflops_per_gpu is None:
        return ""
    text = f"{report.tflops_per_gpu:.1f} TFLOP/s per GPU"
    if report.hardware_tflops_per_gpu != report.tflops_per_gpu:
        text += f", {report.hardware_tflops_per_gpu:.1f} with recomputation"
    return text


def _utilisation(report: Report) -> str:
    if report.mfu is None or report.hfu is None:
        return ""
    return f"MFU {percent(report.mfu)}, HFU {percent(report.hfu)}"


def _speed(report: Report) -> str:
    if report.tokens_per_second is None:
        return ""
    return f"{report.tokens_per_second:,.0f} tokens/s, {report.samples_per_second:,.1f} sequences/s"


def _peak(report: Report) -> str:
    return "" if report.peak_memory is None else f"{report.peak_memory.max() / 1e9:.1f} GB"


def _flight(report: Report) -> str:
    first, last = int(report.peak_in_flight[0]), int(report.peak_in_flight[-1])
    return f"{first} on the first rank, {last} on the last"


def _versions(report: Report) -> str:
    if report.weight_versions is None or report.staleness is None:
        return ""
    parts = (report.memory_parts or {}).get("weight versions")
    more = "" if parts is None else f"; at most {parts.max() / 1e9:.1f} GB more"
    return (
        f"{report.weight_versions[0]} on the first rank, {report.weight_versions[-1]} on the last; "
        f"gradients miss {report.staleness[0]} and {report.staleness[-1]} updates{more}"
    )


FIGURES = (
    Figure("step time", lambda r: f"{r.step_time:g}" if _is_textbook(r) else seconds(r.step_time)),
    Figure("90% interval", _interval),
    Figure("throughput", _throughput),
    Figure("utilisation", _utilisation),
    Figure("speed", _speed),
    Figure("bubble", lambda r: _bubble(r.bubble_fraction, "the step", r)),
    Figure("", lambda r: _bubble(r.bubble_to_ideal, "the ideal time", r)),
    Figure("", lambda r: _bubble(r.span_bubble, "the largest single-rank span", r)),
    Figure("forwards in flight", _flight),
    Figure("weight versions", _versions),
    Figure("peak memory", _peak),
)
SHARES = tuple(
    Figure(
        NAMES[name],
        lambda r, name=name: (
            percent(float(getattr(r.split, name).mean()) / r.makespan)  # type: ignore[misc]
            if getattr(r.split, name).any()
            else ""
        ),
    )
    for name in SPLIT
)


def _title(report: Report) -> str:
    counts = [(report.num_ranks, "pipeline rank"), (report.num_microbatches, "microbatch")]
    if report.num_gpus is not None:
        counts.insert(1, (report.num_gpus, "GPU"))
    return f"{report.name}: {report.schedule}, {', '.join(_count(*count) for count in counts)}"


def _count(number: int, what: str) -> str:
    """A number of things.

    >>> _count(1, "GPU"), _count(2, "microbatch")
    ('1 GPU', '2 microbatches')
    """
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"


def _split_rows(report: Report) -> list[str]:
    """Where each rank's step goes, in percent; columns that are zero everywhere are left out."""
    shown = [name for name in SPLIT if (getattr(report.split, name) > 5e-5 * report.makespan).any()]
    what = "step" if report.weight_versions is None else "whole run"
    has_memory = report.peak_memory is not None
    header = [
        f"share of the {what} [%]",
        *(NAMES[name] for name in shown),
        *["peak [GB]"] * has_memory,
    ]
    ranks = list(range(report.num_ranks))
    if len(ranks) > MOST_RANKS:
        ranks = sorted(set(np.linspace(0, len(ranks) - 1, MOST_RANKS).round().astype(int).tolist()))
    rows = [header]
    for rank in ranks:
        shares = [100 * getattr(report.split, name)[rank] / report.makespan for name in shown]
        row = [f"rank {rank}", *(f"{share:.1f}" for share in shares)]
        if report.peak_memory is not None:
            row.append(f"{report.peak_memory[rank] / 1e9:.1f}")
        rows.append(row)
    means = [100 * getattr(report.split, name).mean() / report.makespan for name in shown]
    rows.append(["mean", *(f"{share:.1f}" for share in means), *[""] * has_memory])
    lines = columns(rows)
    idle = [NAMES[name] for name in shown if name in IDLE]
    if idle:
        lines.append(f"idle: {', '.join(idle)}")
    return lines


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells, aligned: the first column left, the others right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
