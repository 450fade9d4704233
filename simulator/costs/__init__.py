"""What each op costs: the only place where physics meets the schedule.

`estimate(job)` computes the Costs of a real job from its operators; `uniform` gives the textbook's
equal stages with free communication.
"""

from simulator.costs.costs import Costs, uniform
from simulator.costs.estimate import estimate

__all__ = ["Costs", "estimate", "uniform"]
