"""Messages of a measured run: which send belongs to which receive, and when each end was ready.

Ranges such as `PP:1SEND_F0` name their message. Without them the compute ops say which messages
there must have been, in which order between two ranks, and the transfers are counted off.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.lower import lower
from simulator.schedule import Deadlock, Kind, Op, Schedule
from traces.measured.ops import Carriers, Ops, RankOps

__all__ = ["Transfers", "transfers"]

Column = NDArray[np.float64]
Key = tuple[int, int, int, int]  # step, Kind.RECV_F or RECV_B, the receiver's stage, microbatch
End = tuple[int, float, float]  # rank, ready, end


@dataclass(frozen=True, eq=False, kw_only=True)
class Transfers:
    """Every message of which both ends were found; shape (n,). Times by each rank's own clock."""

    step: NDArray[np.int64]
    kind: NDArray[np.int8]  # RECV_F or RECV_B
    stage: NDArray[np.int32]  # the receiver's
    microbatch: NDArray[np.int32]
    sender: NDArray[np.int64]
    receiver: NDArray[np.int64]
    sent: Column  # when the sender was ready [s]
    received: Column  # when the receiver was ready [s]
    arrived: Column  # when the receiver had it [s]
    waiting: NDArray[np.bool_]  # the receiver was waiting; else it arrived at some time before that


def transfers(ranks: Sequence[RankOps], order: Sequence[int]) -> tuple[Transfers, tuple[str, ...]]:
    """The messages, and in words what could not be told; `order` are the ranks of the whole job."""
    named = [bool(np.isin(one.ops.kind, SENDS + RECEIVES).any()) for one in ranks]
    notes: list[str] = []
    sends: dict[Key, End] = {}
    receives: dict[Key, End] = {}
    expected = None if all(named) else _expected(ranks)
    for rank, one in enumerate(ranks):
        if named[rank]:
            _named(one, rank, sends, receives)
        elif expected is None:
            notes.append("the order of compute ops fits no schedule, so messages are not told")
        else:
            why = _counted(one, rank, order, expected, sends, receives)
            notes += [f"rank {order[rank]}: {why}"] if why else []
    both = sorted(sends.keys() & receives.keys())
    use = _first_uses(ranks)
    rows = []
    for key in both:
        (sender, sent, _), receive = sends[key], receives[key]
        arrived, waiting = _arrival(receive, use.get((receive[0], *key)))
        if sender != receive[0] and np.isfinite(arrived):
            rows.append((*key, sender, receive[0], sent, receive[1], arrived, waiting))
    table = np.array(rows, np.float64).reshape(-1, 10)
    integers = [table[:, at].astype(np.int64) for at in range(6)]
    made = Transfers(
        step=integers[0],
        kind=integers[1].astype(np.int8),
        stage=integers[2].astype(np.int32),
        microbatch=integers[3].astype(np.int32),
        sender=integers[4],
        receiver=integers[5],
        sent=table[:, 6],
        received=table[:, 7],
        arrived=table[:, 8],
        waiting=table[:, 9] > 0,
    )
    lonely = len(sends.keys() ^ receives.keys())
    if lonely:
        notes.append(f"{lonely} sends or receives lack their other end and are left out")
    return made, tuple(dict.fromkeys(notes))


SENDS, RECEIVES = (Kind.SEND_F, Kind.SEND_B), (Kind.RECV_F, Kind.RECV_B)


def _key(step: int, kind: int, stage: int, microbatch: int) -> Key:
    """What both ends of a message have in common."""
    if kind == Kind.SEND_F:
        return step, int(Kind.RECV_F), stage + 1, microbatch
    if kind == Kind.SEND_B:
        return step, int(Kind.RECV_B), stage - 1, microbatch
    return step, kind, stage, microbatch


def _named(one: RankOps, rank: int, sends: dict[Key, End], receives: dict[Key, End]) -> None:
    """Ends whose ranges have names: ready and over when what was launched within them was.

    On the host a send is ready when its range begins: the call is what makes the bytes leave.
    """
    ops, carriers = one.ops, one.carriers
    mine = np.flatnonzero(np.isin(ops.kind, SENDS + RECEIVES))
    first = np.searchsorted(carriers.asked, ops.asked[mine])
    stop = np.searchsorted(carriers.asked, ops.left[mine])
    for at, low, high in zip(mine.tolist(), first.tolist(), stop.tolist(), strict=True):
        kind = int(ops.kind[at])
        key = _key(int(ops.step[at]), kind, int(ops.stage[at]), int(ops.microbatch[at]))
        ready, end = float(ops.asked[at]), np.nan
        if high > low:
            if one.on_device or kind not in SENDS:
                ready = float(carriers.start[low:high].min())
            end = float(carriers.end[low:high].max())
        (sends if kind in SENDS else receives)[key] = (rank, ready, end)


Use = tuple[float, float]  # when the host came to an op, when it started


def _first_uses(ranks: Sequence[RankOps]) -> dict[tuple[int, int, int, int, int], Use]:
    """The op that needs each message, by rank and key; on a device the host does not wait."""
    found = {}
    for rank, one in enumerate(ranks):
        ops = one.ops
        asked = np.full(len(ops.kind), -np.inf) if one.on_device else ops.asked
        columns = (ops.step, ops.kind, ops.stage, ops.microbatch, asked, ops.start)
        for step, kind, stage, microbatch, came, start in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            if kind in (Kind.F, Kind.B, Kind.I) and np.isfinite(start):
                receive = int(Kind.RECV_F if kind == Kind.F else Kind.RECV_B)
                found[rank, step, receive, stage, microbatch] = (came, start)
    return found


def _arrival(receive: End, use: Use | None) -> tuple[float, bool]:
    """When a message was there, no later than it was used, and whether it was waited for."""
    _, ready, end = receive
    if use is None or use[1] < ready:
        return end, True
    arrived = use[1] if np.isnan(end) else min(end, use[1])
    return arrived, arrived - use[0] > PROMPT


PROMPT = 1e-4  # a wait that is over so soon found its message there [s]


Row = list[tuple[Op, int, float]]  # transfers, their peers, their place among the compute ops
Expected = dict[int, list[Row]]  # by step, by rank


def _expected(ranks: Sequence[RankOps]) -> Expected | None:
    """The transfers that the measured order of compute ops makes necessary."""
    found: Expected = {}
    for step in sorted({s for one in ranks for s in np.unique(one.ops.step).tolist()}):
        try:
            lowered = lower(Schedule.of(_row(one.ops, step) for one in ranks))
        except (Deadlock, ValueError, IndexError, KeyError):
            return None
        home = {(op.stage, op.kind): r for r, row in enumerate(lowered.rows) for op in row}
        rows: list[Row] = []
        for row in lowered.rows:
            mine = [op for op in row if op.kind in SENDS + RECEIVES]
            places = _places([op for op in row if op.kind not in SENDS + RECEIVES])
            rows.append([(op, home[_other(op)], places[_uses(op)]) for op in mine])
        found[step] = rows
    return found


def _row(ops: Ops, step: int) -> NDArray[np.int64]:
    """The compute of one rank in one step, in the order in which it ran."""
    mine = ops.where((ops.step == step) & (ops.kind < Kind.OPTIMIZER))
    order = np.argsort(mine.asked, kind="stable")
    return np.column_stack([mine.stage, mine.kind, mine.microbatch]).astype(np.int64)[order]


def _places(row: list[Op]) -> dict[tuple[bool, bool, int, int], float]:
    """Where a program that sends what it made at once, and receives what it needs last, does so."""
    found = {}
    for place, op in enumerate(row):
        if op.kind in (Kind.F, Kind.B, Kind.I):
            forward = op.kind == Kind.F
            found[False, forward, op.stage, op.microbatch] = place - 0.25
            found[True, forward, op.stage, op.microbatch] = place + 0.25
    return found


def _uses(op: Op) -> tuple[bool, bool, int, int]:
    """Of a transfer: whether it sends, forward, and the stage and microbatch here."""
    forward = op.kind in (Kind.SEND_F, Kind.RECV_F)
    return op.kind in SENDS, forward, op.stage, op.microbatch


def _other(op: Op) -> tuple[int, Kind]:
    """The stage and kind of a transfer's other end."""
    return {
        Kind.SEND_F: (op.stage + 1, Kind.RECV_F),
        Kind.RECV_F: (op.stage - 1, Kind.SEND_F),
        Kind.SEND_B: (op.stage - 1, Kind.RECV_B),
        Kind.RECV_B: (op.stage + 1, Kind.SEND_B),
    }[op.kind]


def _counted(
    one: RankOps,
    rank: int,
    order: Sequence[int],
    expected: Expected,
    sends: dict[Key, End],
    receives: dict[Key, End],
) -> str:
    """Count one rank's transfers off against what there must be; says why if they do not fit."""
    carriers = one.carriers
    if len(carriers.asked) == 0:
        return "no transfer was recorded, so waiting and moving are not told apart"
    for step, rows in expected.items():
        within = np.flatnonzero(carriers.step == step)
        if len(within) == 0 and rows[rank]:
            return f"no transfer was recorded in step {step}"
        matched = _match(carriers, within, rows[rank], order)
        if matched is None:
            return (
                f"step {step} has {len(within)} transfers where the order of ops makes "
                f"{len(rows[rank])} messages, so waiting and moving are not told apart"
            )
        for (op, _, _), at in zip(rows[rank], matched, strict=True):
            end = (rank, float(carriers.start[at]), float(carriers.end[at]))
            key = _key(step, int(op.kind), op.stage, op.microbatch)
            (sends if op.kind in SENDS else receives)[key] = end
    return ""


def _match(
    carriers: Carriers, within: NDArray[np.intp], row: Row, order: Sequence[int]
) -> list[int] | None:
    """Which transfer carried each message of a row."""
    told = np.isin(carriers.message, within)
    if told.any():
        found: dict[tuple[int, bool], list[int]] = {}
        columns = (carriers.message[told], carriers.peer[told], carriers.send[told])
        for at, peer, send in zip(*(column.tolist() for column in columns), strict=True):
            found.setdefault((peer, send), []).append(at)
        wanted: dict[tuple[int, bool], int] = {}
        places = []
        for op, peer, _ in row:
            edge = (order[peer], op.kind in SENDS)
            places.append((edge, wanted.get(edge, 0)))
            wanted[edge] = wanted.get(edge, 0) + 1
        if wanted != {edge: len(list_) for edge, list_ in found.items()}:
            return None
        return [found[edge][place] for edge, place in places]
    if len(within) != len(row):
        return None
    in_order = sorted(range(len(row)), key=lambda at: row[at][2])
    matched = np.empty(len(row), np.int64)
    matched[in_order] = within
    return [int(at) for at in matched]
