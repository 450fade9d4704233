"""The discrete-event engine: lowered rows and costs in, a Timeline out.

A rank is a SimPy process that walks its row. Its compute stream is serial; SEND and RECV are
posted and do not block; a transfer starts when both ends are posted; compute waits for its input.
REDUCE_GRAD and UNSHARD are posted likewise; OPTIMIZER waits for its stage's reduction, and a
stage's first F for the gathering of its weights, where that stands before it in the row. Nothing
here knows a schedule by name: one that would hang on real GPUs hangs here, and says why.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.grid import grid, spots
from simulator.matching import Transfers, match, transfers
from simulator.network import Network, Path
from simulator.schedule import Deadlock, Kind, Schedule
from simulator.spans import ordered
from simulator.timeline import Timeline

__all__ = ["run"]

NONE = -1


def run(
    lowered: Schedule, costs: Costs, fabric: Fabric, stragglers: Mapping[int, float] | None = None
) -> Timeline:
    """Play a lowered schedule. Deterministic: the same input gives the same Timeline, bit for bit.

    `stragglers` multiplies the compute time of a pipeline rank. [1]

    Raises:
        Deadlock: the rows cannot finish.
    """
    return _Run(lowered, costs, fabric, stragglers or {}).timeline()


COMPUTE, FIRST, SECOND, TRANSFER, STAND, COLLECTIVE = range(6)  # what a rank does at an op


def _actions(lowered: Schedule) -> NDArray[np.int8]:
    """What a rank does at each op; FIRST and SECOND are those of an overlapped pair."""
    action = np.full(lowered.num_ops, COLLECTIVE, np.int8)
    action[lowered.kind <= Kind.RECV_B] = TRANSFER
    action[lowered.kind <= Kind.OPTIMIZER] = COMPUTE
    action[lowered.kind == Kind.WAIT] = STAND
    first = np.flatnonzero(lowered.paired)
    action[first + 1] = SECOND
    action[first] = FIRST
    return action


def _durations(
    lowered: Schedule, costs: Costs, stragglers: Mapping[int, float]
) -> NDArray[np.float64]:
    """Time of every compute op, shape (num_ops,); a pair's stands at its second. [s]"""
    factor = np.ones(lowered.num_ranks)
    for rank, slow in stragglers.items():
        factor[rank] = slow
    whole = costs.seconds[lowered.kind, lowered.stage]
    tensor = costs.tensor_seconds[lowered.kind, lowered.stage]
    alone = (whole - tensor) * factor[lowered.rank] + tensor
    alone *= costs.share_of_time(lowered.microbatch)
    first = np.flatnonzero(lowered.paired)
    share = costs.pair_time[lowered.stage[first]]
    alone[first + 1] = share * (alone[first] + alone[first + 1])
    return alone


class _Run:
    """One play of the rows. A class because SimPy's callbacks share its state."""

    def __init__(
        self, lowered: Schedule, costs: Costs, fabric: Fabric, stragglers: Mapping[int, float]
    ) -> None:
        self.lowered, self.costs, self.fabric = lowered, costs, fabric
        self.env = simpy.Environment()
        self.network = Network(self.env, fabric.capacity)
        size = lowered.num_ops
        self.action = _actions(lowered).tobytes()
        self.kind: list[int] = lowered.kind.tolist()
        self.ranks: list[int] = lowered.rank.tolist()
        self.seconds = array("d", _durations(lowered, costs, stragglers).tobytes())
        self.start = array("d", [np.nan]) * size
        self.end = array("d", [np.nan]) * size
        self.posted = bytearray(size)
        self.arrived = bytearray(size)  # RECV and REDUCE_GRAD ops that are complete
        self.waiting: dict[int, simpy.Event] = {}  # by the op waited for
        self.stands = bool((lowered.kind == Kind.WAIT).any())
        self.under_way = [0] * lowered.num_ranks  # posted transfers that are not complete
        self.standing: dict[int, simpy.Event] = {}  # ranks at a WAIT
        self.at = lowered.offsets[:-1].tolist()  # where each rank waits, or its end
        matches = match(lowered)
        self.needs = array("i", matches.needs.tobytes())
        self.gate = array("i", matches.gate.tobytes())
        self.peer = array("i", matches.peer.tobytes())
        self._prepare(transfers(lowered, matches))
        self.arrive = self._arrival()
        collective = (lowered.kind == Kind.REDUCE_GRAD) | (lowered.kind == Kind.UNSHARD)
        self.holders = Counter(  # of collectives, by kind and stage
            zip(lowered.kind[collective].tolist(), lowered.stage[collective].tolist(), strict=True)
        )
        self.gathering: dict[tuple[int, int], list[int]] = {}  # collectives not yet complete

    def _prepare(self, moves: Transfers) -> None:
        """The path, the bytes and the receiver's all-gather of each SEND."""
        paths = {ends: self.network.path(route) for ends, route in self.fabric.sends.items()}
        size, costs = self.lowered.num_ops, self.costs
        share = costs.share_of_tokens(self.lowered.microbatch[moves.send])
        nbytes, gather = np.zeros(size), np.zeros(size)
        nbytes[moves.send] = share * costs.boundary_bytes[moves.boundary]
        gather[moves.send] = share * costs.boundary_gather[moves.boundary]
        self.nbytes = array("d", nbytes.tobytes())
        self.gather = array("d", gather.tobytes())
        self.instant = bytearray(size)  # transfers that take no time
        self.path: list[Path | None] = [None] * size
        columns = (moves.send.tolist(), moves.source.tolist(), moves.target.tolist())
        for send, source, target in zip(*columns, strict=True):
            self.path[send] = path = paths[source, target]
            free = path.route.latency + self.gather[send] == 0
            self.instant[send] = free and self.nbytes[send] * path.pace == 0

    def timeline(self) -> Timeline:
        offsets = self.lowered.offsets.tolist()
        for rank, (first, stop) in enumerate(pairwise(offsets)):
            self.env.process(self._rank(rank, self._post_receives(rank, first, stop), stop))
        self.env.run()
        start, end = np.array(self.start), np.array(self.end)
        if np.isnan(end[self.lowered.kind != Kind.WAIT]).any():
            stand = (self.lowered, self.at)
            raise Deadlock(self._stuck(), grid(*stand), spots(*stand))
        return ordered(self.lowered, start, end)

    def _post_receives(self, rank: int, first: int, stop: int) -> int:
        """Post the receives that a row begins with, at time zero; returns where the rest begins."""
        kinds = self.lowered.kind[first:stop]
        rest = np.flatnonzero((kinds != Kind.RECV_F) & (kinds != Kind.RECV_B))
        count = int(rest[0]) if len(rest) else stop - first
        self.posted[first : first + count] = b"\1" * count
        self.under_way[rank] = count
        return first + count

    def _rank(self, rank: int, first: int, stop: int) -> Generator[simpy.Event, None, None]:
        """One GPU's compute stream: communication is launched, compute is awaited."""
        env, at, start, end, waiting = self.env, self.at, self.start, self.end, self.waiting
        arrived, peers, posted, paths = self.arrived, self.peer, self.posted, self.path
        instant, arrive, under_way, stands = self.instant, self.arrive, self.under_way, self.stands
        timeout, event_of, now = simpy.Timeout, simpy.Event, 0.0
        row = slice(first, stop)
        columns = (self.action[row], self.needs[row], self.gate[row], self.seconds[row])
        for op, action, need, gate, took in zip(range(first, stop), *columns, strict=True):
            if action <= SECOND:
                if gate != NONE and not arrived[gate]:
                    at[rank] = op
                    waiting[gate] = event = event_of(env)
                    yield event
                    now = env.now
                if need != NONE and not arrived[need]:
                    at[rank] = op
                    waiting[need] = event = event_of(env)
                    yield event
                    now = env.now
                if action == FIRST:
                    continue  # it starts together with the next
                start[op] = now
                if took > 0:
                    now += took
                    yield timeout(env, took)
                end[op] = now
                if action == SECOND:
                    start[op - 1], end[op - 1] = start[op], now
            elif action == TRANSFER:
                peer = peers[op]
                posted[op] = 1
                if stands:
                    under_way[rank] += 1
                if posted[peer]:
                    start[op] = start[peer] = now
                    send = op if paths[op] is not None else peer
                    if instant[send]:
                        arrive(send)
                    else:
                        self._transfer(send)
            elif action == COLLECTIVE:
                self._collective(op)
            elif under_way[rank]:
                at[rank] = op
                self.standing[rank] = event = event_of(env)
                yield event
                now = env.now
        at[rank] = stop

    def _transfer(self, send: int) -> None:
        """Move one boundary tensor; both ends are posted."""
        path = self.path[send]
        assert path is not None
        self.network.send(path, self.nbytes[send], partial(self.arrive, send), self.gather[send])

    def _collective(self, op: int) -> None:
        """Start a data-parallel collective of one stage, once every rank that holds it is there."""
        kind, stage = self.kind[op], int(self.lowered.stage[op])
        group = self.gathering.setdefault((kind, stage), [])
        group.append(op)
        if len(group) < self.holders[kind, stage]:
            return
        del self.gathering[kind, stage]
        if kind == Kind.REDUCE_GRAD:
            ring, nbytes = self.fabric.reduces[stage], self.costs.reduce_bytes
        elif kind == Kind.UNSHARD:
            ring, nbytes = self.fabric.gathers[stage], self.costs.unshard_bytes
        else:
            raise ValueError(f"the engine has no cost for {Kind(kind).name}; leave it out")
        for member in group:
            self.start[member] = self.env.now

        def done() -> None:
            for member in group:
                self._complete(member)

        path = self.network.path(ring.route)
        self.network.send(path, ring.share * float(nbytes[stage]), done)

    def _complete(self, op: int) -> None:
        """Note an arrival and wake who waits for it."""
        self.arrived[op] = 1
        self.end[op] = self.env.now
        if op in self.waiting:
            self.waiting.pop(op).succeed()

    def _arrival(self) -> Callable[[int], None]:
        """What completes both ends of a transfer. A closure, because it is called the most."""
        peer, arrived, end, waiting, env = self.peer, self.arrived, self.end, self.waiting, self.env

        def arrive(send: int) -> None:
            receive = peer[send]
            arrived[receive] = 1
            end[send] = end[receive] = env.now
            if receive in waiting:
                waiting.pop(receive).succeed()

        def arrive_and_free(send: int) -> None:
            arrive(send)
            for one in (send, peer[send]):
                rank = self.ranks[one]
                self.under_way[rank] -= 1
                if not self.under_way[rank] and rank in self.standing:
                    self.standing.pop(rank).succeed()

        return arrive_and_free if self.stands else arrive

    def _stuck(self) -> str:
        """Each stuck rank, its op and what that waits for."""
        lowered, stuck = self.lowered, []
        for rank, op in enumerate(self.at):
            first, stop = int(lowered.offsets[rank]), int(lowered.offsets[rank + 1])
            if op >= stop:
                continue
            if self.kind[op] == Kind.WAIT:
                ends = range(first, op)
                needs = [e for e in ends if self.peer[e] != NONE and np.isnan(self.end[e])]
                after = next(
                    (e for e in range(op, stop) if self.kind[e] <= Kind.OPTIMIZER), stop - 1
                )
                head = f"rank {rank} before {lowered.op(after)}"
            else:
                both = [self.needs[op], self.gate[op]]
                needs = [end for end in both if end != NONE and not self.arrived[end]]
                head = f"rank {rank} at {lowered.op(op)}"
            stuck.append(f"{head} waits for {', '.join(map(self._missing, needs))}")
        return "schedule cannot finish: " + "; ".join(stuck[:8])

    def _missing(self, end: int) -> str:
        """What one end of a transfer, or a reduction, still lacks."""
        op = self.lowered.op(end)
        if not self.posted[end]:
            return f"{op}, which was never posted"
        peer = self.peer[end]
        way = "to" if op.kind.is_send else "from"
        return f"{op} {way} {self.lowered.op(peer)} of rank {self.ranks[peer]}"
