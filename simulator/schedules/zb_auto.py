"""ZB-1p, ZB-2p and ZB with any memory limit: orders made for given times."""

import numpy as np

from simulator.costs import Costs
from simulator.schedule import Schedule
from simulator.schedules import register
from simulator.schedules.automatic import shortest


@register("zb-1p")
def zb_1p(pp: int, num_microbatches: int, costs: Costs, transfer: float) -> Schedule:
    """The heuristic's order for these times, with pp microbatches' activations on each rank.

    For: the least bubble at 1F1B's peak memory; never a longer span than ZB-H1.
    Loses: to ZB-2p where memory is free; to 1F1B where the optimizer step waits for all ranks.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3 and Table 5.

    >>> from simulator.costs import uniform
    >>> print(zb_1p(2, 3, uniform(2, 1.0, 2.0), 0.0))
    0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2
    1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2
    """
    return shortest(num_microbatches, costs, transfer, pp * costs.activation_bytes)


@register("zb-2p")
def zb_2p(pp: int, num_microbatches: int, costs: Costs, transfer: float) -> Schedule:
    """The heuristic's order for these times, with 2 pp microbatches' activations on each rank.

    For: almost no bubble in any rank's span, also where F, I and W differ; never a longer span than
    ZB-H2.
    Loses: memory, twice 1F1B's; the wall time keeps the stagger of the ranks' starts, so the step
    gains only if the optimizer does not wait for all ranks.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3 and Table 5.

    >>> from simulator.costs import uniform
    >>> print(zb_2p(2, 3, uniform(2, 1.0, 2.0), 0.0))
    0F0,0F1,0F2,0I0,0W0,0I1,0W1,0I2,0W2
    1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2
    """
    return shortest(num_microbatches, costs, transfer, 2 * pp * costs.activation_bytes)


@register("zb-auto")
def zb_auto(
    pp: int,
    num_microbatches: int,
    costs: Costs,
    transfer: float,
    activation_limit: float | None = None,
) -> Schedule:
    """The heuristic's order for these times, with at most `activation_limit` on each rank.

    For: the memory that there is: the bubble shrinks from that of one microbatch at a time to
    almost none as the limit grows to about 2 pp microbatches. No limit when left out.
    Loses: to the optimal programme on small cases, since it is a heuristic; to 1F1B where the
    optimizer step waits for all ranks.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3.

    Raises:
        ValueError: the limit is less than one microbatch's activations on some rank.

    >>> from simulator.costs import uniform
    >>> print(zb_auto(2, 2, uniform(2, 1.0, 2.0), 0.0, activation_limit=1.0))
    0F0,0I0,0W0,0F1,0I1,0W1
    1F0,1I0,1W0,1F1,1I1,1W1
    """
    if activation_limit is None:
        return shortest(num_microbatches, costs, transfer, np.full(pp, np.inf))
    one = costs.activation_bytes + costs.transient_bytes
    least, rank = float(one.max()), int(one.argmax())
    if activation_limit < least:
        raise ValueError(
            f"plan.activation_limit is {activation_limit:g} bytes, but one microbatch on rank "
            f"{rank} takes {least:g}, the least possible; use {least:g} or more"
        )
    return shortest(num_microbatches, costs, transfer, activation_limit - costs.transient_bytes)
