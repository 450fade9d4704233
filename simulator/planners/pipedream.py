"""PipeDream's planner: consecutive layers on stages, a stage on several GPUs, for throughput.

A stage on m GPUs takes every m-th minibatch on each of them and adds up their gradients while it
computes. The network has levels, as GPUs in a server and servers in a cluster; a unit of one level
is the whole of the level below. Minibatches follow each other without a flush, so the slowest stage
or transfer sets the pace.

Source: Harlap et al., "PipeDream: Fast and Efficient Pipeline Parallel DNN Training", 2018, arXiv
1806.03377, section 3.2; Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN
Training", SOSP 2019, section 3.1, which adds the levels.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.costs import Costs
from simulator.job import Cluster
from simulator.schedule import Kind

__all__ = ["Level", "Plan", "Stage", "levels_of", "pipedream"]


class Level(NamedTuple):
    """Some units of the level below, or GPUs, and the links between them."""

    units: int  # [1]
    bandwidth: float  # of each unit, for what it sends and receives [bytes/s]


class Stage(NamedTuple):
    """Layers `start` to `stop - 1`, each on `replicas` GPUs."""

    start: int
    stop: int
    replicas: int  # [1]


class Plan(NamedTuple):
    """Stages, and the time from one minibatch to the next."""

    stages: tuple[Stage, ...]
    seconds: float  # [s]

    def __str__(self) -> str:
        """GPUs of each stage, as the paper writes them: 15-1."""
        return "-".join(str(stage.replicas) for stage in self.stages)


def levels_of(cluster: Cluster) -> tuple[Level, ...]:
    """GPUs of a node over its ports, and nodes over their NICs; links of one GPU or node only."""
    intra, inter = cluster.intra_node, cluster.inter_node
    network = inter.bandwidth * inter.efficiency * cluster.nics_per_node / cluster.oversubscription
    both = (
        Level(cluster.gpus_per_node, intra.bandwidth * intra.efficiency),
        Level(cluster.num_nodes, network),
    )
    return tuple(level for level in both if level.units > 1) or both[:1]


def pipedream(costs: Costs, levels: Sequence[Level]) -> Plan:
    """The stages with the least time from minibatch to minibatch, all GPUs used.

    With A_0(i, j) the time of layers i to j on one GPU, and at level k with bandwidth B, whose
    units have g GPUs each,

        T_k(i, j, m) = max(A_k-1(i, j, all), 4 (m - 1) / m x weights / B / g) / m
        A_k(i, j, m) = min(T_k(i, j, m),
                           min over s, n of max(A_k(i, s, m - n), 2 output_s / B, T_k(s + 1, j, n)))

    The 4 and the 2 count what a unit sends and what it receives. The g is in the authors' code,
    msr-fiddle/pipedream, optimizer_graph_hierarchical.py: a unit's GPUs take g minibatches between
    two reductions. O(layers^3 x units^2) a level. A stage has whole units, or part of a single one:
    15 GPUs of four servers of 4 are a stage only where the levels say that the network is flat. Of
    equals, the plan that is one stage, then the later cut, then the last stage with fewer units.

    Args:
        costs: of the layers in a row, one stage for each, for one minibatch; what is reduced is
            their `reduce_bytes`, what is sent their `boundary_bytes`.
        levels: from the innermost; one level of 16 treats a cluster's network as flat.

    Two layers of 4 s and two GPUs. One stage on both would reduce 4 (2 - 1) / 2 x 5 = 10 bytes in
    10 s for every two minibatches; cut, a minibatch takes 4 s and the transfer 2 s:

    >>> from dataclasses import replace
    >>> from simulator.costs import uniform
    >>> layers = replace(
    ...     uniform(2, 1.0, 3.0), reduce_bytes=np.array([1.0, 4.0]), boundary_bytes=np.ones(2)
    ... )
    >>> plan = pipedream(layers, [Level(2, bandwidth=1.0)])
    >>> str(plan), plan.seconds
    ('1-1', 4.0)
    >>> plan = pipedream(layers, [Level(2, bandwidth=10.0)])  # 1 s to reduce
    >>> str(plan), plan.seconds
    ('2', 4.0)
    """
    if not levels or min(level.units for level in levels) < 1:
        raise ValueError(
            f"levels have {[level.units for level in levels]} units; give at least one level, and "
            "at least one unit in each"
        )
    seconds = (costs.seconds[Kind.F] + costs.seconds[Kind.B]).tolist()
    number = costs.num_stages
    below: Table = {
        (i, j): Plan((Stage(i, j, 1),), sum(seconds[i:j]))
        for i in range(number)
        for j in range(i + 1, number + 1)
    }
    gpus = 1
    for level in levels:
        below = _climb(costs, level, below, gpus)
        gpus *= level.units
    return below[0, number]


Table = dict[tuple[int, int], Plan]  # the best plan of layers i to j - 1 on a whole unit


def _climb(costs: Costs, level: Level, below: Table, gpus: int) -> Table:
    """Best plans on a unit of this level, from those on its units, of some GPUs each."""
    number, bandwidth = costs.num_stages, level.bandwidth
    weights = [0.0, *np.cumsum(costs.reduce_bytes).tolist()]
    sends = (2 * costs.boundary_bytes / bandwidth).tolist()

    def together(i: int, j: int, units: int) -> Plan:
        """One stage on some units."""
        nbytes = 4 * (units - 1) / units * (weights[j] - weights[i]) / gpus
        stages, alone = below[i, j]
        copies = tuple(stage._replace(replicas=stage.replicas * units) for stage in stages)
        return Plan(copies, max(alone, nbytes / bandwidth) / units if units > 1 else alone)

    above: Table = {}
    for i in range(number):
        best: dict[tuple[int, int], Plan] = {}  # by stop and units
        for units in range(1, level.units + 1):
            for j in range(i + 1, number + 1):
                found = together(i, j, units)
                for cut in range(j - 1, i, -1):
                    send = sends[cut - 1]
                    if send >= found.seconds:
                        continue
                    for last in range(1, units):
                        head, tail = best[cut, units - last], together(cut, j, last)
                        slowest = max(head.seconds, send, tail.seconds)
                        if slowest < found.seconds:
                            found = Plan(head.stages + tail.stages, slowest)
                best[j, units] = found
        for j in range(i + 1, number + 1):
            above[i, j] = best[j, level.units]
    return above
