"""Whether the faster plan is predicted to be the faster one, and what a wrong pick costs."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ordering", "ordering"]

Times = Sequence[tuple[float, float]]  # measured, predicted [s]


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """How plans of one model, batch and number of GPUs are ranked, over all such groups."""

    groups: int  # [1]
    pairs: int  # of plans with different measured times [1]
    right: float  # share of the pairs that are predicted in the measured order [1]
    regret: float  # by how much the pick is slower than the fastest, mean over groups [1]
    median_regret: float  # [1]
    worst_regret: float  # [1]


def ordering(groups: Sequence[Times]) -> Ordering | None:
    """The ordering of groups of plans; None if no two plans compete.

    >>> found = ordering([[(1.0, 2.0), (2.0, 1.5), (4.0, 5.0)]])
    >>> found.pairs, round(found.right, 3), found.regret
    (3, 0.667, 1.0)
    """
    pairs = right = 0
    regrets = []
    for group in groups:
        for at, (measured, predicted) in enumerate(group):
            for other, guess in group[:at]:
                if measured != other:
                    pairs += 1
                    right += (measured < other) == (predicted < guess)
        pick = min(group, key=lambda times: times[1])[0]
        regrets.append(pick / min(measured for measured, _ in group) - 1)
    if not pairs:
        return None
    return Ordering(
        groups=len(groups),
        pairs=pairs,
        right=right / pairs,
        regret=sum(regrets) / len(regrets),
        median_regret=sorted(regrets)[len(regrets) // 2],
        worst_regret=max(regrets),
    )
