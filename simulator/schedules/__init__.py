"""The schedules: one file each, found by being here.

A schedule is a function from `pp`, `num_microbatches` and, if it cuts a rank's layers into chunks,
`vpp` to compute-only rows. `@register` names it; the command, the search and the tests pick it up.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import TypeVar

from simulator.job import Plan
from simulator.schedule import Schedule

__all__ = ["build", "register", "schedules"]

Generator = TypeVar("Generator", bound=Callable[..., Schedule])

_REGISTRY: dict[str, Callable[..., Schedule]] = {}


def register(name: str) -> Callable[[Generator], Generator]:
    """Name a schedule."""

    def add(generator: Generator) -> Generator:
        assert name not in _REGISTRY, f"two schedules are named {name}"
        _REGISTRY[name] = generator
        return generator

    return add


def schedules() -> dict[str, Callable[..., Schedule]]:
    """Every schedule in this folder, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def build(plan: Plan) -> Schedule:
    """Compute-only rows of a plan's schedule.

    Raises:
        ValueError: the name is unknown, or the schedule does not do what the plan asks.
    """
    if plan.rows is not None:
        return _custom(plan)
    known = schedules()
    if plan.schedule not in known:
        near = difflib.get_close_matches(plan.schedule, known, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"plan.schedule is {plan.schedule!r}, which is unknown; {hint}"
            f"use one of {', '.join(known)}"
        )
    generator = known[plan.schedule]
    wanted = {name: getattr(plan, name) for name in inspect.signature(generator).parameters}
    if plan.vpp > 1 and "vpp" not in wanted:
        chunked = [name for name, g in known.items() if "vpp" in inspect.signature(g).parameters]
        raise ValueError(
            f"plan.vpp is {plan.vpp}, but schedule {plan.schedule} has one chunk a rank; "
            f"use vpp = 1, or schedule {' or '.join(chunked)}"
        )
    return generator(**wanted)


def _custom(plan: Plan) -> Schedule:
    """The rows that the user wrote, if they are the plan's size."""
    assert plan.rows is not None
    schedule = Schedule.parse(plan.rows)
    found = (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches)
    asked = (plan.pp, plan.num_stages, plan.num_microbatches)
    if found != asked:
        raise ValueError(
            "plan.rows has {} ranks, {} stages and {} microbatches, but the plan asks for {}, {} "
            "and {}; set pp, vpp and num_microbatches to what the rows have".format(*found, *asked)
        )
    return schedule
