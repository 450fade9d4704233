"""Which links a message crosses: from the plan's ranks to ports, NICs and uplinks.

Global ranks follow Megatron's order: tensor, context, data, pipeline, the first varying fastest;
expert-parallel groups lie within the data-parallel ones. GPU g of a node uses NIC
`g * nics // gpus`. All copies of a message (one for each tensor-, context- and data-parallel peer)
start at the same moment, so one flow stands for them. It crosses the links of replica 0 and, where
the copies are not alike, those of the most loaded one too, because all wait for the slowest.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.communication import Collective, bytes_on_wire, collective_latency
from simulator.job import Job
from simulator.network import Route

__all__ = ["Fabric", "Ring", "connect", "gpus_of_plan", "ideal"]

Key = tuple[str, int, int]  # kind of link, node or GPU, NIC


class Ring(NamedTuple):
    """A data-parallel collective of one stage."""

    route: Route
    share: float  # bytes that a GPU sends for each byte of the buffer [1]


@dataclass(frozen=True)
class Fabric:
    """Links, and routes by (sending pipeline rank, receiving pipeline rank) or by stage."""

    capacity: tuple[float, ...]  # of each link, one direction [bytes/s]
    names: tuple[str, ...]
    sends: Mapping[tuple[int, int], Route]
    reduces: Mapping[int, Ring]  # gradient reduction of each stage
    gathers: Mapping[int, Ring]  # weight gathering of each stage


def ideal(pairs: Iterable[tuple[int, int]], latency: float = 0.0) -> Fabric:
    """A fabric without limits: every message between these pairs takes this latency. [s]"""
    return Fabric((), (), dict.fromkeys(pairs, Route((), (), latency)), {}, {})


def gpus_of_plan(pp: int, dp: int, cp: int, tp: int) -> NDArray[np.int64]:
    """Global rank of every (pp, dp, cp, tp) coordinate, in Megatron's order.

    >>> gpus_of_plan(pp=2, dp=2, cp=1, tp=2)[1, 0, 0]
    array([4, 5])
    """
    return np.arange(pp * dp * cp * tp).reshape(pp, dp, cp, tp)


def connect(
    job: Job, pairs: Iterable[tuple[int, int]], homes: Mapping[int, tuple[int, ...]] | None = None
) -> Fabric:
    """Links of a job, with routes between these pairs of pipeline ranks.

    `homes` says which pipeline ranks hold each stage; gradients are reduced over all of them.
    """
    cluster, plan = job.cluster, job.plan
    cut = (plan.pp, plan.dp, plan.cp, plan.tp, plan.zero_stage > 0)
    ends = (tuple(sorted(pairs)), tuple(sorted((homes or {}).items())))
    return _connected(_Wanted((cluster.model_dump_json(), *cut), *ends, job))


@dataclass(frozen=True)
class _Wanted:
    """What a fabric depends on: jobs that differ in the rest share it."""

    cut: tuple[Hashable, ...]
    pairs: tuple[tuple[int, int], ...]
    homes: tuple[tuple[int, tuple[int, ...]], ...]
    job: Job = field(compare=False)


@lru_cache(maxsize=64)
def _connected(wanted: _Wanted) -> Fabric:
    """Looking routes up takes longer than running a small schedule on them."""
    return _Wiring(wanted.job).fabric(wanted.pairs, dict(wanted.homes))


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

    def fabric(
        self, pairs: Iterable[tuple[int, int]], homes: Mapping[int, tuple[int, ...]]
    ) -> Fabric:
        sends = {(a, b): self._send(a, b) for a, b in sorted(pairs)}
        split = self.plan.zero_stage > 0
        collective = Collective.REDUCE_SCATTER if split else Collective.ALL_REDUCE
        rings = {ranks: self._ring(ranks, collective) for ranks in sorted(set(homes.values()))}
        gathers = {ranks: self._ring(ranks, Collective.ALL_GATHER) for ranks in rings}
        return Fabric(
            tuple(self.rate[kind.split()[0]] for kind, _, _ in self.links),
            tuple(self._name(key) for key in self.links),
            sends,
            {stage: rings[ranks] for stage, ranks in homes.items()},
            {stage: gathers[ranks] for stage, ranks in homes.items()},
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

        crossed = dict.fromkeys([*paths[0], *max(paths, key=load)])
        near = all(key[0].startswith("port") for key in crossed)
        latency = (self.cluster.intra_node if near else self.cluster.inter_node).latency
        return Route(
            tuple(self._link(key) for key in crossed),
            tuple(float(copies[key]) for key in crossed),
            latency,
        )

    def _ring(self, ranks: tuple[int, ...], collective: Collective) -> Ring:
        """A collective over these ranks' data-parallel peers, all tensor-parallel peers at once.

        Each member of a ring sends to the next; within a node over its port, between nodes over as
        many NICs as the group has members there, each taking an equal share of the ring.
        """
        groups = self.gpus[list(ranks)].reshape(-1, self.plan.tp).T  # (tp, members)
        members = groups[0]
        share = bytes_on_wire(collective, 1.0, len(members))
        if len(members) == 1:
            return Ring(Route((), (), 0.0), share)
        spanned = len(np.unique(self.node[members]))
        latency = collective_latency(
            collective, len(members), spanned, self.cluster.intra_node, self.cluster.inter_node
        )
        loads: dict[int, dict[Key, float]] = {}  # by node
        for group in groups:
            nodes, counts = np.unique(self.node[group], return_counts=True)
            inside = dict(zip(nodes.tolist(), counts.tolist(), strict=True))
            for gpu in group.tolist():
                node = int(self.node[gpu])
                load = loads.setdefault(node, {})
                if inside[node] > 1:
                    load["port out", gpu, 0] = load["port in", gpu, 0] = 1.0
                if spanned > 1:
                    self._add_network(load, gpu, 1.0 / inside[node])
        chosen = loads[int(self.node[members[0]])] | max(loads.values(), key=self._slowest)
        load = {key: share for key, share in chosen.items() if self._counts(key, members)}
        links = tuple(self._link(key) for key in load)
        return Ring(Route(links, tuple(load.values()), latency), share)

    def _add_network(self, load: dict[Key, float], gpu: int, share: float) -> None:
        """A GPU's share of its ring, in and out of its node."""
        node, nic = int(self.node[gpu]), int(self.nic[gpu])
        uplinks = [("uplink out", node, 0), ("uplink in", node, 0)]
        ends = [("nic out", node, nic), ("nic in", node, nic)]
        for key in ends + (uplinks if self.cluster.oversubscription > 1 else []):
            load[key] = load.get(key, 0.0) + share

    def _slowest(self, load: dict[Key, float]) -> float:
        """Time that a node needs for each byte of its rings. [s/byte]"""
        return max(share / self.rate[key[0].split()[0]] for key, share in load.items())

    def _counts(self, key: Key, members: NDArray[np.int64]) -> bool:
        """Of the ports, those of one ring are enough: the peers' are alike."""
        return not key[0].startswith("port") or key[1] in members
