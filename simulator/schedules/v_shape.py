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
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind, Schedule

__all__ = ["Block", "require_two_chunks", "squeeze"]

# What a rank can run: F of the arm that goes down, F of the arm up, I up, I down, W up, W down.
KINDS = (Kind.F, Kind.F, Kind.I, Kind.I, Kind.W, Kind.W)


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
    what, microbatch = _squeeze(np.array(blocks, np.int64), num_microbatches)
    rank = np.arange(len(blocks))[:, None]
    is_down = np.isin(what, (0, 3, 5))
    stage = np.where(is_down, rank, 2 * len(blocks) - 1 - rank)
    return Schedule.of(np.stack([stage, np.array(KINDS)[what], microbatch], axis=2))


@kernel
def _squeeze(
    blocks: NDArray[np.int64], num_microbatches: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What each rank runs, 0 to 5, and for which microbatch; shape (num_ranks, 6 m) each.

    `blocks` has shape (num_ranks, 4).
    """
    num_ranks, m = len(blocks), num_microbatches
    length = 6 * m
    memory = (1, 1, 0, 0, -1, -1)  # chunks' activations that a pass takes or frees
    # the order of the repeated block, W in the slots that are idle
    order_what = np.empty((num_ranks, length), np.int64)
    order_microbatch = np.empty((num_ranks, length), np.int64)
    place = np.empty((num_ranks, 6, m), np.int64)
    limit = 0
    for rank in range(num_ranks):
        late_what, late_microbatch = np.empty(2 * m, np.int64), np.empty(2 * m, np.int64)
        num_late = used = fill = slot = held = 0
        while fill < length:
            chosen = -1
            for what in range(4):
                since = slot - blocks[rank, what]
                if since >= 0 and since % 6 == 0 and since // 6 < m:
                    chosen = what
            slot += 1
            if chosen >= 0:
                now = (slot - 1 - blocks[rank, chosen]) // 6
                if chosen >= 2:
                    late_what[num_late], late_microbatch[num_late] = chosen + 2, now
                    num_late += 1
            elif used < num_late:
                chosen, now = late_what[used], late_microbatch[used]
                used += 1
            else:
                continue
            order_what[rank, fill], order_microbatch[rank, fill] = chosen, now
            place[rank, chosen, now] = fill
            fill += 1
            held += memory[chosen]
            limit = max(limit, held)
    # all ranks from slot to slot
    ready = np.zeros((num_ranks, 6, m), np.bool_)
    ready[0, 0, :] = True
    has_run = np.zeros((num_ranks, length), np.bool_)
    count, head = np.zeros((num_ranks, 6), np.int64), np.zeros(num_ranks, np.int64)
    level, done = np.zeros(num_ranks, np.int64), np.zeros(num_ranks, np.int64)
    row_what = np.empty((num_ranks, length), np.int64)
    row_microbatch = np.empty((num_ranks, length), np.int64)
    choice = np.empty(num_ranks, np.int64)
    left = num_ranks * length
    while left > 0:
        for rank in range(num_ranks):
            choice[rank] = -1
            while head[rank] < length and has_run[rank, head[rank]]:
                head[rank] += 1
            if head[rank] == length:
                continue
            drains = count[rank, 0] == m
            what = order_what[rank, head[rank]]
            if ready[rank, what, order_microbatch[rank, head[rank]]] and not (drains and what >= 4):
                choice[rank] = head[rank]
                continue
            tried = np.zeros(6, np.bool_)
            for _ in range(6):  # ready passes by their place, W last in the drain
                best, best_key = -1, 0
                for what in range(6):
                    now = count[rank, what]
                    if tried[what] or now == m or not ready[rank, what, now]:
                        continue
                    key = place[rank, what, now] + (length if drains and what >= 4 else 0)
                    if best < 0 or key < best_key:
                        best, best_key = what, key
                if best < 0:
                    break
                tried[best] = True
                at = place[rank, best, count[rank, best]]
                held, fits = level[rank] + memory[best], True
                if memory[best] > 0:  # with those before it in the order still to come
                    for before in range(head[rank], at):
                        fits = fits and held <= limit
                        if not has_run[rank, before]:
                            held += memory[order_what[rank, before]]
                    fits = fits and held <= limit
                if fits:
                    choice[rank] = at
                    break
        for rank in range(num_ranks):
            if choice[rank] < 0:
                continue
            what = order_what[rank, choice[rank]]
            now = order_microbatch[rank, choice[rank]]
            has_run[rank, choice[rank]] = True
            level[rank] += memory[what]
            count[rank, what] += 1
            row_what[rank, done[rank]], row_microbatch[rank, done[rank]] = what, now
            done[rank] += 1
            left -= 1
            if what >= 4:
                continue
            if what >= 2:
                ready[rank, what + 2, now] = True
            peer = rank + 1 if what == 0 or what == 2 else rank - 1
            if 0 <= peer < num_ranks:
                ready[peer, what, now] = True
            elif what != 3:
                ready[rank, what + 1, now] = True  # at the turn of the V, or at its end
    return row_what, row_microbatch
