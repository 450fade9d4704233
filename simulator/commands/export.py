"""`bubblescope export`: a run's timeline, or a schedule's rows, in another format."""

import argparse
from pathlib import Path

from simulator.commands.saved import CRITICAL, OUTPUT, load_run, writable, write_run
from simulator.dialects import DIALECTS, write_rows
from simulator.errors import validated
from simulator.job import Plan
from simulator.lower import lower
from simulator.schedules import build, recipe_of, schedules
from traces.replacing import replace_bytes

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "run", metavar="JOB_OR_RUN", help="a job's .toml, a saved .json, or the name of a schedule"
    )
    parser.add_argument("outputs", nargs="+", metavar="OUT", help=OUTPUT)
    parser.add_argument("--critical-path", action="store_true", help=CRITICAL)
    group = parser.add_argument_group("rows of a schedule")
    group.add_argument("--pp", type=int, help="pipeline-parallel size [1]")
    group.add_argument("--microbatches", type=int, help="of one step [1]")
    group.add_argument("--vpp", type=int, help="chunks on each rank; the schedule's usual ones [1]")
    group.add_argument("--dialect", choices=DIALECTS, help="pytorch-compute when left out")


def run(arguments: argparse.Namespace) -> None:
    """Write the files."""
    if arguments.run in schedules():
        _export_rows(arguments)
        return
    if arguments.pp is not None and not Path(arguments.run).exists():
        recipe_of(arguments.run)  # says the nearest name
    for name in ("pp", "microbatches", "vpp", "dialect"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} is for the rows of a schedule; {arguments.run} is none")
    outputs = writable(arguments.outputs)
    made = load_run(Path(arguments.run))
    for path in outputs:
        write_run(made, path, critical_path=arguments.critical_path)


def _export_rows(arguments: argparse.Namespace) -> None:
    """Rows as text, one line a rank; PyTorch's runtime loads those of its dialects."""
    for name in ("pp", "microbatches"):
        if getattr(arguments, name) is None:
            raise ValueError(f"the rows of {arguments.run} need --{name}")
    sizes = {
        "schedule": arguments.run,
        "pp": arguments.pp,
        "vpp": schedules()[arguments.run].chunks if arguments.vpp is None else arguments.vpp,
        "num_microbatches": arguments.microbatches,
    }
    plan = validated(Plan, sizes, "plan")
    dialect = arguments.dialect or "pytorch-compute"
    rows = build(plan)
    if dialect == "pytorch-comms":
        rows = lower(rows)
    text = write_rows(rows, dialect)
    for name in arguments.outputs:
        path = Path(name)
        if path.suffix.lower() not in (".csv", ".txt"):
            raise ValueError(f"{path} cannot hold rows; use the suffix .csv or .txt")
        replace_bytes(path, (text.rstrip("\n") + "\n").encode())
