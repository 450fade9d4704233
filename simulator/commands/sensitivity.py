"""`bubblescope sensitivity`: which knob or link is worth what."""

import argparse
import json
import sys
from pathlib import Path

from simulator.neighbours import Neighbour
from simulator.options import (
    add_job_options,
    job_of,
    job_options,
    uniform_plan,
    uniform_times,
)
from simulator.sensitivity import (
    FAMILIES,
    Sensitivities,
    Sensitivity,
    sensitivity,
    sensitivity_uniform,
)
from simulator.table import columns, percent, seconds

__all__ = ["add", "run"]

PLAIN = {"job", "uniform", "latency", "change", "json", "output", "verb", "rows"}
SUFFIXES = (".pdf", ".png", ".svg")


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="a job's TOML file; options override it"
    )
    parser.add_argument(
        "--change",
        type=float,
        default=0.1,
        metavar="X",
        help="how much faster each quantity is made; 0.1 [1]",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="also draw a tornado chart: .svg .png .pdf"
    )
    parser.add_argument(
        "--uniform",
        metavar="F,B",
        help="instead of a model: seconds of one microbatch's forward and backward on one rank, or "
        "F,I,W with the backward in its two halves",
    )
    parser.add_argument("--latency", type=float, help="with --uniform: of every message [s]")
    add_job_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Compute, print, draw."""
    output = None if arguments.output is None else Path(arguments.output)
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{output} cannot hold this picture; use one of {' '.join(SUFFIXES)}")
    if output is not None and not output.parent.is_dir():
        raise ValueError(f"cannot write {output}: the folder {output.parent} does not exist")
    found = _found(arguments)
    print(json.dumps(found.to_dict(), indent=2) if arguments.json else "\n".join(_lines(found)))
    if output is not None:
        from traces.tornado import write_tornado

        write_tornado(found, output)
        print(f"wrote {output}: tornado chart", file=sys.stderr)


def _found(arguments: argparse.Namespace) -> Sensitivities:
    """What the options ask for."""
    if arguments.uniform is None:
        if arguments.latency is not None:
            raise ValueError("--latency needs --uniform; a job's latencies are its cluster's")
        return sensitivity(job_of(arguments, PLAIN), arguments.change)
    if arguments.job is not None or hasattr(arguments, "assignments"):
        given = arguments.job or "--set"
        raise ValueError(f"--uniform takes the place of a job; leave out {given} or --uniform")
    forward, backward, weight_grad = uniform_times(arguments.uniform)
    return sensitivity_uniform(
        uniform_plan(job_options(arguments, PLAIN)),
        forward,
        backward,
        change=arguments.change,
        weight_grad=weight_grad,
        latency=arguments.latency or 0.0,
    )


def _lines(found: Sensitivities) -> list[str]:
    """The report: a table a family, then the neighbouring plans."""
    times = seconds(found.step_time)
    lines = [f"{found.name}: step time {times}; what it changes by if one thing is faster"]
    lines += [f"by {100 * found.change:g}%: as the critical path says, and in a run"]
    for family, title in FAMILIES.items():
        rows = found.family(family)
        if rows:
            lines += ["", *_family(title, rows)]
    legal = [one for one in found.neighbours if one.simulated is not None]
    if legal:
        lines += ["", *_plans(legal)]
    refused = [f"{one.knob}={one.value}: {one.refused}" for one in found.neighbours if one.refused]
    return [*lines, *(["", "no such plan:", *refused] if refused else [])]


def _family(title: str, rows: tuple[Sensitivity, ...]) -> list[str]:
    """A line a quantity; the last column says why its two answers differ."""
    table = [[title, "of the path", "path says", "run says"]]
    for row in rows:
        simulated = "-" if row.simulated is None else signed(row.simulated)
        table.append([row.name, percent(row.share), signed(row.predicted), simulated])
    lines = columns(table)
    notes = ["", *(row.note for row in rows)]
    return [f"{line}  {note}".rstrip() for line, note in zip(lines, notes, strict=True)]


def _plans(legal: list[Neighbour]) -> list[str]:
    """A line a plan; the last column says what had to follow."""
    table = [["one knob turned, same GPUs and batch", "step time", "peak memory", ""]]
    for one in legal:
        memory = "-" if one.peak_memory is None else f"{one.peak_memory / 1e9:.1f} GB"
        fits = {None: "", True: "fits", False: "does not fit"}[one.fits]
        table.append([f"{one.knob}={one.value}", signed(one.simulated or 0.0), memory, fits])
    lines = columns(table)
    follows = ["", *(f"with {one.follows}" if one.follows else "" for one in legal)]
    return [f"{line}  {more}".rstrip() for line, more in zip(lines, follows, strict=True)]


def signed(change: float) -> str:
    """A change in percent.

    >>> signed(-0.069), signed(0.0)
    ('-6.90%', '0.00%')
    """
    return f"{100 * change:+.2f}%" if abs(change) >= 5e-5 else "0.00%"
