"""How near to the best order, and how soon: `python benchmarks/optimal.py [SECONDS]`.

First sizes that the programme proves, then the profiled settings of Qi et al., "Zero Bubble
Pipeline Parallelism", ICLR 2024, Tables 5 and 6, against the printed bubble rates of ZB-1p and
ZB-2p. The rate is (span - m (F + I + W)) / span with the largest single-rank span; activation
memory is Table 1's, so W frees 32 h of a layer's 34 h + 5 a s.
"""

import sys
from typing import NamedTuple

from simulator.costs import uniform
from simulator.optimal import optimize


class Setting(NamedTuple):
    """A profiled setting: times in ms, printed rates."""

    model: str
    weight_memory: float  # M_W / M_B [1]
    pp: int
    num_microbatches: int
    f: float
    i: float
    w: float
    message: float
    zb_1p: float
    zb_2p: float


WEIGHT_MEMORY = {
    "1.5B": 32 * 2304 / (34 * 2304 + 5 * 24 * 1024),
    "6.2B": 32 * 4096 / (34 * 4096 + 5 * 32 * 1024),
    "14.6B": 32 * 5120 / (34 * 5120 + 5 * 40 * 1024),
    "28.3B": 32 * 6144 / (34 * 6144 + 5 * 48 * 1024),
}
PROFILED = [
    Setting(model, WEIGHT_MEMORY[model], *rest)
    for model, *rest in (
        ("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, 0.1585, 0.0433),
        ("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, 0.1242, 0.0039),
        ("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, 0.0674, 0.0026),
        ("6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, 0.1323, 0.0029),
        ("6.2B", 8, 32, 29.802, 29.428, 19.53, 0.577, 0.1045, 0.0022),
        ("6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, 0.0554, 0.001),
        ("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, 0.1397, 0.0066),
        ("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, 0.1088, 0.0054),
        ("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, 0.0576, 0.0028),
        ("28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, 0.1421, 0.0038),
        ("28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, 0.1106, 0.0029),
        ("28.3B", 32, 256, 10.402, 10.248, 7.698, 0.46, 0.0594, 0.0018),
    )
]


def main(time_limit: float) -> None:
    """Print both tables."""
    print("  p   m  limit  objective   gap %      s")
    for pp, m, limit in ((3, 6, 3), (4, 8, 4), (4, 16, 4), (6, 12, 6), (8, 16, 8), (8, 16, 12)):
        costs = uniform(pp, 1.1, 2.2, 0.8)
        found = optimize(costs, pp, m, transfer=0.1, activation_limit=limit, time_limit=time_limit)
        print(
            f"{pp:3} {m:3} {limit:6} {found.objective:10.4f} {100 * found.gap:7.2f} "
            f"{found.seconds:6.1f}"
        )
    print()
    print("model    p   m  limit  printed %  found %  bound %  proven      s")
    for setting in PROFILED:
        for limit, printed in ((setting.pp, setting.zb_1p), (2 * setting.pp, setting.zb_2p)):
            show(setting, limit, printed, time_limit)


def show(setting: Setting, limit: int, printed: float, time_limit: float) -> None:
    """One row of the second table."""
    f, i, w, m = setting.f, setting.i, setting.w, setting.num_microbatches
    costs = uniform(setting.pp, f, i + w, w, setting.weight_memory)
    found = optimize(
        costs,
        setting.pp,
        m,
        transfer=setting.message,
        activation_limit=limit,
        time_limit=time_limit,
    )
    work = m * (f + i + w)
    rate, least = ((x - work) / x for x in (found.objective, found.bound))
    print(
        f"{setting.model:6} {setting.pp:3} {m:3} {limit:6} {100 * printed:10.2f} {100 * rate:8.2f} "
        f"{100 * least:8.2f} {'yes' if found.proven else 'no':>7} {found.seconds:6.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
