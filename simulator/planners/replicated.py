"""A pipeline whose stages stand on several GPUs each, played in the event engine."""

from collections.abc import Sequence
from math import ceil, lcm

from simulator import engine
from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.lower import lower, post_receives_early
from simulator.matching import transfers
from simulator.network import Route
from simulator.planners.layerwise import merged
from simulator.planners.pipedream import Stage
from simulator.schedule import Kind, Op, Schedule
from simulator.timeline import Timeline

__all__ = ["pace", "play", "round_robin"]

ROUNDS = 8  # of the GPUs of all stages, before the pace is taken and while it is


def pace(costs: Costs, stages: Sequence[Stage], bandwidth: float) -> float:
    """Time from one minibatch to the next once the pipeline is full; reductions are hidden. [s]

    Where a plan's pace is set by compute, this is what the planner says:

    >>> from simulator.costs import uniform
    >>> layers = uniform(4, 1.0, 2.0)
    >>> round(pace(layers, [Stage(0, 3, 3), Stage(3, 4, 1)], bandwidth=1.0), 12)  # 9 / 3 and 3
    3.0
    """
    period = lcm(*(stage.replicas for stage in stages)) * ROUNDS
    few, many = (play(costs, stages, bandwidth, n).makespan for n in (period, 2 * period))
    return (many - few) / period


def play(costs: Costs, stages: Sequence[Stage], bandwidth: float, num_minibatches: int) -> Timeline:
    """The timeline of some minibatches; ranks are GPUs, those of the first stage first.

    Each GPU has one link that what it sends and what it receives share, as PipeDream's planner
    counts them. [bytes/s]
    """
    schedule = round_robin(stages, num_minibatches)
    lowered = post_receives_early(lower(schedule))
    moves = transfers(lowered)
    pairs = set(zip(moves.source.tolist(), moves.target.tolist(), strict=True))
    num_gpus = schedule.num_ranks
    routes = {(a, b): Route((a, b), (1.0, 1.0), 0.0) for a, b in sorted(pairs)}
    names = tuple(f"GPU {gpu} link" for gpu in range(num_gpus))
    fabric = Fabric((bandwidth,) * num_gpus, names, routes, {}, {})
    bounds = [0, *(stage.stop for stage in stages)]
    return engine.run(lowered, merged([costs] * len(stages), bounds), fabric)


def round_robin(stages: Sequence[Stage], num_minibatches: int) -> Schedule:
    """Rows of 1F1B-RR: a GPU of a stage on m GPUs takes every m-th minibatch, forth and back.

    Before its first backward a GPU takes as many minibatches as there are GPUs from its stage on
    for each of the stage's, rounded up. GPUs of the first stage come first.

    Source: Narayanan et al., "PipeDream", SOSP 2019, section 3.2.

    >>> print(round_robin([Stage(0, 1, 2), Stage(1, 2, 1)], 4))
    0F0,0F2,0B0,0B2
    0F1,0F3,0B1,0B3
    1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3
    """
    rows = []
    for at, stage in enumerate(stages):
        ahead = ceil(sum(later.replicas for later in stages[at:]) / stage.replicas)
        for replica in range(stage.replicas):
            mine = range(replica, num_minibatches, stage.replicas)
            forwards = [Op(at, Kind.F, m) for m in mine]
            row = forwards[:ahead]
            for done, microbatch in enumerate(mine):
                row.append(Op(at, Kind.B, microbatch))
                row += forwards[ahead + done : ahead + done + 1]
            rows.append(row)
    return Schedule.of(rows)
