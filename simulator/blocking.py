"""Blocking point-to-point without chunks: a rank receives, computes, sends, and waits for each."""

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Schedule

__all__ = ["block"]

Index = NDArray[np.int32]


def block(lowered: Schedule) -> Schedule:
    """Blocking point-to-point, as Megatron's non-interleaved schedules communicate.

    A rank receives an op's input right before the op and sends its result right after it, and
    stands still meanwhile. A send and the next op's receive over the same pair of ranks go
    together, Megatron's `send_forward_recv_backward`; other transfers go one after the other.

    Source: NVIDIA/Megatron-LM, core/pipeline_parallel/schedules.py and p2p_communication.py.

    >>> from simulator.lower import lower
    >>> print(block(lower(Schedule.parse("0F0,0B0" + chr(10) + "1F0,1B0"))))
    0F0,0SEND_F0,0RECV_B0,0WAIT,0B0
    1RECV_F0,1WAIT,1F0,1B0,1SEND_B0,1WAIT
    """
    rows = (lowered.offsets, lowered.stage, lowered.kind, lowered.microbatch, lowered.paired)
    return Schedule(*_block(*rows, lowered.num_stages, lowered.num_microbatches))


@kernel
def _block(
    offsets: NDArray[np.int64],
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    paired: NDArray[np.bool_],
    num_stages: int,
    width: int,
) -> tuple[NDArray[np.int64], Index, NDArray[np.int8], Index, NDArray[np.bool_]]:
    """The columns with each receive before the op that needs it, and the waits."""
    num_ranks, num_ops = len(offsets) - 1, len(kind)
    received = np.full((2, num_stages * width), -1, np.int32)  # RECV_F and RECV_B
    home = np.full((4, num_stages * width), -1, np.int32)  # rank of each end of a transfer
    num_transfers = 0
    for rank in range(num_ranks):
        for at in range(offsets[rank], offsets[rank + 1]):
            if 5 <= kind[at] <= 8:
                cell = np.int64(stage[at]) * width + microbatch[at]
                home[kind[at] - 5, cell] = rank
                num_transfers += 1
                if kind[at] % 2 == 0:
                    received[0 if kind[at] == 6 else 1, cell] = at
    most = num_ops + num_transfers  # a wait has a transfer before it
    new_offsets, taken = np.zeros(num_ranks + 1, np.int64), np.empty(2, np.int64)
    new_stage, new_microbatch = np.empty(most, np.int32), np.empty(most, np.int32)
    new_kind, new_paired = np.empty(most, np.int8), np.zeros(most, np.bool_)
    fill = 0
    for rank in range(num_ranks):
        first, stop = offsets[rank], offsets[rank + 1]
        open_to = -1  # the peer of transfers that are posted and not yet waited for
        for at in range(first, stop):
            what, count = kind[at], 0
            if what == 5 or what == 7:
                taken[0], count = at, 1
            elif what == 6 or what == 8:
                continue  # posted by the op that needs it
            elif at == first or not paired[at - 1]:  # else its partner has received for both
                for op in range(at, at + 2 if paired[at] else at + 1):
                    if kind[op] > 2:
                        continue
                    way, cell = min(kind[op], 1), np.int64(stage[op]) * width + microbatch[op]
                    if received[way, cell] >= 0:
                        taken[count], count = received[way, cell], count + 1
                        received[way, cell] = -1
            for one in range(count):
                op = taken[one]
                # the other end of SEND_F stands a stage deeper, that of RECV_F a stage above
                step = width if kind[op] == 5 or kind[op] == 8 else -width
                other = kind[op] - 5 + (1 if kind[op] % 2 == 1 else -1)
                cell = np.int64(stage[op]) * width + microbatch[op] + step
                peer = home[other, cell] if 0 <= cell < home.shape[1] else -1
                if open_to != -1 and open_to != peer:
                    new_stage[fill], new_kind[fill], new_microbatch[fill] = stage[at], 12, -1
                    fill += 1
                new_stage[fill], new_kind[fill] = stage[op], kind[op]
                new_microbatch[fill] = microbatch[op]
                fill, open_to = fill + 1, peer
            if what == 5 or what == 7:
                continue
            if open_to != -1 and what <= 4:
                new_stage[fill], new_kind[fill], new_microbatch[fill] = stage[at], 12, -1
                fill, open_to = fill + 1, -1
            new_stage[fill], new_kind[fill] = stage[at], what
            new_microbatch[fill], new_paired[fill] = microbatch[at], paired[at]
            fill += 1
        if open_to != -1:
            new_stage[fill], new_kind[fill], new_microbatch[fill] = stage[stop - 1], 12, -1
            fill += 1
        new_offsets[rank + 1] = fill
    columns = new_stage[:fill].copy(), new_kind[:fill].copy(), new_microbatch[:fill].copy()
    return new_offsets, columns[0], columns[1], columns[2], new_paired[:fill].copy()
