"""Which knob or link is worth what: the step if one quantity were a little faster.

Two answers for each. The critical path's: a quantity that takes a share of it saves that share
times 1 - 1 / (1 + change), which is exact for small changes. And a run with that quantity changed,
which knows that another path may become critical. Every second of the critical path belongs to one
quantity of each family, so the shares of a family add up to 1.

Paths may be equally long. Then the step is no shorter than that of them which the quantity helps
least, so that what counts is the least share of all. It is the one-sided derivative of the step,
which is the longest of many paths; where the two answers differ, it is taken from a run with a
change so small that no other path becomes critical.
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

__all__ = [
    "FAMILIES",
    "Sensitivities",
    "Sensitivity",
    "least_share",
    "sensitivity",
    "sensitivity_uniform",
]

FAMILIES = {  # each adds up to the critical path
    "hardware": "quantity of the hardware",
    "rank": "pipeline rank's compute",
    "op": "kind of op",
    "part": "part of the costs",
}
MANY = 1000  # spans from which compiling pays [1]
NOTABLE = 5e-4  # of the step, for a change of 0.1: how far the two answers may be apart [1]
SMALL = 1e-6  # change that makes no other path critical, unless it is as long already [1]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What one quantity is worth. Changes are of the step time: negative is faster."""

    family: str  # key of FAMILIES
    name: str
    share: float  # of the critical path [1]
    least_share: float  # of each critical path, where several are equally long [1]
    predicted: float  # change of the step by the critical paths [1]
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
    rows = [_row(one, path, step, change) for one in changes(system, path)]
    if path.waiting > NOTABLE * step:
        share = path.waiting / step
        rows += [
            Sensitivity(
                family=family,
                name="waiting",
                share=share,
                least_share=share,
                predicted=0.0,
                simulated=None,
            )
            for family in FAMILIES
        ]
    rows.sort(key=lambda row: (row.predicted if row.simulated is None else row.simulated, row.name))
    return Sensitivities(
        name=run.name, change=change, step_time=step, rows=tuple(rows), neighbours=()
    )


def _row(one: Change, path: Path, step: float, change: float) -> Sensitivity:
    """One quantity, both ways."""
    saved = 1 - 1 / (1 + change)
    share = least = 0.0 if abs(one.seconds) < 1e-9 * step else one.seconds / step
    simulated, notes = None, []
    if one.faster is not None:
        changed = one.faster(1 + change)
        timeline = played(changed)
        simulated = step_seconds(changed, timeline) / step - 1
        simulated = 0.0 if abs(simulated) < 1e-12 else simulated
        notable = NOTABLE * saved / (1 - 1 / 1.1)
        if abs(simulated + share * saved) > notable:
            least = least_share(one, step)
            if (share - least) * saved > notable:
                notes = [_tied(least)]
            else:
                least = share
        if abs(simulated + least * saved) > notable:
            notes += [_why(path, decisive_path(changed, timeline), simulated < -least * saved)]
    return Sensitivity(
        family=one.family,
        name=one.name,
        share=share,
        least_share=least,
        predicted=-least * saved + 0.0,
        simulated=simulated,
        note="; ".join(notes),
    )


def least_share(one: Change, step: float) -> float:
    """A quantity's least share of the critical paths: how fast the step shrinks with it. [1]"""
    slightly = one.same_rows or one.faster
    assert slightly is not None
    system = slightly(1 + SMALL)
    shrunk = 1 - step_seconds(system, played(system)) / step
    return max(0.0, shrunk / (1 - 1 / (1 + SMALL)))


def _tied(least: float) -> str:
    if least < 5e-5:
        return "another path is as long and does without it"
    return f"other paths are as long, and the least that one has is {100 * least:.2f}%"


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
