"""The schedules: one file each, found by being here.

A schedule is a function to compute-only rows. It takes what it needs by name: fields of the Plan
(`pp`, `num_microbatches`, `vpp` if it cuts a rank's layers into chunks, `activation_limit`), and,
if it is made for given times, `costs` and `transfer`. `@register` names it; the command, the search
and the tests pick it up.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeVar

from simulator.costs import Costs, uniform
from simulator.job import Plan
from simulator.schedule import Schedule
from simulator.staleness import Weights

__all__ = ["Recipe", "build", "recipe_of", "register", "schedules"]

Generator = TypeVar("Generator", bound=Callable[..., Schedule])

OPTIONAL = {  # what a plan may ask for, and its default
    "vpp": 1,
    "activation_limit": None,
    "microbatch_group_size": None,
    "num_slices": None,
}


@dataclass(frozen=True)
class Recipe:
    """A schedule's function, and the chunks on a rank that it is usually run with."""

    generator: Callable[..., Schedule]
    chunks: int = 1  # [1]
    weights: Weights | None = None  # which version an asynchronous schedule trains on

    @cached_property
    def takes(self) -> tuple[str, ...]:
        """Names of what the function takes."""
        return tuple(inspect.signature(self.generator).parameters)


_REGISTRY: dict[str, Recipe] = {}


def register(
    name: str, *, chunks: int = 1, weights: Weights | None = None
) -> Callable[[Generator], Generator]:
    """Name a schedule; `chunks` is the `vpp` that shows it best.

    An asynchronous schedule's rows hold OPTIMIZER ops and several iterations; `weights` says which
    version of them an op reads.
    """

    def add(generator: Generator) -> Generator:
        assert name not in _REGISTRY, f"two schedules are named {name}"
        _REGISTRY[name] = Recipe(generator, chunks, weights)
        return generator

    return add


@cache
def schedules() -> dict[str, Recipe]:
    """Every schedule in this folder, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def recipe_of(name: str) -> Recipe:
    """A schedule's recipe.

    Raises:
        ValueError: the name is unknown; says the nearest.
    """
    known = schedules()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"plan.schedule is {name!r}, which is unknown; {hint}use one of {', '.join(known)}"
        )
    return known[name]


def build(plan: Plan, costs: Costs | None = None, transfer: float = 0.0) -> Schedule:
    """Compute-only rows of a plan's schedule.

    Args:
        plan: the schedule's name and sizes.
        costs: for schedules made for given times; equal stages, F = I = W, when left out.
        transfer: time of one message between neighbouring stages, likewise. [s]

    Raises:
        ValueError: the name is unknown, or the schedule does not do what the plan asks.
    """
    if plan.rows is not None:
        return _custom(plan)
    known, recipe = schedules(), recipe_of(plan.schedule)
    for name, default in OPTIONAL.items():
        if getattr(plan, name) != default and name not in recipe.takes:
            takers = " or ".join(other for other, r in known.items() if name in r.takes)
            instead = f", or use schedule {takers}" if takers else ""
            raise ValueError(
                f"plan.{name} is {getattr(plan, name)}, but schedule {plan.schedule} takes no "
                f"{name}; leave it out{instead}"
            )
    given = {"costs": costs or uniform(plan.num_stages, 1.0, 2.0), "transfer": transfer}
    return recipe.generator(
        **{name: given[name] if name in given else getattr(plan, name) for name in recipe.takes}
    )


def _custom(plan: Plan) -> Schedule:
    """The rows that the user wrote, if they are the plan's size."""
    assert plan.rows is not None
    schedule = Schedule.parse(plan.rows)
    found = (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches)
    asked = (plan.pp, plan.num_stages, plan.num_microbatches)
    if found != asked:
        raise ValueError(
            "plan.rows has pp = {}, pp x vpp = {} and num_microbatches = {}, but the plan asks for "
            "{}, {} and {}; set them to what the rows have".format(*found, *asked)
        )
    return schedule
