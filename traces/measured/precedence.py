"""What the order of ops says about clocks: no op starts before the other rank made its input.

`F` of a stage ends before `F` of the next stage starts, and a backward before the one of the stage
before it. So each pair of ops on two ranks bounds their clocks as a message would, only wider, by
as much as the message took and waited. It serves where no transfer was recorded.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind
from traces.measured.clocks import Messages
from traces.measured.ops import RankOps

__all__ = ["implied", "joined", "tightest"]


def implied(ranks: Sequence[RankOps], told: Messages) -> Messages:
    """End of an op and start of the one that needs it, for ranks between which none was told."""
    columns = [
        np.column_stack(
            [
                *(c.astype(np.float64) for c in (ops.step, ops.kind, ops.stage, ops.microbatch)),
                np.full(len(ops.kind), rank),
                ops.start,
                ops.end,
            ]
        )
        for rank, ops in enumerate(one.ops for one in ranks)
    ]
    rows = np.concatenate(columns)
    rows = rows[np.isfinite(rows[:, 5])]
    forward = rows[rows[:, 1] == Kind.F]
    backward = rows[np.isin(rows[:, 1], (Kind.B, Kind.I))]
    pairs = [_pairs(forward, 1), _pairs(backward, -1)]
    source, target = (np.concatenate([pair[at] for pair in pairs]) for at in (0, 1))
    found = Messages(
        sender=source[:, 4].astype(np.int64),
        receiver=target[:, 4].astype(np.int64),
        sent=source[:, 6],
        arrived=target[:, 5],
    )
    known = _edges(told, len(ranks))
    return _where(
        found, (found.sender != found.receiver) & ~np.isin(_edges(found, len(ranks)), known)
    )


def joined(a: Messages, b: Messages) -> Messages:
    """Both."""
    return Messages(
        sender=np.concatenate([a.sender, b.sender]),
        receiver=np.concatenate([a.receiver, b.receiver]),
        sent=np.concatenate([a.sent, b.sent]),
        arrived=np.concatenate([a.arrived, b.arrived]),
    )


def tightest(messages: Messages, num_ranks: int) -> Messages:
    """Of the messages from one rank to another the one with least room."""
    edge = messages.sender * num_ranks + messages.receiver
    order = np.lexsort((messages.arrived - messages.sent, edge))
    _, first = np.unique(edge[order], return_index=True)
    return _where(messages, order[first])


def _pairs(
    rows: NDArray[np.float64], deeper: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows of ops, and of the ops that need them: same step and microbatch, `deeper` stages on."""
    step, stage, microbatch = (rows[:, at].astype(np.int64) for at in (0, 2, 3))
    key = (step << 42) + (stage << 21) + microbatch  # numbers are at most MOST
    _, source, target = np.intersect1d(key + (deeper << 21), key, return_indices=True)
    return rows[source], rows[target]


def _edges(messages: Messages, num_ranks: int) -> NDArray[np.int64]:
    """A number for the two ranks of each message, whichever sent it."""
    low = np.minimum(messages.sender, messages.receiver)
    found: NDArray[np.int64] = low * num_ranks + np.maximum(messages.sender, messages.receiver)
    return found


def _where(messages: Messages, mask: NDArray[np.bool_] | NDArray[np.intp]) -> Messages:
    return Messages(
        sender=messages.sender[mask],
        receiver=messages.receiver[mask],
        sent=messages.sent[mask],
        arrived=messages.arrived[mask],
    )
