"""Predicted against measured step time: Korthikanti et al., 2022, Table 5 and section 6.3."""

from pathlib import Path

from simulator.load import load_job
from simulator.simulate import simulate

MEASURED = {  # [s]
    "korthikanti_22b_full": 1.42,
    "korthikanti_22b_selective_sp": 1.10,
    "korthikanti_175b_full": 18.13,
    "korthikanti_175b_selective_sp": 13.75,
    "korthikanti_530b_full": 49.05,
    "korthikanti_530b_selective_sp": 37.83,
    "korthikanti_1t_full": 94.42,
    "korthikanti_1t_selective_sp": 71.49,
    "korthikanti_530b_selective_sp_2240_gpus": 39.15,
}

errors = []
print(f"{'job':<40} measured  predicted   error")
for name, measured in MEASURED.items():
    job = load_job(Path(__file__).with_name(f"{name}.toml"))
    predicted = simulate(job).report.step_time
    errors.append(predicted / measured - 1)
    print(f"{name:<40} {measured:6.2f} s   {predicted:6.2f} s   {errors[-1]:+.1%}")
print(f"mean absolute error {sum(map(abs, errors)) / len(errors):.1%}")
