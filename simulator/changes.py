"""Every quantity that can be faster: its seconds of the critical path, and the system with it.

The families are those of `sensitivity`; within each, every second of the path is counted once.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.attribution import Path, Pieces, pieces
from simulator.job import GPU, Job, Link, Plan
from simulator.schedule import Kind
from simulator.system import System, on_hardware, remade

__all__ = ["CONSTANTS", "Change", "changes", "quantities"]

CONSTANTS = "constants of the communication library"
COMPUTE = (Kind.F, Kind.B, Kind.I, Kind.W)
COLLECTIVE = (Kind.REDUCE_GRAD, Kind.UNSHARD)
DIFFERENCE = 1e-5  # relative, of the derivatives [1]

Faster = Callable[[Job, float], Job]
Changed = Callable[[float], System]  # from how many times as fast the quantity is


class Change(NamedTuple):
    """One quantity: what it takes of the critical path, and the system in which it is faster."""

    family: str
    name: str
    seconds: float  # on the critical path [s]
    faster: Changed | None  # None where nothing can be changed
    same_rows: Changed | None = None  # the same, where `faster` may make the schedule again


def changes(system: System, path: Path) -> Iterator[Change]:
    """Every quantity of every family."""
    free = pieces(path, system.costs, system.fabric, system.stragglers)
    taken = free.stretched(path, free)
    if system.job is not None:
        yield from _hardware(system, system.job, path, free)
    yield from _ranks(system, path, taken)
    yield from _ops(system, path, taken)
    yield from _parts(system, path, taken)


def quantities(job: Job) -> dict[str, Faster]:
    """What the hardware is made of, by the name of its value, and the job in which it is faster."""
    found: dict[str, Faster] = {
        "cluster.gpu.peak_flops": lambda job, by: _with_gpu(
            job, peak_flops={k: v * by for k, v in job.cluster.gpu.peak_flops.items()}
        ),
        "cluster.gpu.memory_bandwidth": lambda job, by: _with_gpu(
            job, memory_bandwidth=job.cluster.gpu.memory_bandwidth * by
        ),
        "cluster.gpu.launch_overhead": lambda job, by: _with_gpu(
            job, launch_overhead=job.cluster.gpu.launch_overhead / by
        ),
        "cluster.gpu.host_overhead": lambda job, by: _with_gpu(
            job, host_overhead=job.cluster.gpu.host_overhead / by
        ),
    }
    for name in ("intra_node", "inter_node"):
        found |= _link_quantities(name)
    if job.cluster.oversubscription > 1:  # an uplink's rate is a NIC's over this
        whole = found["cluster.inter_node.bandwidth"]
        found["cluster.inter_node.bandwidth"] = lambda job, by: _with_uplink(whole(job, by), by)
        found["cluster.oversubscription"] = lambda job, by: _with_uplink(job, 1 / by)
    return found | _host_quantities(job.plan)


def _host_quantities(plan: Plan) -> dict[str, Faster]:
    """Of the hosts: their links, memory and drives, as far as the plan uses them."""
    found: dict[str, Faster] = {}
    if plan.offload != "none":
        found["cluster.host_memory_bandwidth"] = _with_host_memory
    used = {
        "host_link": plan.offload != "none" or plan.offload_activations,
        "nvme": plan.offload == "nvme",
    }
    for name in (name for name, uses in used.items() if uses):
        found |= _link_quantities(name)
    return found


def _link_quantities(name: str) -> dict[str, Faster]:
    """Rate and latency of one of the cluster's links."""
    fields = ("bandwidth", "latency")
    return {f"cluster.{name}.{field}": partial(_with_faster_link, name, field) for field in fields}


def _with_host_memory(job: Job, by: float) -> Job:
    value = job.cluster.host_memory_bandwidth * by
    cluster = job.cluster.model_copy(update={"host_memory_bandwidth": value})
    return job.model_copy(update={"cluster": cluster})


def _with_faster_link(name: str, field: str, job: Job, by: float) -> Job:
    value = getattr(getattr(job.cluster, name), field)
    return _with_link(job, name, **{field: value / by if field == "latency" else value * by})


def _with_gpu(job: Job, **values: object) -> Job:
    gpu: GPU = job.cluster.gpu.model_copy(update=values)
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={"gpu": gpu})})


def _with_link(job: Job, name: str, **values: float) -> Job:
    link: Link = getattr(job.cluster, name).model_copy(update=values)
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={name: link})})


def _with_uplink(job: Job, by: float) -> Job:
    """Uplinks this much slower than the NICs let them be; at best as fast as those."""
    value = max(1.0, job.cluster.oversubscription * by)
    cluster = job.cluster.model_copy(update={"oversubscription": value})
    return job.model_copy(update={"cluster": cluster})


def _hardware(system: System, job: Job, path: Path, free: Pieces) -> Iterator[Change]:
    """Rates and latencies of the hardware, and what none of them explains."""
    rest = path.total - path.waiting
    for name, faster in quantities(job).items():
        slower_and_faster = [faster(job, 1 - DIFFERENCE), faster(job, 1 + DIFFERENCE)]
        seconds = _derivative(system, slower_and_faster, path, free)
        rest -= seconds
        ways = (partial(_with_hardware, way, system, job, faster) for way in (remade, on_hardware))
        yield Change("hardware", name, seconds, *ways)
    yield Change("hardware", CONSTANTS, rest, None)


def _with_hardware(
    way: Callable[[System, Job], System], system: System, job: Job, faster: Faster, factor: float
) -> System:
    return way(system, faster(job, factor))


def _derivative(system: System, jobs: list[Job], path: Path, free: Pieces) -> float:
    """How fast the path shrinks as a quantity becomes faster, by the relative change. [s]"""
    ends = []
    for job in jobs:
        other = on_hardware(system, job)
        changed = pieces(path, other.costs, other.fabric, system.stragglers)
        ends.append(float(path.weight @ changed.stretched(path, free).total))
    return (ends[0] - ends[1]) / (2 * DIFFERENCE)


def _ranks(system: System, path: Path, parts: Pieces) -> Iterator[Change]:
    """Each rank's compute, and all communication."""
    compute = path.weight * (parts.work + parts.recompute)
    for rank in range(system.lowered.num_ranks):
        seconds = float(compute[path.rank == rank].sum())
        yield Change("rank", f"rank {rank}", seconds, partial(_faster_rank, system, rank))
    seconds = float(path.weight @ (parts.tensor + parts.latency + parts.wire))
    yield Change("rank", "all communication", seconds, partial(_faster_communication, system))


def _ops(system: System, path: Path, parts: Pieces) -> Iterator[Change]:
    """Each kind of op, its tensor-parallel communication included, and what runs between ops."""
    first = path.weight * (parts.total - parts.second)
    for kind in Kind:
        if kind.is_compute and (system.lowered.kind == kind).any():
            seconds = float(first[path.kind == kind].sum())
            seconds += float((path.weight * parts.second)[path.second_kind == kind].sum())
            name = "optimizer step" if kind == Kind.OPTIMIZER else kind.name
            yield Change("op", name, seconds, partial(_faster_kind, system, kind))
    between = float(first[path.kind > Kind.OPTIMIZER].sum())
    if (system.lowered.kind > Kind.OPTIMIZER).any():
        yield Change("op", "messages and reductions", between, partial(_faster_links, system))


def _parts(system: System, path: Path, parts: Pieces) -> Iterator[Change]:
    """Each part of the costs, as in a report's split."""
    costs = system.costs
    step = path.kind == Kind.OPTIMIZER
    work = path.weight * parts.work
    tensor, again = costs.tensor_seconds, np.zeros_like(costs.seconds)
    again[Kind.B] = again[Kind.I] = costs.recompute_seconds
    lone = costs.seconds - tensor - again
    faster = partial(_less, system, lone, COMPUTE)
    yield Change("part", "compute", float(work[~step].sum()), faster)
    if again.any():
        seconds = float(path.weight @ parts.recompute)
        yield Change("part", "recompute", seconds, partial(_less, system, again, COMPUTE))
    if tensor.any():
        seconds = float(path.weight @ parts.tensor)
        yield Change("part", "tp comm.", seconds, partial(_faster_tensor, system))
    if (system.lowered.kind == Kind.OPTIMIZER).any():
        seconds = float(work[step].sum())
        faster = partial(_less, system, lone, (Kind.OPTIMIZER,))
        yield Change("part", "optimizer", seconds, faster)
    between = path.weight * (parts.latency + parts.wire)
    data = np.isin(path.kind, COLLECTIVE)
    if system.fabric.sends:
        seconds = float(between[~data].sum())
        yield Change("part", "pp comm.", seconds, partial(_faster_messages, system))
    if np.isin(system.lowered.kind, COLLECTIVE).any():
        seconds = float(between[data].sum())
        yield Change("part", "dp comm.", seconds, partial(_faster_data, system))


def _faster_rank(system: System, rank: int, factor: float) -> System:
    slow = dict(system.stragglers) | {rank: system.stragglers.get(rank, 1.0) / factor}
    return replace(system, stragglers=slow)


def _faster_kind(system: System, kind: Kind, factor: float) -> System:
    costs = system.costs
    time, tensor = costs.seconds.copy(), costs.tensor_seconds.copy()
    time[kind] /= factor
    tensor[kind] /= factor
    return replace(system, costs=replace(costs, seconds=time, tensor_seconds=tensor))


def _faster_communication(system: System, factor: float) -> System:
    return _faster_links(_faster_tensor(system, factor), factor)


def _faster_links(system: System, factor: float) -> System:
    return _faster_data(_faster_messages(system, factor), factor)


def _less(
    system: System, seconds: NDArray[np.float64], kinds: tuple[Kind, ...], factor: float
) -> System:
    """The system with this part of some kinds faster; `seconds` has shape (num_kinds, num_stages).

    A full backward is shorter by what its kind says; its halves by theirs.
    """
    time = system.costs.seconds.copy()
    time[list(kinds)] -= (1 - 1 / factor) * seconds[list(kinds)]
    return replace(system, costs=replace(system.costs, seconds=time))


def _faster_tensor(system: System, factor: float) -> System:
    costs = system.costs
    rest = costs.seconds - costs.tensor_seconds * (1 - 1 / factor)
    tensor = costs.tensor_seconds / factor
    return replace(system, costs=replace(costs, seconds=rest, tensor_seconds=tensor))


def _faster_messages(system: System, factor: float) -> System:
    costs = replace(
        system.costs,
        boundary_bytes=system.costs.boundary_bytes / factor,
        boundary_gather=system.costs.boundary_gather / factor,
    )
    sends = {
        pair: replace(route, latency=route.latency / factor)
        for pair, route in system.fabric.sends.items()
    }
    return replace(system, costs=costs, fabric=replace(system.fabric, sends=sends))


def _faster_data(system: System, factor: float) -> System:
    costs = replace(
        system.costs,
        reduce_bytes=system.costs.reduce_bytes / factor,
        unshard_bytes=system.costs.unshard_bytes / factor,
    )
    rings = [
        {
            stage: ring._replace(route=replace(ring.route, latency=ring.route.latency / factor))
            for stage, ring in table.items()
        }
        for table in (system.fabric.reduces, system.fabric.gathers)
    ]
    fabric = replace(system.fabric, reduces=rings[0], gathers=rings[1])
    return replace(system, costs=costs, fabric=fabric)
