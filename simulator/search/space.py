"""The space of plans: which values each knob may take, and the job at each point.

A point is a number: the knobs' values in mixed radix, the last knob fastest. Neighbours share their
layers' costs and their cluster's routes, and whole runs of illegal points share one reason.
"""

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from math import prod
from typing import Any, Literal

from pydantic import Field

from simulator.checks import Count, Value
from simulator.errors import unknown, validated
from simulator.job import Job, Model, Plan
from simulator.planners.balanced import balanced_layers
from simulator.schedules import build, recipe_of, schedules

__all__ = [
    "KNOBS",
    "Space",
    "cut",
    "even_job",
    "job_at",
    "plan_at",
    "point",
    "space_of",
    "uneven_job",
    "with_layers",
    "with_plan",
]

Recompute = Literal["none", "selective", "full"]
Split = Literal["even", "balanced"]

KNOBS = (
    "tp",
    "cp",
    "ep",
    "sequence_parallel",
    "recompute",
    "micro_batch_size",
    "pp",
    "zero_stage",
    "vpp",
    "layer_split",
    "schedule",
)
MOST_SEQUENCES = 32  # in a microbatch, unless asked for [1]
MOST_NODES = 4  # of a tensor- or context-parallel group, unless asked for [1]


class Space(Value):
    """Every plan that a search judges: the product of the knobs' values."""

    job: Job = Field(description="model, cluster, and the fields of the plan that are no knobs")
    global_batch_size: Count = Field(description="sequences in one step [1]")
    num_gpus: Count = Field(description="GPUs to use, tp x pp x cp x dp [1]")
    tp: tuple[Count, ...] = Field((1,), min_length=1, description="tensor-parallel sizes [1]")
    pp: tuple[Count, ...] = Field((1,), min_length=1, description="pipeline-parallel sizes [1]")
    vpp: tuple[Count, ...] = Field((1,), min_length=1, description="model chunks on a rank [1]")
    cp: tuple[Count, ...] = Field((1,), min_length=1, description="context-parallel sizes [1]")
    ep: tuple[Count, ...] = Field((1,), min_length=1, description="expert-parallel sizes [1]")
    micro_batch_size: tuple[Count, ...] = Field(
        (1,), min_length=1, description="sequences in one microbatch [1]"
    )
    schedule: tuple[str, ...] = Field(("1f1b",), min_length=1, description="pipeline schedules")
    recompute: tuple[Recompute, ...] = Field(
        ("none",), min_length=1, description="activations computed again in the backward"
    )
    zero_stage: tuple[Literal[0, 1, 2, 3], ...] = Field(
        (0,), min_length=1, description="what is split over dp"
    )
    sequence_parallel: tuple[bool, ...] = Field(
        (False,), min_length=1, description="norms and dropouts split along the sequence"
    )
    layer_split: tuple[Split, ...] = Field(
        ("even",), min_length=1, description="layers on each stage: all alike, or balanced by time"
    )

    @property
    def num_points(self) -> int:
        """Points, the product of the knobs' counts. [1]"""
        return prod(len(getattr(self, knob)) for knob in KNOBS)


def space_of(
    job: Job,
    *,
    global_batch_size: int | None = None,
    num_gpus: int | None = None,
    **knobs: Any,  # noqa: ANN401 - a tuple of the knob's own type
) -> Space:
    """The space of a job: for each knob the values given, or all that its model and cluster take.

    Without a word every divisor of the GPUs is a tensor-, pipeline- or context-parallel size as far
    as heads, layers and `MOST_NODES` nodes go, every divisor of the layers a number of chunks,
    every divisor of the batch up to `MOST_SEQUENCES` a microbatch, and every synchronous schedule
    takes part that cuts no sequences and is not made for given times.

    Args:
        job: model, cluster and the plan's other fields; the batch and GPUs if not given here.
        global_batch_size: sequences in one step; the job's when left out. [1]
        num_gpus: GPUs to use; all of the job's cluster when left out. [1]
        knobs: values by knob, as `pp=(8, 16)`; one value stands for itself.

    Raises:
        ValueError: a knob is unknown, empty, or has a value that no plan could take.
    """
    for name in knobs:
        if name not in KNOBS:
            raise ValueError(unknown("knob", name, KNOBS))
    if job.plan.rows is not None:
        raise ValueError(
            'plan.schedule is "custom", but a search makes the rows of each plan itself; name the '
            "schedules to search, and leave out plan.rows"
        )
    batch = job.plan.global_batch_size if global_batch_size is None else global_batch_size
    gpus = job.cluster.num_gpus if num_gpus is None else num_gpus
    if gpus > job.cluster.num_gpus:
        nodes = -(-gpus // job.cluster.gpus_per_node)
        raise ValueError(
            f"num_gpus is {gpus}, but {job.cluster.name} has {job.cluster.num_gpus}; use at least "
            f"num_nodes = {nodes}"
        )
    given = {name: _values(name, value) for name, value in knobs.items()}
    table = _defaults(job, batch, gpus) | given
    space = validated(
        Space, {"job": job, "global_batch_size": batch, "num_gpus": gpus, **table}, "space"
    )
    for name in space.schedule:
        recipe_of(name)
    return space


def point(space: Space, index: int) -> dict[str, Any]:
    """Knob -> value of a point; the last knob varies fastest."""
    if not 0 <= index < space.num_points:
        raise ValueError(
            f"point {index} does not exist: the space has {space.num_points:,}; use 0 to "
            f"{space.num_points - 1}"
        )
    values: dict[str, Any] = {}
    for knob in reversed(KNOBS):
        choices = getattr(space, knob)
        index, digit = divmod(index, len(choices))
        values[knob] = choices[digit]
    return {knob: values[knob] for knob in KNOBS}


def job_at(space: Space, index: int) -> Job:
    """The job of a point.

    Raises:
        ValueError: the plan is illegal; says the rule.
    """
    job = plan_at(space, index)
    made_for_times = "costs" in recipe_of(job.plan.schedule).takes
    build(job.plan.model_copy(update={"num_microbatches": 1}) if made_for_times else job.plan)
    return job


def plan_at(space: Space, index: int) -> Job:
    """The job of a point, its rows unseen.

    Raises:
        ValueError: the plan is illegal, apart from what its schedule asks of it; says the rule.
    """
    values = point(space, index)
    if values["layer_split"] == "even":
        return even_job(space, values)
    job = uneven_job(space, values)
    return with_layers(job, balanced_layers(job))


def even_job(space: Space, values: Mapping[str, Any]) -> Job:
    """The job of a point whose layers are split evenly, its rows unseen.

    Raises:
        ValueError: the plan is illegal; says the rule.
    """
    dp, count = cut(space, values)
    return with_plan(space.job, {**values, "dp": dp, "num_microbatches": count})


def cut(space: Space, values: Mapping[str, Any]) -> tuple[int, int]:
    """What is left for dp and num_microbatches.

    Raises:
        ValueError: the GPUs or the batch do not divide.
    """
    one = values["tp"] * values["pp"] * values["cp"]
    if space.num_gpus % one:
        raise ValueError(f"num_gpus is {space.num_gpus}, but it must be a multiple of tp x pp x cp")
    dp = space.num_gpus // one
    if space.global_batch_size % (dp * values["micro_batch_size"]):
        raise ValueError(
            f"global_batch_size is {space.global_batch_size}, but it must be a multiple of "
            "dp x micro_batch_size"
        )
    return dp, space.global_batch_size // dp // values["micro_batch_size"]


def with_plan(job: Job, values: Mapping[str, Any]) -> Job:
    """The job with other values in its plan; `layer_split` and the given layers are left out."""
    table = plan_table(job.plan) | {k: v for k, v in values.items() if k != "layer_split"}
    plan = validated(Plan, table, "plan")
    return validated(
        Job, {"name": job.name, "model": job.model, "cluster": job.cluster, "plan": plan}
    )


def with_layers(job: Job, layers: tuple[int, ...]) -> Job:
    """The job with these layers on its stages."""
    plan = job.plan.model_copy(update={"layers_per_stage": layers})
    return Job(name=job.name, model=job.model, cluster=job.cluster, plan=plan)


def uneven_job(space: Space, values: Mapping[str, Any]) -> Job:
    """The job of a point with some legal layers on its stages, for the planner to move."""
    layers, stages = space.job.model.num_hidden_layers, values["pp"] * values["vpp"]
    if stages > layers:
        return even_job(space, values)  # says that a stage would hold no layer
    more = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    return even_job(space, {**values, "layers_per_stage": tuple(more)})


@lru_cache(maxsize=8)
def plan_table(plan: Plan) -> dict[str, Any]:
    """The plan's fields without the layers on its stages, which the search sets."""
    return {name: getattr(plan, name) for name in Plan.model_fields if name != "layers_per_stage"}


def _values(name: str, value: object) -> tuple[object, ...]:
    """A knob's values, each once, in the order given."""
    many = value if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    found = tuple(dict.fromkeys(many))
    if not found:
        raise ValueError(f"{name} has no values; give at least one, or leave it out")
    return found


def _defaults(job: Job, batch: int, gpus: int) -> dict[str, tuple[Any, ...]]:
    """Every value that a plan for this model on this cluster could take."""
    model, cluster = job.model, job.cluster
    group = min(model.num_key_value_heads, MOST_NODES * cluster.gpus_per_node)
    layers = model.num_hidden_layers
    return {
        "tp": _divisors(gpus, group),
        "pp": _divisors(gpus, layers),
        "vpp": _divisors(layers, layers),
        "cp": _divisors(gpus, min(MOST_NODES * cluster.gpus_per_node, model.seq_len)),
        "ep": (1,),
        "micro_batch_size": _divisors(batch, MOST_SEQUENCES),
        "schedule": _synchronous(model),
        "recompute": ("none", "selective", "full"),
        "zero_stage": (0, 1, 2, 3),
        "sequence_parallel": (False, True),
        "layer_split": ("even", "balanced"),
    }


def _divisors(total: int, most: int) -> tuple[int, ...]:
    """Divisors up to a limit, in order.

    >>> _divisors(12, 6)
    (1, 2, 3, 4, 6)
    """
    return tuple(d for d in range(1, min(total, most) + 1) if total % d == 0)


def _synchronous(model: Model) -> tuple[str, ...]:
    """Schedules of one step with whole sequences whose rows plans can share, the plainest first.

    Of equal rows the first schedule's name counts, as 1f1b's for interleaved with one chunk. Rows
    made for given times take seconds a plan, so that only those who ask for them get them. So do
    those whose pairs hide the exchanges of experts: no framework overlaps pairs of a dense model.
    """
    names = [
        name
        for name, recipe in schedules().items()
        if recipe.weights is None
        and not {"costs", "num_slices"} & set(recipe.takes)
        and (_has_experts(model) or not _has_pairs(name))
    ]
    return tuple(sorted(names, key=lambda name: "vpp" in schedules()[name].takes))


def _has_experts(model: Model) -> bool:
    """Whether a token is exchanged with experts."""
    return getattr(model, "num_experts", 1) > 1


@cache
def _has_pairs(schedule: str) -> bool:
    """Whether the rows of a schedule overlap forwards with backwards."""
    vpp = recipe_of(schedule).chunks
    return bool(build(Plan(schedule=schedule, pp=4, vpp=vpp, num_microbatches=16)).paired.any())
