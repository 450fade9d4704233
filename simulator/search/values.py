"""Every value that a knob could take, for a model on a cluster."""

from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Literal, get_args

from simulator.frameworks import load_framework
from simulator.job import Job, Model, Plan
from simulator.schedules import build, recipe_of, schedules

__all__ = ["Recompute", "Split", "all_values", "has_use", "plan_table"]

Recompute = Literal["none", "selective", "alternate", "full"]
Split = Literal["even", "balanced"]

MOST_SEQUENCES = 32  # in a microbatch, unless asked for [1]
MOST_NODES = 4  # of a tensor- or context-parallel group, unless asked for [1]


def all_values(job: Job, batch: int, gpus: int) -> dict[str, tuple[Any, ...]]:
    """Every value that a plan for this model on this cluster could take."""
    model, cluster = job.model, job.cluster
    group = min(model.num_key_value_heads, MOST_NODES * cluster.gpus_per_node)
    layers = model.num_hidden_layers
    alternate = load_framework(job.plan.framework).selective == "alternate"
    table: dict[str, tuple[Any, ...]] = {
        "tp": _divisors(gpus, group),
        "pp": _divisors(gpus, layers),
        "vpp": _divisors(layers, layers),
        "cp": _divisors(gpus, min(MOST_NODES * cluster.gpus_per_node, model.seq_len)),
        "ep": _divisors(model.num_experts, gpus),
        "etp": (None, 1) if model.is_sparse else (None,),
        "micro_batch_size": _divisors(batch, MOST_SEQUENCES),
        "schedule": _synchronous(model),
        "recompute": tuple(one for one in get_args(Recompute) if one != "alternate" or alternate),
        "zero_stage": tuple(range(4)),
        "sequence_parallel": (False, True),
        "layer_split": get_args(Split),
    }
    for name in ("cp", "ep", "recompute", "zero_stage"):
        table[name] = tuple(value for value in table[name] if _is_taken(job.plan, name, value))
    return table


def _is_taken(plan: Plan, name: str, value: object) -> bool:
    """Whether a plan may have this value, as far as the plan alone says."""
    table = plan_table(plan) | {name: value}
    if table["recompute"] != "selective":
        table["recompute_modules"] = None
    with suppress(ValueError):
        Plan.model_validate(table)
        return True
    return False


def _divisors(total: int, most: int) -> tuple[int, ...]:
    """Divisors up to a limit, in order.

    >>> _divisors(12, 6)
    (1, 2, 3, 4, 6)
    """
    return tuple(d for d in range(1, min(total, most) + 1) if total % d == 0)


def _synchronous(model: Model) -> tuple[str, ...]:
    """Schedules of one step with whole sequences whose rows plans can share, the plainest first.

    Of equal rows the first schedule's name counts, as 1f1b's for interleaved with one chunk. Rows
    made for given times take seconds a plan, so that only those who ask for them get them.
    """
    names = [
        name
        for name, recipe in schedules().items()
        if recipe.weights is None
        and not {"costs", "num_slices"} & set(recipe.takes)
        and has_use(name, model)
    ]
    return tuple(sorted(names, key=lambda name: "vpp" in schedules()[name].takes))


def has_use(schedule: str, model: Model) -> bool:
    """Whether a schedule is one to try for a model.

    Pairs of a forward and a backward hide the exchanges of experts: no framework overlaps pairs of
    a dense model.
    """
    return model.num_experts > 1 or not _has_pairs(schedule)


@cache
def _has_pairs(schedule: str) -> bool:
    """Whether the rows of a schedule overlap forwards with backwards."""
    vpp = recipe_of(schedule).chunks
    return bool(build(Plan(schedule=schedule, pp=4, vpp=vpp, num_microbatches=16)).paired.any())


@lru_cache(maxsize=8)
def plan_table(plan: Plan) -> dict[str, Any]:
    """The plan's fields without the layers on its stages, which the search sets."""
    return {name: getattr(plan, name) for name in Plan.model_fields if name != "layers_per_stage"}
