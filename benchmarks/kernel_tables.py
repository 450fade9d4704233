"""The tables of measured kernels, and GPUs whose constants a fit may replace."""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.hardware import GPU

DATA = Path(__file__).parents[1] / "tests" / "data" / "kernels"
Row = dict[str, str]
Vector = NDArray[np.float64]

# dense bf16 peak [FLOP/s], memory bandwidth [bytes/s], SMs; the presets name the datasheets
SPECS = {
    "a100_sxm_80gb": (312e12, 2.039e12, 108),
    "a100_pcie_80gb": (312e12, 1.935e12, 108),
    "h100_sxm": (989.4e12, 3.35e12, 132),
    "h200": (989.4e12, 4.8e12, 132),
    "b200": (2250e12, 8e12, 148),
    "gh200": (989.4e12, 4.0e12, 132),
}
# Gap between kernels of a busy stream, assumed: large products cannot tell it from none, and the
# shortest measured elementwise kernels take 3 to 6 us [s]
LAUNCH_OVERHEAD = 2e-6


def read(name: str) -> list[Row]:
    """Rows of one table of measured kernels."""
    with (DATA / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def gpu(name: str, **constants: float) -> GPU:
    """A GPU of the datasheet, in short bursts, with some constants replaced."""
    peak, bandwidth, sms = SPECS[name]
    values: dict[str, float] = {
        "gemm_efficiency": 0.8,
        "gemm_half_k": 100.0,
        "memory_efficiency": 0.8,
        "sustained_share": 1.0,
        "flash_rows": 256 if name == "b200" else 128,
        "flash_half_dim": 0.0,
        "launch_overhead": LAUNCH_OVERHEAD,
    }
    fixed = {
        "name": name,
        "peak_flops": {"bf16": peak, "fp8": 2 * peak},
        "memory": 80e9,
        "memory_bandwidth": bandwidth,
        "num_sms": sms,
        "batched_gemm_share": 1.0,
        "source": "",
    }
    return GPU.model_validate({**fixed, **values, **constants})


def nelder_mead(loss: Callable[[Vector], float], start: Vector, step: Vector) -> Vector:
    """The point of least loss. Source: Nelder and Mead, The Computer Journal 7(4), 1965."""
    points = [start, *(start + step * unit for unit in np.eye(len(start)))]
    losses = [loss(point) for point in points]
    for _ in range(40 * len(start)):
        order = np.argsort(losses)
        points, losses = [points[i] for i in order], [losses[i] for i in order]
        centre = np.mean(points[:-1], axis=0)
        tried = centre + (centre - points[-1])
        value = loss(tried)
        if value < losses[0]:
            further = centre + 2 * (centre - points[-1])
            best = loss(further)
            points[-1], losses[-1] = (further, best) if best < value else (tried, value)
        elif value < losses[-2]:
            points[-1], losses[-1] = tried, value
        else:
            inner = centre + 0.5 * (points[-1] - centre)
            value = loss(inner)
            if value < losses[-1]:
                points[-1], losses[-1] = inner, value
            else:
                points = [points[0], *(0.5 * (points[0] + point) for point in points[1:])]
                losses = [losses[0], *(loss(point) for point in points[1:])]
    return points[int(np.argmin(losses))]


Table = tuple[float, list[Row], Callable[[Row, GPU], float]]  # weight, rows, predicted / measured


def fit(
    tables: list[Table], name: str, guess: dict[str, float], fixed: dict[str, float]
) -> dict[str, float]:
    """Constants of least weighted mean |log(predicted / measured)|."""
    scale = np.array(list(guess.values()))

    def loss(x: Vector) -> float:
        values = dict(zip(guess, (x * scale).tolist(), strict=True))
        if any(v <= 0 or (key.endswith("efficiency") and v > 1) for key, v in values.items()):
            return 99.0
        unit = gpu(name, **{**fixed, **values})
        return sum(
            weight * float(np.mean([abs(np.log(ratio(row, unit))) for row in rows]))
            for weight, rows, ratio in tables
        )

    best = nelder_mead(loss, np.ones(len(scale)), np.full(len(scale), 0.2)) * scale
    return dict(zip(guess, best.tolist(), strict=True))


def summary(ratios: Iterable[float]) -> str:
    """Errors of predicted over measured times."""
    error = np.array(list(ratios)) - 1
    return (
        f"{len(error):5d} rows, mean |error| {np.mean(abs(error)):6.1%}, "
        f"median {np.median(abs(error)):6.1%}, bias {np.mean(error):+6.1%}"
    )
