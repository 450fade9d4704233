"""`bubblescope explain`: why a rank idles."""

import argparse
import tomllib
from pathlib import Path

from simulator.commands.saved import load_run
from simulator.explain import critical_path, explain, longest_gaps
from simulator.schedule import Kind
from simulator.table import percent
from simulator.timeline import Timeline

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("run", metavar="JOB_OR_RUN", help="a job's .toml or a saved .json")
    parser.add_argument("--rank", type=int, help="pipeline rank; every rank when left out")
    parser.add_argument("--time", type=float, help="a moment in the gap [s]; needs --rank")
    parser.add_argument("--most", type=int, default=5, help="how many gaps, longest first [1]")
    parser.add_argument("--critical-path", action="store_true", help="print the critical path")


def run(arguments: argparse.Namespace) -> None:
    """Explain the gap at a time, or the longest ones."""
    if arguments.time is not None and arguments.rank is None:
        raise ValueError("--time needs --rank; gaps are of one rank")
    if arguments.most < 1:
        raise ValueError(f"--most is {arguments.most}; it must be at least 1")
    made = load_run(Path(arguments.run))
    timeline, job = made.timeline, tomllib.loads(made.job)
    slow = job.get("cluster", {}).get("stragglers", {})
    stragglers = {int(rank): float(factor) for rank, factor in slow.items()}
    limit = job.get("plan", {}).get("activation_limit")
    if arguments.critical_path:
        _print_path(timeline)
        return
    report = made.report
    print(f"bubble {percent(report.bubble_fraction)} of the step: idle over wall time, GPipe's")
    print(f"       {percent(report.bubble_to_ideal)} of the ideal time, Megatron's SC'21 paper's")
    print(f"       {percent(report.span_bubble)} of the largest single-rank span, the zero-bubble")
    print("       papers', whose optimizer step waits for no other rank")
    gaps = longest_gaps(timeline, arguments.rank)
    if arguments.time is not None:
        gaps = [(0.0, arguments.rank, arguments.time)]
    for _, rank, time in gaps[: arguments.most]:
        print(explain(timeline, rank, time, stragglers=stragglers, activation_limit=limit))


def _print_path(timeline: Timeline) -> None:
    """The critical path, one span a line."""
    for at in critical_path(timeline).tolist():
        kind = Kind(timeline.kind[at])
        number = "" if timeline.microbatch[at] < 0 else str(timeline.microbatch[at])
        print(
            f"{timeline.start[at]:12.6g} {timeline.end[at]:12.6g}  rank {timeline.rank[at]:<4} "
            f"{timeline.stage[at]}{kind.name}{number}"
        )
