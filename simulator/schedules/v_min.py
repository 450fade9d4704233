"""V-Min: about a third of 1F1B's activation memory."""

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.v_shape import Block, require_two_chunks, squeeze


@register("v-min", chunks=2)
def v_min(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """Rank r holds stages r and 2 pp - 1 - r; a block's passes follow each other without a pause.

    For: the least memory of the V schedules, (pp + 4) // 3 microbatches' activations on every rank
    against 1F1B's pp on the first, with two thirds of its bubble where F = I = W.
    Loses: where F, I and W differ, since a rank waits in every block: its bubble then grows with
    the number of microbatches; twice 1F1B's point-to-point traffic.

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, Table 1.

    Raises:
        ValueError: vpp is not 2.

    >>> print(v_min(2, 2, 2))
    0F0,0F1,3F0,3I0,3F1,3I1,0I0,3W0,0I1,0W0,3W1,0W1
    1F0,2F0,1F1,2F1,2I0,1I0,2I1,1I1,2W0,1W0,2W1,1W1
    """
    require_two_chunks("v-min", vpp)
    pause = 2 if pp % 3 == 0 else 0  # or two passes would share a slot modulo 6
    blocks = [
        Block(
            f_down=rank,
            f_up=2 * pp - 1 - rank,
            i_up=2 * pp + pause + rank,
            i_down=4 * pp + pause - 1 - rank,
        )
        for rank in range(pp)
    ]
    return squeeze(blocks, num_microbatches)
