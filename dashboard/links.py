"""How busy the links are over time: the bytes of every transfer, spread over the time it takes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.fabric import Fabric, connect
from simulator.job import Job
from simulator.kernel import kernel
from simulator.network import Route
from simulator.schedule import Kind
from simulator.simulate import Run
from simulator.timeline import Timeline

__all__ = ["LinkUse", "link_use"]


@dataclass(frozen=True, eq=False)
class LinkUse:
    """The share of each link's capacity that is in use in each bin of the step."""

    names: tuple[str, ...]  # of each link
    width: float  # of a bin [s]
    share: NDArray[np.float64]  # shape (num_links, num_bins) [1]

    @property
    def busiest(self) -> int | None:
        """The link that carries most over the step; None where nothing is sent."""
        total = self.share.sum(axis=1)
        return int(total.argmax()) if total.any() else None


def link_use(run: Run, num_bins: int) -> LinkUse:
    """Use of the links that the first replica's messages cross, over `num_bins` equal bins.

    Raises:
        ValueError: the run has uniform costs, whose links have no limits.
    """
    if run.job is None:
        raise ValueError("link use needs a job; uniform costs have links without limits")
    job = run.job.model_copy(update={"plan": run.plan})
    timeline, costs = run.timeline, run.costs
    width = timeline.makespan / num_bins
    send, source, target, nbytes = _messages(timeline, costs)
    fabric = _fabric(job, timeline, source, target)
    share = np.zeros((len(fabric.capacity), num_bins))
    route, routes = _numbered(fabric, source, target)
    _spread(
        timeline.start[send], timeline.end[send], nbytes, route, *_columns(routes), width, share
    )
    for kind, table, size in (
        (Kind.REDUCE_GRAD, fabric.reduces, costs.reduce_bytes),
        (Kind.UNSHARD, fabric.gathers, costs.unshard_bytes),
    ):
        spans = np.flatnonzero(timeline.kind == kind)
        stage = timeline.stage[spans]
        _, once = np.unique(stage, return_index=True)  # a ring's members run it together
        spans, stage = spans[once], stage[once]
        rings = [table[int(one)] for one in stage.tolist()]
        carried = np.array([ring.share for ring in rings]) * size[stage]
        begin, end = timeline.start[spans], timeline.end[spans]
        numbers = np.arange(len(rings))
        _spread(begin, end, carried, numbers, *_columns([r.route for r in rings]), width, share)
    capacity = np.array(fabric.capacity).reshape(-1, 1)
    return LinkUse(fabric.names, width, share / (capacity * width))


def _messages(
    timeline: Timeline, costs: Costs
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Index, sender, receiver and bytes of every send."""
    size = int(timeline.microbatch.max(initial=0)) + 1
    stage, number = timeline.stage.astype(np.int64), timeline.microbatch.astype(np.int64)
    found: list[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]] = []
    for kind, other, step in ((Kind.SEND_F, Kind.RECV_F, 1), (Kind.SEND_B, Kind.RECV_B, -1)):
        send, receive = (np.flatnonzero(timeline.kind == k) for k in (kind, other))
        home = np.zeros((timeline.num_stages + 2) * size, np.int32)
        home[(stage[receive] + 1) * size + number[receive]] = timeline.rank[receive]
        target = home[(stage[send] + step + 1) * size + number[send]]
        found.append((send, target, stage[send] - (step < 0)))
    send, target, boundary = (np.concatenate([one[i] for one in found]) for i in range(3))
    nbytes = costs.boundary_bytes[boundary] * costs.share_of_tokens(timeline.microbatch[send])
    return send, timeline.rank[send], target, nbytes


def _fabric(
    job: Job, timeline: Timeline, source: NDArray[np.int32], target: NDArray[np.int32]
) -> Fabric:
    pairs = np.unique(np.stack([source, target], axis=1), axis=0).tolist()
    held = timeline.held.T
    homes = {stage: tuple(np.flatnonzero(row).tolist()) for stage, row in enumerate(held)}
    return connect(job, [(a, b) for a, b in pairs if a != b], homes)


def _numbered(
    fabric: Fabric, source: NDArray[np.int32], target: NDArray[np.int32]
) -> tuple[NDArray[np.int64], list[Route]]:
    """The route of each message as a number."""
    ranks = int(max(source.max(initial=0), target.max(initial=0))) + 1
    of = np.full((ranks, ranks), -1)
    for number, (a, b) in enumerate(fabric.sends):
        of[a, b] = number
    return of[source, target], list(fabric.sends.values())


def _columns(
    routes: list[Route],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Where each route begins among the links, shape (num_routes + 1,); its links; its copies."""
    first = np.cumsum([0, *(len(route.links) for route in routes)])
    links = np.array([link for route in routes for link in route.links], np.int64)
    copies = np.array([count for route in routes for count in route.copies])
    return first, links, copies


@kernel
def _spread(
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    nbytes: NDArray[np.float64],
    route: NDArray[np.int64],
    first: NDArray[np.int64],
    links: NDArray[np.int64],
    copies: NDArray[np.float64],
    width: float,
    carried: NDArray[np.float64],
) -> None:
    """Add each message's bytes to the bins of its links, shape (num_links, num_bins)."""
    num_bins = carried.shape[1]
    for message in range(len(start)):
        if route[message] < 0:
            continue
        a, b = start[message] / width, min(end[message] / width, num_bins)
        for at in range(int(a), min(int(b) + 1, num_bins)):
            part = min(b, at + 1.0) - max(a, float(at))
            share = part / (b - a) if b > a else 0.0
            for entry in range(first[route[message]], first[route[message] + 1]):
                carried[links[entry], at] += copies[entry] * share * nbytes[message]
