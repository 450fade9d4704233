"""Words of the command line that make the space of a search, and those that simulate one plan."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from simulator.errors import shown
from simulator.files import parse_toml, read_bytes
from simulator.job import Job, Plan
from simulator.load import job_from_options
from simulator.options import add_job_options, job_options
from simulator.overrides import read_assignments
from simulator.search.space import KNOBS, Space, space_of

__all__ = ["add_space_options", "simulate_line", "space_from"]

PLAIN = {"job", "output", "by", "price_per_gpu_hour", "top", "workers", "scheduler"}
PLAIN |= {"exhaustive", "csv", "plot", "save_job", "json", "verb", "layer_split"}
FOLLOWS = {  # fields of a plan that a search works out
    "dp": "it is what tp, pp and cp leave of --gpus",
    "num_microbatches": "it follows from --global-batch-size, dp and micro_batch_size",
    "layers_per_stage": "--layer-split says how layers are split",
    "rows": "a search makes the rows",
    "dialect": "a search makes the rows",
    "num_slices": "TeraPipe is not searched",
}
OWN = ("gpus", "plan.global_batch_size")  # --set cannot assign what a search takes as an option
SIZES = ("pp", "tp", "cp", "dp", "num_microbatches")  # without these a file holds no whole plan


def add_space_options(parser: argparse.ArgumentParser) -> None:
    """Options of the job; those that are knobs may list values with commas between."""
    add_job_options(parser)
    group = parser.add_argument_group(
        "knobs",
        f"{', '.join('--' + knob.replace('_', '-') for knob in KNOBS)}: each may list the values "
        "to search, as in --tp 1,2,4,8; every sensible value when left out",
    )
    group.add_argument(
        "--layer-split",
        metavar="X",
        default=argparse.SUPPRESS,
        help="even, balanced: layers on each stage all alike, or balanced by time",
    )


def space_from(arguments: argparse.Namespace) -> Space:
    """The space that the options of `search` describe.

    Raises:
        ValueError: no space follows from them.
    """
    options = job_options(arguments, PLAIN - {"layer_split"})
    assignments = _assignments(arguments)
    path = Path(arguments.job) if arguments.job else None
    if path is None and "model" not in {*options, *_paths(assignments)}:
        raise ValueError("give a JOB file, or --model and --cluster, with --gpus")
    for name, reason in FOLLOWS.items():
        if name in options:
            raise ValueError(f"--{_flag_of(name)} is no knob of a search: {reason}")
    knobs = {knob: _values(options.pop(knob)) for knob in KNOBS if knob in options}
    raw = {} if path is None else parse_toml(read_bytes(path), str(path))
    plan = raw.get("plan", {})
    if not isinstance(plan, dict):
        raise ValueError(
            f"plan is {shown(plan)}; it must be a table; write its fields under [plan], or leave "
            "it out"
        )
    has_plan = any(size in plan for size in SIZES)
    batch = options.get("global_batch_size", plan.get("global_batch_size"))
    if not has_plan:
        if batch is None:
            raise ValueError("give --global-batch-size, the sequences in one step")
        if "gpus" not in options and "gpus" not in raw:
            raise ValueError("give --gpus, the GPUs in all")
        options.pop("global_batch_size", None)
        options["num_microbatches"] = 1
        options |= _one_pp(knobs)
        if options.get("cp_comm", "ring") != "ring":  # which a plan without cp refuses
            options["cp"] = next((n for n in knobs.get("cp", (2,)) if str(n) != "1"), 1)
    job = job_from_options(options, path, assignments)
    if batch is None or has_plan:
        batch = job.plan.global_batch_size
    try:
        return space_of(job, global_batch_size=batch, num_gpus=job.plan.num_gpus, **knobs)
    except ValueError as error:
        name, rest = str(error).partition(" ")[::2]
        if name in KNOBS or (name == "global_batch_size" and rest.startswith("is ")):
            raise ValueError(f"--{_flag_of(name)} {rest}") from None
        raise


def _assignments(arguments: argparse.Namespace) -> list[str]:
    """The words of `--set`, none of which may be about what a search varies or works out.

    Raises:
        ValueError: one of them is.
    """
    texts: list[str] = getattr(arguments, "assignments", [])
    for path in _paths(texts):
        owner, _, name = path.rpartition(".")
        if owner == "plan" and name in KNOBS:
            raise ValueError(f"--set {path} is about a knob of the search; use --{_flag_of(name)}")
        if owner == "plan" and name in FOLLOWS:
            raise ValueError(f"--set {path} is about no knob of a search: {FOLLOWS[name]}")
        if path in OWN:
            raise ValueError(f"--set {path} is what a search is given; use --{_flag_of(name)}")
    return texts


def _paths(texts: list[str]) -> list[str]:
    """What is assigned."""
    return [one.path for one in read_assignments(texts)]


def _one_pp(knobs: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The pp of a job without a plan, if there is only one: a cluster may name its ranks."""
    pp = knobs.get("pp", ())
    return {"pp": pp[0]} if len(pp) == 1 and isinstance(pp[0], int) else {}


def simulate_line(arguments: argparse.Namespace, job: Job) -> str | None:
    """The command that simulates a plan of the search; None where no options make it."""
    words = ["bubblescope", "simulate"]
    given = job_options(arguments, PLAIN)
    assignments = _assignments(arguments)
    base = Path(arguments.job) if arguments.job else None
    options: dict[str, Any] = {}
    for name in ("model", "cluster", "num_nodes", "seq_len"):
        if name in given:
            options[name] = given[name]
    standard = Plan() if base is None else None
    for name in Plan.model_fields:
        value = getattr(job.plan, name)
        asked = name in given or name in KNOBS or name in ("dp", "num_microbatches")
        shown = value is not None and (asked or name == "layers_per_stage")
        if shown and (standard is None or value != getattr(standard, name)):
            options[name] = value
    try:
        made = job_from_options(options, base, assignments)
    except ValueError:
        return None
    if (made.plan, made.model, made.cluster) != (job.plan, job.model, job.cluster):
        return None
    words += [arguments.job] if arguments.job else []
    for name, value in options.items():
        words += _flag(name, value)
    for text in assignments:
        words += ["--set", text]
    return shlex.join(words)


def _flag_of(name: str) -> str:
    return name.replace("_", "-")


def _flag(name: str, value: object) -> list[str]:
    """An option of the command line."""
    flag = _flag_of(name)
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple):
        return [f"--{flag}", ",".join(map(str, value))]
    return [f"--{flag}", str(value)]


def _values(value: object) -> tuple[Any, ...]:
    """The values of a knob, from one word of the command line."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else (value,)
