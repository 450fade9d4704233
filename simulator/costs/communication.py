"""Time of transfers and collectives of one group, alone on its links: latency and bandwidth.

A collective costs the latency of its hops plus the bytes that each GPU sends over the slowest
link. NCCL has algorithms (ring, tree, and NVLS, which the switch computes) and three protocols
that trade latency for bandwidth; it picks what it expects to be fastest, and so does this.
"""

from collections.abc import Iterator
from enum import StrEnum
from math import log2, sqrt
from typing import NamedTuple

from simulator.job import Cluster, Link

__all__ = [
    "Collective",
    "Group",
    "bytes_on_wire",
    "collective_latency",
    "collective_seconds",
    "group_of",
    "group_pace",
    "group_seconds",
    "p2p_seconds",
    "tensor_parallel_seconds",
]


class Collective(StrEnum):
    """What a group of GPUs does with a buffer; sizes are those of the full buffer."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"  # of a GPU's buffer, an equal part goes to each member


class Protocol(NamedTuple):
    """One of NCCL's ways to move bytes; hop latencies are shares of the Simple protocol's."""

    base: float  # [s]
    intra_hop: float  # [1]
    inter_hop: float  # [1]
    bandwidth: float  # [1]


# Source: NVIDIA/nccl, src/graph/tuning.cc: base latencies 8.4, 14 and 6.6 us; ring hops of 3.4, 1.9
# and 0.6 us over NVLink, 14, 4 and 2.7 us over the network. LL128 carries 120 payload bytes in
# every 128, LL four in every eight.
SIMPLE = Protocol(8.4e-6, 1.0, 1.0, 1.0)
LL128 = Protocol(14e-6, 1.9 / 3.4, 4 / 14, 120 / 128)
LL = Protocol(6.6e-6, 0.6 / 3.4, 2.7 / 14, 0.46)

# Chunks of a pipelined ring cost 2 sqrt(latency x transfer) at the best chunk size, of which NCCL
# shows PIPELINING. OWN_COPY is what a GPU copies of its own part, in parts of the buffer. NVLS: the
# switch adds, so that each GPU sends and receives the buffer once, at this share of the bandwidth
# of its ring; NCCL takes it for more than four GPUs of a node. All-to-all, whose peers form no
# ring, reaches EXCHANGE_SHARE. Fitted once over A100, H100, H200 and B200, four collectives and all
# sizes from 512 bytes, by benchmarks/fit_collectives.py.
PIPELINING = 0.35
OWN_COPY = 0.45
NVLS_SHARE = 0.68
EXCHANGE_SHARE = 0.86
NVLS_LATENCY = 25e-6  # [s] of an operation; NVIDIA/nccl, src/graph/tuning.cc
NVLS_LEAST = 5  # GPUs of a node; stas00/ml-engineering


class Group(NamedTuple):
    """GPUs that communicate, and what their nodes give them."""

    num_gpus: int
    num_nodes: int
    nics_share: float  # NICs that the members on one node may use [1]


def group_of(num_gpus: int, stride: int, cluster: Cluster) -> Group:
    """Every `stride`-th GPU, the first of a node's as many as fit; its peers do the same at once.

    >>> from simulator.load import load_cluster
    >>> group_of(4, 8, load_cluster("selene"))  # one GPU on each of four nodes, 8 NICs for 8 peers
    Group(num_gpus=4, num_nodes=4, nics_share=1.0)
    """
    node = cluster.gpus_per_node
    inside = max(1, min(num_gpus, node // stride))
    return Group(num_gpus, -(-num_gpus // inside), cluster.nics_per_node * inside / node)


def _require_group(num_gpus: int, num_nodes: int) -> None:
    if num_gpus < 1 or num_nodes < 1 or num_nodes > num_gpus:
        raise ValueError(
            f"a group has {num_gpus} GPUs on {num_nodes} nodes; "
            f"use at least one of each, and at least one GPU on every node"
        )


def p2p_seconds(nbytes: float, link: Link) -> float:
    """Time for one tensor to cross one idle link. [s]

    Source: R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994.

    >>> p2p_seconds(450e6, Link(bandwidth=450e9, latency=5e-6))
    0.001005
    """
    return link.latency + nbytes / (link.bandwidth * link.efficiency)


def bytes_on_wire(collective: Collective, nbytes: float, num_gpus: int) -> float:
    """Bytes that each GPU sends in a ring, for a full buffer of `nbytes`. [bytes]

    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md: 2(n-1)/n for an all-reduce, (n-1)/n otherwise.

    >>> bytes_on_wire(Collective.ALL_REDUCE, 800.0, 8)
    1400.0
    >>> bytes_on_wire(Collective.ALL_GATHER, 800.0, 8)
    700.0
    """
    if num_gpus < 1 or nbytes < 0:
        raise ValueError(
            f"a collective of {nbytes:g} bytes over {num_gpus} GPUs; "
            f"use at least 0 bytes and at least one GPU"
        )
    passes = 2 if collective is Collective.ALL_REDUCE else 1
    return passes * (num_gpus - 1) * nbytes / num_gpus


def _hops(collective: Collective, num_gpus: int, num_nodes: int) -> Iterator[tuple[float, float]]:
    """Serial hops inside a node and between nodes, of the ring and, to reduce, of the tree."""
    if collective is Collective.ALL_TO_ALL:
        yield 2, 1 if num_nodes > 1 else 0  # there, and to know that it came; all peers at once
        return
    passes = 2 if collective is Collective.ALL_REDUCE else 1
    inter = passes * num_nodes if num_nodes > 1 else 0
    inter = min(inter, passes * (num_gpus - 1))
    yield passes * (num_gpus - 1) - inter, inter
    if collective is Collective.ALL_REDUCE:
        yield 2 * (num_gpus / num_nodes - 1), 2 * log2(num_nodes)


def _latency(
    collective: Collective, num_gpus: int, num_nodes: int, links: tuple[Link, Link], how: Protocol
) -> float:
    """Latency of the faster algorithm under one protocol. [s]"""
    intra, inter = (link.latency for link in links)
    return how.base + min(
        near * intra * how.intra_hop + far * inter * how.inter_hop
        for near, far in _hops(collective, num_gpus, num_nodes)
    )


def collective_latency(
    collective: Collective, num_gpus: int, num_nodes: int, intra: Link, inter: Link
) -> float:
    """Time that a large collective takes besides moving its bytes. [s]

    Simple protocol; the faster of a ring of n GPUs on N nodes, 2(n-1) hops of which 2N between
    nodes (half as many unless it reduces and gathers), and, to reduce, a tree,
    2 [(n/N - 1) intra + log2(N) inter]. A link's latency is one hop's, 3.4 us over NVLink and
    14 us over the network. Source: NVIDIA/nccl, src/graph/tuning.cc.

    >>> nvlink, nic = Link(bandwidth=300e9, latency=3.4e-6), Link(bandwidth=25e9, latency=14e-6)
    >>> round(collective_latency(Collective.ALL_GATHER, 8, 1, nvlink, nic) * 1e6, 1)  # 8.4 + 7*3.4
    32.2
    >>> round(collective_latency(Collective.ALL_REDUCE, 8, 8, nvlink, nic) * 1e6, 1)  # 8.4 + 6*14
    92.4
    """
    _require_group(num_gpus, num_nodes)
    if num_gpus == 1:
        return 0.0
    return _latency(collective, num_gpus, num_nodes, (intra, inter), SIMPLE)


def collective_seconds(
    collective: Collective,
    nbytes: float,
    num_gpus: int,
    num_nodes: int,
    intra: Link,
    inter: Link,
    nics_share: float = 1.0,
    *,
    switch_reduces: bool = False,
) -> float:
    """Time of a lone collective of a full buffer of `nbytes`, by its fastest protocol. [s]

    `nics_share` is how many NICs the group's members on one node may use [1]; an all-to-all's
    buffer is one GPU's. With `switch_reduces` an all-reduce may be summed by the node's switch.
    Source: NVIDIA/nccl, src/graph/tuning.cc; compared with nccl-tests in
    benchmarks/fit_collectives.py.

    1.4 GB, and 0.45 / 8 of the buffer copied, cross a 100 GB/s port in T = 14.45 ms, after
    L = 8.4 + 14 * 3.4 = 56 us, and chunks add 0.35 sqrt(L T) = 314.8 us:

    >>> port = Link(bandwidth=100e9, latency=3.4e-6)
    >>> round(collective_seconds(Collective.ALL_REDUCE, 0.8e9, 8, 1, port, port), 7)
    0.0148208
    """
    _require_group(num_gpus, num_nodes)
    if nics_share <= 0:
        raise ValueError(f"nics_share is {nics_share:g} NICs; it must be positive")
    if num_gpus == 1 or nbytes == 0:
        return 0.0
    port = intra.bandwidth * intra.efficiency
    network = nics_share * inter.bandwidth * inter.efficiency
    pace = _seconds_per_byte(collective, num_gpus, num_nodes, port, network)
    best = float("inf")
    for how in (SIMPLE, LL128, LL) if num_nodes == 1 or inter.low_latency else (SIMPLE,):
        latency = _latency(collective, num_gpus, num_nodes, (intra, inter), how)
        transfer = nbytes * pace / how.bandwidth
        best = min(best, latency + transfer + PIPELINING * sqrt(latency * transfer))
    inside = num_gpus // num_nodes
    if switch_reduces and collective is Collective.ALL_REDUCE and inside >= NVLS_LEAST:
        latency = NVLS_LATENCY + 2 * log2(num_nodes) * inter.latency
        pace = 1 / (NVLS_SHARE * port)
        if num_nodes > 1:  # a tree over the nodes: up and down, each GPU its part of the buffer
            pace = max(pace, 2 / network)
        transfer = nbytes * pace
        best = min(best, latency + transfer + PIPELINING * sqrt(latency * transfer))
    return best


def _seconds_per_byte(
    collective: Collective, num_gpus: int, num_nodes: int, port: float, network: float
) -> float:
    """Time that the slowest link needs for each byte of the buffer. [s/byte]"""
    if collective is Collective.ALL_TO_ALL:
        inside = num_gpus / num_nodes
        near, far = (inside - 1) / num_gpus, (num_gpus - inside) / num_gpus
        if num_nodes == 1:
            return near / (port * EXCHANGE_SHARE)
        return max(near / port, far * inside / network) / EXCHANGE_SHARE
    bandwidth = port
    if num_nodes > 1:
        bandwidth = network if num_nodes == num_gpus else min(port, network)
    wire = bytes_on_wire(collective, 1.0, num_gpus)
    return wire / bandwidth + OWN_COPY / num_gpus / port


def group_seconds(collective: Collective, nbytes: float, group: Group, cluster: Cluster) -> float:
    """Time of a collective over a group whose peers do the same at the same time. [s]"""
    return collective_seconds(
        collective,
        nbytes,
        group.num_gpus,
        group.num_nodes,
        cluster.intra_node,
        cluster.inter_node,
        group.nics_share,
        switch_reduces=cluster.switch_reduces,
    )


def group_pace(collective: Collective, group: Group, cluster: Cluster) -> float:
    """Time that a large ring needs for each byte of the group's full buffer. [s/byte]"""
    if group.num_gpus == 1:
        return 0.0
    intra, inter = cluster.intra_node, cluster.inter_node
    port = intra.bandwidth * intra.efficiency
    network = group.nics_share * inter.bandwidth * inter.efficiency
    return _seconds_per_byte(collective, group.num_gpus, group.num_nodes, port, network)


def tensor_parallel_seconds(
    collective: Collective, nbytes: float, tp: int, cluster: Cluster
) -> float:
    """Time of a collective over a tensor-parallel group, which fills nodes one after the other. [s]

    A group as large as a node, or larger, has all of the node's NICs to itself.
    """
    return group_seconds(collective, nbytes, group_of(tp, 1, cluster), cluster)
