"""Turns what pydantic refuses into one sentence: the field, its value, the rule, the way out."""

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

__all__ = ["shown", "unknown", "validated"]

V = TypeVar("V", bound=BaseModel)

# Keys that a file may use although the value does not hold them: they are resolved on reading.
CONVENIENCES = {
    "plan": ("global_batch_size",),
    "model": ("preset",),
    "cluster": ("preset",),
    "cluster.gpu": ("preset",),
}
NUMBER = ("it must be a number", "write it without quotes, such as 2.5e9")
WHOLE = ("it must be a whole number", "write it without quotes and point, such as 8")
SWITCH = ("it must be true or false", "write true or false")
LIST = ("it must be a list", "write it in brackets, such as [6, 7, 7, 6]")
TABLE = ("it must be a table", "write its fields under [{name}]")
RULES = {
    "greater_than_equal": ("it must be at least {ge:g}", "use {ge:g} or more"),
    "greater_than": ("it must be more than {gt:g}", "use a positive number"),
    "less_than_equal": ("it must be at most {le:g}", "use {le:g} or less"),
    "finite_number": ("it must be a finite number", "write an ordinary number, such as 8"),
    "literal_error": ("it must be {expected}", "use one of these"),
    "string_type": ("it must be text", "write it in quotes"),
    "not_bool": NUMBER,
    "float_parsing": NUMBER,
    "float_type": NUMBER,
    "int_parsing": WHOLE,
    "int_parsing_size": WHOLE,
    "int_type": WHOLE,
    "int_from_float": WHOLE,
    "bool_parsing": SWITCH,
    "bool_type": SWITCH,
    "tuple_type": LIST,
    "list_type": LIST,
    "dict_type": TABLE,
    "model_type": TABLE,
    "model_attributes_type": TABLE,
}


def validated(kind: type[V], table: Mapping[str, Any], path: str = "") -> V:
    """The value that a table describes; `path` is what the table is called in messages."""
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        more = f" (and {len(others)} more)" if others else ""
        raise ValueError(_sentence(first, kind, path) + more) from None


def unknown(what: str, name: str, legal: Iterable[str]) -> str:
    """The sentence for a dotted name whose last word is none of the legal ones, and the nearest.

    >>> unknown("key", "plan.tpp", ["pp", "tp", "dtype"])
    'plan.tpp is not a known key; did you mean plan.tp or plan.pp?'
    """
    parent, dot, key = name.rpartition(".")
    near = get_close_matches(key, legal := sorted(legal), 2, 0.6)
    dotted = [f"{parent}{dot}{one}" for one in near]
    hint = f"did you mean {' or '.join(dotted)}?" if near else f"use one of {', '.join(legal)}"
    return f"{name} is not a known {what}; {hint}"


def shown(value: object) -> str:
    """A value as TOML writes it, cut to one line."""
    if isinstance(value, bool):
        return str(value).lower()
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _sentence(error: ErrorDetails, kind: type[BaseModel], path: str) -> str:
    """One sentence for one of pydantic's errors."""
    loc = [str(part) for part in error["loc"]]
    name = ".".join([path, *loc] if path else loc)
    owner, field = _locate(kind, loc)
    description = f" ({field.description})" if field is not None and field.description else ""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return f"{name} is missing{description}; add it"
    if error["type"] == "extra_forbidden":
        parent = name.rpartition(".")[0]
        legal = (*owner.model_fields, *CONVENIENCES.get(parent, ()))
        return unknown("key", name, legal)
    if loc[-1:] == ["[key]"]:
        name = f"a key of {name.removesuffix('.[key]').rpartition('.')[0]}"
    said = f"{name} is {shown(error['input'])}{description}"
    if error["type"] not in RULES:
        return f"{said}; {error['msg']}; correct it"
    context = {"name": name, **error.get("ctx", {})}
    rule, way_out = (text.format(**context) for text in RULES[error["type"]])
    return f"{said}; {rule}; {way_out}"


def _locate(kind: type[BaseModel], loc: list[str]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The value type that holds a location, and the field there, if it is one."""
    field = None
    for part in loc:
        inner = field.annotation if field is not None else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            kind = inner
        field = kind.model_fields.get(part, field)
    return kind, field
