"""Plans for tests over every registered schedule: the nearest sizes that the schedule accepts."""

import functools
import itertools

from simulator.job import Plan
from simulator.schedules import build, schedules

QUICK = [name for name in schedules() if name != "optimal"]  # test_optimal.py has the searched one

rows_of = functools.cache(build)  # a schedule that is searched for is built once a plan


@functools.cache
def nearest(name, pp, rounds, vpp):
    """A plan near pp ranks, pp x rounds microbatches and vpp chunks that the schedule accepts."""
    chunks = schedules()[name].chunks
    for ranks, factor, more in itertools.product((pp, pp + 1), (1, 2, 4, 8), (0, 1, 2)):
        for vpp_ in (vpp, chunks, 1) if chunks > 1 else (1,):
            count = ranks * rounds * factor + more
            plan = Plan(schedule=name, pp=ranks, num_microbatches=count, vpp=vpp_)
            try:
                rows_of(plan)
            except ValueError:
                continue
            return plan
    raise AssertionError(f"{name} accepts no plan near pp = {pp}")
