"""Which links a message crosses: from the plan's ranks to ports, NICs and uplinks.

Global ranks follow Megatron's order: tensor, context, data, pipeline, the first varying fastest;
expert-parallel groups lie within the data-parallel ones. GPU g of a node uses NIC
`g * nics // gpus`. All copies of a message (one for each tensor-, context- and data-parallel peer)
start at the same moment, so one flow stands for them; where they are not alike, the most loaded
copy counts, because its group waits for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.costs.communication import Collective, bytes_on_wire, collective_latency
from simulator.job import Job
from simulator.network import Route

__all__ = ["Fabric", "connect", "gpus_of_plan", "ideal"]

Key = tuple[str, int, int]  # kind of link, node or GPU, NIC


@dataclass(frozen=True)
class Fabric:
    """Links and routes. Routes are by (sending pipeline rank, receiving pipeline rank)."""

    capacity: tuple[float, ...]  # of each link, one direction [bytes/s]
    names: tuple[str, ...]
    sends: Mapping[tuple[int, int], Route]
    reduces: tuple[Route, ...]  # gradient reduction of each pipeline rank
    gathers: tuple[Route, ...]  # weight gathering of each pipeline rank
    reduce_share: float = 0.0  # bytes that a GPU sends for each byte it reduces [1]
    gather_share: float = 0.0  # bytes that a GPU sends for each byte it gathers [1]
    nodes: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))


def ideal(pp: int, pairs: Iterable[tuple[int, int]], latency: float = 0.0) -> Fabric:
    """A fabric without limits: every message between these pairs takes this latency. [s]"""
    nothing = (Route((), (), 0.0),) * pp
    return Fabric((), (), dict.fromkeys(pairs, Route((), (), latency)), nothing, nothing)


def gpus_of_plan(pp: int, dp: int, cp: int, tp: int) -> NDArray[np.int64]:
    """Global rank of every (pp, dp, cp, tp) coordinate, in Megatron's order.

    >>> gpus_of_plan(pp=2, dp=2, cp=1, tp=2)[1, 0, 0]
    array([4, 5])
    """
    return np.arange(pp * dp * cp * tp).reshape(pp, dp, cp, tp)


def connect(job: Job, pairs: Iterable[tuple[int, int]]) -> Fabric:
    """Links of a job, with routes between these pairs of pipeline ranks."""
    return _Wiring(job).fabric(pairs)


class _Wiring:
    """Numbers the links of one job as its routes need them. A class only to hold that numbering."""

    def __init__(self, job: Job) -> None:
        self.cluster, self.plan = job.cluster, job.plan
        self.gpus = gpus_of_plan(self.plan.pp, self.plan.dp, self.plan.cp, self.plan.tp)
        slots = min(self.cluster.nics_per_node, self.cluster.gpus_per_node)
        self.node, local = np.divmod(np.arange(self.plan.num_gpus), self.cluster.gpus_per_node)
        self.nic = local * slots // self.cluster.gpus_per_node
        intra, inter = self.cluster.intra_node, self.cluster.inter_node
        total = inter.bandwidth * inter.efficiency * self.cluster.nics_per_node
        self.rate = {
            "port": intra.bandwidth * intra.efficiency,
            "nic": total / slots,
            "uplink": total / self.cluster.oversubscription,
        }
        self.links: dict[Key, int] = {}

    def fabric(self, pairs: Iterable[tuple[int, int]]) -> Fabric:
        plan = self.plan
        sends = {(a, b): self._send(a, b) for a, b in sorted(pairs)}
        split = plan.zero_stage > 0
        collective = Collective.REDUCE_SCATTER if split else Collective.ALL_REDUCE
        reduces = tuple(self._ring(rank, collective) for rank in range(plan.pp))
        gathers = tuple(self._ring(rank, Collective.ALL_GATHER) for rank in range(plan.pp))
        peers = plan.dp * plan.cp
        return Fabric(
            tuple(self.rate[kind.split()[0]] for kind, _, _ in self.links),
            tuple(self._name(key) for key in self.links),
            sends,
            reduces,
            gathers,
            bytes_on_wire(collective, 1.0, peers),
            bytes_on_wire(Collective.ALL_GATHER, 1.0, peers),
            self.node[self.gpus[:, 0, 0, :]],
        )

    def _link(self, key: Key) -> int:
        return self.links.setdefault(key, len(self.links))

    def _name(self, key: Key) -> str:
        kind, at, nic = key
        what, way = kind.split()
        if what == "port":
            return f"GPU {at} port {way}"
        return f"node {at} uplink {way}" if what == "uplink" else f"node {at} NIC {nic} {way}"

    def _path(self, source: int, target: int) -> list[Key]:
        """The links between two GPUs."""
        a, b = int(self.node[source]), int(self.node[target])
        if a == b:
            return [("port out", source, 0), ("port in", target, 0)]
        path = [("nic out", a, int(self.nic[source])), ("nic in", b, int(self.nic[target]))]
        if self.cluster.oversubscription > 1:
            path += [("uplink out", a, 0), ("uplink in", b, 0)]
        return path

    def _send(self, source: int, target: int) -> Route:
        """Route of a boundary tensor between two pipeline ranks: its most loaded copy."""
        ends = zip(
            self.gpus[source].ravel().tolist(), self.gpus[target].ravel().tolist(), strict=True
        )
        paths = [self._path(a, b) for a, b in ends]
        copies: dict[Key, int] = {}
        for path in paths:
            for key in path:
                copies[key] = copies.get(key, 0) + 1

        def load(path: list[Key]) -> float:
            return max(copies[key] / self.rate[key[0].split()[0]] for key in path)

        path = max(paths, key=load)  # the first of equals: replica 0
        near = path[0][0] == "port out"
        latency = (self.cluster.intra_node if near else self.cluster.inter_node).latency
        return Route(
            tuple(self._link(key) for key in path),
            tuple(float(copies[key]) for key in path),
            latency,
        )

    def _ring(self, rank: int, collective: Collective) -> Route:
        """Route of one pipeline rank's data-parallel collective, all tensor-parallel peers at once.

        Each member of a ring sends to the next; within a node over its port, between nodes over as
        many NICs as the group has members there, each taking an equal share of the ring.
        """
        groups = self.gpus[rank].reshape(-1, self.plan.tp).T  # (tp, members)
        members = groups[0]
        if len(members) == 1:
            return Route((), (), 0.0)
        home = int(self.node[members[0]])
        spanned = len(np.unique(self.node[members]))
        latency = collective_latency(
            collective, len(members), spanned, self.cluster.intra_node, self.cluster.inter_node
        )
        load: dict[Key, float] = {}
        if (self.node[members] == home).sum() > 1:
            for way in ("port out", "port in"):
                load[way, int(members[0]), 0] = 1.0
        if spanned > 1:
            for group in groups:
                inside = group[self.node[group] == home]
                for gpu in inside:
                    for way in ("out", "in"):
                        nic = (f"nic {way}", home, int(self.nic[gpu]))
                        load[nic] = load.get(nic, 0.0) + 1.0 / len(inside)
                        if self.cluster.oversubscription > 1:
                            up = (f"uplink {way}", home, 0)
                            load[up] = load.get(up, 0.0) + 1.0 / len(inside)
        return Route(tuple(self._link(key) for key in load), tuple(load.values()), latency)
