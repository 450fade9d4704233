"""Which knob or link is worth what: the step if one quantity were a little faster.

Two answers for each. The critical path's: a quantity that takes a share of it saves that share
times 1 - 1 / (1 + change), which is exact for small changes. And a run with that quantity changed,
which knows that another path may become critical. Every second of the critical path belongs to one
quantity of each family, so the shares of a family add up to 1.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from simulator.attribution import Path
from simulator.changes import Change, changes
from simulator.job import Job, Plan
from simulator.kernel import compile_all
from simulator.neighbours import Neighbour, neighbours
from simulator.simulate import Run, simulate, simulate_uniform
from simulator.system import (
    System,
    decisive_path,
    played,
    step_seconds,
    system_of,
    uniform_system,
)

__all__ = ["FAMILIES", "Sensitivities", "Sensitivity", "sensitivity", "sensitivity_uniform"]

FAMILIES = {  # each adds up to the critical path
    "hardware": "quantity of the hardware",
    "rank": "pipeline rank's compute",
    "op": "kind of op",
    "part": "part of the costs",
}
MANY = 1000  # spans from which compiling pays [1]
NOTABLE = 5e-4  # of the step, for a change of 0.1: how far the two answers may be apart [1]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What one quantity is worth. Changes are of the step time: negative is faster."""

    family: str  # key of FAMILIES
    name: str
    share: float  # of the critical path [1]
    predicted: float  # change of the step by the critical path [1]
    simulated: float | None  # change of the step in a run; None where nothing can be changed [1]
    note: str = ""  # why the two differ


@dataclass(frozen=True, kw_only=True)
class Sensitivities:
    """Every quantity and every neighbouring plan of a job, those that help most first."""

    name: str
    change: float  # how much faster each quantity was made [1]
    step_time: float  # [s]
    rows: tuple[Sensitivity, ...]
    neighbours: tuple[Neighbour, ...]

    def family(self, name: str) -> tuple[Sensitivity, ...]:
        """The rows of one family, those that help most first."""
        return tuple(row for row in self.rows if row.family == name)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        return asdict(self)


def sensitivity(job: Job, change: float = 0.1) -> Sensitivities:
    """What each quantity of a job is worth, and each neighbouring plan.

    Args:
        job: the job.
        change: how much faster each quantity is made: rates times 1 + change. [1]

    Raises:
        ValueError: `change` is not positive, or the job cannot be simulated.
    """
    _check(change)
    run = simulate(job)
    if run.timeline.num_spans > MANY:
        compile_all()  # the run is repeated for every row
    found = _sensitivities(run, system_of(run), change)
    return replace(found, neighbours=neighbours(run))


def sensitivity_uniform(
    plan: Plan,
    forward: float,
    backward: float,
    *,
    change: float = 0.1,
    weight_grad: float | None = None,
    latency: float = 0.0,
) -> Sensitivities:
    """The same of the textbook's pipeline, whose arguments are those of `simulate_uniform`.

    >>> found = sensitivity_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0)
    >>> {row.name: (round(row.share, 3), round(row.simulated, 4)) for row in found.family("op")[:2]}
    {'B': (0.667, -0.0606), 'F': (0.333, -0.0303)}
    """
    _check(change)
    run = simulate_uniform(plan, forward, backward, weight_grad=weight_grad, latency=latency)
    return _sensitivities(run, uniform_system(run, latency), change)


def _check(change: float) -> None:
    if not 0 < change <= 100:
        raise ValueError(
            f"change is {change:g}; it must be positive and at most 100, as 0.1 for 10% faster"
        )


def _sensitivities(run: Run, system: System, change: float) -> Sensitivities:
    """All rows, those that help most first."""
    timeline = played(system)
    step, path = step_seconds(system, timeline), decisive_path(system, timeline)
    assert abs(path.total - step) < 1e-9 * step, "the critical path explains the whole step"
    saved = 1 - 1 / (1 + change)
    rows = [_row(one, path, step, saved) for one in changes(system, path, 1 + change)]
    if path.waiting > NOTABLE * step:
        share = path.waiting / step
        rows += [
            Sensitivity(family=f, name="waiting", share=share, predicted=0.0, simulated=None)
            for f in FAMILIES
        ]
    rows.sort(key=lambda row: (row.predicted if row.simulated is None else row.simulated, row.name))
    return Sensitivities(
        name=run.name, change=change, step_time=step, rows=tuple(rows), neighbours=()
    )


def _row(one: Change, path: Path, step: float, saved: float) -> Sensitivity:
    """One quantity, both ways."""
    share = 0.0 if abs(one.seconds) < 1e-9 * step else one.seconds / step
    predicted = -share * saved + 0.0
    if one.system is None:
        return Sensitivity(
            family=one.family, name=one.name, share=share, predicted=predicted, simulated=None
        )
    timeline = played(one.system)
    simulated = step_seconds(one.system, timeline) / step - 1
    simulated = 0.0 if abs(simulated) < 1e-12 else simulated
    note = ""
    if abs(simulated - predicted) > NOTABLE * saved / (1 - 1 / 1.1):
        note = _why(path, decisive_path(one.system, timeline), simulated < predicted)
    return Sensitivity(
        family=one.family,
        name=one.name,
        share=share,
        predicted=predicted,
        simulated=simulated,
        note=note,
    )


def _why(old: Path, new: Path, helps_more: bool) -> str:
    """Why a run differs from what the critical path said."""
    if old.ops == new.ops:
        return (
            "no straight line: within ops another limit takes over, or links are shared otherwise"
        )
    size = 1 + int(max(old.rank.max(), new.rank.max()))
    before, after = (
        np.bincount(p.rank, weights=p.weight * p.seconds, minlength=size) / p.total
        for p in (old, new)
    )
    gain = after - before
    where = f"to rank {int(gain.argmax())}" if gain.max() > 0.01 else "to other ops"
    if helps_more:
        return f"other traffic or the order of the ops changes too; the critical path moves {where}"
    return f"the critical path moves {where}"
