"""The compiled executor: the engine's Timeline where no two messages share a link at a time.

Then nothing is left to simulate: an op starts when the op before it on its rank and its message
have ended, so the times are longest paths through the rows. `contends` says from the result
whether that was so; if not, the engine must run, and its times are never shorter, because the order
of the rows is fixed and a later arrival makes nothing earlier.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.kernel import kernel
from simulator.matching import Matches, match
from simulator.routes import Rings, Routes, ring_bytes, rings_of, routes_of
from simulator.schedule import Kind, Schedule
from simulator.spans import ordered
from simulator.timeline import Timeline

__all__ = ["Played", "any_overlap", "contends", "longest_path", "play"]

Column = NDArray[np.float64]
Index = NDArray[np.int32]

AMID = 9 / 16  # part of the step from whose half to here messages are looked at first [1]
OVERLAP = 1e-12  # part of the step by which rounding may make two flows overlap [1]


class Played(NamedTuple):
    """When each op of lowered rows ran; a transfer from the moment that both ends are posted."""

    start: Column  # shape (num_ops,) [s]
    end: Column  # shape (num_ops,) [s]
    sent: Column  # when a SEND's or collective's last byte left, shape (num_ops,) [s]
    at: NDArray[np.int64]  # where each rank came to, shape (num_ranks,)
    finished: bool  # whether all came to the end


def longest_path(
    lowered: Schedule, costs: Costs, fabric: Fabric, stragglers: Mapping[int, float] | None = None
) -> Timeline:
    """Times of a lowered schedule when every message has its links for itself.

    `stragglers` multiplies the compute time of a pipeline rank. [1]

    Raises:
        ValueError: one end of a transfer is missing, or the rows cannot finish.
    """
    routes = routes_of(fabric, lowered.num_ranks)
    played = play(lowered, match(lowered), costs, fabric, routes, stragglers)
    if not played.finished:
        raise ValueError("the schedule cannot finish; the engine says why")
    return ordered(lowered, played.start, played.end)


def play(
    lowered: Schedule,
    matches: Matches,
    costs: Costs,
    fabric: Fabric,
    routes: Routes,
    stragglers: Mapping[int, float] | None = None,
) -> Played:
    """When each op runs, in the order of the rows. See `longest_path`."""
    factor = np.ones(lowered.num_ranks)
    for rank, slow in (stragglers or {}).items():
        factor[rank] = slow
    rings = rings_of(fabric, lowered.num_stages, routes)
    flow = ring_bytes(fabric, costs)[:, : lowered.num_stages] * rings.pace
    start, end, sent, at, finished = _play(
        lowered.offsets,
        lowered.stage,
        lowered.kind,
        lowered.microbatch,
        lowered.paired,
        lowered.rank,
        matches.needs,
        matches.gate,
        matches.peer,
        costs.seconds,
        costs.tensor_seconds,
        costs.pair_time,
        costs.slice_time,
        costs.slice_tokens,
        factor,
        costs.boundary_bytes,
        costs.boundary_gather,
        routes.of,
        routes.together,
        routes.latency,
        flow,
        rings.latency,
    )
    return Played(start, end, sent, at, finished)


def contends(
    lowered: Schedule, matches: Matches, fabric: Fabric, routes: Routes, played: Played
) -> bool:
    """Whether two messages were on one link at the same time, so that they would slow each other.

    A flow is on its links from its start until its last byte has left. [1]
    """
    if not fabric.capacity:
        return False
    flows = _flows(lowered.kind, lowered.stage, played.start, played.sent)
    begin, step = played.start[flows], float(np.nanmax(played.end))
    rings = rings_of(fabric, lowered.num_stages, routes)
    known = (lowered, matches, rings, routes, played)
    # where messages meet they mostly do so amid the step: a few from there say so soon
    few = flows[(begin >= step / 2) & (begin <= AMID * step)]
    return any(
        any_overlap(*_in_turn(part, *known), rings, len(fabric.capacity), step)
        for part in (few, flows)
    )


def _in_turn(
    flows: NDArray[np.int64],
    lowered: Schedule,
    matches: Matches,
    rings: Rings,
    routes: Routes,
    played: Played,
) -> tuple[Column, Column, Index]:
    """When some flows start, in this order, when their last byte has left, and their paths."""
    flows = flows[np.argsort(played.start[flows], kind="stable")]
    kind, rank = lowered.kind[flows], lowered.rank
    path = routes.of[rank[flows], rank[np.maximum(matches.peer[flows], 0)]]
    for row, what in enumerate((Kind.REDUCE_GRAD, Kind.UNSHARD)):
        mine = kind == what
        path[mine] = rings.path[row, lowered.stage[flows[mine]]]
    return played.start[flows], played.sent[flows], path


def any_overlap(
    start: Column, sent: Column, path: Index, rings: Rings, num_links: int, step: float
) -> bool:
    """Whether a flow, in order of start, finds one of the links of its path still taken.

    Times are in [s], of shape (num_flows,); `step` is the length of the step.
    """
    return _overlap(start, sent, path, rings.first, rings.links, num_links, OVERLAP * step)


@kernel
def _play(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    paired: NDArray[np.bool_],
    home: Index,
    needs: Index,
    gate: Index,
    peer: Index,
    seconds: Column,
    tensor_seconds: Column,
    pair_time: Column,
    slice_time: Column,
    slice_tokens: Column,
    factor: Column,
    boundary_bytes: Column,
    boundary_gather: Column,
    route_of: Index,
    seconds_per_byte: Column,
    route_latency: Column,
    ring_flow: Column,
    ring_latency: Column,
) -> tuple[Column, Column, Column, NDArray[np.int64], bool]:
    """Play each rank as far as it comes; what completes wakes the ranks that wait for it."""
    num_ops, num_ranks, num_stages = len(kind), len(offsets) - 1, seconds.shape[1]
    start, end = np.full(num_ops, np.nan), np.full(num_ops, np.nan)
    sent = np.full(num_ops, np.nan)
    clock, at = np.zeros(num_ranks), offsets[:-1].copy()
    pending, latest = np.zeros(num_ranks, np.int64), np.zeros(num_ranks)
    blocked = np.zeros(num_ranks, np.bool_)
    # collectives of one stage: kinds REDUCE_GRAD and UNSHARD, members as a chain through `chain`
    holders, joined = np.zeros((2, num_stages), np.int64), np.zeros((2, num_stages), np.int64)
    begin = np.zeros((2, num_stages))
    members = np.full((2, num_stages), -1, np.int64)
    num_rings = 0
    for op in range(num_ops):
        if kind[op] == 11 or kind[op] == 9:
            holders[0 if kind[op] == 11 else 1, stage[op]] += 1
            num_rings += 1
    chain, where, count = np.empty(num_rings, np.int64), np.empty(num_rings, np.int64), 0
    stack = np.empty(num_ranks, np.int64)
    for rank in range(num_ranks):
        stack[num_ranks - 1 - rank] = rank
    depth, finished = num_ranks, 0
    while depth > 0:
        depth -= 1
        rank = stack[depth]
        blocked[rank] = False
        now, op, stop = clock[rank], at[rank], offsets[rank + 1]
        while op < stop:
            what = kind[op]
            if what <= 4:
                need, before = needs[op], gate[op]
                if (need >= 0 and np.isnan(end[need])) or (before >= 0 and np.isnan(end[before])):
                    break
                if need >= 0:
                    now = max(now, end[need])
                if before >= 0:
                    now = max(now, end[before])
                if paired[op]:
                    op += 1
                    continue  # it starts together with the next
                double = op > offsets[rank] and paired[op - 1]
                took = 0.0
                for one in range(op - 1 if double else op, op + 1):
                    whole = seconds[kind[one], stage[one]]
                    tensor = tensor_seconds[kind[one], stage[one]]
                    alone = (whole - tensor) * factor[rank] + tensor
                    if microbatch[one] >= 0:
                        part = 0 if len(slice_time) == 1 else microbatch[one] % len(slice_time)
                        alone *= slice_time[part]
                    took += alone
                    start[one] = now
                if double:
                    took *= pair_time[stage[op - 1]]
                    end[op - 1] = now + took
                now += took
                end[op] = now
            elif what <= 8:
                other = np.int64(peer[op])
                start[op] = now  # when it was posted, until both ends are
                pending[rank] += 1
                if not np.isnan(start[other]):
                    is_send, there = what == 5 or what == 7, home[other]
                    send = op if is_send else other
                    route = route_of[rank, there] if is_send else route_of[there, rank]
                    boundary = stage[op] - (1 if what == 6 or what == 7 else 0)  # of both ends
                    part = 0 if len(slice_tokens) == 1 else microbatch[op] % len(slice_tokens)
                    share = slice_tokens[part]
                    begins = max(start[op], start[other])
                    leaves = begins
                    size = share * boundary_bytes[boundary]
                    if size > 0:
                        leaves += size * seconds_per_byte[route]
                    arrives = leaves + (route_latency[route] + share * boundary_gather[boundary])
                    sent[send] = leaves
                    start[op] = start[other] = begins
                    end[op] = end[other] = arrives
                    pending[rank] -= 1
                    pending[there] -= 1
                    latest[rank] = max(latest[rank], arrives)
                    latest[there] = max(latest[there], arrives)
                    if blocked[there]:
                        blocked[there] = False
                        stack[depth] = there
                        depth += 1
            elif what == 12:
                if pending[rank] > 0:
                    break
                now = max(now, latest[rank])
            elif what == 11 or what == 9:
                group, ring = (0 if what == 11 else 1), stage[op]
                begin[group, ring] = max(begin[group, ring], now)
                chain[count], where[count] = members[group, ring], op
                members[group, ring] = count
                count += 1
                joined[group, ring] += 1
                if joined[group, ring] == holders[group, ring]:
                    begins = begin[group, ring]
                    flow, late = ring_flow[group, ring], ring_latency[group, ring]
                    link = members[group, ring]
                    while link >= 0:
                        one, link = where[link], chain[link]
                        start[one], sent[one] = begins, begins + flow
                        end[one] = begins + flow + late
                        there = home[one]
                        if there != rank and blocked[there]:
                            blocked[there] = False
                            stack[depth] = there
                            depth += 1
            op += 1
        clock[rank], at[rank] = now, op
        if op < stop:
            blocked[rank] = True
        else:
            finished += 1
    return start, end, sent, at, finished == num_ranks


@kernel
def _flows(kind: NDArray[np.int8], stage: Index, start: Column, sent: Column) -> NDArray[np.int64]:
    """Index of each SEND, and of one member of each stage's collectives, that moves bytes."""
    num_stages = 0
    for op in range(len(kind)):
        num_stages = max(num_stages, stage[op] + 1)
    seen = np.zeros((2, num_stages), np.bool_)
    flows = np.empty(len(kind), np.int64)
    count = 0
    for op in range(len(kind)):
        ring = -1
        if kind[op] == 11 or kind[op] == 9:
            ring = 0 if kind[op] == 11 else 1
            if seen[ring, stage[op]]:
                continue
            seen[ring, stage[op]] = True
        elif kind[op] != 5 and kind[op] != 7:
            continue
        if sent[op] > start[op]:
            flows[count] = op
            count += 1
    return flows[:count].copy()


@kernel
def _overlap(
    start: Column,
    sent: Column,
    path: Index,
    first: Index,
    links: Index,
    num_links: int,
    allowed: float,
) -> bool:
    """Whether a flow, in order of start, finds one of its links still taken."""
    free = np.zeros(num_links)
    for flow in range(len(start)):
        for at in range(first[path[flow]], first[path[flow] + 1]):
            link = links[at]
            if start[flow] < free[link] - allowed:
                return True
            free[link] = max(free[link], sent[flow])
    return False
