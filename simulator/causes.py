"""Why each span starts when it does: the last thing that it needed, found in one sweep.

A span starts when the last thing that it needed ended: the op before it on its rank, the op that
made its input, its message, or, with blocking point-to-point, a transfer at which its rank stood
still. Tables from stage and microbatch to span lead to inputs and messages. What few timelines
have is settled after: ranks that stood still, and overlapped pairs.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = ["causes", "implied_causes"]

Index = NDArray[np.int32]
Column = NDArray[np.float64]

NONE = -1

_F, _B, _I, _W, _OPTIMIZER = (
    int(kind) for kind in (Kind.F, Kind.B, Kind.I, Kind.W, Kind.OPTIMIZER)
)
_SEND_F, _RECV_F, _SEND_B, _RECV_B = (
    int(kind) for kind in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)
)
_UNSHARD, _REDUCE_GRAD = int(Kind.UNSHARD), int(Kind.REDUCE_GRAD)


def causes(timeline: Timeline) -> Index:
    """For each span, the one whose end let it start, or -1; shape (num_spans,).

    Of several that ended at that moment, the one before it on its own rank counts.

    Raises:
        ValueError: a span has a negative rank or stage, or a kind that is none.
    """
    if timeline.is_sorted:
        return _causes(timeline)
    order = np.lexsort((timeline.start, timeline.rank))
    found, cause = _causes(timeline.where(order)), np.empty(timeline.num_spans, np.int32)
    cause[order] = np.where(found >= 0, order[found], NONE)
    return cause


def implied_causes(timeline: Timeline) -> Index:
    """The same of spans without messages, sorted: -2 - i where a message from span i let one start.

    A message has its links for itself and its receive is posted early, as `simulator.streams` has
    it; its end is the start of the span.
    """
    columns = (timeline.rank, timeline.stage, timeline.kind, timeline.microbatch)
    width = int(timeline.microbatch.max(initial=0)) + 1
    sizes = (timeline.num_ranks, timeline.num_stages, width)
    return _implied(*columns, timeline.start, timeline.end, timeline.by_end, *sizes)


def _causes(timeline: Timeline) -> Index:
    """Causes of spans that stand by rank, then start."""
    columns = (timeline.rank, timeline.stage, timeline.kind, timeline.microbatch)
    width = int(timeline.microbatch.max(initial=0)) + 2  # a column before the first, for none
    cause, unsettled = _sweep(
        *columns, timeline.start, timeline.end, timeline.by_end, timeline.num_stages, width
    )
    if unsettled:
        _settle(timeline.rank, timeline.kind, timeline.start, timeline.end, cause)
    return cause


@kernel
def _sweep(
    rank: Index,
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    start: Column,
    end: Column,
    by_end: Index,
    num_stages: int,
    width: int,
) -> tuple[Index, int]:
    """Causes but for standing at transfers and for pairs, and how many spans these may change."""
    num_spans, size = len(kind), (num_stages + 2) * width
    made = np.full((2, size), -1, np.int32)  # F, and B or I, of stage + 1 and microbatch + 1
    sent = np.full((2, size), -1, np.int32)  # SEND_F and SEND_B
    received = np.full((2, size), -1, np.int32)
    num_rings = 0
    for i in range(num_spans):
        what, key = kind[i], (int(stage[i]) + 1) * width + microbatch[i] + 1
        if what <= _I:
            made[0 if what == _F else 1, key] = i
        elif what in (_SEND_F, _SEND_B):
            sent[0 if what == _SEND_F else 1, key] = i
        elif what in (_RECV_F, _RECV_B):
            received[0 if what == _RECV_F else 1, key] = i
        elif what in (_REDUCE_GRAD, _UNSHARD):
            num_rings += 1
    num_ranks = int(rank[num_spans - 1]) + 1 if num_spans > 0 and num_rings > 0 else 0
    # of a rank and stage: its reduction, and its first gathering
    rings = np.full((2, num_ranks, num_stages), -1, np.int32)
    if num_rings > 0:
        for i in range(num_spans - 1, -1, -1):
            if kind[i] == _REDUCE_GRAD and rings[0, rank[i], stage[i]] < 0:
                rings[0, rank[i], stage[i]] = i
            elif kind[i] == _UNSHARD:
                rings[1, rank[i], stage[i]] = i

    cause = np.full(num_spans, -1, np.int32)
    unsettled = at = 0
    ended = before = older = -1  # compute of this rank: that ended last, the last two that started
    for i in range(num_spans):
        what, here = kind[i], rank[i]
        if i == 0 or here != rank[i - 1]:
            ended = before = older = -1
            while at < len(by_end) and rank[by_end[at]] < here:
                at += 1
        while at < len(by_end) and rank[by_end[at]] == here and end[by_end[at]] <= start[i]:
            ended = by_end[at]
            at += 1
        key = (int(stage[i]) + 1) * width + microbatch[i] + 1
        if what <= _OPTIMIZER:
            last, local, message = before, -1, -1
            if before >= 0 and start[i] < end[before]:
                last = older  # the two of an overlapped pair start together
            if what == _F:
                local, message = made[0, key - width], received[0, key]
            elif what in (_B, _I):
                deepest = stage[i] == num_stages - 1
                local = made[0, key] if deepest else made[1, key + width]
                message = received[1, key]
            elif what == _W:
                local = made[1, key]
                if local >= 0 and kind[local] != _I:
                    local = -1
            elif num_rings > 0:
                message = rings[0, here, stage[i]]
            if local >= 0 and rank[local] == here and (last < 0 or end[local] > end[last]):
                last = local
            if message >= 0 and (last < 0 or end[message] > end[last]):
                last = message
            if what == _F and num_rings > 0:
                weights = rings[1, here, stage[i]]
                came = weights >= 0 and end[weights] <= start[i]
                if came and (last < 0 or end[weights] > end[last]):
                    last = weights
            cause[i] = last
            if start[i] > 0 and (last < 0 or end[last] < start[i]):
                unsettled += 1
            if before == i - 1 and before >= 0 and start[i] == start[before]:
                unsettled += 1
            older, before = before, i
        elif what in (_SEND_F, _SEND_B):
            way = 0 if what == _SEND_F else 1
            receive = received[way, key + width if way == 0 else key - width]
            if receive < 0 or sent[way, key] != i:
                cause[i] = ended  # else its receive says
        elif what in (_RECV_F, _RECV_B):
            way = 0 if what == _RECV_F else 1
            origin = key - width if way == 0 else key + width
            send, found = sent[way, origin], ended
            if send >= 0 and received[way, key] == i:
                # it started when the sender had the tensor, or, later, when the receiver was there
                maker = made[way, origin]
                if maker >= 0 and rank[maker] != rank[send]:
                    maker = -1
                if ended < 0 or (maker >= 0 and end[ended] <= end[maker]):
                    found = maker
                cause[send] = found
            cause[i] = found
        else:
            cause[i] = ended
    return cause, unsettled


@kernel
def _settle(rank: Index, kind: NDArray[np.int8], start: Column, end: Column, cause: Index) -> None:
    """Let ops start after the transfers at which their rank stood still, and pairs when both can.

    `by_end` holds the transfers of the rank that have started, in order of end.
    """
    num_spans = len(kind)
    by_end = np.empty(num_spans, np.int32)
    size = over = at = 0
    for i in range(num_spans):
        here = rank[i]
        if i == 0 or here != rank[i - 1]:
            size, over, at = 0, 0, i
        while at < num_spans and rank[at] == here and start[at] <= start[i]:
            if _SEND_F <= kind[at] <= _RECV_B:
                place = size
                while place > over and end[by_end[place - 1]] > end[at]:
                    by_end[place] = by_end[place - 1]
                    place -= 1
                by_end[place] = at
                size += 1
            at += 1
        while over < size and end[by_end[over]] <= start[i]:
            over += 1
        if kind[i] > _OPTIMIZER:
            continue
        last = cause[i]
        late = start[i] > 0 and (last < 0 or end[last] < start[i])
        if late and over > 0 and end[by_end[over - 1]] == start[i]:
            cause[i] = by_end[over - 1]
        if i == 0 or kind[i - 1] > _OPTIMIZER or rank[i - 1] != here:
            continue
        if start[i - 1] == start[i] and end[i - 1] == end[i] and end[i] > start[i]:
            first, second = cause[i - 1], cause[i]
            if second >= 0:
                ready = min(end[second], start[i])
                if first < 0 or end[first] < ready:
                    cause[i - 1] = second


@kernel
def _implied(
    rank: Index,
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    start: Column,
    end: Column,
    by_end: Index,
    num_ranks: int,
    num_stages: int,
    width: int,
) -> Index:
    """Causes of spans without messages and pairs."""
    num_spans, size = len(kind), num_stages * width
    made = np.full((2, size), -1, np.int32)  # F, and B or I
    num_others = 0
    for i in range(num_spans):
        if kind[i] <= _I:
            made[0 if kind[i] == _F else 1, np.int64(stage[i]) * width + microbatch[i]] = i
        elif kind[i] > _OPTIMIZER:
            num_others += 1
    rings = np.full((2, num_ranks if num_others > 0 else 0, num_stages), -1, np.int32)
    if num_others > 0:
        for i in range(num_spans):
            if kind[i] == _REDUCE_GRAD or kind[i] == _UNSHARD:
                rings[0 if kind[i] == _REDUCE_GRAD else 1, rank[i], stage[i]] = i
    cause = np.empty(num_spans, np.int32)
    at, ended, before = 0, -1, -1  # compute of this rank: that ended last, that started last
    for i in range(num_spans):
        what, here = kind[i], rank[i]
        if i == 0 or here != rank[i - 1]:
            ended = before = -1
        if what > _OPTIMIZER:
            while at < len(by_end) and rank[by_end[at]] < here:
                at += 1
            while at < len(by_end) and rank[by_end[at]] == here and end[by_end[at]] <= start[i]:
                ended = by_end[at]
                at += 1
            cause[i] = ended
            continue
        last, origin, message = before, -1, -1
        key = np.int64(stage[i]) * width + microbatch[i]
        if what == _F:
            if stage[i] > 0:
                origin = made[0, key - width]
            if num_others > 0:
                message = rings[1, here, stage[i]]
                if message >= 0 and end[message] > start[i]:
                    message = -1  # of the next step's weights
        elif what == _OPTIMIZER:
            if num_others > 0:
                message = rings[0, here, stage[i]]
        elif what == _W or stage[i] == num_stages - 1:
            origin = made[1 if what == _W else 0, key]
        else:
            origin = made[1, key + width]
        if origin >= 0 and rank[origin] == here:
            if last < 0 or end[origin] > end[last]:
                last = origin
            origin = -1
        if message >= 0 and (last < 0 or end[message] > end[last]):
            last = message
        if origin >= 0 and (last < 0 or start[i] > end[last]):
            last = -2 - origin
        cause[i] = last
        before = i
    return cause
