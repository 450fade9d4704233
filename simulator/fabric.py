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
    """Numbers the links of one job as its routes need them. A class only to hold that numbering.

    A link's key counts ports out and in, by GPU; NICs out and in, by node and NIC; and uplinks out
    and in, by node.
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
        self.links: dict[int, int] = {}

    def fabric(
        self, pairs: Iterable[tuple[int, int]], homes: Mapping[int, tuple[int, ...]]
    ) -> Fabric:
        sends = {(a, b): self._send(a, b) for a, b in sorted(pairs)}
        split = self.plan.zero_stage > 0
        collective = Collective.REDUCE_SCATTER if split else Collective.ALL_REDUCE
        rings = {ranks: self._rings(ranks, collective) for ranks in sorted(set(homes.values()))}
        return Fabric(
            tuple(self.rate[list(self.links)].tolist()),
            tuple(self._name(key) for key in self.links),
            sends,
            {stage: rings[ranks][0] for stage, ranks in homes.items()},
            {stage: rings[ranks][1] for stage, ranks in homes.items()},
        )

    def _link(self, key: int) -> int:
        return self.links.setdefault(key, len(self.links))

    def _name(self, key: int) -> str:
        row = int(np.searchsorted(self.start, key, side="right")) - 1
        at, way = key - int(self.start[row]), ("out", "in")[row % 2]
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

    def _rings(self, ranks: tuple[int, ...], reduction: Collective) -> tuple[Ring, Ring]:
        """Reducing and gathering over these ranks' data-parallel peers, all tensor peers at once.

        Each member of a ring sends to the next; within a node over its port, between nodes over as
        many NICs as the group has members there, each taking an equal share of the ring.
        """
        groups = self.gpus[list(ranks)].reshape(-1, self.plan.tp).T  # (tp, members)
        members = groups[0]
        many, spanned = len(members), len(np.unique(self.node[members]))
        load = {} if many == 1 else self._loads(groups, spanned)
        keys, shares = tuple(self._link(key) for key in load), tuple(load.values())
        intra, inter = self.cluster.intra_node, self.cluster.inter_node
        first, second = (
            Ring(
                Route(keys, shares, collective_latency(one, many, spanned, intra, inter)),
                bytes_on_wire(one, 1.0, many),
            )
            for one in (reduction, Collective.ALL_GATHER)
        )
        return first, second

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
