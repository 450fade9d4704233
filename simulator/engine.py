"""The discrete-event engine: lowered rows and costs in, a Timeline out.

A rank is a SimPy process that walks its row. Its compute stream is serial; SEND and RECV are
posted and do not block; a transfer starts when both ends are posted; compute waits for its input.
REDUCE_GRAD and UNSHARD are posted likewise; OPTIMIZER waits for its stage's reduction. Nothing here
knows a schedule by name: a schedule that would hang on real GPUs hangs here, and says why.
"""

from collections import Counter
from collections.abc import Generator, Mapping
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.fabric import Fabric
from simulator.grid import grid
from simulator.network import Network
from simulator.schedule import Deadlock, Kind, Op, Schedule, awaited
from simulator.timeline import Timeline

__all__ = ["Transfers", "lone_transfers", "run", "transfers"]

NONE = -1


class Transfers(NamedTuple):
    """The sends of a lowered schedule, as columns: who sends what to whom."""

    send: NDArray[np.intp]  # index of each SEND op
    receive: NDArray[np.intp]  # index of its RECV op
    source: NDArray[np.int32]  # sending rank
    target: NDArray[np.int32]  # receiving rank
    boundary: NDArray[np.int32]  # stage below the boundary that it crosses


def transfers(lowered: Schedule) -> Transfers:
    """Match each SEND with its RECV.

    Raises:
        ValueError: one end of a transfer is missing.
    """
    pairs = []
    for sends, receives, step in (
        (Kind.SEND_F, Kind.RECV_F, 1),
        (Kind.SEND_B, Kind.RECV_B, -1),
    ):
        send = np.flatnonzero(lowered.kind == sends)
        receive = np.flatnonzero(lowered.kind == receives)
        key = _key(lowered, send, step)
        order, other = np.argsort(key, kind="stable"), _key(lowered, receive, 0)
        back = np.argsort(other, kind="stable")
        if not np.array_equal(key[order], other[back]):
            odd = np.setxor1d(key, other)
            at = odd[0] if len(odd) else key[order][np.flatnonzero(np.diff(key[order]) == 0)[0]]
            stage, microbatch = divmod(int(at), max(lowered.num_microbatches, 1))
            raise ValueError(
                f"{Op(stage, receives, microbatch)} and {Op(stage - step, sends, microbatch)} do "
                "not stand once each; every transfer needs both of its ends"
            )
        boundary = lowered.stage[send[order]] - (step < 0)
        pairs.append((send[order], receive[back], boundary))
    send, receive, boundary = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return Transfers(send, receive, lowered.rank[send], lowered.rank[receive], boundary)


def lone_transfers(moves: Transfers, costs: Costs, fabric: Fabric) -> NDArray[np.float64]:
    """Time of each transfer if nothing else used the links, shape (num_transfers,). [s]"""
    known: dict[tuple[int, int, int], float] = {}
    columns = zip(
        moves.source.tolist(), moves.target.tolist(), moves.boundary.tolist(), strict=True
    )
    lone = np.empty(len(moves.send))
    for at, key in enumerate(columns):
        if key not in known:
            source, target, boundary = key
            route = fabric.sends[source, target]
            largest = float(costs.slice_tokens.max())
            nbytes = largest * float(costs.boundary_bytes[boundary])
            known[key] = route.alone(nbytes, fabric.capacity) + largest * float(
                costs.boundary_gather[boundary]
            )
        lone[at] = known[key]
    return lone


def run(
    lowered: Schedule, costs: Costs, fabric: Fabric, stragglers: Mapping[int, float] | None = None
) -> Timeline:
    """Play a lowered schedule. Deterministic: the same input gives the same Timeline, bit for bit.

    `stragglers` multiplies the compute time of a pipeline rank. [1]

    Raises:
        Deadlock: the rows cannot finish.
    """
    return _Run(lowered, costs, fabric, stragglers or {}).timeline()


def _key(lowered: Schedule, index: NDArray[np.intp], step: int) -> NDArray[np.int64]:
    stage = lowered.stage[index].astype(np.int64) + step
    return stage * max(lowered.num_microbatches, 1) + lowered.microbatch[index]


def _durations(
    lowered: Schedule, costs: Costs, stragglers: Mapping[int, float]
) -> NDArray[np.float64]:
    """Time of every compute op, shape (num_ops,). [s]"""
    factor = np.ones(lowered.num_ranks)
    for rank, slow in stragglers.items():
        factor[rank] = slow
    whole = costs.seconds[lowered.kind, lowered.stage]
    tensor = costs.tensor_seconds[lowered.kind, lowered.stage]
    alone = (whole - tensor) * factor[lowered.rank] + tensor
    return alone * costs.share_of_time(lowered.microbatch)


class _Run:
    """One play of the rows. A class because SimPy's callbacks share its state."""

    def __init__(
        self, lowered: Schedule, costs: Costs, fabric: Fabric, stragglers: Mapping[int, float]
    ) -> None:
        self.lowered, self.costs, self.fabric = lowered, costs, fabric
        self.env = simpy.Environment()
        self.network = Network(self.env, fabric.capacity)
        size = lowered.num_ops
        self.kind: list[int] = lowered.kind.tolist()
        self.stage: list[int] = lowered.stage.tolist()
        self.ranks: list[int] = lowered.rank.tolist()
        self.paired: list[bool] = lowered.paired.tolist()
        self.seconds: list[float] = _durations(lowered, costs, stragglers).tolist()
        self.share_of_tokens: list[float] = costs.share_of_tokens(lowered.microbatch).tolist()
        self.start = [np.nan] * size
        self.end = [np.nan] * size
        self.posted = bytearray(size)
        self.arrived = bytearray(size)  # RECV and REDUCE_GRAD ops that are complete
        self.waiting: dict[int, simpy.Event] = {}  # by the op waited for
        self.under_way = [0] * lowered.num_ranks  # posted transfers that are not complete
        self.standing: dict[int, simpy.Event] = {}  # ranks at a WAIT
        self.at = lowered.offsets[:-1].tolist()  # where each rank stands
        self.moves = transfers(lowered)
        self.holders = Counter(zip(self.kind, self.stage, strict=True))  # of collectives, by stage
        self.gathering: dict[tuple[Kind, int], list[int]] = {}  # collectives not yet complete
        self.peer = [NONE] * size
        self.move = [NONE] * size
        for move, (a, b) in enumerate(
            zip(self.moves.send.tolist(), self.moves.receive.tolist(), strict=True)
        ):
            self.peer[a], self.peer[b] = b, a
            self.move[a] = self.move[b] = move
        self.needs: list[int] = awaited(lowered).tolist()

    def timeline(self) -> Timeline:
        offsets = self.lowered.offsets.tolist()
        for rank in range(self.lowered.num_ranks):
            self.env.process(self._rank(rank, offsets[rank], offsets[rank + 1]))
        self.env.run()
        start, end = np.array(self.start), np.array(self.end)
        lowered = self.lowered
        timed = lowered.kind != Kind.WAIT
        if np.isnan(end[timed]).any():
            raise Deadlock(self._stuck(), grid(self.lowered, self.at))
        order = np.lexsort((start, lowered.rank))
        order = order[timed[order]]
        return Timeline(
            rank=lowered.rank[order],
            stage=lowered.stage[order],
            kind=lowered.kind[order],
            microbatch=lowered.microbatch[order],
            start=start[order],
            end=end[order],
        )

    def _rank(self, rank: int, first: int, stop: int) -> Generator[simpy.Event, None, None]:
        """One GPU's compute stream: communication is launched, compute is awaited."""
        env, at = self.env, self.at
        for op in range(first, stop):
            at[rank] = op
            kind = self.kind[op]
            if kind <= Kind.OPTIMIZER:
                need = self.needs[op]
                if need != NONE and not self.arrived[need]:
                    self.waiting[need] = event = env.event()
                    yield event
                if self.paired[op]:
                    continue  # it starts together with the next
                ops = (op - 1, op) if op > first and self.paired[op - 1] else (op,)
                for one in ops:
                    self.start[one] = env.now
                seconds = self._together(ops)
                if seconds > 0:
                    yield env.timeout(seconds)
                for one in ops:
                    self.end[one] = env.now
            elif kind <= Kind.RECV_B:
                self.posted[op] = 1
                self.under_way[rank] += 1
                if self.posted[self.peer[op]]:
                    self._transfer(op if kind in (Kind.SEND_F, Kind.SEND_B) else self.peer[op])
            elif kind == Kind.WAIT:
                if self.under_way[rank]:
                    self.standing[rank] = event = env.event()
                    yield event
            else:
                self._collective(op)
        at[rank] = stop

    def _together(self, ops: tuple[int, ...]) -> float:
        """Time of an op, or of an overlapped pair. [s]"""
        if len(ops) == 1:
            return self.seconds[ops[0]]
        share = float(self.costs.pair_time[self.stage[ops[0]]])
        return share * (self.seconds[ops[0]] + self.seconds[ops[1]])

    def _transfer(self, send: int) -> None:
        """Move one boundary tensor; both ends are posted."""
        receive, move = self.peer[send], self.move[send]
        self.start[send] = self.start[receive] = self.env.now
        moves = self.moves
        boundary = int(moves.boundary[move])
        share = self.share_of_tokens[send]
        gather = share * float(self.costs.boundary_gather[boundary])

        def arrive() -> None:
            if gather > 0:
                self.env.timeout(gather).callbacks.append(lambda _: self._arrive(send, receive))
            else:
                self._arrive(send, receive)

        route = self.fabric.sends[int(moves.source[move]), int(moves.target[move])]
        self.network.send(route, share * float(self.costs.boundary_bytes[boundary]), arrive)

    def _collective(self, op: int) -> None:
        """Start a data-parallel collective of one stage, once every rank that holds it is there."""
        kind, stage = Kind(self.kind[op]), self.stage[op]
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
            raise ValueError(f"the engine has no cost for {kind.name}; leave it out")
        for member in group:
            self.start[member] = self.env.now

        def done() -> None:
            for member in group:
                self._complete(member)

        self.network.send(ring.route, ring.share * float(nbytes[stage]), done)

    def _complete(self, op: int, *others: int) -> None:
        """Note an arrival and wake who waits for it."""
        now = self.env.now
        self.arrived[op] = 1
        self.end[op] = now
        for other in others:
            self.end[other] = now
        event = self.waiting.pop(op, None)
        if event is not None:
            event.succeed()

    def _arrive(self, send: int, receive: int) -> None:
        """Complete both ends of a transfer."""
        self._complete(receive, send)
        for end in (send, receive):
            rank = self.ranks[end]
            self.under_way[rank] -= 1
            if not self.under_way[rank] and rank in self.standing:
                self.standing.pop(rank).succeed()

    def _stuck(self) -> str:
        """Each stuck rank, its op and what that waits for."""
        lowered, stuck = self.lowered, []
        for rank, op in enumerate(self.at):
            first, stop = int(lowered.offsets[rank]), int(lowered.offsets[rank + 1])
            if op >= stop:
                continue
            if self.kind[op] == Kind.WAIT:
                ends = range(first, op)
                needs = [e for e in ends if self.move[e] != NONE and np.isnan(self.end[e])]
                after = next(
                    (e for e in range(op, stop) if self.kind[e] <= Kind.OPTIMIZER), stop - 1
                )
                head = f"rank {rank} before {lowered.op(after)}"
            else:
                needs, head = [self.needs[op]], f"rank {rank} at {lowered.op(op)}"
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
