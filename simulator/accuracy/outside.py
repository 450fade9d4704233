"""What of a job lies outside everything that was ever measured: flags, one sentence each.

Runs are those of `errors.csv`; kernels are those that the cost model is fitted on.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from simulator.accuracy.experience import EXPERTS, Experience, experience
from simulator.accuracy.rows import FOLDER
from simulator.files import parse_toml
from simulator.job import Job

__all__ = ["outside"]


class Quantity(NamedTuple):
    """One size of a job, and how a sentence calls it."""

    name: str
    of_job: Callable[[Job], int]
    of_row: Callable[[Experience], int]
    unit: str


QUANTITIES = (
    Quantity("num_gpus", lambda j: j.plan.num_gpus, lambda r: r.num_gpus, "GPUs"),
    Quantity("tp", lambda j: j.plan.tp, lambda r: r.tp, "tensor-parallel GPUs"),
    Quantity("pp", lambda j: j.plan.pp, lambda r: r.pp, "pipeline ranks"),
    Quantity("seq_len", lambda j: j.model.seq_len, lambda r: r.seq_len, "tokens in a sequence"),
    Quantity("hidden", lambda j: j.model.hidden_size, lambda r: r.hidden_size, "hidden size"),
)
OPTIONS = ("schedule", "dtype", "zero_stage", "cp", "ep")  # of the plan, by name


def outside(job: Job) -> tuple[str, ...]:
    """Everything about a job that no measured run or kernel covers; empty if all is covered.

    >>> from simulator.load import load_job
    >>> outside(load_job("examples/sc21_7_5b.toml"))
    ()
    """
    return (*_hardware(job), *_sizes(job), *_options(job))


@cache
def _calibrated() -> dict[str, str]:
    """GPUs whose kernels were measured, with what was."""
    table = parse_toml((FOLDER / "calibrated.toml").read_bytes(), "calibrated.toml")
    return {name: str(text) for name, text in table["gpus"].items()}


def _hardware(job: Job) -> list[str]:
    gpu = job.cluster.gpu.name
    flags = []
    if gpu not in _calibrated():
        flags.append(f"no kernel was measured on {gpu}: its efficiencies are another GPU's")
    if job.plan.dtype == "nvfp4":
        flags.append("no product in nvfp4 was measured: its efficiency is that of fp8")
    if gpu not in _seen("gpu_name"):
        flags.append(f"no training run on {gpu} is among the measured")
    return flags


def _sizes(job: Job) -> list[str]:
    """Sizes beyond those of the measured runs on this GPU, or on any if there are none."""
    who, ranges = _ranges(job.cluster.gpu.name)
    flags = []
    for size, (low, high) in zip(QUANTITIES, ranges, strict=True):
        value = size.of_job(job)
        if not low <= value <= high:
            word, bound = ("at least", low) if value < low else ("at most", high)
            flags.append(f"{value:,} {size.unit}: measured runs {who}have {word} {bound:,}")
    return flags


@cache
def _ranges(gpu: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Least and most of each quantity in the runs measured on a GPU, else on any."""
    mine = [one for one in experience() if one.gpu_name == gpu]
    rows = mine or experience()
    found = [[size.of_row(one) for one in rows] for size in QUANTITIES]
    return (f"on {gpu} " if mine else ""), tuple((min(each), max(each)) for each in found)


@cache
def _seen(name: str) -> frozenset[object]:
    """Every value of a field in the measured runs."""
    return frozenset(getattr(one, name) for one in experience())


def _options(job: Job) -> list[str]:
    flags = []
    for name in OPTIONS:
        value = getattr(job.plan, name)
        if value not in _seen(name):
            flags.append(f"no measured run has {name} = {value}")
    if job.model.is_sparse and EXPERTS not in _seen("size"):
        flags.append("no measured run is of a mixture of experts")
    if job.model.attention_reach < 1 and not job.model.is_sparse:  # gpt-oss does
        flags.append("no measured run of a dense model attends to a window of its sequence")
    if job.model.attn_logit_softcapping is not None:
        flags.append("no kernel that caps the scores of attention was measured")
    framework = job.plan.framework
    if framework is not None and framework not in _seen("framework"):
        flags.append(f"no measured run is of {framework}")
    if getattr(job.plan, "offload", "none") != "none":
        flags.append("no measured run offloads the optimizer")
    return flags
