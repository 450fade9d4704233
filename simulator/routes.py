"""A fabric's routes as columns, and what a message takes on free links."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.kernel import kernel
from simulator.matching import Matches
from simulator.network import Route
from simulator.schedule import Kind, Schedule

__all__ = ["Rings", "Routes", "lone_seconds", "ring_bytes", "rings_of", "routes_of", "talking"]

Column = NDArray[np.float64]
Index = NDArray[np.int32]


class Routes(NamedTuple):
    """The routes of sends, shape (num_routes,) each, and which one joins two ranks."""

    of: Index  # route from rank to rank, shape (num_ranks, num_ranks), -1 where there is none
    together: Column  # all copies of the message on the links, and nothing else [s/byte]
    alone: Column  # one copy on the links [s/byte]
    latency: Column  # [s]
    first: Index  # index of a route's links in `links`, shape (num_routes + 1,)
    links: Index
    copies: Column  # of the message on each of these links [1]


class Rings(NamedTuple):
    """Data-parallel collectives, by reduction or gathering and by stage, shape (2, num_stages).

    Their links stand behind those of the sends.
    """

    path: Index  # number of the ring, counted on from the routes of sends; -1 where there is none
    pace: Column  # [s/byte of the flow]
    latency: Column  # [s]
    first: Index  # index of a route's or ring's links in `links`
    links: Index
    copies: Column


def routes_of(fabric: Fabric, num_ranks: int) -> Routes:
    """The routes between pipeline ranks as columns."""
    of = np.full((num_ranks, num_ranks), -1, np.int32)
    known: dict[Route, int] = {}
    for (source, target), route in fabric.sends.items():
        of[source, target] = known.setdefault(route, len(known))
    routes, free = list(known), fabric.capacity
    return Routes(
        of,
        np.array([route.pace(free) for route in routes]),
        np.array([route.pace_alone(free) for route in routes]),
        np.array([route.latency for route in routes]),
        np.cumsum([0, *(len(route.links) for route in routes)], dtype=np.int32),
        np.array([link for route in routes for link in route.links], np.int32),
        np.array([count for route in routes for count in route.copies]),
    )


def rings_of(fabric: Fabric, num_stages: int, routes: Routes) -> Rings:
    """The rings of each stage as columns, numbered behind the routes of sends."""
    path = np.full((2, num_stages), -1, np.int32)
    pace, latency = np.zeros((2, num_stages)), np.zeros((2, num_stages))
    known: dict[Route, int] = {}
    for row, table in enumerate((fabric.reduces, fabric.gathers)):
        for stage, ring in table.items():
            path[row, stage] = len(routes.latency) + known.setdefault(ring.route, len(known))
            latency[row, stage] = ring.route.latency
    paces = np.array([route.pace(fabric.capacity) for route in known])
    there = path >= 0
    pace[there] = paces[path[there] - len(routes.latency)] if known else 0.0
    ends = routes.first[-1] + np.cumsum([len(route.links) for route in known], dtype=np.int32)
    return Rings(
        path,
        pace,
        latency,
        np.concatenate([routes.first, ends.astype(np.int32)]),
        np.concatenate(
            [routes.links, np.array([link for route in known for link in route.links], np.int32)]
        ),
        np.concatenate([routes.copies, [count for route in known for count in route.copies]]),
    )


def ring_bytes(fabric: Fabric, costs: Costs) -> Column:
    """What each collective's flow carries, shape (2, num_stages). [bytes]"""
    nbytes = np.zeros((2, costs.num_stages))
    for row, (table, size) in enumerate(
        ((fabric.reduces, costs.reduce_bytes), (fabric.gathers, costs.unshard_bytes))
    ):
        for stage, ring in table.items():
            nbytes[row, stage] = ring.share * size[stage]
    return nbytes


def talking(lowered: Schedule, matches: Matches) -> set[tuple[int, int]]:
    """Pipeline ranks that talk to each other: (sender, receiver)."""
    pairs = _talking(lowered.offsets, lowered.kind, lowered.rank, matches.peer)
    return {(int(source), int(target)) for source, target in np.argwhere(pairs)}


def lone_seconds(
    lowered: Schedule, matches: Matches, costs: Costs, routes: Routes
) -> NDArray[np.float64]:
    """The longest that a transfer of each kind and stage takes if nothing else used the links.

    Shape (num_kinds, num_stages); zero where there is none. With slices, of the largest. [s]
    """
    seconds = np.zeros((len(Kind), costs.num_stages))
    share = float(costs.slice_tokens.max())
    _lone(
        lowered.kind,
        lowered.stage,
        lowered.rank,
        matches.peer,
        routes.of,
        routes.alone,
        routes.latency,
        costs.boundary_bytes * share,
        costs.boundary_gather * share,
        seconds,
    )
    return seconds


@kernel
def _talking(
    offsets: NDArray[np.int64], kind: NDArray[np.int8], home: Index, peer: Index
) -> NDArray[np.bool_]:
    """Whether a rank sends to a rank, shape (num_ranks, num_ranks)."""
    pairs = np.zeros((len(offsets) - 1, len(offsets) - 1), np.bool_)
    for op in range(len(kind)):
        if kind[op] == 5 or kind[op] == 7:
            pairs[home[op], home[peer[op]]] = True
    return pairs


@kernel
def _lone(
    kind: NDArray[np.int8],
    stage: Index,
    home: Index,
    peer: Index,
    route_of: Index,
    seconds_per_byte: Column,
    latency: Column,
    nbytes: Column,
    gather: Column,
    seconds: Column,
) -> None:
    """Fill the table of `lone_seconds`."""
    for op in range(len(kind)):
        if kind[op] == 5 or kind[op] == 7:
            other = peer[op]
            route = route_of[home[op], home[other]]
            boundary = stage[op] - (1 if kind[op] == 7 else 0)
            took = latency[route] + nbytes[boundary] * seconds_per_byte[route] + gather[boundary]
            for end in (op, np.int64(other)):
                what, where = kind[end], stage[end]
                seconds[what, where] = max(seconds[what, where], took)
