"""`bubblescope compare`: jobs, saved runs or schedules side by side."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simulator.commands.saved import load_run
from simulator.errors import validated
from simulator.job import Plan
from simulator.options import uniform_times
from simulator.schedule import Kind
from simulator.schedules import schedules
from simulator.simulate import Run, simulate_uniform
from simulator.table import columns, compare_table, percent

__all__ = ["add", "run"]

SLOW = ("optimal",)  # not part of `--schedules all`: it searches for minutes


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "runs", nargs="*", metavar="JOB_OR_RUN", help="a job's .toml, a saved .json"
    )
    parser.add_argument("--json", action="store_true", help="print the whole reports as JSON")
    group = parser.add_argument_group("schedules, with equal stages and free communication")
    group.add_argument("--schedules", metavar="NAMES", help="all, or names with commas between")
    group.add_argument("--pp", type=int, help="pipeline-parallel size [1]")
    group.add_argument("--microbatches", type=int, help="of one step [1]")
    group.add_argument("--uniform", metavar="F,I,W", help="seconds of one microbatch on one rank")
    group.add_argument("--latency", type=float, help="of every message [s]")
    group.add_argument("-o", "--output", metavar="FILE", help="a picture of all of them")


def run(arguments: argparse.Namespace) -> None:
    """Print the table."""
    if arguments.schedules is not None:
        _compare_schedules(arguments)
        return
    for name in ("pp", "microbatches", "uniform", "latency", "output"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} goes with --schedules; leave it out")
    if len(arguments.runs) < 2:
        raise ValueError("compare needs at least two jobs or saved runs, or --schedules")
    reports = [load_run(Path(path)).report for path in arguments.runs]
    if arguments.json:
        print(json.dumps([report.to_dict() for report in reports], indent=2))
        return
    names = [report.name for report in reports]
    if len(set(names)) < len(names):
        names = [Path(path).name for path in arguments.runs]
    print(compare_table(reports, names))


def _compare_schedules(arguments: argparse.Namespace) -> None:
    """Rank schedules by the time of a step."""
    if arguments.runs:
        raise ValueError("compare takes jobs or --schedules, not both; leave one out")
    for name in ("pp", "microbatches"):
        if getattr(arguments, name) is None:
            raise ValueError(f"--schedules needs --{name}")
    output = None if arguments.output is None else Path(arguments.output)
    runs, refused = _simulated(arguments)
    if arguments.json:
        print(json.dumps([made.report.to_dict() for made in runs], indent=2))
    else:
        print("\n".join(_ranking(runs)))
        for name, reason in refused:
            print(f"{name}: {reason}")
    if output is not None:
        from traces.stacked import write_stacked

        named = [(f"{_name(made)}: {made.report.step_time:g}", made.timeline) for made in runs]
        write_stacked(named, output)


def _simulated(arguments: argparse.Namespace) -> tuple[list[Run], list[tuple[str, str]]]:
    """The runs, fastest first, and with the reason the schedules that refuse these sizes."""
    known = schedules()
    names = arguments.schedules.split(",")
    if names == ["all"]:
        names = [name for name in known if name not in SLOW]
    for name in names:
        if name not in known:
            raise ValueError(f"--schedules names {name!r}; use all, or some of {','.join(known)}")
    forward, backward, weight = uniform_times(arguments.uniform or "1,1,1")
    sizes = {"pp": arguments.pp, "num_microbatches": arguments.microbatches}
    validated(Plan, sizes, "plan")
    runs, refused = [], []
    for name in names:
        try:
            plan = Plan(vpp=known[name].chunks, schedule=name, **sizes)
            made = simulate_uniform(
                plan, forward, backward, weight_grad=weight, latency=arguments.latency or 0.0
            )
        except ValueError as error:
            refused.append((name, str(error)))
        else:
            runs.append(made)
    if not runs:
        raise ValueError(f"no schedule works for these sizes; {refused[0][0]}: {refused[0][1]}")
    return sorted(runs, key=lambda made: made.report.step_time), refused


def _name(made: Run) -> str:
    chunks = f", {made.plan.vpp} chunks" if made.plan.vpp > 1 else ""
    return f"{made.plan.schedule}{chunks}"


def _ranking(runs: Sequence[Run]) -> list[str]:
    """A line a schedule. Memory is of activations, in microbatches through one rank."""
    header = [
        "schedule",
        "step",
        "bubble",
        "of span",
        "peak memory",
        "messages",
        "weights",
        "stale",
    ]
    rows = [header]
    for made in runs:
        report, plan = made.report, made.plan
        sends = np.isin(made.timeline.kind, (Kind.SEND_F, Kind.SEND_B)).sum()
        passed = len(np.unique(made.timeline.microbatch[made.timeline.kind == Kind.F]))
        pairs = np.unique(np.column_stack([made.timeline.stage, made.timeline.rank]), axis=0)
        copies = len(pairs) / plan.num_stages
        versions = 1 if report.weight_versions is None else int(report.weight_versions.max())
        stale = 0 if report.staleness is None else int(report.staleness.max())
        rows.append(
            [
                _name(made),
                f"{report.step_time:g}",
                percent(report.bubble_fraction),
                percent(report.span_bubble),
                f"{made.timeline.peak_memory().max() / plan.vpp:g}",
                f"{sends / passed:g}",
                f"{versions * copies:g}x",
                f"{stale}",
            ]
        )
    notes = [
        "step: seconds, of asynchronous schedules once steady; bubble: of the step; of span: idle",
        "share of the largest single-rank span; memory: peak activations of the fullest rank, in",
        "microbatches; messages: between ranks, for each microbatch; weights: versions and copies;",
        "stale: updates that the oldest gradient misses",
    ]
    return [*columns(rows), *notes]
