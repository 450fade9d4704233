"""A measured step beside its simulation: costs from the one, times of the other, op by op."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from pydantic import Field

from dashboard.choice import Name
from dashboard.shelf import Token
from dashboard.state import State
from dashboard.uploads import uploaded
from simulator.calibrate import Calibration, calibrate, play, predict
from simulator.checks import NotNegative
from simulator.dialects import is_lowered
from simulator.job import Plan
from simulator.lower import lower, step_optimizer
from simulator.schedule import Kind, Schedule
from simulator.schedules import schedules
from simulator.timeline import Timeline

__all__ = [
    "MeasureState",
    "Measured",
    "OpError",
    "Prediction",
    "measured",
    "op_errors",
    "predictions",
    "rows_of",
]

MOST_PREDICTED = 20_000  # ops of a schedule that is predicted on a page [1]
SLOW = ("optimal", "zb-auto")  # they search for seconds
BIG = 1e12


class MeasureState(State):
    """Which upload is shown, and what it is laid over."""

    trace: Token | None = Field(None, description="the upload that is shown")
    run: Token | None = Field(
        None, description="a saved run to lay it over; without, its own calibration"
    )
    schedule: Name | None = Field(None, description="another schedule on the measured costs")
    view: tuple[NotNegative, NotNegative] | None = Field(None, description="time in view [s]")


@dataclass(frozen=True, kw_only=True)
class OpError:
    """A kind of op on a stage in both runs; shares are of the measured time."""

    stage: int
    kind: Kind
    count: int  # ops that stand in both [1]
    measured: float  # median [s]
    simulated: float  # median [s]
    median: float  # simulated over measured, less one [1]
    low: float  # lower quartile [1]
    high: float  # upper quartile [1]


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """An upload, the costs that it shows, and its rows played on them."""

    name: str
    timeline: Timeline
    notes: tuple[str, ...]
    unit: str
    calibration: Calibration
    replayed: Timeline


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction:
    """A schedule on the measured costs."""

    schedule: str
    timeline: Timeline | None  # None where it does not go with these stages
    reason: str = ""  # then why not


@lru_cache(maxsize=8)
def measured(token: str) -> Measured:
    """The upload of a token with its calibration.

    Raises:
        ValueError: it is not there any more, or lacks what a calibration needs.
    """
    found = uploaded(token)
    calibration = calibrate([found.timeline], found.name)
    return Measured(
        name=found.name,
        timeline=found.timeline,
        notes=found.notes,
        unit=found.unit,
        calibration=calibration,
        replayed=_replayed(rows_of(found.timeline), calibration),
    )


def rows_of(timeline: Timeline) -> Schedule:
    """The order in which a timeline ran its forwards and backwards, optimizer steps left out.

    >>> from simulator.simulate import simulate_uniform
    >>> run = simulate_uniform(Plan(pp=2, num_microbatches=2), 1.0, 2.0)
    >>> rows_of(run.timeline) == run.schedule
    True
    """
    paired = np.zeros(timeline.num_spans, np.int64)
    paired[timeline.pairs()] = 1
    work = timeline.kind <= Kind.W
    columns = (timeline.stage, timeline.kind, timeline.microbatch, paired)
    table = np.stack([column.astype(np.int64) for column in columns], axis=1)
    order = np.lexsort((np.arange(timeline.num_spans), timeline.start))
    rows = [table[order[(timeline.rank == r)[order] & work[order]]] for r in _ranks(timeline)]
    return Schedule.of(rows)


def op_errors(measured: Timeline, simulated: Timeline) -> list[OpError]:
    """Ops that stand in both runs, compared one by one; by stage, then kind."""
    found = []
    ours, theirs = _lengths(measured), _lengths(simulated)
    for stage, kind in sorted(ours.keys() & theirs.keys()):
        both = sorted(ours[stage, kind].keys() & theirs[stage, kind].keys())
        pairs = [(ours[stage, kind][m], theirs[stage, kind][m]) for m in both]
        pairs = [pair for pair in pairs if pair[0] > 0]
        if not pairs:
            continue
        table = np.array(pairs)
        low, middle, high = np.percentile(table[:, 1] / table[:, 0] - 1, (25, 50, 75)).tolist()
        medians = np.median(table, axis=0).tolist()
        found.append(
            OpError(
                stage=stage,
                kind=Kind(kind),
                count=len(pairs),
                measured=medians[0],
                simulated=medians[1],
                median=middle,
                low=low,
                high=high,
            )
        )
    return found


@lru_cache(maxsize=8)
def predictions(token: str) -> tuple[Prediction, ...]:
    """Every schedule that goes with the measured stages, on the measured costs, fastest first."""
    one = measured(token)
    rows = rows_of(one.timeline)
    made = [_predicted(name, rows, one.calibration) for name in schedules() if name not in SLOW]
    return tuple(
        sorted(made, key=lambda p: (BIG if p.timeline is None else p.timeline.makespan, p.schedule))
    )


def _predicted(name: str, rows: Schedule, calibration: Calibration) -> Prediction:
    ranks, stages, count = rows.num_ranks, rows.num_stages, rows.num_microbatches
    recipe = schedules()[name]
    try:
        if 2 * stages * count > MOST_PREDICTED:
            raise ValueError(
                f"{2 * stages * count:,} ops; at most {MOST_PREDICTED:,} are predicted here"
            )
        if recipe.weights is not None:
            raise ValueError("it is asynchronous: its step is not one iteration's")
        if stages % ranks or (stages // ranks > 1) != (recipe.chunks > 1):
            raise ValueError(f"it does not cut a model into {stages} stages on {ranks} ranks")
        plan = Plan(schedule=name, pp=ranks, vpp=stages // ranks, num_microbatches=count)
        timeline = predict(plan, calibration)
    except ValueError as error:
        return Prediction(schedule=name, timeline=None, reason=str(error))
    return Prediction(schedule=name, timeline=timeline)


def _replayed(rows: Schedule, calibration: Calibration) -> Timeline:
    lowered = rows if is_lowered(rows) else lower(rows)
    if calibration.costs.seconds[Kind.OPTIMIZER].any():
        lowered = step_optimizer(lowered)
    return play(lowered, calibration)


def _lengths(timeline: Timeline) -> dict[tuple[int, int], dict[int, float]]:
    """The length of each op, by stage and kind, then microbatch. [s]"""
    compute = timeline.compute
    table: dict[tuple[int, int], dict[int, float]] = {}
    columns = (compute.stage, compute.kind, compute.microbatch, compute.end - compute.start)
    for stage, kind, microbatch, length in zip(*(c.tolist() for c in columns), strict=True):
        table.setdefault((stage, kind), {})[microbatch] = length
    return table


def _ranks(timeline: Timeline) -> range:
    return range(timeline.num_ranks)
