"""Point-to-point one transfer at a time: what nanotron's pipelines do between two computations."""

import numpy as np

from simulator.schedule import NO_MICROBATCH, Kind, Schedule, awaited

__all__ = ["take_turns"]

Numbers = tuple[int, int, int, int]  # stage, kind, microbatch, paired


def take_turns(lowered: Schedule) -> Schedule:
    """Blocking point-to-point without any two transfers side by side.

    Between two computations a rank sends an activation, receives one, sends a gradient, receives
    one, in this order, and waits for each. A rank between two neighbours does four transfers for a
    microbatch one after the other, where `send_forward_recv_backward` takes the time of two.

    Source: huggingface/nanotron, src/nanotron/parallel/pipeline_parallel/state.py,
    run_communication.

    >>> from simulator.lower import lower
    >>> print(take_turns(lower(Schedule.parse("0F0,0F1,0B0,0B1" + chr(10) + "1F0,1B0,1F1,1B1"))))
    0F0,0SEND_F0,0WAIT,0F1,0SEND_F1,0WAIT,0RECV_B0,0WAIT,0B0,0RECV_B1,0WAIT,0B1
    1RECV_F0,1WAIT,1F0,1B0,1RECV_F1,1WAIT,1SEND_B0,1WAIT,1F1,1B1,1SEND_B1,1WAIT
    """
    needs = awaited(lowered).tolist()
    rows = []
    for first, stop in zip(
        lowered.offsets[:-1].tolist(), lowered.offsets[1:].tolist(), strict=True
    ):
        row: list[Numbers] = []
        due: list[Numbers] = []  # since the last computation
        for at in range(first, stop):
            op = lowered.op(at)
            if op.kind.is_receive:
                continue  # posted by the op that needs it
            if op.kind.is_send:
                due.append((*op, 0))
                continue
            if needs[at] >= 0:
                due.append((*lowered.op(needs[at]), 0))
            if not (at > first and lowered.paired[at - 1]):
                row += _one_by_one(due)
                due = []
            row.append((*op, int(lowered.paired[at])))
        row += _one_by_one(due)
        rows.append(np.array(row, np.int32).reshape(-1, 4))
    return Schedule.of(rows)


def _one_by_one(transfers: list[Numbers]) -> list[Numbers]:
    """Transfers in the order of their kinds, each with its wait."""
    row: list[Numbers] = []
    for transfer in sorted(transfers, key=lambda one: one[1]):
        row += [transfer, (transfer[0], int(Kind.WAIT), NO_MICROBATCH, 0)]
    return row
