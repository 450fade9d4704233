"""The engine, compiled: ranks, messages and shared links, event by event.

The same rules as engine.py and network.py, and their times but for rounding; those two are the
oracle of its tests, and say why rows cannot finish. At each start and end of a flow, the rates of
those that share a link with it, or with one that does, are set again max-min fairly.
"""

from collections.abc import Mapping
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.kernel import kernel
from simulator.matching import Matches
from simulator.routes import Routes, ring_bytes, rings_of
from simulator.schedule import Schedule

__all__ = ["run"]

Column = NDArray[np.float64]
Index = NDArray[np.int32]


def run(
    lowered: Schedule,
    matches: Matches,
    costs: Costs,
    fabric: Fabric,
    routes: Routes,
    stragglers: Mapping[int, float] | None = None,
) -> tuple[Column, Column, bool]:
    """Start and end of each op of lowered rows, and whether all came to the end of their rows.

    `stragglers` multiplies the compute time of a pipeline rank. [1]
    """
    factor = np.ones(lowered.num_ranks)
    for rank, slow in (stragglers or {}).items():
        factor[rank] = slow
    rings = rings_of(fabric, lowered.num_stages, routes)
    prepared = _prepare(
        lowered.kind,
        lowered.stage,
        lowered.microbatch,
        lowered.paired,
        lowered.rank,
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
        routes.latency,
        rings.path,
        ring_bytes(fabric, costs),
        rings.latency,
    )
    return _run(
        lowered.offsets,
        lowered.stage,
        lowered.kind,
        lowered.paired,
        matches.needs,
        matches.gate,
        matches.peer,
        *prepared,
        rings.first,
        rings.links,
        rings.copies,
        np.array(fabric.capacity),
    )


@kernel
def _prepare(
    kind: NDArray[np.int8],
    stage: Index,
    microbatch: Index,
    paired: NDArray[np.bool_],
    home: Index,
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
    route_latency: Column,
    ring_path: Index,
    ring_nbytes: Column,
    ring_latency: Column,
) -> tuple[Column, Index, Column, Column]:
    """Of each op: its time, a pair's at its second; of each flow: path, bytes, and time after."""
    took, path = np.zeros(len(kind)), np.full(len(kind), -1, np.int32)
    nbytes, after = np.zeros(len(kind)), np.zeros(len(kind))
    for op in range(len(kind)):
        what, where = kind[op], stage[op]
        if what <= 4:
            whole, tensor = seconds[what, where], tensor_seconds[what, where]
            took[op] = (whole - tensor) * factor[home[op]] + tensor
            if microbatch[op] >= 0:
                took[op] *= slice_time[microbatch[op] % len(slice_time)]
            if op > 0 and paired[op - 1]:
                took[op] = pair_time[stage[op - 1]] * (took[op - 1] + took[op])
        elif what == 5 or what == 7:
            boundary = where - (1 if what == 7 else 0)
            share = 1.0
            if microbatch[op] >= 0:
                share = slice_tokens[microbatch[op] % len(slice_tokens)]
            path[op] = route_of[home[op], home[peer[op]]]
            nbytes[op] = share * boundary_bytes[boundary]
            after[op] = route_latency[path[op]] + share * boundary_gather[boundary]
        elif what == 9 or what == 11:
            ring = 0 if what == 11 else 1
            path[op] = ring_path[ring, where]
            nbytes[op], after[op] = ring_nbytes[ring, where], ring_latency[ring, where]
    return took, path, nbytes, after


@kernel
def _run(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    paired: NDArray[np.bool_],
    needs: Index,
    gate: Index,
    peer: Index,
    seconds: Column,
    path: Index,
    nbytes: Column,
    after: Column,
    first: Index,
    links: Index,
    copies: Column,
    capacity: Column,
) -> tuple[Column, Column, bool]:
    """Start and end of each op, and whether all rows came to their ends.

    `path`, `nbytes` and `after` are of SENDs and of collectives: the links in `links` that the
    flow crosses, what it carries, and the time from its last byte's leaving to its arrival.
    """
    num_ops, num_ranks, num_links = len(kind), len(offsets) - 1, len(capacity)
    start, end = np.full(num_ops, np.nan), np.full(num_ops, np.nan)
    at = offsets[:-1].copy()
    home = np.empty(num_ops, np.int32)
    pending = np.zeros(num_ranks, np.int64)
    waits_for = np.full(num_ranks, -1, np.int64)  # the op at which a rank waits, -2 at a WAIT
    num_stages = 0
    for rank in range(num_ranks):
        home[offsets[rank] : offsets[rank + 1]] = rank
    for op in range(num_ops):
        num_stages = max(num_stages, stage[op] + 1)
    missing = np.zeros((2, num_stages), np.int64)
    members = np.full((2, num_stages), -1, np.int64)
    has_rings = False
    for op in range(num_ops):
        if kind[op] == 11 or kind[op] == 9:
            missing[0 if kind[op] == 11 else 1, stage[op]] += 1
            has_rings = True
    chain = np.full(num_ops if has_rings else 0, -1, np.int64)
    # flows: a slot each while they last; a link's users are a list of nodes, degree a slot
    degree = 1
    for route in range(len(first) - 1):
        degree = max(degree, first[route + 1] - first[route])
    size = 16
    flow = np.full(size, -1, np.int64)  # the op that a slot belongs to
    rate, remaining, since = np.zeros(size), np.zeros(size), np.zeros(size)
    due, seen = np.full(size, -1, np.int64), np.zeros(size, np.int64)
    following, previous = np.full(size * degree, -1, np.int64), np.full(size * degree, -1, np.int64)
    head = np.full(num_links, -1, np.int64)
    left, load, users = np.zeros(num_links), np.zeros(num_links), np.zeros(num_links, np.int64)
    link_seen, fixed = np.zeros(num_links, np.int64), np.zeros(size, np.bool_)
    empty, ready = list(range(size)), list(range(num_ranks))
    group, touched, dirty, begun, arrived = [0], [0], [0], [0], [0]
    for some in (group, touched, dirty, begun, arrived):
        some.clear()
    queue = [(0.0, 0, 0, 0)]
    queue.clear()
    now, sequence, turn = 0.0, 0, 0
    while True:
        while len(arrived) > 0 or len(begun) > 0 or len(ready) > 0:  # all that happens now
            if len(arrived) > 0:  # the last byte of a flow
                op = arrived.pop()
                if kind[op] == 5 or kind[op] == 7:
                    other = int(peer[op])
                    end[op] = end[other] = now
                    for half in range(2):
                        mine = op if half == 0 else other
                        rank = int(home[mine])
                        pending[rank] -= 1
                        stood = waits_for[rank] == -2 and pending[rank] == 0
                        if waits_for[rank] == mine or stood:
                            waits_for[rank] = -1
                            ready.append(rank)
                else:
                    member = int(op)
                    while member >= 0:
                        end[member] = now
                        rank = int(home[member])
                        if waits_for[rank] == member:
                            waits_for[rank] = -1
                            ready.append(rank)
                        member = chain[member]
            elif len(begun) > 0:  # a flow
                op = begun.pop()
                route = path[op]
                num_own = 0 if route < 0 else first[route + 1] - first[route]
                if nbytes[op] <= 0 or num_own == 0:
                    if after[op] > 0:
                        sequence += 1
                        heappush(queue, (now + after[op], sequence, 2, int(op)))
                    else:
                        arrived.append(op)
                    continue
                if len(empty) == 0:  # twice as many slots
                    flow = np.concatenate((flow, np.full(size, -1, np.int64)))
                    rate = np.concatenate((rate, np.zeros(size)))
                    remaining = np.concatenate((remaining, np.zeros(size)))
                    since = np.concatenate((since, np.zeros(size)))
                    due = np.concatenate((due, np.full(size, -1, np.int64)))
                    seen = np.concatenate((seen, np.zeros(size, np.int64)))
                    fixed = np.concatenate((fixed, np.zeros(size, np.bool_)))
                    nodes = np.full(size * degree, -1, np.int64)
                    following = np.concatenate((following, nodes))
                    previous = np.concatenate((previous, nodes))
                    for slot in range(size, 2 * size):
                        empty.append(slot)
                    size *= 2
                slot = empty.pop()
                flow[slot], remaining[slot], since[slot] = op, nbytes[op], now
                rate[slot], due[slot] = 0.0, -1
                for k in range(num_own):
                    link, node = links[first[route] + k], slot * degree + k
                    following[node], previous[node] = head[link], -1
                    if head[link] >= 0:
                        previous[head[link]] = node
                    head[link] = node
                dirty.append(slot)
            else:  # a rank goes on
                rank = int(ready.pop())
                op, stop = at[rank], offsets[rank + 1]
                while op < stop:
                    what = kind[op]
                    if what <= 4:
                        double = op > offsets[rank] and paired[op - 1]
                        if np.isnan(start[op]):
                            need = int(gate[op])
                            if need < 0 or not np.isnan(end[need]):
                                need = int(needs[op])
                            if need >= 0 and np.isnan(end[need]):
                                waits_for[rank] = need
                                break
                            if not paired[op]:
                                start[op] = now
                                if double:
                                    start[op - 1] = now
                                if seconds[op] > 0:
                                    sequence += 1
                                    heappush(queue, (now + seconds[op], sequence, 0, rank))
                                    break
                        if not paired[op]:
                            end[op] = now
                            if double:
                                end[op - 1] = now
                    elif what <= 8:
                        other = int(peer[op])
                        pending[rank] += 1
                        posted = not np.isnan(start[other])
                        start[op] = now
                        if posted:
                            start[other] = now
                            begun.append(op if what == 5 or what == 7 else other)
                    elif what == 12:
                        if pending[rank] > 0:
                            waits_for[rank] = -2
                            break
                    elif what == 11 or what == 9:
                        ring = 0 if what == 11 else 1
                        chain[op] = members[ring, stage[op]]
                        members[ring, stage[op]] = op
                        missing[ring, stage[op]] -= 1
                        if missing[ring, stage[op]] == 0:
                            member = int(op)
                            while member >= 0:
                                start[member] = now
                                member = chain[member]
                            begun.append(op)
                    op += 1
                at[rank] = op
        turn += 1
        while len(dirty) > 0:  # rates of the flows that a change touches
            slot = dirty.pop()
            if flow[slot] < 0 or seen[slot] == turn:
                continue
            seen[slot] = turn
            group.clear()
            touched.clear()
            group.append(slot)
            reached = 0
            while reached < len(group):
                route = path[flow[group[reached]]]
                reached += 1
                for k in range(first[route], first[route + 1]):
                    link = links[k]
                    if link_seen[link] != turn:
                        link_seen[link] = turn
                        touched.append(int(link))
                        left[link], load[link], users[link] = capacity[link], 0.0, 0
                        node = head[link]
                        while node >= 0:
                            other = node // degree
                            if seen[other] != turn:
                                seen[other] = turn
                                group.append(other)
                            node = following[node]
                    load[link] += copies[k]
                    users[link] += 1
            for one in group:
                fixed[one] = False
            level, unfixed = 0.0, len(group)
            while unfixed > 0:
                full, lowest = -1, np.inf
                for link in touched:
                    if users[link] > 0 and left[link] < lowest * load[link]:
                        full, lowest = link, left[link] / load[link]
                if full < 0:  # only rounding is left of every link's share
                    break
                level = max(level, lowest)
                node = head[full]
                while node >= 0:
                    one = node // degree
                    node = following[node]
                    if fixed[one]:
                        continue
                    fixed[one] = True
                    unfixed -= 1
                    route = path[flow[one]]
                    for k in range(first[route], first[route + 1]):
                        link = links[k]
                        users[link] -= 1
                        load[link] -= copies[k]
                        left[link] -= copies[k] * level
                        if users[link] > 0:  # rates only rise, rounding or not
                            load[link] = max(load[link], 1e-12)
                            left[link] = max(left[link], level * load[link])
                    if rate[one] != level:
                        moved = rate[one] * (now - since[one])
                        remaining[one] = max(0.0, remaining[one] - moved)
                        since[one], rate[one] = now, level
                        sequence += 1
                        due[one] = sequence
                        heappush(queue, (now + remaining[one] / level, sequence, 1, one))
        if len(queue) == 0:
            break
        now, number, what_now, which = heappop(queue)
        if what_now == 0:
            ready.append(which)
        elif what_now == 2:
            arrived.append(which)
        elif due[which] == number:  # its last byte has left
            op = flow[which]
            route = path[op]
            for k in range(first[route + 1] - first[route]):
                link, node = links[first[route] + k], which * degree + k
                if previous[node] >= 0:
                    following[previous[node]] = following[node]
                else:
                    head[link] = following[node]
                if following[node] >= 0:
                    previous[following[node]] = previous[node]
                if head[link] >= 0:
                    dirty.append(head[link] // degree)
            flow[which], due[which] = -1, -1
            empty.append(which)
            if after[op] > 0:
                sequence += 1
                heappush(queue, (now + after[op], sequence, 2, op))
            else:
                arrived.append(op)
    for rank in range(num_ranks):
        if at[rank] < offsets[rank + 1]:
            return start, end, False
    return start, end, True
