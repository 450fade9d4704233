"""Hanayo: the stages snake over the ranks in waves, so that each turn costs no transfer."""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind, Schedule
from simulator.schedules import register


@register("hanayo", chunks=2)
def hanayo(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """The stages go down the ranks and back up in w = vpp / 2 waves.

    Microbatches go in units of pp. In a unit every stage takes microbatch after microbatch two
    slots apart, and a rank's even and odd slots belong to different chunks, so none collide.

    For: Chimera's bubble without its second copy of the weights, divided by the waves. With F = B
    it is 2 pp - 2 slots, a chunk's forward each, however many microbatches: (pp - 1) / (2 w m) of
    the ideal time. With B = 2F a unit of pp has (2 pp - 2) / (3 pp w + 2 pp - 2) of the step, and
    each further unit adds (pp - 1) / w forwards.
    Loses: to the interleaved schedule with as many chunks when m is large and B = 2F, as that
    pays its bubble once, not once a unit; and 2 w times 1F1B's point-to-point traffic, less the
    turns.

    Source: Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model
    Training Efficiency", SC'23, section 3. The closed forms are of this order, derived here.

    Raises:
        ValueError: vpp is odd.

    >>> print(hanayo(2, 2, 2))
    0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1
    1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1
    """
    if vpp % 2:
        below = f"{vpp - 1} or " if vpp > 1 else ""
        raise ValueError(
            f"plan.vpp is {vpp}, but hanayo needs two chunks a wave, vpp = 2 w; "
            f"use {below}{vpp + 1}"
        )
    rows = []
    for rank in range(pp):
        chunk = np.arange(vpp)
        stages = chunk * pp + np.where(chunk % 2, pp - 1 - rank, rank)
        rows.append(in_slots(stages, pp * vpp, np.arange(num_microbatches), pp))
    return Schedule.of(row[np.argsort(slot)] for slot, row in rows)


def in_slots(
    stages: NDArray[np.integer], num_stages: int, microbatches: NDArray[np.integer], unit: int
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Slot and numbers of each op of some stages on one rank, forward and backward one slot each.

    A unit of microbatches goes forward two slots apart, turns at the last stage and comes back; the
    next unit follows 2 num_stages slots later.
    """
    index, within = np.divmod(np.arange(len(microbatches)), unit)
    enter = 2 * num_stages * index + 2 * within
    forward = stages[:, None] + enter
    backward = 2 * num_stages - 1 - stages[:, None] + enter
    slot = np.stack([forward, backward])
    kind = np.broadcast_to(np.array([Kind.F, Kind.B])[:, None, None], slot.shape)
    stage = np.broadcast_to(stages[:, None], slot.shape)
    microbatch = np.broadcast_to(microbatches, slot.shape)
    return slot.ravel(), np.column_stack([stage.ravel(), kind.ravel(), microbatch.ravel()])
