"""From compute-only rows to rows with every send and receive: the same rows that PyTorch runs.

The walk runs each rank's next op as soon as its input is there, one op a rank and round. When an
op's consumer sits on another rank, SEND goes into this row and RECV into that one at the same
moment, so both ends of a pair list their transfers in one order and no pair can wait for itself.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.grid import grid, spots
from simulator.homes import checked_homes, stages_held
from simulator.kernel import kernel
from simulator.schedule import NO_MICROBATCH, Deadlock, Kind, Op, Schedule

__all__ = [
    "insert",
    "last_backward",
    "lower",
    "post_receives_early",
    "reduce_at_end",
    "reduce_when_ready",
    "step_optimizer",
    "unshard_after_step",
    "without",
]


def lower(schedule: Schedule) -> Schedule:
    """Add the sends and receives. Equal to PyTorch's `_add_send_recv` on the same rows.

    Raises:
        ValueError: an op is missing, doubled or no compute.
        Deadlock: the rows cannot finish.

    >>> print(lower(Schedule.parse("0F0,0B0" + chr(10) + "1F0,1B0")))
    0F0,0SEND_F0,0RECV_B0,0B0
    1RECV_F0,1F0,1B0,1SEND_B0
    """
    homes = checked_homes(schedule)
    rows = (schedule.offsets, schedule.stage, schedule.kind, schedule.microbatch, schedule.paired)
    size = (schedule.num_stages, schedule.num_microbatches)
    offsets, stage, kind, microbatch, paired, cursor, finished = _walk(*rows, *homes, *size)
    if not finished:
        raise _deadlock(schedule, cursor)
    return Schedule(offsets, stage, kind, microbatch, paired)


@kernel
def _walk(
    offsets: NDArray[np.int64],
    stage: NDArray[np.int32],
    kind: NDArray[np.int8],
    microbatch: NDArray[np.int32],
    paired: NDArray[np.bool_],
    home_f: NDArray[np.int32],
    home_b: NDArray[np.int32],
    num_stages: int,
    width: int,
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.int8],
    NDArray[np.int32],
    NDArray[np.bool_],
    NDArray[np.int64],
    bool,
]:
    """Columns of the lowered rows, where each rank came to, and whether all came to the end."""
    num_ranks, last = len(offsets) - 1, num_stages - 1
    # what each op hands on goes into two rows: lengths first
    length = np.zeros(num_ranks + 1, np.int64)
    for rank in range(num_ranks):
        length[rank + 1] += offsets[rank + 1] - offsets[rank]
        for at in range(offsets[rank], offsets[rank + 1]):
            cell = stage[at] * width + microbatch[at]
            peer = rank
            if kind[at] == 0 and stage[at] < last:
                peer = home_f[cell + width]
            elif (kind[at] == 1 or kind[at] == 2) and stage[at] > 0:
                peer = home_b[cell - width]
            if peer != rank:
                length[rank + 1] += 1
                length[peer + 1] += 1
    new_offsets = np.cumsum(length)
    total = new_offsets[-1]
    new_stage, new_microbatch = np.empty(total, np.int32), np.empty(total, np.int32)
    new_kind, new_paired = np.empty(total, np.int8), np.zeros(total, np.bool_)
    fill, cursor = new_offsets[:-1].copy(), offsets[:-1].copy()
    # per cell, bits: 1 = F has its input, 2 = B or I has, 4 = F is done, 8 = B or I is done
    done = np.zeros(num_stages * width, np.int8)
    done[:width] = 1
    left, progress = num_ranks, True
    while left > 0 and progress:
        left, progress = 0, False
        for rank in range(num_ranks):
            first = cursor[rank]
            if first == offsets[rank + 1]:
                continue
            stop = first + 1
            if paired[first]:
                stop += 1
            ready = True
            for at in range(first, stop):
                what, cell = kind[at], stage[at] * width + microbatch[at]
                if what == 0:
                    ready = ready and done[cell] & 1 == 1
                elif what == 3:
                    ready = ready and done[cell] & 8 == 8
                elif what < 3:
                    ready = ready and done[cell] & 6 == 6
            if not ready:
                left += 1
                continue
            for at in range(first, stop):
                here = fill[rank]
                new_stage[here], new_kind[here] = stage[at], kind[at]
                new_microbatch[here], new_paired[here] = microbatch[at], paired[at]
                fill[rank] += 1
            for at in range(first, stop):
                what, cell = kind[at], stage[at] * width + microbatch[at]
                if what == 0:
                    done[cell] |= 4
                    if stage[at] == last:
                        done[cell] |= 2
                        continue
                    step, bit, sends = 1, 1, 5
                elif what == 1 or what == 2:
                    done[cell] |= 8
                    if stage[at] == 0:
                        continue
                    step, bit, sends = -1, 2, 7
                else:
                    continue
                target = cell + step * width
                done[target] |= bit
                peer = home_f[target] if step > 0 else home_b[target]
                if peer != rank:
                    here, there = fill[rank], fill[peer]
                    new_stage[here], new_kind[here] = stage[at], sends
                    new_stage[there], new_kind[there] = stage[at] + step, sends + 1
                    new_microbatch[here] = new_microbatch[there] = microbatch[at]
                    fill[rank] += 1
                    fill[peer] += 1
            cursor[rank] = stop
            progress = True
            if stop < offsets[rank + 1]:
                left += 1
    return new_offsets, new_stage, new_kind, new_microbatch, new_paired, cursor, left == 0


def _deadlock(schedule: Schedule, cursor: NDArray[np.int64]) -> Deadlock:
    """Say which op each stuck rank stands at, and what that waits for."""
    done = np.zeros((Kind.W + 1, schedule.num_stages, schedule.num_microbatches), bool)
    work = (np.arange(schedule.num_ops) < cursor[schedule.rank]) & (schedule.kind <= Kind.W)
    done[schedule.kind[work], schedule.stage[work], schedule.microbatch[work]] = True

    def ready(op: Op) -> bool:
        if op.kind == Kind.OPTIMIZER or (op.stage == 0 and op.kind == Kind.F):
            return True
        need = _needs(op, schedule.num_stages - 1)
        kinds = [need.kind] if need.kind in (Kind.F, Kind.W) else [Kind.B, Kind.I]
        back = op.kind in (Kind.B, Kind.I)
        forward = not back or bool(done[Kind.F, op.stage, op.microbatch])
        return forward and bool(done[kinds, need.stage, need.microbatch].any())

    heads = [
        (rank, schedule.op(at))
        for rank, first in enumerate(cursor.tolist())
        if first < schedule.offsets[rank + 1]
        for at in (first, first + 1)[: 1 + int(schedule.paired[first])]
        if not ready(schedule.op(at))
    ]
    stand = (schedule, cursor.tolist())
    return Deadlock(_stuck(heads, schedule.num_stages - 1), grid(*stand), spots(*stand))


def post_receives_early(lowered: Schedule) -> Schedule:
    """Post every receive before the row's first compute: a message leaves as soon as it is made.

    The overlapped point-to-point of the papers' simulators. With p2p latency Tc it gives 1F1B
    (m + p - 1)(tf + tb) + (2 (p - 1) m / p + 2 (p - 2)) Tc, the figure behind every 1F1B entry of
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, Table 5.

    >>> print(post_receives_early(lower(Schedule.parse("0F0,0B0" + chr(10) + "1F0,1B0"))))
    0RECV_B0,0F0,0SEND_F0,0B0
    1RECV_F0,1F0,1B0,1SEND_B0
    """
    rows = (lowered.offsets, lowered.stage, lowered.kind, lowered.microbatch, lowered.paired)
    return Schedule(lowered.offsets, *_receives_first(*rows))


@kernel
def _receives_first(
    offsets: NDArray[np.int64],
    stage: NDArray[np.int32],
    kind: NDArray[np.int8],
    microbatch: NDArray[np.int32],
    paired: NDArray[np.bool_],
) -> tuple[NDArray[np.int32], NDArray[np.int8], NDArray[np.int32], NDArray[np.bool_]]:
    """The columns with each row's receives before the rest."""
    new_stage, new_microbatch = np.empty_like(stage), np.empty_like(microbatch)
    new_kind, new_paired = np.empty_like(kind), np.empty_like(paired)
    for rank in range(len(offsets) - 1):
        receives = 0
        for at in range(offsets[rank], offsets[rank + 1]):
            if kind[at] == 6 or kind[at] == 8:
                receives += 1
        head, tail = offsets[rank], offsets[rank] + receives
        for at in range(offsets[rank], offsets[rank + 1]):
            if kind[at] == 6 or kind[at] == 8:
                to = head
                head += 1
            else:
                to = tail
                tail += 1
            new_stage[to], new_kind[to] = stage[at], kind[at]
            new_microbatch[to], new_paired[to] = microbatch[at], paired[at]
    return new_stage, new_kind, new_microbatch, new_paired


def reduce_when_ready(lowered: Schedule) -> Schedule:
    """Add each stage's REDUCE_GRAD right after its last backward: overlapped with what follows."""
    last = last_backward(lowered)
    return _insert(lowered, last, lowered.stage[last], Kind.REDUCE_GRAD)


def reduce_at_end(lowered: Schedule) -> Schedule:
    """Add every stage's REDUCE_GRAD at the end of its row: nothing is left to overlap with."""
    return _append(lowered, Kind.REDUCE_GRAD)


def step_optimizer(lowered: Schedule) -> Schedule:
    """Add each stage's OPTIMIZER at the end of its row."""
    return _append(lowered, Kind.OPTIMIZER)


def unshard_after_step(lowered: Schedule) -> Schedule:
    """Add each stage's UNSHARD, the gathering of its new weights, right after its OPTIMIZER."""
    steps = np.flatnonzero(lowered.kind == Kind.OPTIMIZER)
    return _insert(lowered, steps, lowered.stage[steps], Kind.UNSHARD)


def without(lowered: Schedule, *kinds: Kind) -> Schedule:
    """The rows without the ops of some kinds.

    >>> print(without(Schedule.parse("0UNSHARD,0F0,0B0,0RESHARD"), Kind.UNSHARD, Kind.RESHARD))
    0F0,0B0
    """
    keep = ~np.isin(lowered.kind, kinds)
    offsets = np.concatenate([[0], np.cumsum(keep)])[lowered.offsets]
    stage, kind, microbatch = lowered.stage[keep], lowered.kind[keep], lowered.microbatch[keep]
    return Schedule(offsets, stage, kind, microbatch, lowered.paired[keep])


def _needs(op: Op, last: int) -> Op:
    """The op whose result an op takes, where that is another stage's or the forward's."""
    if op.kind == Kind.F:
        return Op(op.stage - 1, Kind.F, op.microbatch)
    if op.kind == Kind.W:
        return Op(op.stage, Kind.I, op.microbatch)
    if op.stage == last:
        return Op(op.stage, Kind.F, op.microbatch)
    return Op(op.stage + 1, op.kind, op.microbatch)


def _stuck(heads: list[tuple[int, Op]], last: int) -> str:
    """Each stuck rank, its op and what that waits for."""
    shown = "; ".join(f"rank {rank} at {op} waits for {_needs(op, last)}" for rank, op in heads[:8])
    more = f"; and {len(heads) - 8} more ranks" if len(heads) > 8 else ""
    return f"schedule cannot finish: {shown}{more}"


def last_backward(lowered: Schedule) -> NDArray[np.intp]:
    """Index of each (rank, stage)'s last backward op, in order."""
    backward = np.flatnonzero(np.isin(lowered.kind, (Kind.B, Kind.W)))
    key = lowered.rank[backward].astype(np.int64) * lowered.num_stages + lowered.stage[backward]
    _, first = np.unique(key[::-1], return_index=True)
    return np.sort(backward[len(backward) - 1 - first])


def _append(lowered: Schedule, kind: Kind) -> Schedule:
    """Add an op of this kind at the end of the row for every stage on the rank."""
    rank, stage = np.nonzero(stages_held(lowered))
    return _insert(lowered, lowered.offsets[rank + 1] - 1, stage, kind)


def _insert(
    lowered: Schedule, after: NDArray[np.integer], stage: NDArray[np.integer], kind: Kind
) -> Schedule:
    """Add an op of this kind and these stages after each of these indices."""
    return insert(lowered, after + 1, lowered.rank[after], stage, kind)


def insert(
    lowered: Schedule,
    at: NDArray[np.integer],
    rank: NDArray[np.integer],
    stage: NDArray[np.integer],
    kind: Kind,
) -> Schedule:
    """Add ops of this kind and these stages before these indices, in the rows of these ranks.

    Of several at one index, those of lower ranks must come first.
    """
    added = np.bincount(rank, minlength=lowered.num_ranks)
    return Schedule(
        lowered.offsets + np.concatenate([[0], np.cumsum(added)]),
        np.insert(lowered.stage, at, stage),
        np.insert(lowered.kind, at, int(kind)),
        np.insert(lowered.microbatch, at, NO_MICROBATCH),
        np.insert(lowered.paired, at, False),
    )
