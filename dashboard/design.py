"""Rows that a user writes: what they lead to, or what is wrong with them and at which spot."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import Field

from dashboard.choice import Name
from dashboard.improvement import MOST_OPS, Asked, placement
from dashboard.limits import MOST_PASTE, require_work
from dashboard.shelf import Token
from dashboard.state import State
from simulator.checks import Count, NotNegative, Positive
from simulator.dialects import is_lowered
from simulator.errors import validated
from simulator.job import Plan
from simulator.lower import lower
from simulator.schedule import Deadlock, Kind, Op, Schedule
from simulator.schedules import build, schedules
from simulator.simulate import Run, simulate_uniform

__all__ = ["DesignState", "Draft", "asked_for", "cells_of", "draft_of", "played", "rows_text"]

MOST_CELLS = 4_096  # of the grid that is clicked into; more are text only [1]
_CELL = re.compile(r"row of rank (\d+), column (\d+)")


class DesignState(State):
    """The rows, as text or as a schedule's name and sizes, and what ops cost."""

    schedule: Name = Field("1f1b", description="schedule to start from")
    pp: Count = Field(4, le=256, description="its pipeline ranks [1]")
    vpp: Count = Field(1, le=64, description="its model chunks on each rank [1]")
    m: Count = Field(8, le=4096, description="its microbatches [1]")
    rows: str | None = Field(
        None, max_length=MOST_PASTE, description="rows of one's own, instead of the schedule's"
    )
    f: Positive = Field(1.0, description="forward of a microbatch on a rank [t]")
    i: Positive = Field(1.0, description="its backward for the input [t]")
    w: Positive = Field(1.0, description="its backward for the weights [t]")
    latency: NotNegative = Field(0.0, description="of every message [t]")
    limit: Positive | None = Field(None, description="most forwards held [microbatches]")
    seconds: Positive = Field(20.0, le=120, description="that the optimiser takes at most [s]")
    job: Token | None = Field(None, description="the optimiser's run")
    view: tuple[NotNegative, NotNegative] | None = Field(None, description="time in view [t]")


@dataclass(frozen=True, eq=False, kw_only=True)
class Draft:
    """What rows lead to."""

    schedule: Schedule | None  # None where the text is no rows
    run: Run | None  # None where they cannot run
    error: str = ""
    spots: tuple[tuple[int, int], ...] = ()  # rank and place in its row of what is wrong


def rows_text(state: DesignState) -> str:
    """The rows of a state as text.

    Raises:
        ValueError: the schedule does not exist with these sizes.
    """
    if state.rows is not None:
        return state.rows
    return _preset(state.schedule, state.pp, state.vpp, state.m)


def draft_of(state: DesignState) -> Draft:
    """The rows of a state, run; or what is wrong with them.

    Raises:
        ValueError: the schedule to start from does not exist with these sizes.
    """
    return played(rows_text(state), (state.f, state.i, state.w), state.latency)


@lru_cache(maxsize=16)
def played(text: str, times: tuple[float, float, float], latency: float) -> Draft:
    """Run rows on equal stages; times are of F, I and W of one microbatch on a rank. [t]"""
    try:
        schedule = Schedule.parse(text)
    except ValueError as error:
        return Draft(schedule=None, run=None, error=str(error), spots=_cell(str(error)))
    try:
        _check_stages(schedule)
        plan = _plan(schedule, text)
        forward, input_grad, weight_grad = times
        run = simulate_uniform(
            plan, forward, input_grad + weight_grad, weight_grad=weight_grad, latency=latency
        )
    except Deadlock as error:
        small = schedule.num_ops <= MOST_CELLS  # else no grid is shown
        spots = _cells(schedule, error.spots) if small else ()
        return Draft(schedule=schedule, run=None, error=str(error), spots=spots)
    except ValueError as error:
        return Draft(schedule=schedule, run=None, error=str(error), spots=_cell(str(error)))
    return Draft(schedule=schedule, run=run)


def cells_of(draft: Draft, text: str) -> dict[str, Any]:
    """What the grid shows, as JSON types: the ops of each rank, and the spots that are marked.

    Rows that cannot be read are shown as they are typed.
    """
    if draft.schedule is not None:
        rows = [
            list(map(str, draft.schedule.items(rank))) for rank in range(draft.schedule.num_ranks)
        ]
    else:
        lines = [line for line in text.splitlines() if line.strip()]
        rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    if sum(map(len, rows)) > MOST_CELLS:
        return {"text": text, "rows": [], "spots": []}
    return {"text": text, "rows": rows, "spots": [list(spot) for spot in draft.spots]}


def asked_for(state: DesignState) -> Asked:
    """What the optimiser is asked to improve.

    Raises:
        ValueError: the rows cannot be improved; says why.
    """
    schedule = Schedule.parse(rows_text(state))
    if schedule.num_ops > MOST_OPS:
        raise ValueError(
            f"the rows have {schedule.num_ops:,} ops; at most {MOST_OPS:,} are improved on a page: "
            "use fewer microbatches, or `bubblescope optimize`"
        )
    return Asked(
        pp=schedule.num_ranks,
        num_microbatches=schedule.num_microbatches,
        placement=placement(schedule),
        forward=state.f,
        input_grad=state.i,
        weight_grad=state.w,
        latency=state.latency,
        limit=state.limit,
        seconds=state.seconds,
    )


def with_transfers(text: str) -> Schedule:
    """The rows with their sends and receives, as PyTorch's runtime executes them.

    Raises:
        ValueError: they cannot run.
    """
    schedule = Schedule.parse(text)
    return schedule if is_lowered(schedule) else lower(schedule)


@lru_cache(maxsize=16)
def _preset(schedule: str, pp: int, vpp: int, m: int) -> str:
    sizes = {"schedule": schedule, "pp": pp, "vpp": vpp, "num_microbatches": m}
    if schedules().get(schedule) and schedules()[schedule].weights is not None:
        raise ValueError(
            f"{schedule} is asynchronous: its rows hold several iterations and its optimizer's "
            "steps; start from a synchronous one, such as 1f1b"
        )
    plan = validated(Plan, sizes, "plan")
    require_work(plan)
    return str(build(plan))


def _plan(schedule: Schedule, text: str) -> Plan:
    ranks, stages = schedule.num_ranks, schedule.num_stages
    if stages % ranks:
        raise ValueError(
            f"the rows have {stages} stages on {ranks} ranks; a rank holds as many stages as any "
            "other, so use a multiple of the ranks"
        )
    sizes = {"pp": ranks, "vpp": stages // ranks, "num_microbatches": schedule.num_microbatches}
    plan = validated(Plan, {"schedule": "custom", "rows": text, **sizes}, "plan")
    require_work(plan)
    return plan


def _check_stages(schedule: Schedule) -> None:
    """Every stage up to the deepest stands on some rank."""
    stands = set(schedule.stage.tolist())
    missing = next((s for s in range(schedule.num_stages) if s not in stands), None)
    if missing is not None or not stands:
        raise ValueError(
            f"stage {missing or 0} stands on no rank, but the deepest stage is "
            f"{schedule.num_stages - 1}; give every stage its forwards and backwards"
        )


def _cell(message: str) -> tuple[tuple[int, int], ...]:
    """The spot that a message names."""
    found = _CELL.search(message)
    return ((int(found[1]), int(found[2])),) if found else ()


def _cells(schedule: Schedule, stuck: tuple[tuple[int, Op], ...]) -> tuple[tuple[int, int], ...]:
    """Rank and place in its row of each op that a rank is stuck at."""
    cells = []
    for rank, op in stuck:
        items = enumerate(schedule.items(rank))
        cells += [(rank, at) for at, item in items if item == op or op in tuple(item)][:1]
    return tuple(cells)


def has_halves(schedule: Schedule) -> bool:
    """Whether backwards are split into I and W."""
    return bool((schedule.kind == Kind.W).any())
