"""Which op answers which in lowered rows: the ends of each transfer, and what an op waits for."""

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind, Op, Schedule

__all__ = ["Matches", "Transfers", "match", "transfers"]

Index = NDArray[np.int32]


class Matches(NamedTuple):
    """For each op of a lowered schedule the index of another, or -1; shape (num_ops,)."""

    needs: Index  # of a compute op: the RECV or REDUCE_GRAD that it waits for
    gate: Index  # of a stage's first F after its UNSHARD in the row: that UNSHARD
    peer: Index  # of a SEND or RECV: the other end


class Transfers(NamedTuple):
    """The sends of a lowered schedule, as columns: who sends what to whom."""

    send: Index  # index of each SEND op
    receive: Index  # index of its RECV op
    source: Index  # sending rank
    target: Index  # receiving rank
    boundary: Index  # stage below the boundary that it crosses


def match(lowered: Schedule) -> Matches:
    """Match each SEND with its RECV, and each compute op with what it waits for.

    Raises:
        ValueError: one end of a transfer is missing or stands twice.
    """
    columns = (lowered.offsets, lowered.stage, lowered.kind, lowered.microbatch)
    needs, gate, peer, right = _match(*columns, lowered.num_stages, lowered.num_microbatches)
    if not right:
        raise ValueError(_odd(lowered))
    return Matches(needs, gate, peer)


def transfers(lowered: Schedule, matches: Matches | None = None) -> Transfers:
    """Every transfer of lowered rows, by its SEND; `matches` if they are known already.

    Raises:
        ValueError: one end of a transfer is missing or stands twice.
    """
    peer = (match(lowered) if matches is None else matches).peer
    is_back = lowered.kind == Kind.SEND_B
    send = np.flatnonzero(is_back | (lowered.kind == Kind.SEND_F)).astype(np.int32)
    receive = peer[send]
    boundary = lowered.stage[send] - is_back[send]
    return Transfers(send, receive, lowered.rank[send], lowered.rank[receive], boundary)


@kernel
def _match(
    offsets: NDArray[np.int64],
    stage: NDArray[np.int32],
    kind: NDArray[np.int8],
    microbatch: NDArray[np.int32],
    num_stages: int,
    width: int,
) -> tuple[Index, Index, Index, bool]:
    """Needs, gates, peers, and whether every transfer has both of its ends once."""
    needs, peer = np.full(len(kind), -1, np.int32), np.full(len(kind), -1, np.int32)
    gate = np.full(len(kind), -1, np.int32)
    ends = np.full((4, num_stages * width), -1, np.int32)  # SEND_F, RECV_F, SEND_B, RECV_B
    right, balance = True, 0
    for at in range(len(kind)):
        if 5 <= kind[at] <= 8:
            cell = stage[at] * width + microbatch[at]
            balance += 1 if kind[at] % 2 == 1 else -1
            if microbatch[at] < 0 or ends[kind[at] - 5, cell] >= 0:
                right = False
            else:
                ends[kind[at] - 5, cell] = at
    right = right and balance == 0
    reduction = np.full(num_stages, -1, np.int32)  # of the row's stages
    gathering = np.full(num_stages, -1, np.int32)
    for rank in range(len(offsets) - 1):
        first, stop = offsets[rank], offsets[rank + 1]
        for at in range(first, stop):
            if kind[at] == 11:
                reduction[stage[at]] = at
        for at in range(first, stop):
            what, cell = kind[at], stage[at] * width + microbatch[at]
            if what == 4:
                needs[at] = reduction[stage[at]]
            elif what == 9:
                gathering[stage[at]] = at
            elif microbatch[at] < 0:
                continue
            elif what == 0:
                needs[at] = ends[1, cell]
                gate[at], gathering[stage[at]] = gathering[stage[at]], -1
            elif what == 1 or what == 2:
                needs[at] = ends[3, cell]
            elif what == 5 or what == 7:
                step = 1 if what == 5 else -1
                there = -1
                if 0 <= stage[at] + step < num_stages:
                    there = ends[what - 4, cell + step * width]
                if there < 0:
                    right = False
                else:
                    peer[at] = there
                    peer[there] = at
        for at in range(first, stop):
            if kind[at] == 11:
                reduction[stage[at]] = -1
            elif kind[at] == 9:
                gathering[stage[at]] = -1
    return needs, gate, peer, right


def _odd(lowered: Schedule) -> str:
    """Name a transfer whose ends do not stand once each."""
    for sends, receives, step in (
        (Kind.SEND_F, Kind.RECV_F, 1),
        (Kind.SEND_B, Kind.RECV_B, -1),
    ):
        made, taken = (
            Counter(
                zip(
                    (lowered.stage[lowered.kind == kind] + to).tolist(),
                    lowered.microbatch[lowered.kind == kind].tolist(),
                    strict=True,
                )
            )
            for kind, to in ((sends, step), (receives, 0))
        )
        for stage, microbatch in sorted({*made, *taken}):
            if made[stage, microbatch] != 1 or taken[stage, microbatch] != 1:
                return (
                    f"{Op(stage, receives, microbatch)} and {Op(stage - step, sends, microbatch)} "
                    "do not stand once each; every transfer needs both of its ends"
                )
    raise AssertionError("every transfer has both ends")
