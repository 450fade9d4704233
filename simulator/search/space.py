"""The space of plans: which values each knob may take, and the job at each point.

A point is a number: the knobs' values in mixed radix, the last knob fastest. Neighbours share their
layers' costs and their cluster's routes, and whole runs of illegal points share one reason.
"""

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Literal

from pydantic import Field

from simulator.checks import Count, Value
from simulator.errors import shown, unknown, validated
from simulator.job import Job, Plan
from simulator.planners.balanced import balanced_layers
from simulator.schedules import build, recipe_of
from simulator.search.values import Recompute, Split, all_values, plan_table

__all__ = [
    "KNOBS",
    "Space",
    "check_chunks",
    "check_experts",
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

KNOBS = (
    "tp",
    "cp",
    "ep",
    "etp",
    "sequence_parallel",
    "recompute",
    "micro_batch_size",
    "pp",
    "zero_stage",
    "vpp",
    "layer_split",
    "schedule",
)


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
    etp: tuple[Count | None, ...] = Field(
        (None,), min_length=1, description="tensor-parallel sizes of experts; None as tp [1]"
    )
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
    takes part that cuts no sequences and is not made for given times. A value that `Plan` refuses
    whatever the rest of the plan is left out.

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
    for name, value in (("global_batch_size", batch), ("num_gpus", gpus)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{name} is {shown(value)}; it must be a whole number of at least 1; write it "
                "without quotes, such as 8"
            )
    if gpus > job.cluster.num_gpus:
        nodes = -(-gpus // job.cluster.gpus_per_node)
        raise ValueError(
            f"num_gpus is {gpus}, but {job.cluster.name} has {job.cluster.num_gpus}; use at least "
            f"num_nodes = {nodes}"
        )
    given = {name: _values(name, value) for name, value in knobs.items()}
    table: dict[str, Any] = all_values(job, batch, gpus) | given
    table |= {"job": job, "global_batch_size": batch, "num_gpus": gpus}
    try:
        space = validated(Space, table)
    except ValueError as error:  # "tp.0 is ..." is about tp
        raise ValueError(re.sub(r"^(\w+)\.\d+ is ", r"\1 is ", str(error))) from None
    for name in space.schedule:
        recipe_of(name)
    slow = job.cluster.stragglers
    if slow and len(space.pp) > 1:
        raise ValueError(
            f"cluster.stragglers names pipeline rank {min(slow)}, which is another part of the "
            "cluster at every pp, so that pipelines of several lengths cannot be compared; search "
            "one pp, or leave the stragglers out"
        )
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
    check_chunks(values)
    check_experts(space, values)
    return with_plan(space.job, {**values, "dp": dp, "num_microbatches": count})


def check_chunks(values: Mapping[str, Any]) -> None:
    """Raise where a model is cut into chunks although no pipeline runs them in turn.

    Source: NVIDIA/Megatron-LM, validate_args: interleaving needs several pipeline stages.
    """
    if values["vpp"] > 1 and values["pp"] == 1:
        raise ValueError(
            f"plan.vpp is {values['vpp']}, but chunks need a pipeline, plan.pp of 2 or more; use "
            "vpp = 1"
        )


def check_experts(space: Space, values: Mapping[str, Any]) -> None:
    """Raise where experts split as the rest of a layer are another point already."""
    if None in space.etp and values["etp"] == values["tp"]:
        raise ValueError(
            f"plan.etp is {values['etp']}, but plan.tp is the same, as when etp is left out; leave "
            "it out"
        )


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
    plan = validated(Plan, _of_effect(table), "plan")
    return validated(
        Job, {"name": job.name, "model": job.model, "cluster": job.cluster, "plan": plan}
    )


def _of_effect(table: dict[str, Any]) -> dict[str, Any]:
    """A plan's fields; options of all plans that could have no effect here are as when left out."""
    needed = {
        "scatter_gather": table["tp"] > 1 and not table["sequence_parallel"],
        "overlap_grad_reduce": table["dp"] * table["cp"] > 1 or table["offload"] != "none",
        "overlap_param_gather": table["zero_stage"] in (1, 2),
        "reshard_after_forward": table["zero_stage"] == 3,
        "shard_size": table["zero_stage"] > 0,
        "cp_comm": table["cp"] > 1,
        "recompute_modules": table["recompute"] == "selective",
    }
    idle = (name for name, has_use in needed.items() if not has_use)
    return table | {name: Plan.model_fields[name].default for name in idle}


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


def _values(name: str, value: object) -> tuple[object, ...]:
    """A knob's values, each once, in the order given."""
    many = value if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    found = tuple(dict.fromkeys(many))
    if not found:
        raise ValueError(f"{name} has no values; give at least one, or leave it out")
    return found
