"""The longest path over the compute streams alone: messages are implied, they are no ops.

Where receives are posted early, a message leaves the moment its tensor is made. So a forward or a
backward starts when the op before it on its rank has ended and its message, from the op that made
its input, has arrived: nothing of the lowered rows is needed, which have three ops for each of
these. The times are those of `longest_path` on the lowered rows, bit for bit.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.kernel import kernel
from simulator.routes import Routes, ring_bytes, rings_of
from simulator.schedule import Kind, Schedule

__all__ = ["Streamed", "lone_seconds", "stream", "talking"]

Column = NDArray[np.float64]
Index = NDArray[np.int32]


class Streamed(NamedTuple):
    """When each op of the rows ran."""

    start: Column  # shape (num_ops,) [s]
    end: Column  # shape (num_ops,) [s]
    finished: bool  # whether all ranks came to the end


def talking(home: Index, num_stages: int, num_ranks: int) -> set[tuple[int, int]]:
    """Pipeline ranks that talk to each other: (sender, receiver).

    `home` is the rank of each stage x num_microbatches + microbatch, as of `checked_homes`.
    """
    pairs = _talking(home, len(home) // num_stages, num_ranks)
    return {(int(source), int(target)) for source, target in np.argwhere(pairs)}


def lone_seconds(home: Index, num_stages: int, costs: Costs, routes: Routes) -> Column:
    """The longest that a message of each kind and stage of either end takes on free links.

    Shape (num_kinds, num_stages); zero where there is none. With slices, of the largest. [s]
    """
    seconds = np.zeros((len(Kind), costs.num_stages))
    share = float(costs.slice_tokens.max())
    sizes = (costs.boundary_bytes * share, costs.boundary_gather * share)
    links = (routes.of, routes.alone, routes.latency)
    _lone(home, len(home) // num_stages, *links, *sizes, seconds)
    return seconds


def stream(
    rows: Schedule,
    home: Index,
    costs: Costs,
    fabric: Fabric,
    routes: Routes,
    stragglers: Mapping[int, float] | None = None,
) -> Streamed:
    """When each op of rows without messages and overlapped pairs runs, in the order of the rows.

    The rows may have collectives and the optimizer's steps.
    """
    factor = np.ones(rows.num_ranks)
    for rank, slow in (stragglers or {}).items():
        factor[rank] = slow
    rings = rings_of(fabric, rows.num_stages, routes)
    start, end, finished = _stream(
        rows.offsets,
        rows.stage,
        rows.kind,
        rows.microbatch,
        home,
        costs.seconds,
        costs.tensor_seconds,
        costs.slice_time,
        costs.slice_tokens,
        factor,
        costs.boundary_bytes,
        costs.boundary_gather,
        routes.of,
        routes.together,
        routes.latency,
        rows.num_stages,
        ring_bytes(fabric, costs)[:, : rows.num_stages] * rings.pace,
        rings.latency,
    )
    return Streamed(start, end, finished)


@kernel
def _talking(home: Index, width: int, num_ranks: int) -> NDArray[np.bool_]:
    """Whether a rank sends to a rank, shape (num_ranks, num_ranks)."""
    pairs = np.zeros((num_ranks, num_ranks), np.bool_)
    for cell in range(len(home) - width):
        one, other = home[cell], home[cell + width]
        if one != other:
            pairs[one, other] = pairs[other, one] = True
    return pairs


@kernel
def _lone(
    home: Index,
    width: int,
    route_of: Index,
    seconds_per_byte: Column,
    latency: Column,
    nbytes: Column,
    gather: Column,
    seconds: Column,
) -> None:
    """Fill the table of `lone_seconds`."""
    for cell in range(len(home) - width):
        below, one, other = cell // width, home[cell], home[cell + width]
        if one == other or (
            cell % width > 0 and one == home[cell - 1] and other == home[cell - 1 + width]
        ):
            continue  # no message, or the same as the last one
        for forward in range(2):
            route = route_of[one, other] if forward == 1 else route_of[other, one]
            took = latency[route] + nbytes[below] * seconds_per_byte[route] + gather[below]
            send, receive = (5, 6) if forward == 1 else (7, 8)
            source, target = (below, below + 1) if forward == 1 else (below + 1, below)
            seconds[send, source] = max(seconds[send, source], took)
            seconds[receive, target] = max(seconds[receive, target], took)


@kernel
def _stream(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    home: Index,
    seconds: Column,
    tensor_seconds: Column,
    slice_time: Column,
    slice_tokens: Column,
    factor: Column,
    boundary_bytes: Column,
    boundary_gather: Column,
    route_of: Index,
    seconds_per_byte: Column,
    route_latency: Column,
    num_stages: int,
    ring_flow: Column,
    ring_latency: Column,
) -> tuple[Column, Column, bool]:
    """Play each rank as far as it comes; what completes wakes the ranks that wait for it."""
    num_ops, num_ranks, last = len(kind), len(offsets) - 1, num_stages - 1
    width = len(home) // num_stages
    start, end = np.empty(num_ops), np.empty(num_ops)
    made = np.full((2, len(home)), -1.0)  # when each F, and each B or I, ended
    clock, at = np.zeros(num_ranks), offsets[:-1].copy()
    blocked = np.zeros(num_ranks, np.bool_)
    # collectives of one stage: kinds REDUCE_GRAD and UNSHARD, members as a chain through `chain`
    holders, joined = np.zeros((2, num_stages), np.int64), np.zeros((2, num_stages), np.int64)
    begin = np.zeros((2, num_stages))
    members = np.full((2, num_stages), -1, np.int64)
    num_rings = 0
    for op in range(num_ops):
        if kind[op] == 11 or kind[op] == 9:
            num_rings += 1
    chain, where = np.empty(num_rings, np.int64), np.empty(num_rings, np.int64)
    who, count = np.empty(num_rings, np.int64), 0
    reduced = np.full((num_ranks if num_rings > 0 else 0, num_stages), np.nan)  # -1: not yet
    gathered = np.full((num_ranks if num_rings > 0 else 0, num_stages), np.nan)
    stack = np.empty(num_ranks, np.int64)
    for rank in range(num_ranks):
        stack[num_ranks - 1 - rank] = rank
        if num_rings > 0:
            for op in range(offsets[rank], offsets[rank + 1]):
                if kind[op] == 11 or kind[op] == 9:
                    holders[0 if kind[op] == 11 else 1, stage[op]] += 1
                if kind[op] == 11:
                    reduced[rank, stage[op]] = -1.0
    depth, finished = num_ranks, 0
    while depth > 0:
        depth -= 1
        rank = stack[depth]
        blocked[rank] = False
        now, op, stop = clock[rank], at[rank], offsets[rank + 1]
        while op < stop:
            what, here = kind[op], stage[op]
            if what <= 4:
                cell, origin, boundary, way = -1, -1, 0, 0
                if what <= 3:
                    cell = np.int64(here) * width + microbatch[op]
                    if what == 0:
                        if here > 0:
                            origin, boundary = cell - width, here - 1
                    elif made[1 if what == 3 else 0, cell] < 0:
                        break
                    elif what < 3 and here < last:
                        origin, boundary, way = cell + width, here, 1
                elif num_rings > 0 and not np.isnan(reduced[rank, here]):
                    if reduced[rank, here] < 0:
                        break
                    now = max(now, reduced[rank, here])
                if what == 0 and num_rings > 0 and not np.isnan(gathered[rank, here]):
                    if gathered[rank, here] < 0:
                        break
                    now = max(now, gathered[rank, here])
                if origin >= 0:
                    ready, source = made[way, origin], home[origin]
                    if ready < 0:
                        break
                    if source != rank:
                        route, share = route_of[source, rank], slice_tokens[0]
                        if len(slice_tokens) > 1:
                            share = slice_tokens[microbatch[op] % len(slice_tokens)]
                        size = share * boundary_bytes[boundary]
                        if size > 0:
                            ready += size * seconds_per_byte[route]
                        ready += route_latency[route] + share * boundary_gather[boundary]
                        now = max(now, ready)
                tensor = tensor_seconds[what, here]
                took = (seconds[what, here] - tensor) * factor[rank] + tensor
                if microbatch[op] >= 0:
                    if len(slice_time) > 1:
                        took *= slice_time[microbatch[op] % len(slice_time)]
                    else:
                        took *= slice_time[0]
                start[op] = now
                now += took
                end[op] = now
                if what < 3:
                    made[0 if what == 0 else 1, cell] = now
                    there = rank
                    if what == 0 and here < last:
                        there = home[cell + width]
                    elif what > 0 and here > 0:
                        there = home[cell - width]
                    if blocked[there]:
                        blocked[there] = False
                        stack[depth] = there
                        depth += 1
            else:
                group = 0 if what == 11 else 1
                if group == 1:
                    gathered[rank, here] = -1.0
                begin[group, here] = max(begin[group, here], now)
                where[count], who[count] = op, rank
                chain[count] = members[group, here]
                members[group, here] = count
                count += 1
                joined[group, here] += 1
                if joined[group, here] == holders[group, here]:
                    begins = begin[group, here]
                    one = members[group, here]
                    while one >= 0:
                        start[where[one]] = begins
                        ends = begins + ring_flow[group, here] + ring_latency[group, here]
                        end[where[one]] = ends
                        there = who[one]
                        if group == 0:
                            reduced[there, here] = ends
                        else:
                            gathered[there, here] = ends
                        if there != rank and blocked[there]:
                            blocked[there] = False
                            stack[depth] = there
                            depth += 1
                        one = chain[one]
            op += 1
        clock[rank], at[rank] = now, op
        if op < stop:
            blocked[rank] = True
        else:
            finished += 1
    return start, end, finished == num_ranks
