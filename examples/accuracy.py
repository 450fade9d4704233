"""Predicted against published runs: Korthikanti et al., 2022; Narayanan et al., SC'21."""

from pathlib import Path

from simulator.load import load_job
from simulator.simulate import simulate

STEP_TIME = {  # [s], Korthikanti et al., Table 5 and section 6.3
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
THROUGHPUT = {  # [TFLOP/s per GPU, recomputation counted], Narayanan et al., Table 1
    "sc21_1_7b": 137,
    "sc21_3_6b": 138,
    "sc21_7_5b": 142,
    "sc21_18_4b": 135,
    "sc21_39_1b": 138,
    "sc21_76_1b": 140,
    "sc21_145_6b": 148,
    "sc21_310_1b": 155,
    "sc21_529_6b": 163,
    "sc21_1008b": 163,
}


def report(name):
    return simulate(load_job(Path(__file__).with_name(f"{name}.toml"))).report


def show(title, published, predict, unit):
    print(f"{title:<42}{'published':>12}{'predicted':>12}{'error':>9}")
    errors = []
    for name, value in published.items():
        predicted = predict(report(name))
        errors.append(abs(predicted / value - 1))
        error = f"{predicted / value - 1:+.1%}"
        print(f"{name:<42}{value:>9.5g} {unit:<2}{predicted:>9.4g} {unit:<2}{error:>9}")
    print(f"mean absolute error {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}\n")


show("step time", STEP_TIME, lambda r: r.step_time, "s")
show("TFLOP/s per GPU", THROUGHPUT, lambda r: r.hardware_tflops_per_gpu, "")
