"""What every value that a user writes is checked by: ranges, and sizes that divide."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = [
    "AtLeastOne",
    "Count",
    "NotNegative",
    "Positive",
    "Share",
    "Value",
    "Whole",
    "require_divides",
]


def _not_bool(value: object) -> object:
    """Refuse true and false where a number is asked for; Python would count them as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("not_bool", "it must be a number")
    return value


Whole = Annotated[int, Field(ge=0, le=10**12), BeforeValidator(_not_bool)]
Count = Annotated[int, Field(ge=1, le=10**12), BeforeValidator(_not_bool)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_not_bool)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_not_bool)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False), BeforeValidator(_not_bool)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), BeforeValidator(_not_bool)]


class Value(BaseModel):
    """A frozen, hashable value that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


def require_divides(what: str, total: int, by: str, divisor: int, otherwise: str = "") -> None:
    """Raise the one error of sizes that do not divide, with the values that do."""
    if total % divisor:
        fits = [d for d in range(1, min(total, 4096) + 1) if total % d == 0]
        near = sorted(sorted(fits, key=lambda d: abs(d - divisor))[:8])
        raise ValueError(
            f"{by} is {divisor}, but it must divide {what} = {total}; "
            f"use one of {', '.join(map(str, near))}{otherwise}"
        )
