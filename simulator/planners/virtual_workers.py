"""Virtual workers: GPUs of different kinds that together run one pipeline.

Each rank takes the layers that suit its GPU; minibatches follow each other without a flush, a fixed
number of them in flight. Source: Park et al., "HetPipe", USENIX ATC 2020, section 4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from simulator import engine
from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.job import GPU, Link
from simulator.lower import lower, post_receives_early
from simulator.network import Route
from simulator.planners.layerwise import merged
from simulator.planners.minimax import minimax_cut
from simulator.schedule import Kind, Op, Schedule
from simulator.timeline import Timeline

__all__ = [
    "CONTEXT_BYTES",
    "MixedCluster",
    "VirtualWorker",
    "continuous",
    "fitted",
    "flights",
    "steady_pace",
]

# What a process takes of its GPU before it holds a tensor: 867 MiB, as the authors of
# PipeTransformer found (github.com/Distributed-AI/PipeTransformer, log/performance_analysis.log).
CONTEXT_BYTES = 867 * 2**20
IDLE = -1
ROUNDS = 6  # pipelines full of minibatches that a worker is simulated for: its pace is then steady


@dataclass(frozen=True)
class MixedCluster:
    """Nodes of equal GPUs, each node of its own kind, listed from the strongest to the weakest."""

    kinds: tuple[GPU, ...]  # the GPU of each node
    gpus_per_node: int  # [1]
    intra_node: Link  # a GPU's port to the others of its node
    inter_node: Link  # a node's NIC

    @property
    def num_nodes(self) -> int:
        """Nodes. [1]"""
        return len(self.kinds)


@dataclass(frozen=True, eq=False)
class VirtualWorker:
    """A pipeline over some nodes' GPUs, as it runs when nothing holds it back."""

    nodes: tuple[int, ...]  # node of each rank's GPU
    bounds: tuple[int, ...]  # first layer of each rank, and one behind the last
    costs: Costs  # of its stages
    num_in_flight: int  # minibatches [1]
    timeline: Timeline
    latency: float  # of a minibatch in the empty pipeline [s]

    @cached_property
    def pace(self) -> float:
        """Time from one minibatch to the next, once steady. [s]"""
        return steady_pace(self.timeline)


def steady_pace(timeline: Timeline) -> float:
    """Time between two minibatches in a run's middle third, away from its ends. [s]"""
    backward = timeline.of(Kind.B)
    end = np.sort(backward.where(backward.stage == 0).end)
    third = len(end) // 3
    return float((end[2 * third - 1] - end[third - 1]) / third)


def flights(num_ranks: int, num_in_flight: int) -> tuple[int, ...]:
    """Minibatches that each rank holds at most: all on the first, one on the last. [1]

    Up to num_ranks in flight it is 1F1B's number; beyond, ranks before the last hold more, which
    hides slow messages.

    >>> flights(4, 4), flights(4, 2), flights(4, 6)
    ((4, 3, 2, 1), (2, 2, 2, 1), (6, 5, 4, 1))
    """
    deepest = max(num_ranks, num_in_flight)
    return (*(min(num_in_flight, deepest - r) for r in range(num_ranks - 1)), 1)


def continuous(
    costs: Costs, num_in_flight: int, num_minibatches: int, transfer: Sequence[float]
) -> Schedule:
    """Rows of a virtual worker: a minibatch enters when one has left, without a flush.

    A rank runs the oldest backward that is ready, else the oldest forward, as long as it holds no
    more minibatches than `flights` says.

    Args:
        costs: of the worker's stages, one for each rank.
        num_in_flight: minibatches between the first forward and the last backward. [1]
        num_minibatches: to run. [1]
        transfer: time of a message over each boundary. [s]

    >>> from simulator.costs import uniform
    >>> print(continuous(uniform(2, 1.0, 2.0), 2, 3, [0.0]))
    0F0,0F1,0B0,0F2,0B1,0B2
    1F0,1B0,1F1,1B1,1F2,1B2
    """
    if num_in_flight < 1:
        raise ValueError(f"num_in_flight is {num_in_flight}; use at least one minibatch")
    ranks = costs.num_stages
    room = list(flights(ranks, num_in_flight))
    seconds = costs.seconds.tolist()
    ready: list[list[list[int]]] = [[[], []] for _ in range(ranks)]  # by rank and kind
    free = [0.0] * ranks
    rows: list[list[Op]] = [[] for _ in range(ranks)]
    events = [(0.0, 0, int(Kind.F), p) for p in range(min(num_in_flight, num_minibatches))]
    entered = len(events)
    while events:  # an input arrives, or a rank falls idle
        now, rank, kind, p = heappop(events)
        if kind != IDLE:
            heappush(ready[rank][kind], p)
        if (events and events[0][:2] == (now, rank)) or free[rank] > now:
            continue
        runs = Kind.B if ready[rank][Kind.B] else Kind.F
        if not ready[rank][runs] or (runs is Kind.F and not room[rank]):
            continue
        p = heappop(ready[rank][runs])
        rows[rank].append(Op(rank, runs, p))
        free[rank] = end = now + seconds[runs][rank]
        room[rank] += 1 if runs is Kind.B else -1
        heappush(events, (end, rank, IDLE, p))
        to, then = _consumer(rank, runs, ranks)
        if then == IDLE:  # it leaves, and the next one enters
            to, then, p, entered = 0, int(Kind.F), entered, entered + 1
        if p < num_minibatches:
            way = 0.0 if to == rank else transfer[min(to, rank)]
            heappush(events, (end + way, to, then, p))
    return Schedule.of(rows)


def _consumer(rank: int, kind: Kind, num_ranks: int) -> tuple[int, int]:
    """The rank and kind that an op's result goes to; IDLE behind the first rank's backward."""
    if kind is Kind.F:
        return (rank + 1, int(Kind.F)) if rank + 1 < num_ranks else (rank, int(Kind.B))
    return (rank - 1, int(Kind.B)) if rank else (0, IDLE)


def fitted(
    nodes: Sequence[int],
    cluster: MixedCluster,
    layers: Mapping[str, Costs],
    num_in_flight: int,
    sharing: int,
) -> VirtualWorker | None:
    """The virtual worker of these nodes' GPUs, in their best order, or None if nothing fits.

    Ranks on one node stay together. A stage's time is the larger of its compute and of its output's
    transfer; memory holds its activations and a version of its weights for each minibatch in
    flight, and its gradients.

    Args:
        nodes: node of each GPU.
        cluster: whose GPUs and links they are.
        layers: layerwise costs by the name of the GPU.
        num_in_flight: minibatches. [1]
        sharing: virtual workers that share a node's NIC when they cross nodes. [1]
    """
    tables: dict[tuple[int, int], NDArray[np.float64]] = {}
    best: tuple[float, tuple[int, ...], tuple[int, ...]] | None = None
    orders = [o for kinds in permutations(dict.fromkeys(nodes)) if (o := _grouped(nodes, kinds))]
    for order in orders:
        times = []
        for rank, flight in enumerate(flights(len(order), num_in_flight)):
            node = order[rank]
            near = rank + 1 == len(order) or order[rank + 1] == node
            if (node, key := flight * 2 + near) not in tables:
                gpu = cluster.kinds[node]
                rate = _rate(cluster.intra_node) if near else _rate(cluster.inter_node) / sharing
                tables[node, key] = _stage_seconds(layers[gpu.name], gpu, flight, rate)
            times.append(tables[node, key])
        bounds = minimax_cut(times)
        if bounds is None:
            continue
        slowest = max(float(t[a, b]) for t, a, b in zip(times, bounds, bounds[1:], strict=False))
        if best is None or slowest < best[0]:
            best = slowest, order, bounds
    if best is None:
        return None
    _, order, bounds = best
    costs = merged([layers[cluster.kinds[n].name] for n in order], bounds)
    fabric = _wires(order, cluster, sharing)
    timeline = _run(costs, fabric, num_in_flight, ROUNDS * max(num_in_flight, len(order)))
    latency = _run(costs, fabric, 1, 1).makespan
    return VirtualWorker(order, bounds, costs, num_in_flight, timeline, latency)


def _grouped(nodes: Sequence[int], kinds: Sequence[int]) -> tuple[int, ...]:
    """The GPUs in the order of these nodes."""
    return tuple(kind for kind in kinds for _ in range(list(nodes).count(kind)))


def _rate(link: Link) -> float:
    """[bytes/s]"""
    return link.bandwidth * link.efficiency


def _stage_seconds(costs: Costs, gpu: GPU, flight: int, rate: float) -> NDArray[np.float64]:
    """Time of every run of layers on a GPU, infinite where it does not fit: [first, behind]. [s]"""

    def between(column: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.concatenate([[0.0], np.cumsum(column)])
        return np.asarray(sums[None, :] - sums[:, None])

    compute = between(costs.seconds[Kind.F] + costs.seconds[Kind.B])
    held = flight * (costs.weight_bytes + costs.activation_bytes) + costs.gradient_bytes
    output = np.concatenate([[0.0], costs.boundary_bytes])
    output[-1] = 0.0  # the last layer's output stays
    seconds = np.maximum(compute, output[None, :] / rate)
    fits = between(held) <= gpu.memory - CONTEXT_BYTES
    return np.asarray(np.where(fits, seconds, np.inf))


def _run(costs: Costs, fabric: Fabric, num_in_flight: int, num_minibatches: int) -> Timeline:
    """The pipeline alone."""
    ranks = range(costs.num_stages - 1)
    capacity, sends = fabric.capacity, fabric.sends
    sizes = costs.boundary_bytes.tolist()
    transfer = [sends[rank, rank + 1].alone(sizes[rank], capacity) for rank in ranks]
    rows = continuous(costs, num_in_flight, num_minibatches, transfer)
    return engine.run(post_receives_early(lower(rows)), costs, fabric)


def _wires(order: Sequence[int], cluster: MixedCluster, sharing: int) -> Fabric:
    """A worker's links: a port each way for each GPU, and its share of each node's NIC."""
    near, far = cluster.intra_node, cluster.inter_node
    ranks = len(order)
    nodes = sorted(set(order))
    capacity = [_rate(near)] * (2 * ranks) + [_rate(far) / sharing] * (2 * len(nodes))
    names = [f"GPU {r} port {way}" for r in range(ranks) for way in ("out", "in")]
    names += [f"node {n} NIC {way}" for n in nodes for way in ("out", "in")]
    sends = {}
    for a, b in [*zip(range(ranks), range(1, ranks), strict=False)]:
        for source, target in ((a, b), (b, a)):
            if order[a] == order[b]:
                links, latency = (2 * source, 2 * target + 1), near.latency
            else:
                out, into = (2 * (ranks + nodes.index(order[r])) for r in (source, target))
                links, latency = (out, into + 1), far.latency
            sends[source, target] = Route(links, (1.0, 1.0), latency)
    return Fabric(tuple(capacity), tuple(names), sends, {}, {})
