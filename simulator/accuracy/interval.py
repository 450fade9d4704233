"""How sure a prediction is: an interval learnt from our errors on similar jobs.

Jobs of the same framework, GPU family, network and layer size are compared first; where fewer than
19 rows are alike, wider and wider classes. A framework on a GPU that was never scored is compared
with whole tables: its interval spans theirs, because the next table will differ as they do.

Source of the method: V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random World",
2005, chapter 4 (Mondrian conformal prediction: quantiles of errors within a class).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, exp, floor

from simulator.accuracy.experience import EXPERTS, Experience, Kind, experience, kind_of
from simulator.job import Job

__all__ = ["Interval", "interval", "interval_of_kind"]

LEAST_ROWS = 19  # in a class of its own: fewer have no 5% quantile, 1 of n + 1 [1]
LEAST_TABLES = 3
COVERAGE = 0.9

Match = Callable[[Experience], bool]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Where the measured step time will be, nine times out of ten."""

    low: float  # [s]
    high: float  # [s]
    coverage: float  # [1]
    rows: int  # of measured runs that it is learnt from [1]
    tables: int  # [1]
    like: str  # what those have in common with the job

    def __str__(self) -> str:
        return (
            f"{self.low:.4g} to {self.high:.4g} s for {100 * self.coverage:.0f}% of runs, from "
            f"{self.rows} measured of {self.like}"
        )


def interval(job: Job, step_time: float) -> Interval:
    """The interval about a predicted step time. [s]"""
    unit = _known(kind_of(job))
    return replace(unit, low=step_time * unit.low, high=step_time * unit.high)


@cache
def _known(kind: Kind) -> Interval:
    """The interval about a step of one second, from everything that is known."""
    return interval_of_kind(kind, 1.0, experience())


def interval_of_kind(
    kind: Kind, step_time: float, known: Sequence[Experience], coverage: float = COVERAGE
) -> Interval:
    """The interval of a kind of job, from the errors that are known. [s]

    Raises:
        ValueError: nothing is known.
    """
    if not known:
        raise ValueError("no measured run is known, so there is no interval; give some")
    classes = [(like, [one for one in known if match(one)]) for like, match in _classes(kind)]
    found = next((one for one in classes if len(one[1]) >= LEAST_ROWS), None)
    like, rows = _nearest_tables(kind, known) if found is None else found
    if found is None:
        low, high = _of_tables(rows, coverage)
    else:
        low, high = _quantiles([one.log_error for one in rows], coverage)
    return Interval(
        low=step_time * exp(low),
        high=step_time * exp(high),
        coverage=coverage,
        rows=len(rows),
        tables=len({one.table for one in rows}),
        like=like,
    )


def _classes(kind: Kind) -> list[tuple[str, Match]]:
    """Classes of a framework on a GPU family, the narrowest first."""

    def same(one: Experience) -> bool:
        alike = (one.size == EXPERTS) == (kind.size == EXPERTS)
        return alike and one.framework == kind.framework and one.gpu == kind.gpu

    name = f"{kind.framework} on {kind.gpu}"
    return [
        (
            f"{name}, {kind.network}, {kind.size} layers",
            lambda one: same(one) and (one.network, one.size) == (kind.network, kind.size),
        ),
        (f"{name}, {kind.network}", lambda one: same(one) and one.network == kind.network),
        (name, same),
    ]


def _nearest_tables(kind: Kind, known: Sequence[Experience]) -> tuple[str, list[Experience]]:
    """Rows of at least three tables: of the same GPU family and network if there are, else all.

    Experts are not like dense layers: errors on them widen no dense job's interval, and where they
    are too few a job with experts is compared with everything.
    """
    if kind.size != EXPERTS:
        known = [one for one in known if one.size != EXPERTS] or list(known)
    for like, match in (
        (
            f"{kind.gpu}, {kind.network}",
            lambda one: (one.gpu, one.network) == (kind.gpu, kind.network),
        ),
        (f"{kind.gpu}", lambda one: one.gpu == kind.gpu),
        (kind.network, lambda one: one.network == kind.network),
    ):
        rows = [one for one in known if match(one)]
        if len({one.table for one in rows}) >= LEAST_TABLES:
            return f"any framework on {like}", rows
    return "any framework and GPU", list(known)


def _quantiles(errors: Sequence[float], coverage: float) -> tuple[float, float]:
    """The errors between which a next one falls with this probability.

    The k-th smallest of n has a next one below it with probability k / (n + 1).

    >>> _quantiles([float(n) for n in range(1, 40)], 0.9)
    (2.0, 38.0)
    """
    ordered, count = sorted(errors), len(errors)
    tail = (1 - coverage) / 2
    below = max(1, floor(tail * (count + 1) + 1e-9))
    above = min(count, ceil((1 - tail) * (count + 1) - 1e-9))
    return ordered[below - 1], ordered[above - 1]


def _of_tables(rows: Sequence[Experience], coverage: float) -> tuple[float, float]:
    """From the lowest to the highest of the tables' own quantiles: a new one lies among them.

    >>> _of_tables((), 0.9)
    (0.0, 0.0)
    """
    tables: dict[str, list[float]] = defaultdict(list)
    for one in rows:
        tables[one.table].append(one.log_error)
    ends = [_quantiles(errors, coverage) for errors in tables.values()]
    return min((low for low, _ in ends), default=0.0), max((high for _, high in ends), default=0.0)
