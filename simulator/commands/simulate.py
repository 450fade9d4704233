"""`bubblescope simulate`: one run, its report and text Gantt chart."""

import argparse
import json

from rich.console import Console
from rich.text import Text

from simulator.commands.saved import CRITICAL, OUTPUT, saved_of, writable, write_run
from simulator.options import (
    add_job_options,
    job_of,
    job_options,
    uniform_plan,
    uniform_times,
)
from simulator.simulate import Run, simulate, simulate_uniform
from simulator.table import report_table
from traces.text import text_gantt

__all__ = ["add", "run", "run_of"]

PLAIN = {"job", "uniform", "latency", "weight_memory", "rows", "tokens", "json", "output", "gantt"}
PLAIN |= {"width", "verb", "critical_path"}


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="a job's TOML file; options override it"
    )
    parser.add_argument("-o", "--output", action="append", default=[], metavar="FILE", help=OUTPUT)
    parser.add_argument("--critical-path", action="store_true", help=CRITICAL)
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.add_argument(
        "--tokens", type=float, help="also print the days to train on this many tokens"
    )
    parser.add_argument(
        "--no-gantt", dest="gantt", action="store_false", help="print no Gantt chart"
    )
    parser.add_argument(
        "--width", type=int, help="width of the Gantt chart; the terminal's when left out"
    )
    parser.add_argument(
        "--uniform",
        metavar="F,B",
        help="instead of a model: seconds of one microbatch's forward and backward on one rank, or "
        "F,I,W with the backward in its two halves",
    )
    parser.add_argument("--latency", type=float, help="with --uniform: of every message [s]")
    parser.add_argument(
        "--weight-memory",
        type=float,
        metavar="SHARE",
        help="with --uniform: the part of the activation memory that only W frees [1]",
    )
    add_job_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Simulate, print, save."""
    if arguments.width is not None and (arguments.json or not arguments.gantt):
        raise ValueError("--width is of the Gantt chart; leave it out without one")
    outputs = writable(arguments.output)
    made = run_of(arguments)
    if arguments.json:
        values = made.report.to_dict()
        if arguments.tokens is not None:
            values["training_days"] = made.report.days(arguments.tokens)
        text = json.dumps(values, indent=2)
    else:
        text = report_table(made.report, arguments.tokens)
    show_gantt = arguments.gantt and not arguments.json
    gantt = _gantt(made, arguments.width) if show_gantt else None
    print(text)
    if gantt is not None:
        console, chart = gantt
        print()
        console.print(chart)
    for path in outputs:
        write_run(
            saved_of(made),
            path,
            tokens=arguments.tokens,
            critical_path=arguments.critical_path,
        )


def run_of(arguments: argparse.Namespace) -> Run:
    """The simulated run that the options of `simulate` describe."""
    if arguments.uniform is None:
        if arguments.latency is not None:
            raise ValueError("--latency needs --uniform; a job's latencies are its cluster's")
        if arguments.weight_memory is not None:
            raise ValueError("--weight-memory needs --uniform; a job's follows from its layers")
        return simulate(job_of(arguments, PLAIN))
    if arguments.job is not None:
        raise ValueError(
            f"--uniform takes the place of a job; leave out {arguments.job} or --uniform"
        )
    if hasattr(arguments, "assignments"):
        raise ValueError(
            "--set changes a job, and --uniform has none; write --pp 16 rather than --set "
            "plan.pp=16, or leave one out"
        )
    forward, backward, weight_grad = uniform_times(arguments.uniform)
    return simulate_uniform(
        uniform_plan(job_options(arguments, PLAIN)),
        forward,
        backward,
        weight_grad=weight_grad,
        weight_memory=1.0 if arguments.weight_memory is None else arguments.weight_memory,
        latency=arguments.latency or 0.0,
    )


def _gantt(run: Run, width: int | None) -> tuple[Console, Text]:
    """The text Gantt chart, and the terminal to print it on."""
    console = Console(width=width, highlight=False, soft_wrap=True)
    unit = "t" if run.job is None else "s"
    return console, text_gantt(run.streams, width=console.width, unit=unit)
