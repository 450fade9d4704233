"""PipeTransformer: layers freeze, the pipeline shrinks, and replicas take the GPUs that it frees.

Layers freeze from the input on. A frozen layer has no backward; once its outputs are cached it has
no forward either. What is left to train is packed into half the GPUs as soon as it fits, and each
halving doubles the replicas. Source: He, Li, Soltanolkotabi and Avestimehr, "PipeTransformer:
Automated Elastic Pipelining for Distributed Training of Large-scale Models", ICML 2021.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simulator import engine
from simulator.costs import Costs
from simulator.costs.communication import Collective, bytes_on_wire, collective_latency
from simulator.fabric import Fabric, Ring
from simulator.job import Cluster, Job, Link
from simulator.lower import lower, post_receives_early, reduce_at_end, step_optimizer
from simulator.network import Route
from simulator.planners.balanced import balanced_split
from simulator.planners.layerwise import layerwise, merged
from simulator.schedule import Kind
from simulator.schedules import build

__all__ = ["Phase", "active_costs", "elastic_run", "frozen_layers", "replicas_in_nodes"]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One epoch: what is frozen, how the rest is laid out, and how fast it trains."""

    frozen: int  # layers that are not trained any more [1]
    cached: int  # of these, layers whose output is read from the cache [1]
    pp: int  # pipeline ranks [1]
    dp: int  # replicas of the pipeline [1]
    num_microbatches: int  # of one replica in one step [1]
    step_time: float  # [s]
    samples: int  # of all replicas in one step [1]
    epoch_time: float  # with the transition into it [s]

    @property
    def rate(self) -> float:
        """Samples of all replicas. [1/s]"""
        return self.samples / self.step_time


def frozen_layers(num_layers: int, alpha: float, num_epochs: int) -> tuple[int, ...]:
    """Frozen layers in each epoch, the first one trains all: whole layers of L (1 - (1 - a)^T).

    That is L_T = L_(T-1) + alpha (L - L_(T-1)) from L_0 = 0, the upper bound that PipeTransformer
    puts on its choice by gradient norms. Source: He et al., ICML 2021, section 3.1.

    12 layers, alpha = 1/2: 0, 6, 9, 10.5, 11.25.

    >>> frozen_layers(12, 0.5, 5)
    (0, 6, 9, 10, 11)
    """
    if not 0 <= alpha < 1 or num_layers < 1 or num_epochs < 1:
        raise ValueError(
            f"alpha is {alpha:g} for {num_layers} layers and {num_epochs} epochs; use 0 <= alpha "
            "< 1, at least one layer and one epoch"
        )
    exact = (num_layers * (1 - (1 - alpha) ** epoch) for epoch in range(num_epochs))
    return tuple(int(layers + 1e-9) for layers in exact)


def active_costs(job: Job, layers: Costs, frozen: int, cached: int, pp: int) -> Costs:
    """Costs of the pipeline that is left: the frozen part runs forward, ahead of its first rank.

    With cached layers their output is read over the GPU's port instead, and only what froze since
    then runs. The embedding freezes with the first layer. The first trained layer is charged a
    whole backward, although nothing needs the gradient of its input.

    Args:
        job: the job; its links carry the cache.
        layers: `layerwise(job)`.
        frozen: frozen layers. [1]
        cached: of these, layers in the cache. [1]
        pp: ranks, no more than layers left and the head. [1]

    Raises:
        ValueError: more layers are frozen than there are, or cached than frozen, or too many ranks.
    """
    depth = job.model.num_hidden_layers
    if not 0 <= cached <= frozen <= depth:
        raise ValueError(
            f"{frozen} layers are frozen and {cached} cached, but the model has {depth}; use "
            "cached <= frozen <= layers"
        )
    bounds = _bounds(layers, frozen, pp)
    costs = merged([layers] * pp, bounds)
    if not frozen:
        return costs
    run = slice(cached + 1 if cached else 0, bounds[0])
    seconds = costs.seconds.copy()
    seconds[Kind.F, 0] += layers.seconds[Kind.F, run].sum()
    if cached:
        port = job.cluster.intra_node
        nbytes = float(layers.boundary_bytes[cached])
        seconds[Kind.F, 0] += port.latency + nbytes / (port.bandwidth * port.efficiency)
    weights = costs.weight_bytes.copy()
    weights[0] += layers.weight_bytes[run].sum()
    return replace(costs, seconds=seconds, weight_bytes=weights)


def replicas_in_nodes(cluster: Cluster, pp: int, dp: int) -> Fabric:
    """Links of one of dp pipelines of pp ranks, each on neighbouring GPUs of one node.

    Neighbours talk over the GPUs' ports. A stage's gradients are reduced in a ring over all
    replicas; the pp rings cross each node's NICs at the same time.

    Raises:
        ValueError: the pipelines do not fill the nodes evenly.
    """
    if cluster.gpus_per_node % pp or pp * dp != cluster.num_gpus:
        raise ValueError(
            f"{dp} pipelines of {pp} ranks do not fill {cluster.num_nodes} nodes of "
            f"{cluster.gpus_per_node} GPUs; use a pp that divides a node and dp = GPUs / pp"
        )
    near, far = cluster.intra_node, cluster.inter_node
    capacity = [_rate(near)] * (2 * pp) + [_rate(far) * cluster.nics_per_node]
    names = [f"GPU {rank} port {way}" for rank in range(pp) for way in ("out", "in")]
    ends = [(a, b) for a in range(pp) for b in (a - 1, a + 1) if 0 <= b < pp]
    sends = {(a, b): Route((2 * a, 2 * b + 1), (1.0, 1.0), near.latency) for a, b in ends}
    share = bytes_on_wire(Collective.ALL_REDUCE, 1.0, dp)
    nodes = min(cluster.num_nodes, dp)
    latency = collective_latency(Collective.ALL_REDUCE, dp, nodes, near, far)
    rings = {}
    for rank in range(pp):
        links = [2 * rank] if dp > nodes or nodes == 1 else []
        links += [2 * pp] if nodes > 1 else []
        rings[rank] = Ring(Route(tuple(links), (share,) * len(links), latency), share)
    return Fabric(tuple(capacity), (*names, "node NICs"), sends, rings, {})


def elastic_run(
    job: Job,
    frozen: Sequence[int],
    samples_per_epoch: int,
    *,
    cache: bool = True,
    transition: float = 0.0,
    microbatches_per_rank: Sequence[int] = (1, 2, 3, 4),
) -> tuple[Phase, ...]:
    """Every epoch of a run whose layers freeze.

    A replica's batch, plan.num_microbatches x micro_batch_size samples, stays what it is, and is
    cut into the number of microbatches that is fastest. A pipeline is halved while its largest rank
    holds no more than the largest one of the run's first epoch. Layers that were frozen an epoch
    ago are cached.

    Args:
        job: the model, the cluster, and the plan of the first epoch.
        frozen: layers frozen in each epoch; never fewer than before. [1]
        samples_per_epoch: of the data set. [1]
        cache: whether the outputs of frozen layers are kept.
        transition: of a changed layout: weights to the GPUs, new process groups. [s]
        microbatches_per_rank: numbers that are tried, as PipeTransformer's profiles do. [1]

    Raises:
        ValueError: the frozen layers do not grow.
    """
    if any(b < a for a, b in pairwise(frozen)):
        raise ValueError(f"frozen layers are {list(frozen)}; they must not become fewer")
    batch = job.plan.num_microbatches * job.plan.micro_batch_size
    pp, room = job.plan.pp, 0.0
    phases: list[Phase] = []
    known: dict[tuple[int, int, int], tuple[int, float]] = {}
    for epoch, count in enumerate(frozen):
        cached = frozen[epoch - 1] if cache and epoch else 0
        if epoch == 0:
            room = _largest_rank(job, batch, count, pp)
        while pp > 1 and _largest_rank(job, batch, count, pp // 2) <= room:
            pp //= 2
        dp = job.cluster.num_gpus // pp
        if (count, cached, pp) not in known:
            known[count, cached, pp] = _fastest(
                job, batch, (count, cached, pp), microbatches_per_rank
            )
        microbatches, step = known[count, cached, pp]
        steps = -(-samples_per_epoch // (batch * dp))
        moved = bool(phases) and phases[-1].pp != pp
        phases.append(
            Phase(
                frozen=count,
                cached=cached,
                pp=pp,
                dp=dp,
                num_microbatches=microbatches,
                step_time=step,
                samples=batch * dp,
                epoch_time=steps * step + (transition if moved else 0.0),
            )
        )
    return tuple(phases)


def _rate(link: Link) -> float:
    """[bytes/s]"""
    return link.bandwidth * link.efficiency


def _cut_into(job: Job, batch: int, num_microbatches: int) -> Job:
    """The job with a replica's batch in this many microbatches."""
    size = {"num_microbatches": num_microbatches, "micro_batch_size": batch // num_microbatches}
    return job.model_copy(update={"plan": job.plan.model_copy(update=size)})


def _bounds(layers: Costs, frozen: int, pp: int) -> list[int]:
    """First trained layer of each rank, and one behind the last: the least busy busiest rank."""
    first = frozen + 1 if frozen else 0  # the embedding stands before the layers
    both = layers.seconds[Kind.F] + layers.seconds[Kind.B]
    counts = balanced_split(both[first:].tolist(), pp)
    return [first, *(first + np.cumsum(counts)).tolist()]


def _largest_rank(job: Job, batch: int, frozen: int, pp: int) -> float:
    """What the fullest rank trains: its state, and activations of the whole batch. [bytes]

    Infinite if a rank would have nothing to train.
    """
    layers = layerwise(_cut_into(job, batch, 1))
    if layers.num_stages - (frozen + 1 if frozen else 0) < pp:
        return float("inf")
    costs = merged([layers] * pp, _bounds(layers, frozen, pp))
    state = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    return float((state + costs.activation_bytes).max())


def _fastest(
    job: Job, batch: int, layout: tuple[int, int, int], per_rank: Sequence[int]
) -> tuple[int, float]:
    """The best number of microbatches and its step time [s], for (frozen, cached, pp)."""
    frozen, cached, pp = layout
    found = []
    for each in per_rank:
        count = each * pp
        if batch % count == 0:
            cut = _cut_into(job, batch, count)
            costs = active_costs(cut, layerwise(cut), frozen, cached, pp)
            found.append((_step(cut, costs, pp), count))
    if not found:
        raise ValueError(
            f"a replica's batch of {batch} samples cannot be cut into {pp} microbatches; use a "
            "multiple"
        )
    step, count = min(found)
    return count, step


def _step(job: Job, costs: Costs, pp: int) -> float:
    """Step time of all replicas. [s]"""
    dp = job.cluster.num_gpus // pp
    plan = job.plan.model_copy(update={"pp": pp, "dp": dp, "layers_per_stage": None})
    lowered = post_receives_early(lower(build(plan, costs)))
    if dp > 1:
        lowered = reduce_at_end(lowered)
    fabric = replicas_in_nodes(job.cluster, pp, dp)
    return engine.run(step_optimizer(lowered), costs, fabric).makespan
