"""Which links a message crosses: from the plan's ranks to ports, NICs and uplinks.

Global ranks follow Megatron's order: tensor, context, data, pipeline, the first varying fastest;
expert-parallel groups lie within the data-parallel ones. GPU g of a node uses NIC
`g * nics // gpus`. All copies of a message (one for each tensor-, context- and data-parallel peer)
start at the same moment, so one flow stands for them. It crosses the links of replica 0 and, where
the copies are not alike, those of the most loaded one too, because all wait for the slowest.
Where the optimizer is offloaded, a stage's reduction and gathering cross host links and drives too.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.communication import Collective, bytes_on_wire, collective_latency
from simulator.costs.host_loads import HostLoad, host_loads
from simulator.job import Job
from simulator.network import Route

__all__ = ["Fabric", "Ring", "connect", "gpus_of_plan", "ideal"]


class Ring(NamedTuple):
    """A data-parallel collective of one stage, or the copies to and from the host alone."""

    route: Route
    share: float  # bytes of the flow for each byte of the buffer: what a GPU sends [1]


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
    cut = (plan.pp, plan.dp, plan.cp, plan.tp, plan.zero_stage > 0, host_loads(job))
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
    """Numbers the links of one job as its routes need them. A class only to hold that numbering.

    A link's key counts ports out and in, by GPU; NICs out and in, by node and NIC; uplinks out and
    in, by node; and, for an offloaded optimizer, host links out and in, by GPU; and drives, by
    node, whose bandwidth reading and writing share.
    """

    def __init__(self, job: Job) -> None:
        self.cluster, self.plan = job.cluster, job.plan
        self.gpus = gpus_of_plan(self.plan.pp, self.plan.dp, self.plan.cp, self.plan.tp)
        self.slots = min(self.cluster.nics_per_node, self.cluster.gpus_per_node)
        gpu = np.arange(self.plan.num_gpus)
        self.node, local = np.divmod(gpu, self.cluster.gpus_per_node)
        nic = local * self.slots // self.cluster.gpus_per_node
        nodes = int(self.node[-1]) + 1
        sizes = np.repeat([len(gpu), nodes * self.slots, nodes], 2)
        self.start = np.cumsum([0, *sizes])
        at = (gpu, self.node * self.slots + nic, self.node)
        keys = [begin + at[row // 2] for row, begin in enumerate(self.start[:-1])]
        self.port, self.nic, self.uplink = (np.stack(keys[2 * k : 2 * k + 2]) for k in range(3))
        intra, inter = self.cluster.intra_node, self.cluster.inter_node
        total = inter.bandwidth * inter.efficiency * self.cluster.nics_per_node
        rates = (
            intra.bandwidth * intra.efficiency,
            total / self.slots,
            total / self.cluster.oversubscription,
        )
        self.rate = np.repeat(np.repeat(rates, 2), sizes)
        each = (self.node, np.repeat(np.arange(nodes), self.slots), np.arange(nodes))
        self.node_of = np.concatenate([one for one in each for _ in range(2)])
        self.host_loads = host_loads(job)
        if self.host_loads:
            self._add_hosts(gpu, nodes)
        self.links: dict[int, int] = {}

    def _add_hosts(self, gpu: NDArray[np.int64], nodes: int) -> None:
        """Number the links that an offloaded optimizer's copies and states cross."""
        sizes = (len(gpu), len(gpu), nodes)
        first = int(self.start[-1])
        self.start = np.concatenate([self.start, first + np.cumsum(sizes)])
        self.host = self.start[6:8, None] + gpu
        rates = [
            link.bandwidth * link.efficiency if link is not None else np.inf
            for link in (self.cluster.host_link, self.cluster.host_link, self.cluster.nvme)
        ]
        self.rate = np.concatenate([self.rate, np.repeat(rates, sizes)])

    def fabric(
        self, pairs: Iterable[tuple[int, int]], homes: Mapping[int, tuple[int, ...]]
    ) -> Fabric:
        sends = {(a, b): self._send(a, b) for a, b in sorted(pairs)}
        split = self.plan.zero_stage > 0
        collective = Collective.REDUCE_SCATTER if split else Collective.ALL_REDUCE
        held = {
            stage: (ranks, self.host_loads[stage] if self.host_loads else None)
            for stage, ranks in homes.items()
        }
        rings = {one: self._rings(*one, collective) for one in sorted(set(held.values()))}
        return Fabric(
            tuple(self.rate[list(self.links)].tolist()),
            tuple(self._name(key) for key in self.links),
            sends,
            {stage: rings[one][0] for stage, one in held.items()},
            {stage: rings[one][1] for stage, one in held.items()},
        )

    def _link(self, key: int) -> int:
        return self.links.setdefault(key, len(self.links))

    def _name(self, key: int) -> str:
        row = int(np.searchsorted(self.start, key, side="right")) - 1
        at, way = key - int(self.start[row]), ("out", "in")[row % 2]
        if row > 5:
            return f"node {at} drives" if row == 8 else f"GPU {at} host link {way}"
        if row < 2:
            return f"GPU {at} port {way}"
        if row > 3:
            return f"node {at} uplink {way}"
        return f"node {at // self.slots} NIC {at % self.slots} {way}"

    def _paths(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The links between pairs of GPUs, shape (2 or 4, num_pairs), -1 where there is none."""
        near = self.node[sources] == self.node[targets]
        rows = [
            np.where(near, self.port[way, ends], self.nic[way, ends])
            for way, ends in enumerate((sources, targets))
        ]
        if self.cluster.oversubscription > 1:
            for way, ends in enumerate((sources, targets)):
                rows.append(np.where(near, -1, self.uplink[way, ends]))
        return np.stack(rows)

    def _send(self, source: int, target: int) -> Route:
        """Route of a boundary tensor between two pipeline ranks: its most loaded copy."""
        paths = self._paths(self.gpus[source].ravel(), self.gpus[target].ravel())
        copies = np.bincount(paths[paths >= 0], minlength=len(self.rate))
        load = np.where(paths >= 0, (copies / self.rate)[paths], 0.0).max(axis=0)
        crossed = dict.fromkeys([*paths[:, 0].tolist(), *paths[:, int(load.argmax())].tolist()])
        keys = [key for key in crossed if key >= 0]
        near = max(keys) < self.start[2]
        latency = (self.cluster.intra_node if near else self.cluster.inter_node).latency
        return Route(
            tuple(self._link(key) for key in keys),
            tuple(copies[keys].astype(float).tolist()),
            latency,
        )

    def _rings(
        self, ranks: tuple[int, ...], host: HostLoad | None, reduction: Collective
    ) -> tuple[Ring, Ring]:
        """Reducing and gathering over these ranks' data-parallel peers, all tensor peers at once.

        Each member of a ring sends to the next; within a node over its port, between nodes over as
        many NICs as the group has members there, each taking an equal share of the ring.
        """
        groups = self.gpus[list(ranks)].reshape(-1, self.plan.tp).T  # (tp, members)
        members = groups[0]
        many, spanned = len(members), len(set(self.node[members].tolist()))
        load = {} if many == 1 else self._loads(groups, spanned)
        intra, inter = self.cluster.intra_node, self.cluster.inter_node
        rings = []
        for way, one in enumerate((reduction, Collective.ALL_GATHER)):
            share = bytes_on_wire(one, 1.0, many)
            latency = collective_latency(one, many, spanned, intra, inter)
            ring = Ring(Route((), (), 0.0), 1.0)  # the host's copies alone
            if host is None or (many > 1 and (host.reduces, host.gathers)[way]):
                keys = tuple(self._link(key) for key in load)
                ring = Ring(Route(keys, tuple(load.values()), latency), share)
            rings.append(ring if host is None else self._with_host(ring, ranks, host, way))
        return rings[0], rings[1]

    def _with_host(self, ring: Ring, ranks: tuple[int, ...], host: HostLoad, way: int) -> Ring:
        """A ring whose flow crosses the links to the hosts too: 0 down, or 1 up, with the drives.

        A rank's GPUs have alike host links, of which one stands for all. Nodes between the first
        and the last of a rank are its own and alike: one of them stands for all.
        """
        assert self.cluster.host_link is not None
        latency = self.cluster.host_link.latency
        copied = (host.down, host.up)[way]
        load = {int(self.host[way, self.gpus[rank].flat[0]]): copied for rank in ranks}
        if way and host.states:
            assert self.cluster.nvme is not None
            latency += self.cluster.nvme.latency
            sharing = np.bincount(self.node[self.gpus[list(ranks)]].ravel())
            for rank in ranks:
                nodes = np.unique(self.node[self.gpus[rank]])
                for node in {*nodes[:2].tolist(), int(nodes[-1])}:
                    load[int(self.start[8]) + node] = host.states * float(sharing[node])
        route, share = ring
        links = tuple(self._link(key) for key in sorted(load))
        loads = tuple(load[key] / share for key in sorted(load))
        return Ring(
            Route(route.links + links, route.copies + loads, route.latency + latency), share
        )

    def _loads(self, groups: NDArray[np.int64], spanned: int) -> dict[int, float]:
        """What rings put on the links of the first member's node and of the slowest node. [1]

        `groups` are the GPUs of each ring, shape (tp, members).
        """
        node = self.node[groups]
        one = node + np.arange(len(groups))[:, None] * (node.max() + 1)
        inside = np.bincount(one.ravel())[one]  # members of the ring on the same node
        load = np.zeros(len(self.rate))
        for way in range(2):
            load[self.port[way, groups[inside > 1]]] = 1.0
            if spanned > 1:
                lines = [self.nic, self.uplink][: 2 if self.cluster.oversubscription > 1 else 1]
                for line in lines:
                    np.add.at(load, line[way, groups], 1.0 / inside)
        used = np.flatnonzero(load)
        slowest = np.zeros(len(self.node))
        np.maximum.at(slowest, self.node_of[used], load[used] / self.rate[used])
        nodes = node.ravel()
        worst = nodes[slowest[nodes].argmax()]
        load[self.port[:, groups[1:]]] = 0.0  # those of one ring are enough: the peers' are alike
        nearby = self.node_of[used]
        chosen = used[((nearby == node[0, 0]) | (nearby == worst)) & (load[used] > 0)]
        return dict(zip(chosen.tolist(), load[chosen].tolist(), strict=True))
