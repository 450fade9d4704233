"""Words of the command line that make or change a job: one option for every field of the plan."""

import argparse
import contextlib
from pathlib import Path
from typing import Any

from simulator.dialects import DIALECTS, read_rows
from simulator.errors import validated
from simulator.job import Job, Plan
from simulator.load import job_from_options

__all__ = ["add_job_options", "job_of", "job_options", "uniform_plan", "uniform_times"]


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Options that make or change a job: one for every field of the plan."""
    group = parser.add_argument_group("job")
    text: dict[str, Any] = {"default": argparse.SUPPRESS}
    group.add_argument("--name", help="name of the job", **text)
    group.add_argument("--model", help="preset, config.json or TOML file", **text)
    group.add_argument("--cluster", help="preset or TOML file", **text)
    group.add_argument(
        "--gpus", type=int, help="GPUs in all; sets dp when that is left out", **text
    )
    group.add_argument("--num-nodes", type=int, help="nodes of the cluster", **text)
    group.add_argument("--seq-len", type=int, help="tokens in one sequence", **text)
    group.add_argument("--global-batch-size", type=int, help="sequences in one step", **text)
    group.add_argument(
        "--set",
        dest="assignments",
        action="append",
        metavar="PATH=VALUE",
        help="change any value of the job, after file and options: plan.pp=16, "
        "cluster.inter_node.bandwidth=2x, cluster.gpu=h100-sxm, model.seq_len=+50%%, "
        "cluster.stragglers.3=1.2, plan.num_slices=null; may be given several times",
        **text,
    )
    plan = parser.add_argument_group("plan")
    for name, field in Plan.model_fields.items():
        flags = [f"--{name.replace('_', '-')}"]
        if name == "num_microbatches":
            flags.append("--microbatches")
        help_text = (field.description or "").replace("%", "%%")
        if name == "rows":
            plan.add_argument("--rows", metavar="FILE", help=f"a file with {help_text}", **text)
            dialects = "of --rows; pytorch-compute or pytorch-comms as they are when left out"
            plan.add_argument("--dialect", choices=DIALECTS, help=dialects, **text)
        elif field.annotation is bool:
            plan.add_argument(
                *flags, dest=name, action=argparse.BooleanOptionalAction, help=help_text, **text
            )
        else:
            plan.add_argument(*flags, dest=name, type=_value, metavar="X", help=help_text, **text)


def job_of(arguments: argparse.Namespace, not_of_the_job: set[str]) -> Job:
    """The job that JOB, the options and `--set` describe."""
    options = job_options(arguments, not_of_the_job)
    assignments = getattr(arguments, "assignments", [])
    named = {one.partition("=")[0].strip() for one in assignments} | set(options)
    if arguments.job is None and "model" not in named:
        raise ValueError("give a JOB file, --model with --cluster, or --uniform F,B")
    return job_from_options(options, Path(arguments.job) if arguments.job else None, assignments)


def job_options(arguments: argparse.Namespace, not_of_the_job: set[str]) -> dict[str, Any]:
    """What the user said of the job, but for `--set`, and nothing else."""
    unrelated = {*not_of_the_job, "assignments"}
    options = {name: value for name, value in vars(arguments).items() if name not in unrelated}
    if hasattr(arguments, "rows"):
        options["rows"] = _read_rows(arguments.rows)
        if "dialect" in options:
            options["rows"] = str(read_rows(options["rows"], options.pop("dialect")))
        options.setdefault("schedule", "custom")
    if "dialect" in options:
        raise ValueError("--dialect is of --rows; leave it out, or give the rows")
    return options


def _read_rows(path: str) -> str:
    try:
        return Path(path).read_text()
    except UnicodeDecodeError:
        raise ValueError(f"{path} holds no rows: it is no text") from None
    except OSError as error:
        raise ValueError(f"cannot read the rows in {path}: {error.strerror}") from None


def _value(text: str) -> float | str | list[int]:
    """A word of the command line as a number, whole numbers with commas, or text."""
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    parts = text.split(",")
    return [int(part) for part in parts] if all(p.strip().isdigit() for p in parts) else text


def uniform_plan(options: dict[str, Any]) -> Plan:
    """The plan of `--uniform`; an option that would be ignored is refused."""
    legal: tuple[str, ...] = (
        "schedule",
        "pp",
        "vpp",
        "num_microbatches",
        "microbatch_group_size",
        "num_slices",
    )
    legal += ("activation_limit", "p2p", "rows")
    for name in options:
        if name not in legal:
            flags = ", ".join("--" + one.replace("_", "-") for one in legal)
            raise ValueError(
                f"--{name.replace('_', '-')} has no effect with --uniform; leave it out, or one of "
                f"the two; --uniform goes with {flags}"
            )
    return validated(Plan, options, "plan")


def uniform_times(text: str) -> tuple[float, float, float | None]:
    """Forward and full backward of `--uniform`, and the weight gradient's part if given. [s]"""
    try:
        times = [float(part) for part in text.split(",")]
    except ValueError:
        times = []
    if len(times) == 2:
        return times[0], times[1], None
    if len(times) == 3:
        return times[0], times[1] + times[2], times[2]
    raise ValueError(
        f"--uniform is {text!r}; give the seconds of forward and backward, as in 1,2, or of "
        "forward, input gradient and weight gradient, as in 1,1,1"
    )
