"""What each kind of record that a rank writes holds; a file of others' making is checked by it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from simulator.schedule import Kind
from validator.session import Session

__all__ = ["check"]

Place = Annotated[int, Field(ge=0)]
Kinds = Annotated[int, Field(ge=0, lt=len(Kind))]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Timed = tuple[Kinds, Place, int, Finite, Finite, Finite | None]  # begin, end, own [s]
Counted = tuple[Kinds, Place, int, Finite, Finite, Finite]  # before, most, after [bytes]
Spread = tuple[Seconds, Seconds, Seconds, Place]


class Record(BaseModel):
    """One line of a rank; what else it says is let through."""

    model_config = ConfigDict(extra="allow")
    part: str
    rank: Place


class _Said(Record):
    part: Literal["about", "note", "done"]


class _Error(Record):
    part: Literal["error"]
    op: str
    text: str
    when: Finite


class _Verdict(BaseModel):
    model_config = ConfigDict(extra="allow")
    part: Literal["verdict"]
    rank: Place | None
    text: str


class _Offset(Record):
    part: Literal["offset"]
    peer: Place
    round: Place = 0
    seconds: Finite
    residual: Seconds


class _Link(Record):
    part: Literal["link"]
    source: Place
    target: Place
    samples: list[
        tuple[
            Annotated[float, Field(gt=0, allow_inf_nan=False)],
            Annotated[float, Field(gt=0, allow_inf_nan=False)],
        ]
    ]


class _Layer(Record):
    part: Literal["layer"]
    dtype: str
    samples: Annotated[int, Field(ge=1)]
    seq_len: Annotated[int, Field(ge=1)]
    forward: Spread
    backward: Spread


class _Numerics(Record):
    part: Literal["numerics"]
    play: str
    error: float  # NaN says that the gradient was none


class _Step(Record):
    part: Literal["step"]
    play: str
    round: Place
    step: Place
    residual: Seconds = 0.0
    events: list[Timed]

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_order(self.events)
        return self


class _Lone(Record):
    part: Literal["lone"]
    plays: list[str]
    round: Place
    split: bool
    events: list[Timed]

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_order(self.events)
        return self


class _Memory(Record):
    part: Literal["memory"]
    play: str
    events: Annotated[list[Counted], Field(min_length=1)]


class _LoneMemory(Record):
    part: Literal["lone memory"]
    plays: list[str]
    split: bool
    events: Annotated[list[Counted], Field(min_length=1)]


KINDS: dict[str, type[BaseModel]] = {
    "about": _Said,
    "note": _Said,
    "done": _Said,
    "error": _Error,
    "verdict": _Verdict,
    "offset": _Offset,
    "link": _Link,
    "layer": _Layer,
    "numerics": _Numerics,
    "step": _Step,
    "lone": _Lone,
    "memory": _Memory,
    "lone memory": _LoneMemory,
}


def check(records: Any, session: Session) -> tuple[dict[str, Any], ...]:  # noqa: ANN401
    """The records, all of which are what a rank of this session writes.

    Raises:
        ValueError: one is not; says which, and what is wrong with it.
    """
    if not isinstance(records, list):
        raise ValueError(f"its records are no list but {type(records).__name__}")
    names = {play.name: play.schedule.num_stages for play in session.plays}
    for index, record in enumerate(records):
        part = record.get("part") if isinstance(record, dict) else None
        if part not in KINDS:
            known = ", ".join(KINDS)
            raise ValueError(f"record {index} has no part that is known; use one of {known}")
        try:
            KINDS[part].model_validate(record)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            said = first["msg"].removeprefix("Value error, ")
            raise ValueError(
                f"record {index}, a {part}: {where + ': ' if where else ''}{said}"
            ) from None
        if record["rank"] is not None and record["rank"] >= session.num_ranks:
            raise ValueError(
                f"record {index} is of rank {record['rank']}; there are {session.num_ranks} ranks"
            )
        for name in record.get("plays", [record["play"]] if "play" in record else []):
            if name not in names:
                raise ValueError(f"record {index} is of {name}, which is none of its schedules")
            for row in record.get("events", ()):
                if row[1] >= names[name]:
                    raise ValueError(
                        f"record {index} has stage {row[1]}; {name} has {names[name]} stages"
                    )
    return tuple(records)


def _require_order(rows: list[Timed]) -> None:
    for kind, stage, microbatch, begin, end, _ in rows:
        if end < begin:
            raise ValueError(f"{stage}{Kind(kind).name}{microbatch} ends before it begins")
