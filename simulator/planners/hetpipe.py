"""HetPipe: data parallelism over virtual workers, each a pipeline over unlike GPUs.

Which GPUs share a worker decides: nodes alone (NP) make unequal workers, and all wait for the
slowest; one GPU from every node (ED) makes equal ones.
Source: Park et al., "HetPipe: Enabling Large DNN Training on (Whimpy) Heterogeneous GPU Clusters
through Integration of Pipelined Model Parallelism and Data Parallelism", USENIX ATC 2020.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from simulator.costs import Costs
from simulator.costs.communication import Collective, bytes_on_wire
from simulator.planners.parameter_server import Waves, wave_synchronous
from simulator.planners.virtual_workers import (
    CONTEXT_BYTES,
    MixedCluster,
    VirtualWorker,
    fitted,
)
from simulator.schedule import Kind

__all__ = [
    "POLICIES",
    "Outcome",
    "all_reduce_rate",
    "best_assignment",
    "equal_distribution",
    "hybrid_distribution",
    "node_partition",
    "outcome",
    "traffic",
]

Assignment = tuple[tuple[int, ...], ...]  # nodes of each virtual worker's GPUs
WAVES = 160  # that workers are run for: unequal ones have then used up D = 4 [1]
MOST_IN_FLIGHT = 8  # minibatches that are tried [1]


def node_partition(cluster: MixedCluster) -> Assignment:
    """NP: each node is a virtual worker.

    Two nodes of two GPUs: ((0, 0), (1, 1)).
    """
    return tuple((node,) * cluster.gpus_per_node for node in range(cluster.num_nodes))


def equal_distribution(cluster: MixedCluster) -> Assignment:
    """ED: each virtual worker has one GPU of every node.

    Two nodes of two GPUs: ((0, 1), (0, 1)).
    """
    return (tuple(range(cluster.num_nodes)),) * cluster.gpus_per_node


def hybrid_distribution(cluster: MixedCluster) -> Assignment:
    """HD: the strongest node is halved with the weakest, the next with the next weakest.

    Raises:
        ValueError: an odd number of nodes, or of GPUs in a node.
    """
    if cluster.num_nodes % 2 or cluster.gpus_per_node % 2:
        raise ValueError(
            f"{cluster.num_nodes} nodes of {cluster.gpus_per_node} GPUs cannot be halved and "
            "paired; use even numbers, or another policy"
        )
    half, last = cluster.gpus_per_node // 2, cluster.num_nodes - 1
    pairs = [(node, last - node) for node in range(cluster.num_nodes // 2)]
    return tuple((a,) * half + (b,) * half for a, b in pairs for _ in range(2))


POLICIES: Mapping[str, Callable[[MixedCluster], Assignment]] = {
    "NP": node_partition,
    "ED": equal_distribution,
    "HD": hybrid_distribution,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Virtual workers under a parameter server."""

    workers: tuple[VirtualWorker, ...]
    waves: Waves
    synchronisation: float  # a push, and again a pull, when all workers do it at once [s]
    network_bytes: float  # over the nodes' NICs for each wave of all workers, without pipelines

    @property
    def rate(self) -> float:
        """Minibatches of all workers, in the long run. [1/s]"""
        return self.waves.rate()

    @property
    def free_rate(self) -> float:
        """Minibatches of all workers if none had to wait for another. [1/s]"""
        return sum(1 / worker.pace for worker in self.workers)


def outcome(
    assignment: Assignment,
    cluster: MixedCluster,
    layers: Mapping[str, Costs],
    *,
    distance: int = 0,
    num_in_flight: int | None = None,
    local: bool = False,
    num_waves: int = WAVES,
) -> Outcome:
    """What an assignment of GPUs to virtual workers is worth.

    Args:
        assignment: nodes of each worker's GPUs.
        cluster: the nodes.
        layers: layerwise costs by the name of the GPU.
        distance: the clock distance D. [1]
        num_in_flight: minibatches in a wave; left out, the number with the highest rate. [1]
        local: parameters live on the node of their stage, not round-robin over all nodes.
        num_waves: waves to run. [1]

    Raises:
        ValueError: the model does not fit, or `local` with workers that are not alike.
    """
    numbers = range(1, MOST_IN_FLIGHT + 1) if num_in_flight is None else [num_in_flight]
    best: Outcome | None = None
    for number in numbers:
        workers = _workers(assignment, cluster, layers, number)
        if workers is None:
            break
        out, into = traffic(workers, cluster, local=local)
        port = cluster.intra_node if local else cluster.inter_node
        load = max(w.costs.weight_bytes.max() for w in workers) if local else max(*out, *into)
        synchronisation = float(load) / (port.bandwidth * port.efficiency)
        waves = wave_synchronous(
            [w.pace for w in workers],
            [w.latency for w in workers],
            wave=number,
            distance=distance,
            num_waves=num_waves,
            push=synchronisation,
            pull=synchronisation,
        )
        found = Outcome(
            workers=workers,
            waves=waves,
            synchronisation=synchronisation,
            network_bytes=2 * sum(out),
        )
        if best is None or found.rate > best.rate * (1 + 1e-9):
            best = found
    if best is None:
        raise ValueError(
            f"the model does not fit into virtual workers {assignment} with {numbers[0]} "
            "minibatches in flight; use fewer, a smaller minibatch or another assignment"
        )
    return best


def traffic(
    workers: Sequence[VirtualWorker], cluster: MixedCluster, *, local: bool
) -> tuple[list[float], list[float]]:
    """Bytes that leave and reach each node when every worker pushes one update. [bytes]

    Round-robin, each node keeps an equal share of every stage, so that all but 1 / num_nodes of a
    push crosses the network. Local parameters stay on the node of their stage: nothing does.

    Raises:
        ValueError: `local`, but a stage is not on the same node in every worker.
    """
    out, into = [0.0] * cluster.num_nodes, [0.0] * cluster.num_nodes
    if local:
        if len({(worker.nodes, worker.bounds) for worker in workers}) > 1:
            raise ValueError(
                "local parameters need every stage on one node in all virtual workers, as equal "
                "distribution has it; use round-robin"
            )
        return out, into
    for worker in workers:
        for node, nbytes in zip(worker.nodes, worker.costs.weight_bytes.tolist(), strict=True):
            for server in range(cluster.num_nodes):
                if server != node:
                    out[node] += nbytes / cluster.num_nodes
                    into[server] += nbytes / cluster.num_nodes
    return out, into


def all_reduce_rate(cluster: MixedCluster, layers: Mapping[str, Costs]) -> tuple[float, int]:
    """Minibatches/s of plain data parallelism, and the GPUs that hold the whole model for it.

    Every GPU has one minibatch; a ring over the nodes' NICs reduces the gradients behind the
    backward; all wait for the slowest GPU. Source: Sergeev and Del Balso, "Horovod", 2018.

    Raises:
        ValueError: no GPU holds the model.
    """
    held = []
    for gpu in cluster.kinds:
        costs = layers[gpu.name]
        need = costs.weight_bytes + costs.gradient_bytes + costs.activation_bytes
        if need.sum() <= gpu.memory - CONTEXT_BYTES:
            held.append(costs)
    if not held:
        raise ValueError("no GPU holds the whole model; use virtual workers")
    gpus = len(held) * cluster.gpus_per_node
    wire = bytes_on_wire(Collective.ALL_REDUCE, float(held[0].gradient_bytes.sum()), gpus)
    link = cluster.inter_node if len(held) > 1 else cluster.intra_node
    reduce = wire / (link.bandwidth * link.efficiency)
    forward = max(float(costs.seconds[Kind.F].sum()) for costs in held)
    backward = max(float(costs.seconds[Kind.B].sum()) for costs in held)
    return gpus / (forward + max(backward, reduce)), gpus


def best_assignment(
    cluster: MixedCluster, layers: Mapping[str, Costs], num_in_flight: int
) -> tuple[Assignment, int]:
    """The way to make workers of num_nodes GPUs whose slowest is fastest, and the number of ways.

    Ways that differ only in the names of the workers or of equal GPUs count once. Of equal ones the
    first is returned. Ways with a worker that does not fit are counted too.
    """
    size, paces = cluster.num_nodes, {}
    for kinds in combinations_with_replacement(range(cluster.num_nodes), size):
        if max(map(kinds.count, kinds)) <= cluster.gpus_per_node:
            sharing = cluster.gpus_per_node if len(set(kinds)) > 1 else 1
            worker = fitted(kinds, cluster, layers, num_in_flight, sharing)
            paces[kinds] = float("inf") if worker is None else worker.pace
    ways = list(_ways(list(paces), [cluster.gpus_per_node] * cluster.num_nodes, 0))
    return min(ways, key=lambda way: max(paces[kinds] for kinds in way)), len(ways)


def _ways(kinds: list[tuple[int, ...]], left: list[int], first: int) -> Iterator[Assignment]:
    """All multisets of these workers that use every GPU."""
    if not any(left):
        yield ()
        return
    for at in range(first, len(kinds)):
        after = [have - kinds[at].count(node) for node, have in enumerate(left)]
        if min(after) >= 0:
            for rest in _ways(kinds, after, at):
                yield (kinds[at], *rest)


def _workers(
    assignment: Assignment, cluster: MixedCluster, layers: Mapping[str, Costs], number: int
) -> tuple[VirtualWorker, ...] | None:
    """Every virtual worker, or None if one does not fit; alike ones are simulated once."""
    crossing = [nodes for nodes in assignment if len(set(nodes)) > 1]
    made: dict[tuple[int, ...], VirtualWorker] = {}
    for nodes in assignment:
        if nodes not in made:
            sharing = max(sum(node in other for other in crossing) for node in nodes) or 1
            worker = fitted(nodes, cluster, layers, number, sharing)
            if worker is None:
                return None
            made[nodes] = worker
    return tuple(made[nodes] for nodes in assignment)
