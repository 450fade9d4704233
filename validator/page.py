"""The report of a validation as one self-contained HTML page: both Gantt charts, and tables."""

from collections.abc import Sequence
from html import escape

from traces.labels import byte_unit, time_unit
from traces.validation import two_gantts
from validator.analysis import Comparison
from validator.events import Measured
from validator.table import failures, report, what_ran, worst

__all__ = ["finding", "page"]

STYLE = """
body { font: 15px/1.45 'DejaVu Sans', Arial, sans-serif; color: #222; max-width: 1040px;
  margin: 24px auto; padding: 0 16px }
h1 { font-size: 22px } section { margin-top: 28px }
table { border-collapse: collapse; margin: 12px 0 }
th, td { padding: 3px 12px 3px 0; text-align: right; border-bottom: 1px solid #ddd;
  font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left }
th { color: #666; font-weight: normal } .bad { color: #a33c00; font-weight: bold }
pre { color: #444; white-space: pre-wrap } svg { max-width: 100%; height: auto }
details { margin: 8px 0 }
"""


def page(measured: Measured, runs: Sequence[Comparison], tolerance: float) -> str:
    """The whole page; needs nothing else to be shown."""
    furthest = worst(runs)
    title = (
        f"{measured.session.model.name}: every step predicted within "
        f"{abs(furthest.error):.1%} of the measured"
    )
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><pre>{escape(what_ran(measured))}</pre>",
        *(f"<p class='bad'>{escape(run.noise)}</p>" for run in runs if run.noise),
        *(f"<p class='bad'>{escape(text)}</p>" for text in failures(measured)),
        _steps(runs, tolerance),
        *(_run(run) for run in runs),
        f"<details><summary>as text</summary><pre>{escape(report(measured, runs, tolerance))}"
        "</pre></details></body></html>",
    ]
    return "\n".join(parts)


def finding(run: Comparison) -> str:
    """A schedule's title: what was found."""
    unit = time_unit(run.step.median)
    how = "calibrated on" if run.calibrated_on else "predicted from another schedule"
    return (
        f"{run.name}, {how}: {unit.text(run.predicted.makespan)} against "
        f"{unit.text(run.step.median)} measured, {run.error:+.1%}"
    )


def _steps(runs: Sequence[Comparison], tolerance: float) -> str:
    names = ["schedule", "predicted", "measured", "error", "quartiles", "bubble, predicted"]
    names += ["measured", "peak memory", "gradients"]
    rows = []
    for run in runs:
        unit = time_unit(run.step.median)
        peak = max(map(abs, run.peak_errors.tolist()), default=None)
        gradients = "" if run.gradient_error is None else f"{run.gradient_error:.0e}"
        rows.append(
            [
                run.name + (" *" if run.calibrated_on else ""),
                unit.text(run.predicted.makespan),
                unit.text(run.step.median),
                _marked(f"{run.error:+.1%}", good=abs(run.error) <= tolerance),
                f"{unit.text(run.step.low)} to {unit.text(run.step.high)}",
                f"{run.predicted_bubble:.1%}",
                f"{run.bubble:.1%}",
                "" if peak is None else f"{peak:.1%} off",
                _marked(gradients, good=run.gradients_agree),
            ]
        )
    note = (
        "<p>* calibrated on; the others are predicted from that calibration. Steps are medians. "
        "Gradients: largest relative difference from the model without a pipeline.</p>"
    )
    return _table(names, rows) + note


def _run(run: Comparison) -> str:
    """A schedule's charts and its ops."""
    ops = []
    for op in run.ops:
        unit = time_unit(op.measured.median)
        ops.append(
            [
                f"{op.stage}{op.kind.name}",
                unit.text(op.predicted),
                unit.text(op.measured.median),
                f"{op.error:+.1%}",
                f"{unit.text(op.measured.low)} to {unit.text(op.measured.high)}",
                f"{op.measured.size}",
            ]
        )
    memory = [
        [f"rank {rank}", byte_unit(peak).text(said), byte_unit(peak).text(peak), f"{error:+.1%}"]
        for rank, (said, peak, error) in enumerate(
            zip(run.predicted.peak_memory(), run.peak, run.peak_errors, strict=False)
        )
    ]
    tables = _table(("op", "predicted", "measured", "error", "quartiles", "count"), ops)
    if memory:
        tables += _table(("peak memory", "predicted", "measured", "error"), memory)
    return (
        f"<section>{two_gantts(run.measured, run.predicted, finding(run))}"
        f"<details><summary>by op, and memory</summary>{tables}</details></section>"
    )


def _marked(text: str, *, good: bool) -> str:
    return text if good else f"<span class='bad'>{text}</span>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are trusted: they hold our own numbers."""
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
