"""Which field an error is about, and which of its values would work: tried, not guessed."""

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from dashboard.choice import Choice, job_of
from dashboard.limits import require_work
from simulator.job import Plan
from simulator.load import preset_names
from simulator.schedules import build, recipe_of, schedules

__all__ = ["Problem", "fields_of", "problem_of", "working_values"]

NAMES = ("model", "cluster", "seq_len")
PLAIN = {name: name for name in ("pp", "vpp", "tp", "dp", "cp", "ep")}  # named without `plan.`
PLAIN |= {"microbatches": "num_microbatches"}
MOST_FIELDS, MOST_VALUES = 4, 12
TRIED: dict[str, tuple[int, ...]] = {
    "tp": (1, 2, 4, 8, 16, 32),
    "dp": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "vpp": tuple(range(1, 17)),
    "num_microbatches": (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512),
    "pp": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128),
}
USUAL = (1, 2, 4, 8, 16, 32, 64)


class Problem(NamedTuple):
    """What is wrong, where, and what would be right."""

    message: str
    works: dict[str, tuple[Any, ...]]  # by field: values with which the job is legal, maybe none


def problem_of(error: ValueError, choice: Choice) -> Problem:
    """The fields that an error names, each with the values that work."""
    message = str(error)
    return Problem(
        message,
        {name: working_values(choice, name) for name in fields_of(message)[:MOST_FIELDS]},
    )


def fields_of(message: str) -> tuple[str, ...]:
    """Fields that a message is about, in its order.

    >>> fields_of("plan.tp is 3, but it must divide model.num_attention_heads = 96")
    ('tp',)
    >>> fields_of("the plan uses pp x tp x cp x dp = 64 GPUs, but it has 8")
    ('pp', 'tp', 'cp', 'dp')
    """
    what = message.partition(";")[0]
    named = [n for n in re.findall(r"plan\.(\w+)", what) if n in Plan.model_fields]
    if not named:
        words = re.findall(r"\w+", what)
        dashed = {w: w for w in words if "_" in w and w in Plan.model_fields}
        named = [(PLAIN | dashed)[w] for w in words if w in PLAIN or w in dashed]
    first = re.match(r"(?:address\.)?(model|cluster|seq_len)\b", what)
    if first and not named:
        named = [first[1]]
    return tuple(dict.fromkeys(named))


def working_values(choice: Choice, name: str) -> tuple[Any, ...]:
    """The values of a field with which, all else as it is, the job is legal."""
    return tuple(v for v in _candidates(name) if _is_legal(_with(choice, name, v)))[:MOST_VALUES]


def _candidates(name: str) -> Iterator[Any]:
    if name in NAMES:
        folders: dict[str, Any] = {"model": "models", "cluster": "clusters"}
        yield from preset_names(folders[name]) if name in folders else ()
        return
    kind = Plan.model_fields[name].annotation
    if name == "schedule":
        yield from schedules()
    elif kind is bool:
        yield from (True, False)
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    elif name in TRIED or kind is int or "Count" in str(kind) or "int" in str(kind):
        yield from TRIED.get(name, USUAL)
    if Plan.model_fields[name].default is None:
        yield None


def _with(choice: Choice, name: str, value: Any) -> Choice:  # noqa: ANN401 - of any field
    if name in NAMES:
        return choice.model_copy(update={name: value})
    return choice.model_copy(update={"plan": {**choice.plan, name: value}})


def _is_legal(choice: Choice) -> bool:
    """Whether the job is legal and its rows can be made; rows that are solved for are not tried."""
    try:
        plan = job_of(choice).plan
        require_work(plan)
        if plan.rows is None and "costs" not in recipe_of(plan.schedule).takes:
            build(plan)
    except ValueError:
        return False
    return True
