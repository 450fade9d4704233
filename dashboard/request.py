"""What the controls of a page send, turned into its state: every value checked or refused."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from dashboard.exploration import ExploreState
from simulator.errors import shown, validated
from simulator.job import Plan

__all__ = ["plan_of", "state_of"]


def state_of(request: Any) -> ExploreState:  # noqa: ANN401 - what a browser sends
    """The state that a request describes.

    Raises:
        ValueError: it is no request, or a value outside the plan is wrong.
    """
    if not isinstance(request, Mapping):
        raise ValueError("the request is not the page's own; reload the page")
    names = set(ExploreState.model_fields) - {"plan"}
    table = {k: v for k, v in request.items() if k in names and v not in (None, "")}
    table["model"] = request.get("model") or ""
    table["plan"] = plan_of(request.get("fields"))
    for name in ("tokens", "price", "seq_len"):
        if name in request and request[name] in (None, "") and name != "seq_len":
            raise ValueError(f"{name} is empty; give a number")
    return validated(ExploreState, table, "")


def plan_of(fields: Any) -> dict[str, Any]:  # noqa: ANN401 - what a browser sends
    """The fields of the plan that differ from their defaults, in the plan's order."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"the plan is {shown(fields)}; it must be a table of fields")
    plan = {}
    for name, field in Plan.model_fields.items():
        if name in fields:
            value = _typed(name, fields[name])
            if value is not None and value != field.default:
                plan[name] = value
    return plan


def _typed(name: str, value: Any) -> Any:  # noqa: ANN401 - what a browser sends
    """A control's value as the field's type where it is one; else as it is, to be refused."""
    kind = Plan.model_fields[name].annotation
    if value is None or value == "":
        return None
    if get_origin(kind) is Literal:
        return {str(option): option for option in get_args(kind)}.get(str(value), value)
    if name == "layers_per_stage" and isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        return tuple(int(p) for p in parts) if all(p.isdecimal() for p in parts) else value
    return value
