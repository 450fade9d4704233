"""Interleaved 1F1B: several model chunks on each rank."""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind, Schedule
from simulator.schedules import register
from simulator.schedules.one_f_one_b import alternate


@register("interleaved", chunks=2)
def interleaved(
    pp: int, num_microbatches: int, vpp: int, microbatch_group_size: int | None = None
) -> Schedule:
    """1F1B over vpp chunks a rank: rank r holds stages r, pp + r, 2 pp + r, ...

    Microbatches go in groups of `microbatch_group_size`, pp when left out, each group through
    chunk after chunk; the last group may be smaller. Warm-up is 2 (pp - 1 - rank) +
    (vpp - 1) group chunk-forwards, all of them when m = pp.

    For: a bubble vpp times smaller than 1F1B's, (pp - 1) / (vpp m) of the ideal time. Groups larger
    than pp leave slack between a chunk's end and the next one's start, which hides transfers.
    Loses: memory, 1 + (pp - 1) / (pp vpp) times 1F1B's on the first rank, more with larger groups,
    and vpp times the point-to-point traffic; with many microbatches the bubble no longer matters.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC'21, section 2.2.2 and Fig. 4 (bottom); the group size is Megatron-Core's
    `microbatch_group_size_per_vp_stage`, with its two conditions.

    Raises:
        ValueError: a group, or the last one, is smaller than pp.

    >>> print(interleaved(2, 2, 2))
    0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1
    1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1
    """
    group = _checked_group(pp, num_microbatches, microbatch_group_size)
    forwards, backwards = passes(pp, num_microbatches, vpp, group)
    warmup = 2 * (pp - 1 - np.arange(pp)) + (vpp - 1) * group
    if num_microbatches == pp:
        warmup[:] = num_microbatches * vpp
    return Schedule.of(alternate(forwards, backwards, warmup))


def passes(
    pp: int, num_microbatches: int, vpp: int, group: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Forwards and backwards of each rank in order, each of shape (pp, num_microbatches vpp, 3).

    A group of microbatches goes through chunk after chunk, forward from the first chunk and
    backward from the last.
    """
    index, within = np.divmod(np.arange(num_microbatches * vpp), group * vpp)
    size = np.minimum(group, num_microbatches - index * group)
    chunk = within // size
    ops = np.zeros((2, pp, num_microbatches * vpp, 3), np.int32)
    ops[0, ..., 0] = chunk * pp + np.arange(pp)[:, None]
    ops[1, ..., 0] = (vpp - 1 - chunk) * pp + np.arange(pp)[:, None]
    ops[1, ..., 1] = Kind.B
    ops[..., 2] = index * group + within % size
    return ops[0], ops[1]


def check_multiple(schedule: str, pp: int, num_microbatches: int) -> None:
    """Refuse a count of microbatches that is no multiple of pp, and name the nearest that are."""
    if num_microbatches % pp:
        below, above = num_microbatches // pp * pp, -(-num_microbatches // pp) * pp
        fits = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"plan.num_microbatches is {num_microbatches}, but the {schedule} schedule needs a "
            f"multiple of pp = {pp}; use {fits}"
        )


def _checked_group(pp: int, num_microbatches: int, group: int | None) -> int:
    """The group's size, if Megatron-Core takes it."""
    if group is None:
        check_multiple("interleaved", pp, num_microbatches)
        return pp
    legal = [
        size
        for size in range(pp, num_microbatches + 1)
        if num_microbatches % size == 0 or num_microbatches % size >= pp
    ]
    if group not in legal:
        shown = ", ".join(map(str, legal[:6])) + (", ..." if len(legal) > 6 else "")
        way_out = f"use {shown}" if legal else f"use at least {pp} microbatches"
        raise ValueError(
            f"plan.microbatch_group_size is {group}, but it must be pp = {pp} to num_microbatches "
            f"= {num_microbatches}, and the last group at least pp; {way_out}"
        )
    return group
