"""Blocking point-to-point of interleaved schedules: what is due goes together and is waited for.

Between two steps a rank sends what the last one made and receives what the next one takes, at most
four tensors in one batch, and stands still until all are there. A step is a forward while the
pipeline fills, a forward and a backward, and a backward while it drains.
"""

import numpy as np

from simulator.schedule import NO_MICROBATCH, Kind, Schedule, awaited

__all__ = ["batch"]

Numbers = tuple[int, int, int, int]  # stage, kind, microbatch, paired


def batch(lowered: Schedule) -> Schedule:
    """Blocking point-to-point, as Megatron's interleaved schedule communicated until 2023.

    Source: NVIDIA/Megatron-LM, megatron/schedules.py and p2p_communication.py of 2021:
    send_forward_backward_recv_forward_backward, whose requests are waited for.

    >>> from simulator.lower import lower
    >>> from simulator.schedules.interleaved import interleaved
    >>> rows = str(batch(lower(interleaved(2, 4, 2)))).splitlines()
    >>> print(rows[1][:89])
    1RECV_F0,1WAIT,1F0,1SEND_F0,1RECV_F1,1WAIT,1F1,1SEND_F1,3RECV_F0,1WAIT,3F0,3B0,3SEND_B0,3
    """
    needs = awaited(lowered).tolist()
    rows = []
    for first, stop in zip(
        lowered.offsets[:-1].tolist(), lowered.offsets[1:].tolist(), strict=True
    ):
        work = [
            at for at in range(first, stop) if not Kind.SEND_F <= lowered.kind[at] <= Kind.RECV_B
        ]
        row: list[Numbers] = []
        due: list[Numbers] = []  # sends of the last step
        for here, at in enumerate(work):
            begins = not _follows(lowered, work, here)
            if begins:
                steps = work[here : here + 1 + _follows(lowered, work, here + 1)]
                due += [(*lowered.op(needs[one]), 0) for one in steps if needs[one] >= 0]
                row += _together(due)
                due = []
            row.append((*lowered.op(at), int(lowered.paired[at])))
            stands = work[here + 1] if here + 1 < len(work) else stop
            due += [
                (*lowered.op(k), 0) for k in range(at + 1, stands) if lowered.op(k).kind.is_send
            ]
        row += _together(due)
        rows.append(np.array(row, np.int32).reshape(-1, 4))
    return Schedule.of(rows)


def _follows(lowered: Schedule, work: list[int], here: int) -> bool:
    """Whether an op is the backward of a step that its forward begins.

    A forward and a backward are a step where they alternate, not where all backwards come last.
    """
    if not 0 < here < len(work):
        return False
    kind = [int(lowered.kind[at]) for at in work[max(0, here - 2) : here + 2]]
    if here == 1:
        kind.insert(0, int(Kind.F))  # what there is not, before and after, alternates with nothing
    if here + 1 == len(work):
        kind.append(int(Kind.B))
    before, ahead, back, after = kind
    return (ahead, back) == (Kind.F, Kind.B) and (before == Kind.B or after == Kind.F)


def _together(transfers: list[Numbers]) -> list[Numbers]:
    """Transfers posted together, and the wait for all."""
    if not transfers:
        return []
    return [*transfers, (transfers[0][0], int(Kind.WAIT), NO_MICROBATCH, 0)]
