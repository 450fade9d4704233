"""Time to build the rows of every schedule, and how it grows: `python benchmarks/schedules.py`."""

import statistics
import time

from simulator.job import Plan
from simulator.schedules import build, schedules

SIZES = [(4, 8), (8, 64), (16, 256), (64, 512)]
SEARCHED = ("optimal",)  # it searches for the best order; see benchmarks/optimal.py


def seconds(plan, repeats):
    """Median time to build a plan's rows, and their ops."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        rows = build(plan)
        times.append(time.perf_counter() - start)
    return statistics.median(times), rows.num_ops


print("median of 3, in ms; growth: time an op at (64, 512) over that at (16, 256)")
print(
    f"{'schedule':<18}"
    + "".join(f"{f'p={p} m={m}':>14}" for p, m in SIZES)
    + f"{'ops':>10}{'growth':>8}"
)
for name, recipe in schedules().items():
    if name in SEARCHED:
        continue
    chunks = 4 if "vpp" in recipe.takes and recipe.chunks > 1 else 1
    cells, per_op, ops = [], [], 0
    for pp, m in SIZES:
        for vpp in (chunks, recipe.chunks):
            plan = Plan(schedule=name, pp=pp, num_microbatches=m, vpp=vpp)
            try:
                took, ops = seconds(plan, 3)
            except ValueError:
                continue
            cells.append(f"{1e3 * took:14.2f}")
            per_op.append(took / ops)
            break
        else:
            cells.append(f"{'-':>14}")
    growth = f"{per_op[-1] / per_op[-2]:8.2f}" if len(per_op) > 1 else ""
    print(f"{name:<18}{''.join(cells)}{ops:>10,}{growth}")
