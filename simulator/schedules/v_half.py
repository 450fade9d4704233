"""V-Half: half of 1F1B's activation memory, half of its bubble."""

from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.v_shape import Block, require_two_chunks, squeeze


@register("v-half", chunks=2)
def v_half(pp: int, num_microbatches: int, vpp: int) -> Schedule:
    """Rank r holds stages r and 2 pp - 1 - r; the passes down go at half speed.

    For: (pp + 2) // 2 microbatches' activations on every rank against 1F1B's pp on the first, with
    half of its bubble where F = I = W; the slack of the passes down absorbs unequal times as long
    as W + 2 I >= 2 F and W + 2 F >= 2 I.
    Loses: to ZB-V where 1F1B's memory is there; to V-Min where half is too much; twice 1F1B's
    point-to-point traffic.

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, Table 1.

    Raises:
        ValueError: vpp is not 2.

    >>> print(v_half(2, 2, 2))
    0F0,0F1,3F0,3I0,3F1,3I1,0I0,3W0,0I1,0W0,3W1,0W1
    1F0,2F0,1F1,2F1,2I0,1I0,2I1,1I1,2W0,1W0,2W1,1W1
    """
    require_two_chunks("v-half", vpp)
    pause = 3 if pp % 2 == 0 else 0  # or two passes would share a slot modulo 6
    blocks = [
        Block(
            f_down=2 * rank,
            f_up=3 * pp - 2 - rank,
            i_up=3 * pp + pause + 2 * rank - 1,
            i_down=6 * pp + pause - 2 - rank,
        )
        for rank in range(pp)
    ]
    return squeeze(blocks, num_microbatches)
