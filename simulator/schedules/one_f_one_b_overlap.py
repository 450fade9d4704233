"""1F1B whose forwards and backwards overlap pair by pair: one's communication under the other."""

import numpy as np

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.interleaved import check_multiple, passes


@register("1f1b-overlap")
def one_f_one_b_overlap(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """After the warm-up every forward runs together with the backward of an earlier microbatch.

    The two of a pair must not wait for each other, so each rank warms up with one chunk-forward
    more than the interleaved schedule, 2 (pp - 1 - rank) + (vpp - 1) pp + 1: two for every rank
    behind it, as a pair's forward reaches the next rank only when the whole pair is done.

    For: models whose layers wait for all-to-all exchanges (experts on other GPUs): a pair takes
    `Costs.pair_time` of the sum of its ops, for the model only once, unlike DualPipe.
    Loses: memory when pairs save nothing: the bubble is that of 1F1B or, with vpp > 1, of the
    interleaved schedule, but the first rank holds 2 pp microbatches (vpp = 1) where 1F1B holds pp.

    Source: Megatron-Core's combined 1F1B (`overlap_moe_expert_parallel_comm`), which needs the
    interleaved schedule when pp > 1; the pairs are those of DeepSeek-AI, "DeepSeek-V3 Technical
    Report", 2024, section 3.2.1.

    Raises:
        ValueError: vpp is above 1 and num_microbatches is no multiple of pp.

    >>> print(one_f_one_b_overlap(2, 4, 1))
    0F0,0F1,0F2,(0F3;0B0)OVERLAP_F_B,0B1,0B2,0B3
    1F0,(1F1;1B0)OVERLAP_F_B,(1F2;1B1)OVERLAP_F_B,(1F3;1B2)OVERLAP_F_B,1B3
    """
    if vpp > 1:
        check_multiple("1f1b-overlap", pp, num_microbatches)
    total = num_microbatches * vpp
    rows = []
    for rank, (forwards, backwards) in enumerate(
        zip(*passes(pp, num_microbatches, vpp, pp), strict=True)
    ):
        warmup = min(2 * (pp - 1 - rank) + (vpp - 1) * pp + 1, total)
        pairs = total - warmup
        row = np.zeros((2 * total, 4), np.int32)
        row[:warmup, :3] = forwards[:warmup]
        row[warmup : total + pairs : 2, :3] = forwards[warmup:]
        row[warmup : total + pairs : 2, 3] = 1
        row[warmup + 1 : total + pairs : 2, :3] = backwards[:pairs]
        row[total + pairs :, :3] = backwards[pairs:]
        rows.append(row)
    return Schedule.of(rows)
