"""A better order of a design's ops under a memory limit: what to ask, and what came of it."""

from collections.abc import Callable
from typing import Any

from pydantic import Field

from simulator.checks import Count, NotNegative, Positive, Value
from simulator.costs import uniform
from simulator.optimal import Progress, optimize
from simulator.schedule import Schedule

__all__ = ["MOST_OPS", "Asked", "asked_of", "improved", "placement"]

MOST_OPS = 20_000  # of rows that are improved on a page [1]
Tell = Callable[[dict[str, Any]], None]


class Asked(Value):
    """What the optimiser is asked: the shortest step for given times and memory."""

    pp: Count = Field(description="pipeline ranks [1]")
    num_microbatches: Count = Field(description="of one step [1]")
    placement: tuple[int, ...] = Field(description="the rank of each stage")
    forward: Positive = Field(description="one microbatch through one rank [s]")
    input_grad: Positive = Field(description="likewise, backward for the input [s]")
    weight_grad: Positive = Field(description="likewise, for the weights [s]")
    latency: NotNegative = Field(0.0, description="of every message [s]")
    limit: Positive | None = Field(None, description="most forwards held on a rank [microbatches]")
    seconds: Positive = Field(20.0, le=120, description="to search for, at most [s]")


def asked_of(table: dict[str, Any]) -> Asked:
    """The value of its JSON."""
    return Asked.model_validate(table)


def placement(schedule: Schedule) -> tuple[int, ...]:
    """The rank of each stage.

    Raises:
        ValueError: a stage stands on two ranks, which the optimiser does not place.

    >>> placement(Schedule.parse("0F0,0B0" + chr(10) + "1F0,1B0"))
    (0, 1)
    """
    homes: list[int] = []
    for stage in range(schedule.num_stages):
        ranks = sorted(set(schedule.rank[schedule.stage == stage].tolist()))
        if len(ranks) != 1:
            raise ValueError(
                f"stage {stage} stands on {len(ranks)} ranks; the optimiser orders schedules whose "
                "stages have one rank each"
            )
        homes.append(ranks[0])
    return tuple(homes)


def improved(asked: Asked, tell: Tell) -> None:
    """Search, telling the best so far now and then, and the rows at the end."""
    stages = len(asked.placement)
    chunks = stages // asked.pp
    backward = asked.input_grad + asked.weight_grad
    costs = uniform(
        stages, asked.forward / chunks, backward / chunks, asked.weight_grad / chunks, 1.0
    )

    def show(now: Progress) -> None:
        tell({"objective": now.objective, "bound": now.bound, "seconds": now.seconds})

    best = optimize(
        costs,
        asked.pp,
        asked.num_microbatches,
        placement=asked.placement,
        transfer=asked.latency,
        activation_limit=None if asked.limit is None else asked.limit * chunks,
        objective="makespan",
        time_limit=asked.seconds,
        progress=show,
    )
    tell(
        {
            "objective": best.objective,
            "bound": best.bound,
            "seconds": best.seconds,
            "proven": best.proven,
            "rows": str(best.schedule),
        }
    )
