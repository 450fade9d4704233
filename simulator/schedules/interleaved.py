"""Interleaved 1F1B: several model chunks on each rank."""

import numpy as np

from simulator.schedule import Kind, Schedule
from simulator.schedules import register
from simulator.schedules.one_f_one_b import alternate


@register("interleaved", chunks=2)
def interleaved(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """1F1B over vpp chunks a rank: rank r holds stages r, pp + r, 2 pp + r, ...

    Microbatches go in groups of pp, each group through chunk after chunk. Warm-up is
    2 (pp - 1 - rank) + (vpp - 1) pp chunk-forwards, all of them when m = pp.

    For: a bubble vpp times smaller than 1F1B's, (pp - 1) / (vpp m) of the ideal time.
    Loses: memory, 1 + (pp - 1) / (pp vpp) times 1F1B's on the first rank, and vpp times the
    point-to-point traffic; with many microbatches the bubble no longer matters.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC'21, section 2.2.2 and Fig. 4 (bottom).

    Raises:
        ValueError: num_microbatches is no multiple of pp.

    >>> print(interleaved(2, 2, 2))
    0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1
    1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1
    """
    if num_microbatches % pp:
        below, above = num_microbatches // pp * pp, -(-num_microbatches // pp) * pp
        fits = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"plan.num_microbatches is {num_microbatches}, but the interleaved schedule needs a "
            f"multiple of pp = {pp}; use {fits}"
        )
    total = num_microbatches * vpp
    group, within = np.divmod(np.arange(total), pp * vpp)
    chunk, microbatch = within // pp, group * pp + within % pp
    rows = []
    for rank in range(pp):
        forwards = np.column_stack([chunk * pp + rank, np.full(total, Kind.F), microbatch])
        backwards = forwards.copy()
        backwards[:, 0] = (vpp - 1 - chunk) * pp + rank
        backwards[:, 1] = Kind.B
        warmup = 2 * (pp - 1 - rank) + (vpp - 1) * pp
        rows.append(alternate(forwards, backwards, total if num_microbatches == pp else warmup))
    return Schedule.of(rows)
