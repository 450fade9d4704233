"""`bubblescope accuracy`: predictions against published measurements."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from simulator.accuracy.coverage import coverage_held_out, coverage_of_rows, coverage_of_tables
from simulator.accuracy.experience import experience
from simulator.accuracy.predictions import Prediction, Scored, predict
from simulator.accuracy.rows import load_table, table_names
from simulator.accuracy.scores import Score, score
from simulator.kernel import compile_all
from simulator.table import columns, percent

__all__ = ["add", "run"]

SUFFIXES = (".pdf", ".png", ".svg")


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "--table",
        action="append",
        metavar="NAME",
        help=f"score this table alone, may be given several times: {', '.join(table_names())}",
    )
    parser.add_argument("--rows", action="store_true", help="also list every row")
    parser.add_argument(
        "--intervals",
        action="store_true",
        help="instead, check how often the intervals of predictions hold what was measured",
    )
    parser.add_argument("--csv", metavar="FILE", help="also write every row as CSV")
    parser.add_argument(
        "--plot", metavar="FILE", help="also draw predicted against measured: .svg .png .pdf"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Predict, score, print, write."""
    plot = None if arguments.plot is None else Path(arguments.plot)
    if plot is not None and plot.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{plot} cannot hold this picture; use one of {' '.join(SUFFIXES)}")
    for path in (plot, arguments.csv):
        if path is not None and not Path(path).parent.is_dir():
            raise ValueError(f"cannot write {path}: its folder does not exist")
    if arguments.intervals:
        print("\n".join(_intervals()))
        return
    compile_all()
    scored = [predict(load_table(name)) for name in arguments.table or table_names()]
    scores = [one for one in map(score, scored) if one is not None]
    rows = [prediction for one in scored for prediction in one.predictions]
    if arguments.json:
        print(json.dumps(_json(scores, scored), indent=2))
    else:
        print("\n".join(_lines(scores, scored)))
        if arguments.rows:
            print("\n" + "\n".join(_rows(rows)))
    if arguments.csv is not None:
        from traces.accuracy import write_rows

        write_rows(rows, Path(arguments.csv))
        print(f"wrote {arguments.csv}: {len(rows)} rows", file=sys.stderr)
    if plot is not None:
        from traces.accuracy import write_plot

        write_plot(rows, plot)
        print(f"wrote {plot}: predicted against measured", file=sys.stderr)


def _intervals() -> list[str]:
    """Coverage by table: each row left out alone, with its table, with all held-out tables."""
    known = experience()
    found = coverage_of_rows(known), coverage_of_tables(known), coverage_held_out(known)
    table = [
        [
            "90% intervals that hold the measured time",
            "row left out",
            "table left out",
            "all held-out tables left out",
        ]
    ]
    for name in found[0].by_table:
        table.append([name, *(_share(one.by_table.get(name)) for one in found)])
    table.append([f"all {found[0].rows:,} rows", *(_share(one.inside) for one in found)])
    table.append(["high end over low end, median", *(f"{one.width:.2f}" for one in found)])
    return columns(table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}%"


def _lines(scores: list[Score], scored: list[Scored]) -> list[str]:
    header = ["", "rows", "error", "bias", "median", "p90", "worst", "null", "scaled", "target"]
    table = [header]
    for one in (one for one in scores if not one.held_out):
        table.append(_cells(one))
    held_out = [one for one in scores if one.held_out]
    if held_out:
        table.append(["held out:", *[""] * (len(header) - 1)])
        table += map(_cells, held_out)
        table.append(_together(held_out))
    lines = columns(table)
    lines += ["", *_notes(scores)]
    lines += _orders(scores) + _memory(scores) + _omitted(scored)
    return lines


def _cells(one: Score) -> list[str]:
    cells = [_share(one.error), _signed(one.bias), _share(one.median), _share(one.p90)]
    cells += [_signed(one.worst), _share(one.null), _share(one.scaled), _share(one.target)]
    return [one.table, str(one.rows), *cells]


def _together(scores: list[Score]) -> list[str]:
    """Rows, error and bias of several tables as one."""
    rows = sum(one.rows for one in scores)
    error = sum(one.rows * one.error for one in scores) / rows
    bias = sum(one.rows * one.bias for one in scores) / rows
    return ["all held out", str(rows), _share(error), _signed(bias), *["-"] * 6]


def _notes(scores: list[Score]) -> list[str]:
    notes = [
        "error: mean absolute error of step time; bias: mean; median, p90: of absolute errors",
        "null: one constant TFLOP/s for the table, leave-one-out",
        "scaled: ours after one free scalar for the table, leave-one-out",
    ]
    if any(one.held_out for one in scores):
        notes.append("held out: no constant was fitted on these rows")
    for one in scores:
        if one.error_of_others is not None:
            notes.append(
                f"{one.table}: {one.contradicted} rows take over twice what rows of the "
                f"same shape take per microbatch; without them the error is "
                f"{_share(one.error_of_others)}"
            )
    return notes


def _orders(scores: list[Score]) -> list[str]:
    found = [one for one in scores if one.ordering is not None]
    if not found:
        return []
    table = [
        ["plans of one model", "groups", "pairs", "ordered rightly", "regret", "median", "worst"]
    ]
    for one in found:
        order = one.ordering
        assert order is not None
        cells = [str(order.groups), f"{order.pairs:,}", percent(order.right)]
        cells += map(percent, (order.regret, order.median_regret, order.worst_regret))
        table.append([one.table, *cells])
    return ["", *columns(table)]


def _memory(scores: list[Score]) -> list[str]:
    table = [["memory", "rows", "error", "bias", "ran", "said to fit"]]
    for one in scores:
        memory = one.memory
        if memory.verdicts:
            bias = "-" if memory.bias is None else _signed(memory.bias)
            cells = [str(memory.rows or "-"), _share(memory.error), bias]
            table.append([one.table, *cells, str(memory.verdicts), str(memory.right)])
    return ["", *columns(table)] if len(table) > 1 else []


def _omitted(scored: list[Scored]) -> list[str]:
    lines = []
    for one in scored:
        reasons: dict[str, int] = {}
        for row in one.skipped:
            reasons[row.reason] = reasons.get(row.reason, 0) + 1
        lines += [f"{one.table.name}: {n} rows left out: {why}" for why, n in reasons.items()]
    return ["", *lines] if lines else []


def _rows(rows: list[Prediction]) -> list[str]:
    table = [["row", "measured", "predicted", "error"]]
    for one in rows:
        times = [f"{one.measured:.4g} s", f"{one.predicted:.4g} s"]
        table.append([f"{one.table} {one.row}", *times, _signed(one.error)])
    return columns(table)


def _json(scores: list[Score], scored: list[Scored]) -> dict[str, object]:
    rows = [
        {
            "table": one.table,
            "row": one.row,
            "measured": one.measured,
            "predicted": one.predicted,
            "contradicted": one.contradicted,
        }
        for each in scored
        for one in each.predictions
    ]
    return {"tables": [asdict(one) for one in scores], "rows": rows}
