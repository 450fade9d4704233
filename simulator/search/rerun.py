"""The best plans once more, in the event engine, where messages share the network.

Contention only delays. So plans are taken in the order of their time without it, and as soon as
the best time with it is below the next plan's time without, no plan further on can be faster.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.search.space import Space, job_at
from simulator.simulate import Run, simulate

__all__ = ["Contended", "Rerun", "rerun"]


@dataclass(frozen=True)
class Contended:
    """A plan's step without contention and with it."""

    point: int
    free: float  # [s]
    run: Run  # in the event engine

    @property
    def seconds(self) -> float:
        """The step with contention. [s]"""
        return self.run.report.step_time


@dataclass(frozen=True)
class Rerun:
    """The plans that were run again, the best first, and whether another could be better."""

    plans: tuple[Contended, ...]
    is_exact: bool  # no plan that was not run again can be faster
    is_cut: bool  # there were more candidates than could be run


def rerun(
    space: Space, candidates: Iterable[tuple[int, float]], most: int, horizon: float
) -> Rerun:
    """Run plans again until the fastest with contention is known, or `most` of them.

    Args:
        space: of the search.
        candidates: points with their step time without contention [s], in order of that.
        most: plans to run [1].
        horizon: every plan that is faster than this without contention is a candidate [s].
    """
    found: list[Contended] = []
    best = float("inf")
    is_cut = False
    for point, free in candidates:
        if best <= free:
            break
        if len(found) == most:
            is_cut = True
            break
        found.append(Contended(point, free, simulate(job_at(space, point))))
        best = min(best, found[-1].seconds)
    order = sorted(found, key=lambda plan: (float(f"{plan.seconds:.9g}"), plan.point))
    return Rerun(tuple(order), not is_cut and best <= horizon, is_cut)
