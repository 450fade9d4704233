"""Interleaved ZB-1P: ZB-H1 over several model chunks on each rank."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.split_backward import alternate_thirds


@register("interleaved-zb", chunks=2)
def interleaved_zb(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """ZB-H1 over vpp chunks a rank: rank r holds stages r, pp + r, 2 pp + r, ...

    Microbatches go in max(1, m // pp) rounds of equal size, each round through chunk after chunk.
    Warm-up is (vpp - 1) rounds' microbatches + pp - 1 - rank chunk-forwards; the weight gradients
    of `rank` chunk-backwards are kept for the drain.

    For: a bubble of (pp - 1)(F + I - W) / vpp in the largest single-rank span, with F, I and W of
    all of a rank's chunks, at less warm-up than interleaved 1F1B.
    Loses: vpp times ZB-H1's point-to-point traffic; latency costs more than in interleaved 1F1B, 36
    against 30 messages' at pp = 8, m = 32, vpp = 2.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, as PyTorch's
    ScheduleInterleavedZeroBubble interleaves it; the rows are equal to PyTorch's.

    Raises:
        ValueError: the microbatches do not split into rounds of equal size.

    >>> print(interleaved_zb(2, 2, 2))
    0F0,0F1,2F0,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1
    1F0,1F1,3F0,3I0,3F1,3I1,3W0,1I0,3W1,1I1,1W0,1W1
    """
    rounds = max(1, num_microbatches // pp)
    if num_microbatches % rounds:
        raise ValueError(_uneven(pp, num_microbatches, rounds))
    size = num_microbatches // rounds
    total = num_microbatches * vpp
    group, within = np.divmod(np.arange(total), size * vpp)
    chunk, microbatch = within // size, group * size + within % size
    rows = []
    for rank in range(pp):
        forwards = np.column_stack([chunk * pp + rank, microbatch])
        backwards = np.column_stack([(vpp - 1 - chunk) * pp + rank, microbatch])
        rows.append(alternate_thirds(forwards, backwards, (vpp - 1) * size + pp - 1 - rank, rank))
    return Schedule.of(rows)


def _uneven(pp: int, num_microbatches: int, rounds: int) -> str:
    """Says which counts work."""
    works = [m for m in range(1, num_microbatches + pp + 1) if not m % max(1, m // pp)]
    below = max(m for m in works if m < num_microbatches)
    above = min(m for m in works if m > num_microbatches)
    return (
        f"plan.num_microbatches is {num_microbatches}, but schedule interleaved-zb runs "
        f"{num_microbatches} // pp = {rounds} rounds of equal size; use {below} or {above}"
    )
