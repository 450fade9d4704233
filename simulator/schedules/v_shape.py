"""V-shaped schedules from a building block: repeat it, then squeeze its bubbles out.

Rank r holds stages r and 2 pp - 1 - r, the two arms of a V. A block says when each rank runs one
microbatch's four passes, in slots of one unit; the next microbatch's block starts 6 slots later, so
two slots of six are left for W. How long a block's passes live decides the peak memory, so a rank
with a long life in one arm has a short one in the other. Registers nothing.

Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.schedule import Kind, Schedule

__all__ = ["Block", "require_two_chunks", "squeeze"]

INTERVAL = 6  # slots between two microbatches: F, I and W of two chunks

# What a rank can run: F of the arm that goes down, F of the arm up, I up, I down, W up, W down.
F_DOWN, F_UP, I_UP, I_DOWN, W_UP, W_DOWN = range(6)
KIND = (Kind.F, Kind.F, Kind.I, Kind.I, Kind.W, Kind.W)
IS_DOWN = (True, False, False, True, False, True)
MEMORY = (1, 1, 0, 0, -1, -1)  # chunks' activations that a pass takes or frees

Pass = tuple[int, int]  # what, microbatch


class Block(NamedTuple):
    """Slots in which one rank runs microbatch 0; all four differ modulo 6."""

    f_down: int
    f_up: int
    i_up: int
    i_down: int


def require_two_chunks(name: str, vpp: int) -> None:
    """Refuse any number of chunks that makes no V."""
    if vpp != 2:
        raise ValueError(
            f"plan.vpp is {vpp}, but schedule {name} holds two chunks a rank, one in each arm of "
            "its V; use 2"
        )


def squeeze(blocks: Sequence[Block], num_microbatches: int) -> Schedule:
    """Rows of the blocks repeated for every microbatch, without the bubbles that can go.

    Walks through time, one slot of a unit after the other. A rank runs the next pass of its blocks;
    where that still waits for another rank, it runs the earliest later pass that is ready and with
    which the passes before it still fit in the blocks' own peak memory. A rank that has run its
    last forward down puts off W as long as it has anything else.
    """
    walk = _Walk([_repeat(block, num_microbatches) for block in blocks], num_microbatches)
    while walk.left:
        walk.slot()
    return Schedule.of(np.array(row, np.int32) for row in walk.rows)


def _repeat(block: Block, num_microbatches: int) -> list[Pass]:
    """One rank's passes in the order of the repeated block, W in the slots that are idle."""
    starts = sorted(
        (slot + INTERVAL * microbatch, what, microbatch)
        for what, slot in enumerate(block)
        for microbatch in range(num_microbatches)
    )
    order: list[Pass] = []
    late: list[Pass] = []
    num_late, now = 0, 0
    for slot, what, microbatch in starts:
        idle = slot - now
        order += late[num_late : num_late + idle]
        num_late = min(num_late + idle, len(late))
        order.append((what, microbatch))
        if what in (I_UP, I_DOWN):
            late.append((what + 2, microbatch))
        now = slot + 1
    return order + late[num_late:]


class _Walk:
    """All ranks at one moment. A class because the slots share this state."""

    def __init__(self, order: list[list[Pass]], num_microbatches: int) -> None:
        self.order = order
        self.num_ranks, self.num_microbatches = len(order), num_microbatches
        self.left = sum(map(len, order))
        self.limit = max(max(_memory(row)) for row in order)
        self.held = [0] * self.num_ranks  # chunks' activations
        self.head = [0] * self.num_ranks  # first pass of the order that has not run
        self.has_run = [bytearray(len(row)) for row in order]
        self.count = [[0] * 6 for _ in order]  # of each pass, how often it has run
        self.place = [_places(row, num_microbatches) for row in order]
        self.ready = [[bytearray(num_microbatches) for _ in range(6)] for _ in order]
        self.ready[0][F_DOWN] = bytearray(b"\1" * num_microbatches)
        self.rows: list[list[tuple[int, int, int]]] = [[] for _ in order]

    def slot(self) -> None:
        """Run one pass on each rank that can."""
        chosen = [(rank, self._choose(rank)) for rank in range(self.num_ranks)]
        for rank, one in chosen:
            if one is not None:
                self._run(rank, *one)

    def _choose(self, rank: int) -> Pass | None:
        """The pass that a rank runs now."""
        order, has_run = self.order[rank], self.has_run[rank]
        at = self.head[rank]
        while at < len(order) and has_run[at]:
            at += 1
        self.head[rank] = at
        if at == len(order):
            return None
        what, microbatch = order[at]
        drains = self.count[rank][F_DOWN] == self.num_microbatches
        if self.ready[rank][what][microbatch] and not (drains and what >= W_UP):
            return what, microbatch
        return self._ahead(rank, drains)

    def _ahead(self, rank: int, drains: bool) -> Pass | None:
        """The earliest pass that is ready and leaves room for those before it."""
        nexts = [
            (drains and what >= W_UP, self.place[rank][what][microbatch], what, microbatch)
            for what, microbatch in enumerate(self.count[rank])
            if microbatch < self.num_microbatches and self.ready[rank][what][microbatch]
        ]
        for _, place, what, microbatch in sorted(nexts):
            if self._fits(rank, place, MEMORY[what]):
                return what, microbatch
        return None

    def _fits(self, rank: int, place: int, memory: int) -> bool:
        """Whether a pass may run before all others up to its place in the order."""
        if memory <= 0:
            return True
        order, has_run, held = self.order[rank], self.has_run[rank], self.held[rank] + memory
        for at in range(self.head[rank], place):
            if held > self.limit:
                return False
            if not has_run[at]:
                held += MEMORY[order[at][0]]
        return held <= self.limit

    def _run(self, rank: int, what: int, microbatch: int) -> None:
        """Note a pass, and hand its result on for the next slot."""
        self.left -= 1
        self.held[rank] += MEMORY[what]
        self.count[rank][what] += 1
        self.has_run[rank][self.place[rank][what][microbatch]] = 1
        stage = rank if IS_DOWN[what] else 2 * self.num_ranks - 1 - rank
        self.rows[rank].append((stage, KIND[what], microbatch))
        if what >= W_UP:
            return
        if KIND[what] == Kind.I:
            self.ready[rank][what + 2][microbatch] = 1
        goes_down = what in (F_DOWN, I_UP)
        peer = rank + 1 if goes_down else rank - 1
        if 0 <= peer < self.num_ranks:
            self.ready[peer][what][microbatch] = 1
        elif what != I_DOWN:
            self.ready[rank][what + 1][microbatch] = 1  # at the turn of the V, or at its end


def _memory(order: list[Pass]) -> list[int]:
    """Chunks' activations held after each pass."""
    held: list[int] = np.cumsum([MEMORY[what] for what, _ in order]).tolist()
    return held


def _places(order: list[Pass], num_microbatches: int) -> list[list[int]]:
    """Where each pass stands in the order, by what and microbatch."""
    places = [[0] * num_microbatches for _ in range(6)]
    for at, (what, microbatch) in enumerate(order):
        places[what][microbatch] = at
    return places
