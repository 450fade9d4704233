"""When each message was under way, from when the compute ops ended, and whether two met on a link.

The other half of `simulator.streams`: what that implies, written out. A message leaves when its
tensor is made and has its links for itself.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.kernel import kernel
from simulator.longest_path import any_overlap
from simulator.routes import Routes, ring_bytes, rings_of
from simulator.schedule import Schedule
from simulator.streams import Streamed

__all__ = ["meet", "with_messages"]

Column = NDArray[np.float64]
Index = NDArray[np.int32]


def with_messages(
    lowered: Schedule,
    rows: Schedule,
    streamed: Streamed,
    home: Index,
    costs: Costs,
    routes: Routes,
) -> tuple[Column, Column]:
    """Start and end of each lowered op, shape (num_ops,) each. [s]

    `rows` are the same without the messages, `streamed` their times, and `home` is as in
    `checked_homes`.
    """
    return _fill(
        lowered.offsets,
        lowered.stage,
        lowered.kind,
        lowered.microbatch,
        rows.offsets,
        rows.stage,
        rows.kind,
        rows.microbatch,
        streamed.start,
        streamed.end,
        home,
        len(home) // rows.num_stages,
        costs.slice_tokens,
        costs.boundary_bytes,
        costs.boundary_gather,
        routes.of,
        routes.together,
        routes.latency,
    )


def meet(
    rows: Schedule, home: Index, costs: Costs, fabric: Fabric, routes: Routes, streamed: Streamed
) -> bool:
    """Whether two messages were on one link at the same time, as `contends` of lowered rows."""
    if not fabric.capacity:
        return False
    rings = rings_of(fabric, rows.num_stages, routes)
    begin, sent, path = _flows(
        rows.offsets,
        rows.stage,
        rows.kind,
        rows.microbatch,
        home,
        streamed.start,
        streamed.end,
        costs.slice_tokens,
        costs.boundary_bytes,
        routes.of,
        routes.together,
        ring_bytes(fabric, costs)[:, : rows.num_stages] * rings.pace,
        rings.path,
    )
    order = np.argsort(begin, kind="stable")
    begin = begin[order]  # one after the other: each lets the one before it go
    sent, path = sent[order], path[order]
    del order
    return any_overlap(begin, sent, path, rings, len(fabric.capacity), float(streamed.end.max()))


@kernel
def _fill(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    row_offsets: NDArray[np.int64],
    row_stage: Index,
    row_kind: NDArray[np.int8],
    row_microbatch: Index,
    row_start: Column,
    row_end: Column,
    home: Index,
    width: int,
    slice_tokens: Column,
    boundary_bytes: Column,
    boundary_gather: Column,
    route_of: Index,
    seconds_per_byte: Column,
    route_latency: Column,
) -> tuple[Column, Column]:
    """Times of all ops, in the order of the lowered rows."""
    made = np.empty((2, len(home)))  # when each F, and each B or I, ended
    for op in range(len(row_kind)):
        if row_kind[op] < 3:
            cell = np.int64(row_stage[op]) * width + row_microbatch[op]
            made[0 if row_kind[op] == 0 else 1, cell] = row_end[op]
    start, end = np.empty(len(kind)), np.empty(len(kind))
    for rank in range(len(offsets) - 1):
        at = row_offsets[rank]
        for op in range(offsets[rank], offsets[rank + 1]):
            what = kind[op]
            if not 5 <= what <= 8:
                start[op], end[op] = row_start[at], row_end[at]
                at += 1
                continue
            step = 1 if what <= 6 else -1
            sender = np.int64(stage[op])
            if what == 6 or what == 8:
                sender -= step
            cell = sender * width + microbatch[op]
            route = route_of[home[cell], home[cell + step * width]]
            boundary = sender - (1 if step < 0 else 0)
            share = slice_tokens[microbatch[op] % len(slice_tokens)]
            begins = made[0 if step > 0 else 1, cell]
            leaves, size = begins, share * boundary_bytes[boundary]
            if size > 0:
                leaves += size * seconds_per_byte[route]
            start[op] = begins
            end[op] = leaves + (route_latency[route] + share * boundary_gather[boundary])
    return start, end


@kernel
def _flows(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    home: Index,
    start: Column,
    end: Column,
    slice_tokens: Column,
    boundary_bytes: Column,
    route_of: Index,
    seconds_per_byte: Column,
    ring_flow: Column,
    ring_path: Index,
) -> tuple[Column, Column, Index]:
    """When each message's and collective's bytes left, first and last, and its path."""
    num_stages = ring_path.shape[1]
    width = len(home) // num_stages
    most = 2 * len(home) + 2 * num_stages
    begin, sent, path = np.empty(most), np.empty(most), np.empty(most, np.int32)
    seen = np.zeros((2, num_stages), np.bool_)
    count = 0
    for rank in range(len(offsets) - 1):
        for op in range(offsets[rank], offsets[rank + 1]):
            what, here = kind[op], stage[op]
            if what < 3:
                step = 1 if what == 0 else -1
                if here + step < 0 or here + step == num_stages:
                    continue
                there = home[(np.int64(here) + step) * width + microbatch[op]]
                if there == rank:
                    continue
                share = slice_tokens[microbatch[op] % len(slice_tokens)]
                size = share * boundary_bytes[here if step > 0 else here - 1]
                route = route_of[rank, there]
                leaves = end[op]
                if size > 0:
                    leaves += size * seconds_per_byte[route]
                begins = end[op]
            elif what == 11 or what == 9:
                group = 0 if what == 11 else 1
                if seen[group, here]:
                    continue
                seen[group, here] = True
                route, begins = ring_path[group, here], start[op]
                leaves = begins + ring_flow[group, here]
            else:
                continue
            if leaves > begins:
                begin[count], sent[count], path[count] = begins, leaves, route
                count += 1
    return begin[:count].copy(), sent[:count].copy(), path[:count].copy()
