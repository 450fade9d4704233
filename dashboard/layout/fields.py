"""A control for each field of the plan, made of the field itself: its words, its type, its range.

A field that is added to `Plan` gets its control here without an edit.
"""

from typing import Any, Literal, get_args, get_origin

import dash_mantine_components as dmc
from dash import html
from pydantic.fields import FieldInfo

from dashboard.choice import Choice
from simulator.job import Plan
from simulator.schedules import schedules

__all__ = ["GROUPS", "LADDERS", "field_id", "groups", "plan_fields", "slider_id"]

POWERS = [1, 2, 4, 8, 16, 32, 64, 128]
LADDERS: dict[str, list[int]] = {  # what a slider steps over; the box beside it takes any number
    "pp": [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 35, 40, 48, 64, 96, 128],
    "tp": [1, 2, 4, 8, 16, 32],
    "dp": [*POWERS, 256],
    "vpp": [1, 2, 3, 4, 5, 6, 8, 10, 12, 16],
    "num_microbatches": [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024],
    "micro_batch_size": [1, 2, 4, 8, 16, 32],
}
TEXTS = {"layers_per_stage": "even", "recompute_modules": "core_attn"}  # what stands there if empty
GROUPS: dict[str, tuple[str, ...]] = {  # what is not named stands under "More"
    "Pipeline": ("schedule", "pp", "vpp", "num_microbatches", "micro_batch_size"),
    "Tensor and data parallelism": ("tp", "dp", "sequence_parallel", "zero_stage"),
    "Memory and kernels": ("recompute", "attention", "activation_limit"),
}


def field_id(name: str) -> dict[str, str]:
    """The control of a field."""
    return {"explore": "field", "name": name}


def slider_id(name: str) -> dict[str, str]:
    """The slider beside it."""
    return {"explore": "slider", "name": name}


def groups() -> dict[str, tuple[str, ...]]:
    """The plan's fields by heading."""
    named = {name for names in GROUPS.values() for name in names}
    return GROUPS | {"More": tuple(n for n in Plan.model_fields if n not in named)}


def plan_fields(choice: Choice, names: tuple[str, ...]) -> list[Any]:
    """The controls of some fields, showing what was chosen."""
    return [_control(name, Plan.model_fields[name], choice.plan.get(name)) for name in names]


def _control(name: str, field: FieldInfo, given: Any) -> Any:  # noqa: ANN401 - pydantic's values
    value = field.default if given is None else given
    kind = field.annotation
    about = {"label": name, "description": field.description, "size": "xs"}
    options = _options(kind)
    if name == "schedule":
        names = [*schedules(), "custom"]
        extra = [] if value in names else [str(value)]
        return dmc.Select(
            id=field_id(name), data=names + extra, value=value, searchable=True,
            allowDeselect=False, **about,
        )  # fmt: skip
    if kind is bool:
        return dmc.Switch(
            id=field_id(name), checked=value is True, label=name, description=field.description,
            size="xs", labelPosition="left", className="switch-field",
        )  # fmt: skip
    if options:
        data = [str(option) for option in options]
        extra = [] if str(value) in data else [str(value)]
        return dmc.Select(
            id=field_id(name), data=data + extra, value=str(value), allowDeselect=False, **about
        )
    if name in LADDERS:
        return _slid(name, field, value)
    if name == "rows":
        return dmc.Textarea(
            id=field_id(name), value=value or "", autosize=True, minRows=2, maxRows=8,
            debounce=500, placeholder="0F0,0F1,0B0,0B1", **about,
        )  # fmt: skip
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    if name in TEXTS:
        return dmc.TextInput(
            id=field_id(name), value=str(value or ""), debounce=500, placeholder=TEXTS[name],
            **about,
        )  # fmt: skip
    return dmc.NumberInput(
        id=field_id(name), value="" if value is None else value, clampBehavior="none",
        debounce=300, **about,
    )  # fmt: skip


def _slid(name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ANN401 - pydantic's values
    """A slider over usual values, and a box for any number."""
    ladder = LADDERS[name]
    number = value if isinstance(value, (int, float)) else ladder[0]
    near = min(range(len(ladder)), key=lambda i: abs(ladder[i] - number))
    box = dmc.NumberInput(
        id=field_id(name),
        value=value,
        label=name,
        description=field.description,
        size="xs",
        clampBehavior="none",
        debounce=250,
        className="number-field",
        inputWrapperOrder=["label", "input", "description", "error"],
    )
    slider = dmc.Slider(
        id=slider_id(name),
        value=near,
        min=0,
        max=len(ladder) - 1,
        step=1,
        label=None,
        updatemode="drag",
        size="sm",
        thumbSize=14,
        thumbLabel=f"{name}: {field.description}",
    )
    return html.Div([box, slider], className="slid-field")


def _options(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any annotation
    """The values of a Literal."""
    return get_args(kind) if get_origin(kind) is Literal else ()
