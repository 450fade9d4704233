"""Dotted assignments, `plan.pp=16` or `cluster.inter_node.bandwidth=2x`: one value of a job each.

They are laid over a job's raw tables, after its file and its options, in the order in which they
stand. A number may be relative to the present one; counts stay whole.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from simulator.errors import shown, unknown
from simulator.job import Job, Plan

__all__ = ["Assignment", "assigned", "read_assignments"]

Table = dict[str, Any]

NOTHING = ("null", "none")
TIMES = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)x")
PERCENT = re.compile(r"([+-](?:\d+\.?\d*|\.\d+))%")
PRESETS = ("model", "cluster", "cluster.gpu")  # tables that a name can stand for
RIVALS = {  # one follows from the other
    "plan.num_microbatches": "plan.global_batch_size",
    "plan.global_batch_size": "plan.num_microbatches",
    "plan.dp": "gpus",
    "gpus": "plan.dp",
}


class Assignment(NamedTuple):
    """One `PATH=VALUE`."""

    path: str
    text: str

    @property
    def keys(self) -> list[str]:
        """The words of the path."""
        return self.path.split(".")


class Place(NamedTuple):
    """Where a path leads: the field and what the value types say of it."""

    kind: Any  # its type
    optional: bool  # it may be left out


def read_assignments(texts: Sequence[str]) -> tuple[Assignment, ...]:
    """Parse `PATH=VALUE` words.

    Raises:
        ValueError: a word has no `=`, a path is unknown, or two of them contradict each other.

    >>> read_assignments(["plan.pp=16", "cluster.inter_node.bandwidth=2x"])[1].text
    '2x'
    """
    found: dict[str, Assignment] = {}
    for text in texts:
        path, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not path or not value:
            raise ValueError(
                f"--set {text} is no assignment; write PATH=VALUE, as in plan.pp=16 or "
                "cluster.inter_node.bandwidth=2x"
            )
        one = Assignment(path, value)
        _place(one)
        if path in found and (found[path] != one or _factor(value) is not None):
            raise ValueError(
                f"{path} is set twice, to {found[path].text} and to {value}; set it once"
            )
        for inner in found:
            if inner.startswith(f"{path}."):
                raise ValueError(
                    f"{path} is set after {inner}, which it would undo; set {path} first"
                )
        found[path] = one
    return tuple(found.values())


def assigned(
    raw: Table, one: Assignment, before: Sequence[str], resolve: Callable[[], Job]
) -> Table:
    """Raw tables with one value assigned. What the value takes the place of goes.

    Args:
        raw: the job's tables; `model`, `cluster` and `cluster.gpu` are tables, not names.
        one: what to assign.
        before: paths that were assigned before; they are not undone.
        resolve: the job of the tables, to look up what they do not state.

    Raises:
        ValueError: the value does not go there.
    """
    place, keys = _place(one), one.keys
    table: Table = dict(raw)
    rival = RIVALS.get(one.path)
    if rival is not None and rival not in before:
        _remove(table, rival.split("."))
    if one.path == "gpus" and "cluster.num_nodes" not in before:
        _remove(table, ["cluster", "num_nodes"])
    inner = table
    for key in keys[:-1]:
        inner[key] = inner = dict(inner.get(key, {}))
    if one.text.lower() in NOTHING and one.text not in _choices(place.kind):
        if not place.optional:
            raise ValueError(f"{one.path} cannot be removed; give it a value")
        inner.pop(keys[-1], None)
        return table
    inner[keys[-1]] = _value(one, place, raw, resolve)
    return table


def _value(one: Assignment, place: Place, raw: Table, resolve: Callable[[], Job]) -> object:
    """What an assignment's text means."""
    if _is_table(place.kind):
        if one.path in PRESETS and _factor(one.text) is None:
            name = one.text.strip("\"'")
            is_path = "/" in name or name.endswith((".toml", ".json"))
            return name if is_path else name.replace("_", "-")
        example = _example(place.kind)
        raise ValueError(
            f"{one.path} is a table; set one of its values, as in {one.path}.{example}"
        )
    factor = _factor(one.text)
    if factor is None:
        return _literal(one.text)
    now = _present(one, raw, resolve)
    if isinstance(now, bool) or not isinstance(now, int | float):
        raise ValueError(
            f"{one.path} is {'not set' if now is None else shown(now)}, so that {one.text} of it "
            "means nothing; give the value itself"
        )
    if place.kind is not int:
        return float(now) * float(factor)
    exact = Fraction(now) * factor
    if exact.denominator != 1:
        raise ValueError(
            f"{one.path} is {now}, and {one.text} of it is {float(exact):g}; it must be a whole "
            "number; give the number itself"
        )
    return int(exact)


def _factor(text: str) -> Fraction | None:
    """What a relative value multiplies the present one by, or None.

    >>> _factor("2x"), _factor("-10%"), _factor("16")
    (Fraction(2, 1), Fraction(9, 10), None)
    """
    if times := TIMES.fullmatch(text):
        return Fraction(times[1])
    if percent := PERCENT.fullmatch(text):
        return 1 + Fraction(percent[1]) / 100
    return None


def _literal(text: str) -> object:
    """A TOML value; what is none is text.

    >>> _literal("1e9"), _literal("[6, 7]"), _literal("1f1b"), _literal("true")
    (1000000000.0, [6, 7], '1f1b', True)
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _present(one: Assignment, raw: Table, resolve: Callable[[], Job]) -> object:
    """The value that a path has now: stated, or resolved."""
    value: Any = raw
    for key in one.keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is not None:
        return value
    job: Any = resolve()
    if one.path == "gpus":
        return job.plan.num_gpus
    for key in one.keys:
        value = job if value is None else value
        if isinstance(value, Mapping):
            given = {str(name): item for name, item in value.items()}
            return given.get(key, 1.0 if one.path.startswith("cluster.stragglers.") else None)
        value = getattr(value, key)
        if value is None:
            return None
    return value


def _place(one: Assignment) -> Place:
    """Where a path leads.

    Raises:
        ValueError: nowhere; names the nearest.
    """
    place = Place(Job, False)
    for at, key in enumerate(one.keys):
        so_far = ".".join(one.keys[: at + 1])
        kind = place.kind
        if get_origin(kind) is dict:
            place = Place(_bare(get_args(kind)[1]), True)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            extra = {Job: ("gpus",), Plan: ("global_batch_size",)}.get(kind, ())
            if key in extra:
                place = Place(int, True)
            elif key in kind.model_fields:
                field = kind.model_fields[key]
                place = Place(_bare(field.annotation), not field.is_required())
            elif at == 0 and key in Plan.model_fields | {"global_batch_size": None}:
                raise ValueError(
                    f"{one.path} is not a value of a job; did you mean plan.{one.path}?"
                )
            else:
                raise ValueError(unknown("value of a job", so_far, (*kind.model_fields, *extra)))
        else:
            above = so_far.rpartition(".")[0]
            raise ValueError(f"{one.path} leads nowhere: {above} is no table; set {above} itself")
    return place


def _bare(annotation: Any) -> Any:  # noqa: ANN401 - any type
    """A type without its rules and without None."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    parts = get_args(annotation)
    if NoneType in parts:
        return _bare(next(part for part in parts if part is not NoneType))
    return annotation


def _is_table(kind: Any) -> bool:  # noqa: ANN401 - any type
    return get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel))


def _choices(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any type
    return get_args(kind) if get_origin(kind) is Literal else ()


def _example(kind: Any) -> str:  # noqa: ANN401 - any type
    """A value inside a table."""
    if get_origin(kind) is dict:
        return "0=1.2" if get_args(kind)[0] is int else "bf16=2x"
    numbers = [name for name, f in kind.model_fields.items() if _bare(f.annotation) in (int, float)]
    return f"{numbers[0]}=2x"


def _remove(table: Table, keys: Sequence[str]) -> None:
    """Remove a value from nested tables, leaving the ones that were given as they are."""
    *outer, last = keys
    for key in outer:
        if not isinstance(table.get(key), Mapping):
            return
        table[key] = table = dict(table[key])
    table.pop(last, None)
