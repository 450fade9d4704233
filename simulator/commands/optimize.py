"""`bubblescope optimize`: the best schedule for given times and a memory limit."""

import argparse
import sys
from pathlib import Path

from simulator.costs import uniform
from simulator.costs.costs import MOST_SECONDS
from simulator.dialects import write_rows
from simulator.errors import validated
from simulator.job import Plan
from simulator.optimal import Progress, optimize
from simulator.options import uniform_times
from traces.replacing import replace_bytes

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("--pp", type=int, required=True, help="pipeline-parallel size [1]")
    parser.add_argument("--microbatches", type=int, required=True, help="of one step [1]")
    parser.add_argument("--uniform", metavar="F,I,W", default="1,1,1", help="seconds on each rank")
    parser.add_argument("--latency", type=float, default=0.0, help="of every message [s]")
    parser.add_argument("--weight-memory", type=float, default=1.0, help="share that only W frees")
    parser.add_argument("--activation-limit", type=float, help="of a rank, in microbatches [1]")
    parser.add_argument(
        "--objective", choices=("span", "makespan"), default="span", help=_OBJECTIVE
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="at most [s]")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write the rows, for PyTorch")


_OBJECTIVE = "what is least: the largest single-rank span, or the time from first start to last end"


def run(arguments: argparse.Namespace) -> None:
    """Search, showing progress; Ctrl-C keeps the best so far."""
    sizes = {"pp": arguments.pp, "num_microbatches": arguments.microbatches}
    validated(Plan, sizes, "plan")
    if not 0 <= arguments.latency < MOST_SECONDS:
        raise ValueError(f"--latency is {arguments.latency:g} s; it must be at least 0, and finite")
    if not 0 < arguments.time_limit < MOST_SECONDS:
        raise ValueError(f"--time-limit is {arguments.time_limit:g} s; it must be positive")
    forward, backward, weight = uniform_times(arguments.uniform)
    costs = uniform(arguments.pp, forward, backward, weight, arguments.weight_memory)
    best = optimize(
        costs,
        arguments.pp,
        arguments.microbatches,
        transfer=arguments.latency,
        activation_limit=arguments.activation_limit,
        time_limit=arguments.time_limit,
        objective=arguments.objective,
        progress=_show,
    )
    text = write_rows(best.schedule, "pytorch-compute")
    proof = "proven best" if best.proven else f"at most {100 * best.gap:.2f}% from best"
    print(f"{arguments.objective} {best.objective:g} s, {proof}, {best.seconds:.1f} s of search")
    print(text)
    if arguments.output is not None:
        replace_bytes(Path(arguments.output), (text.rstrip("\n") + "\n").encode())
        print(f"wrote {arguments.output}: the rows", file=sys.stderr)


def _show(progress: Progress) -> None:
    print(
        f"{progress.seconds:7.1f} s  best {progress.objective:g}  bound {progress.bound:g}  "
        f"gap {100 * progress.gap:.2f}%",
        file=sys.stderr,
    )
