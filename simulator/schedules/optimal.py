"""The best order that a search finds for given times and memory; proven best where it is small."""

from simulator.costs import Costs
from simulator.schedule import Schedule
from simulator.schedules import register


@register("optimal")
def optimal(
    pp: int,
    num_microbatches: int,
    costs: Costs,
    transfer: float,
    activation_limit: float | None,
) -> Schedule:
    """The order of F, I and W with the least step time within the memory limit.

    Heuristics, a local search and, up to some hundred choices, a mixed-integer programme; all
    bounded by counts, not by the clock, so the same input gives the same rows. With a time limit,
    the largest span as objective, progress and the proven gap: `simulator.optimal.optimize`.

    For: the least step time; a yardstick for every other schedule under the same memory limit.
    Loses: time to find it, seconds where the others take milliseconds; and it fits its times only.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, appendix with the integer
    linear programme; the formulation here is another, see docs/optimal.md.

    >>> from simulator.costs import uniform
    >>> print(optimal(2, 2, uniform(2, 1.0, 2.0), 0.0, None))
    0F0,0F1,0I0,0W0,0I1,0W1
    1F0,1I0,1F1,1I1,1W0,1W1
    """
    from simulator.optimal import optimize

    found = optimize(
        costs,
        pp,
        num_microbatches,
        transfer=transfer,
        activation_limit=activation_limit,
        objective="makespan",
        time_limit=None,
    )
    return found.schedule
