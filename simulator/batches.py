"""Blocking point-to-point of interleaved schedules: what is due goes together and is waited for.

Between two steps a rank sends what the last one made and receives what the next one takes, at most
four tensors in one batch, and stands still until all are there. A step is a forward while the
pipeline fills, a forward and a backward, and a backward while it drains.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Schedule

__all__ = ["batch"]

Index = NDArray[np.int32]


def batch(lowered: Schedule) -> Schedule:
    """Blocking point-to-point, as Megatron's interleaved schedule communicated until 2023.

    A forward and a backward are a step where they alternate, not where all backwards come last.
    All ranks communicate at once, so that the first takes what the last has made pp - 1 steps
    after it: with groups of more microbatches than pp, steps before it needs that.

    Source: NVIDIA/Megatron-LM, megatron/schedules.py and p2p_communication.py of 2021:
    send_forward_backward_recv_forward_backward, whose requests are waited for.

    >>> from simulator.lower import lower
    >>> from simulator.schedules.interleaved import interleaved
    >>> rows = str(batch(lower(interleaved(2, 4, 2)))).splitlines()
    >>> print(rows[1][:89])
    1RECV_F0,1WAIT,1F0,1SEND_F0,1RECV_F1,1WAIT,1F1,1SEND_F1,3RECV_F0,1WAIT,3F0,3B0,3SEND_B0,3
    """
    rows = (lowered.offsets, lowered.stage, lowered.kind, lowered.microbatch, lowered.paired)
    return Schedule(*_batch(*rows, lowered.num_stages, lowered.num_microbatches))


@kernel
def _batch(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    paired: NDArray[np.bool_],
    num_stages: int,
    width: int,
) -> tuple[NDArray[np.int64], Index, NDArray[np.int8], Index, NDArray[np.bool_]]:
    """The columns with each step's transfers before it, and the wait for them.

    A step's sends stand right after it, then the receives of the next one and the wait.
    """
    num_ranks, num_ops = len(offsets) - 1, len(kind)
    received = np.full((2, num_stages * width), -1, np.int32)  # RECV_F and RECV_B
    nth = np.zeros((2, num_stages * width), np.int32)  # of its row's forwards, or backwards
    longest = num_transfers = 0
    for rank in range(num_ranks):
        longest = max(longest, offsets[rank + 1] - offsets[rank])
        num_made = np.zeros(2, np.int32)
        for at in range(offsets[rank], offsets[rank + 1]):
            cell = np.int64(stage[at]) * width + microbatch[at]
            if kind[at] < 3:
                way = min(kind[at], 1)
                nth[way, cell] = num_made[way]
                num_made[way] += 1
            elif 5 <= kind[at] <= 8:
                num_transfers += 1
                if kind[at] % 2 == 0:
                    received[0 if kind[at] == 6 else 1, cell] = at
    most = num_ops + num_transfers  # a wait has a transfer before it
    new_offsets, work = np.zeros(num_ranks + 1, np.int64), np.empty(longest + 1, np.int64)
    new_stage, new_microbatch = np.empty(most, np.int32), np.empty(most, np.int32)
    new_kind, new_paired = np.empty(most, np.int8), np.zeros(most, np.bool_)
    fill = 0
    for rank in range(num_ranks):
        count, stop = 0, offsets[rank + 1]
        for at in range(offsets[rank], stop):
            if not 5 <= kind[at] <= 8:
                work[count] = at
                count += 1
        work[count] = stop
        # of the work: how far each way's receives are posted, of how many ops, and how many began
        ahead, posted, begun = np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64)
        due = -1  # where the transfers begin that are not yet waited for
        joins = False  # whether the next op is the backward of a step that its forward begins
        for here in range(count):
            at, follows, joins = work[here], joins, False
            if here + 1 < count and kind[at] == 0 and kind[work[here + 1]] == 1:
                before = kind[work[here - 1]] if here > 0 else 0
                after = kind[work[here + 2]] if here + 2 < count else 1
                joins = before == 1 or after == 0
            if not follows:
                for one in range(here, here + 2 if joins else here + 1):
                    if kind[work[one]] > 2:
                        continue
                    way = min(kind[work[one]], 1)
                    while ahead[way] < count:
                        op = work[ahead[way]]
                        if kind[op] < 3 and min(kind[op], 1) == way:
                            cell = np.int64(stage[op]) * width + microbatch[op]
                            receive = received[way, cell]
                            if receive >= 0 and posted[way] > begun[way]:  # early, or not yet
                                maker = cell - width if way == 0 else cell + width
                                if nth[way, maker] + num_ranks > begun[way]:
                                    break
                            if receive >= 0:
                                received[way, cell] = -1
                                due = fill if due < 0 else due
                                new_stage[fill], new_kind[fill] = stage[receive], kind[receive]
                                new_microbatch[fill] = microbatch[receive]
                                fill += 1
                            posted[way] += 1
                        ahead[way] += 1
                    begun[way] += 1
                if due >= 0:
                    new_stage[fill], new_kind[fill], new_microbatch[fill] = new_stage[due], 12, -1
                    fill, due = fill + 1, -1
            new_stage[fill], new_kind[fill] = stage[at], kind[at]
            new_microbatch[fill], new_paired[fill] = microbatch[at], paired[at]
            fill += 1
            if joins:
                continue  # what it made goes with what its backward makes
            for send in range(work[here - 1] if follows else at, work[here + 1]):
                if kind[send] == 5 or kind[send] == 7:
                    due = fill if due < 0 else due
                    new_stage[fill], new_kind[fill] = stage[send], kind[send]
                    new_microbatch[fill] = microbatch[send]
                    fill += 1
        if due >= 0:
            new_stage[fill], new_kind[fill], new_microbatch[fill] = new_stage[due], 12, -1
            fill += 1
        new_offsets[rank + 1] = fill
    columns = new_stage[:fill].copy(), new_kind[:fill].copy(), new_microbatch[:fill].copy()
    return new_offsets, columns[0], columns[1], columns[2], new_paired[:fill].copy()
