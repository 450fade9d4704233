"""The plans next to a plan: one knob turned to its next legal value, GPUs and batch as they are.

Where a size changes, data parallelism takes the GPUs that become free, and the microbatches make up
the batch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args, get_origin

from simulator.errors import validated
from simulator.job import Cluster, Job, Plan
from simulator.schedules import schedules
from simulator.search.values import has_use
from simulator.simulate import Run, simulate

__all__ = ["Neighbour", "neighbours"]

SLOW = ("optimal",)  # it searches for minutes
SIZES = ("pp", "tp", "vpp", "micro_batch_size")
MOST_TRIES = 4096  # values of a size that are looked through [1]


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A plan that differs in one knob, and what must follow it."""

    knob: str  # "plan.pp"
    value: str  # its value here
    follows: str  # what else had to change, as "plan.dp=4"; empty if nothing
    simulated: float | None  # change of the step time, negative is faster; None if refused [1]
    peak_memory: float | None = None  # of the fullest rank [bytes]
    fits: bool | None = None
    refused: str = ""  # why there is no such plan


class Turn(NamedTuple):
    """A knob and the values of it to try, the first legal one counts."""

    knob: str
    values: Iterable[Any]


def neighbours(run: Run) -> tuple[Neighbour, ...]:
    """Every plan next to a run's, fastest first, then those that are refused, with the reason."""
    job = run.job
    assert job is not None
    found: dict[tuple[str, str], Neighbour] = {}
    for turn in _turns(job):
        one = _first_legal(job, run.report.step_time, turn)
        if one is not None:
            found[one.knob, one.value] = one
    return tuple(
        sorted(
            found.values(),
            key=lambda n: (n.simulated is None, n.simulated or 0.0, n.knob, n.value),
        )
    )


def _turns(job: Job) -> Iterator[Turn]:
    """What to try."""
    plan = job.plan
    for name in SIZES:
        now = getattr(plan, name)
        most = {"micro_batch_size": plan.global_batch_size // plan.dp}.get(name, plan.num_gpus)
        most = job.model.num_hidden_layers if name == "vpp" else most
        yield Turn(f"plan.{name}", range(now + 1, min(most, now + MOST_TRIES) + 1))
        yield Turn(f"plan.{name}", range(now - 1, 0, -1))
    for name, field in Plan.model_fields.items():
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        choices = (True, False) if field.annotation is bool else choices
        for value in choices:
            if value != getattr(plan, name):
                yield Turn(f"plan.{name}", (value,))
    if plan.rows is None:
        for name, recipe in schedules().items():
            is_out = name in (*SLOW, plan.schedule, "custom") or recipe.weights is not None
            if not is_out and has_use(name, job.model):
                yield Turn("plan.schedule", (name,))
    nics, node = job.cluster.nics_per_node, job.cluster.gpus_per_node
    yield Turn(
        "cluster.nics_per_node", (n for n in range(nics + 1, 4 * node + 1) if _even(n, node))
    )
    yield Turn("cluster.nics_per_node", (n for n in range(nics - 1, 0, -1) if _even(n, node)))


def _even(nics: int, gpus: int) -> bool:
    """Whether all GPUs of a node have as much of its NICs."""
    return nics % gpus == 0 or gpus % nics == 0


def _first_legal(job: Job, step: float, turn: Turn) -> Neighbour | None:
    """The plan with the first value that is legal, or the reason why the first is not."""
    first: Neighbour | None = None
    for value in turn.values:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        try:
            other = _turned(job, turn.knob, value)
            report = simulate(other).report
        except ValueError as error:
            if first is None:
                first = Neighbour(
                    knob=turn.knob, value=shown, follows="", simulated=None, refused=str(error)
                )
            continue
        peak = None if report.peak_memory is None else float(report.peak_memory.max())
        return Neighbour(
            knob=turn.knob,
            value=shown,
            follows=_follows(job, other, turn.knob),
            simulated=round(report.step_time / step - 1, 12) + 0.0,
            peak_memory=peak,
            fits=report.fits,
        )
    return first


def _turned(job: Job, knob: str, value: object) -> Job:
    """The job with one knob turned, on as many GPUs and with the same batch.

    Raises:
        ValueError: there is no such plan.
    """
    owner, name = knob.split(".")
    table = job.model_dump()
    table[owner][name] = value
    if owner == "plan":
        _follow(table["plan"], name, job)
        table["plan"][name] = value
    cluster = validated(Cluster, table["cluster"], "cluster")
    plan = validated(Plan, table["plan"], "plan")
    if plan.num_gpus != job.plan.num_gpus or plan.global_batch_size != job.plan.global_batch_size:
        raise ValueError(
            f"plan.{name} = {value} does not divide the {job.plan.num_gpus} GPUs or the batch of "
            f"{job.plan.global_batch_size}"
        )
    return validated(Job, {"name": job.name, "model": job.model, "cluster": cluster, "plan": plan})


def _follow(table: dict[str, Any], name: str, job: Job) -> None:
    """Let the rest of a plan's table follow one of its sizes."""
    known = schedules()
    takes = known[table["schedule"]].takes if table["schedule"] in known else ("vpp",)
    if name == "schedule":
        if "vpp" not in takes or table["vpp"] == 1:
            table["vpp"] = known[table["schedule"]].chunks
    elif name == "vpp" and table["vpp"] > 1 and "vpp" not in takes:
        table["schedule"] = "interleaved"
    elif name == "vpp" and table["vpp"] == 1 and table["schedule"] == "interleaved":
        table["schedule"] = "1f1b"
    if name in ("pp", "vpp", "schedule") and table["pp"] * table["vpp"] != job.plan.num_stages:
        table["layers_per_stage"] = None
    if name == "recompute" and table["recompute"] != "selective":
        table["recompute_modules"] = None
    if name == "dtype" and table["grad_dtype"] != "fp32":
        table["grad_dtype"] = "bf16" if table["dtype"] in ("fp8", "nvfp4") else table["dtype"]
    table["dp"] = max(1, job.plan.num_gpus // (table["pp"] * table["tp"] * table["cp"]))
    sequences = table["dp"] * table["micro_batch_size"]
    table["num_microbatches"] = max(1, job.plan.global_batch_size // sequences)
    if table["dp"] == 1:
        table["zero_stage"], table["overlap_grad_reduce"] = 0, False
    if table["tp"] == 1:
        table["sequence_parallel"], table["scatter_gather"] = False, True
    if table["sequence_parallel"]:
        table["scatter_gather"] = True


def _follows(job: Job, other: Job, knob: str) -> str:
    """What else differs."""
    names = [name for name in Plan.model_fields if f"plan.{name}" != knob]
    pairs = [(name, getattr(other.plan, name)) for name in names]
    words = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in pairs
        if value != getattr(job.plan, name)
    ]
    return " ".join(words)
