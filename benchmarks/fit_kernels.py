"""Fit the GPU presets' efficiency on measured kernels, and compare the collectives with nccl-tests.

Run `python benchmarks/fit_kernels.py`: it prints the constants that `simulator/specs/gpus/*.toml`
hold and the error of each table. Every measured row and its source is in `tests/data/kernels/`.
Only the host's overhead is fitted
on training runs, 48 of small models, as one median.
"""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from simulator.costs import communication
from simulator.costs.communication import Collective, collective_seconds
from simulator.costs.kernels import flash_seconds, gemm_seconds, stream_seconds
from simulator.job import GPU, Link

DATA = Path(__file__).parents[1] / "tests" / "data" / "kernels"
Row = dict[str, str]
Vector = NDArray[np.float64]

# dense bf16 peak [FLOP/s], memory bandwidth [bytes/s], SMs; the presets name the datasheets
SPECS = {
    "a100_sxm_80gb": (312e12, 2.039e12, 108),
    "h100_sxm": (989.4e12, 3.35e12, 132),
    "h200": (989.4e12, 4.8e12, 132),
    "b200": (2250e12, 8e12, 148),
    "gh200": (989.4e12, 4.0e12, 132),
}
# NVLink, one direction [bytes/s]
NVLINK = {"a100_sxm_80gb": 300e9, "h100_sxm": 450e9, "h200": 450e9, "b200": 900e9}
NVLINK_EFFICIENCY = {"a100_sxm_80gb": 0.78, "h100_sxm": 0.81, "h200": 0.81, "b200": 0.76}
# Gap between kernels of a busy stream, assumed: large products cannot tell it from none, and the
# shortest measured elementwise kernels take 3 to 6 us [s]
LAUNCH_OVERHEAD = 2e-6


def read(name: str) -> list[Row]:
    """Rows of one table of measured kernels."""
    with (DATA / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def gpu(name: str, **constants: float) -> GPU:
    """A GPU of the datasheet with some constants replaced."""
    peak, bandwidth, sms = SPECS[name]
    values: dict[str, float] = {
        "gemm_efficiency": 0.8,
        "gemm_half_k": 100.0,
        "memory_efficiency": 0.8,
        "launch_overhead": LAUNCH_OVERHEAD,
    }
    return GPU.model_validate(
        {
            "name": name,
            "peak_flops": {"bf16": peak},
            "memory": 80e9,
            "memory_bandwidth": bandwidth,
            "num_sms": sms,
            "batched_gemm_share": 1.0,
            "source": "",
            **values,
            **constants,
        }
    )


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


def summary(ratios: Iterable[float]) -> str:
    """Errors of predicted over measured times."""
    error = np.array(list(ratios)) - 1
    return (
        f"{len(error):5d} rows, mean |error| {np.mean(abs(error)):6.1%}, "
        f"median {np.median(abs(error)):6.1%}, bias {np.mean(error):+6.1%}"
    )


def gemm_ratio(row: Row, unit: GPU) -> float:
    """Predicted over measured time of a matrix product. [1]"""
    m, n, k = (float(row[name]) for name in "mnk")
    return gemm_seconds(m, n, k, unit) / (float(row["time_us"]) * 1e-6)


def flash_ratio(row: Row, unit: GPU) -> float:
    """Predicted over measured time of causal flash attention. [1]"""
    heads = float(row["batch"]) * float(row["heads"])
    return flash_seconds(heads, int(row["seq_len"]), 128, unit) / (float(row["time_us"]) * 1e-6)


def fit(
    tables: list[list[Row]],
    ratio: Callable[[Row, GPU], float],
    name: str,
    guess: dict[str, float],
    fixed: dict[str, float],
) -> dict[str, float]:
    """Constants of least mean |log(predicted / measured)|, each table weighing the same."""
    scale = np.array(list(guess.values()))

    def loss(x: Vector) -> float:
        values = dict(zip(guess, (x * scale).tolist(), strict=True))
        if any(v <= 0 or (key.endswith("efficiency") and v > 1) for key, v in values.items()):
            return 9.0
        unit = gpu(name, **values, **fixed)
        return sum(float(np.mean([abs(np.log(ratio(row, unit))) for row in t])) for t in tables)

    best = nelder_mead(loss, np.ones(len(scale)), np.full(len(scale), 0.2)) * scale
    return dict(zip(guess, best.tolist(), strict=True))


def report_stream() -> dict[str, float]:
    """Streaming efficiency of each measured GPU: the mean over elementwise operators."""
    rows, efficiency = read("stream_fp16.csv"), {}
    for name in ("a100_sxm_80gb", "gh200"):
        unit = gpu(name, memory_efficiency=1.0)
        medians: dict[tuple[str, str], list[float]] = {}
        for row in (row for row in rows if row["gpu"] == name):
            share = stream_seconds(float(row["nbytes"]), unit) / (float(row["time_us"]) * 1e-6)
            medians.setdefault((row["op"], row["pass"]), []).append(share)
        shares = {key: float(np.median(values)) for key, values in medians.items()}
        efficiency[name] = float(np.mean([v for k, v in shares.items() if k[0] != "layernorm"]))
        print(name, "memory_efficiency", round(efficiency[name], 3))
        for key, share in shares.items():
            print("   ", *key, f"{share:.2f} of peak, {share / efficiency[name]:.2f} of streaming")
    return efficiency


def report_compute(stream: dict[str, float]) -> None:
    """Fit and print the constants of matrix products and flash attention of each GPU."""
    gemm, linear, flash = (
        read("gemm_bf16.csv"),
        read("linear_fp16.csv"),
        read("flash_forward_bf16.csv"),
    )
    for name in ("a100_sxm_80gb", "h100_sxm", "h200", "b200"):
        memory = {"memory_efficiency": stream["a100_sxm_80gb" if "a100" in name else "gh200"]}
        other = {"a100_sxm_80gb": "a100_sxm_80gb", "h100_sxm": "gh200"}.get(name)
        tables = [[row for row in gemm if row["gpu"] == name]]
        if other == name:
            tables.append([row for row in linear if row["gpu"] == name])
        memory["launch_overhead"] = LAUNCH_OVERHEAD
        guess = {"gemm_efficiency": 0.8, "gemm_half_k": 120.0}
        found = fit(tables, gemm_ratio, name, guess, memory)
        unit = gpu(name, **found, **memory)
        print(name, {key: float(f"{value:.3g}") for key, value in found.items()})
        for table in tables:
            print("    products", summary(gemm_ratio(row, unit) for row in table))
        large = [r for r in tables[0] if float(r["m"]) * float(r["n"]) * float(r["k"]) > 4e11]
        print("    of them above 0.8 TFLOP", summary(gemm_ratio(row, unit) for row in large))
        if other == "gh200":
            rows = [row for row in linear if row["gpu"] == other]
            grace = gpu(other, **found, memory_efficiency=stream[other])
            print("    GH200, not fitted", summary(gemm_ratio(row, grace) for row in rows))
        rows = [row for row in flash if row["gpu"] == name]
        guess = {"flash_efficiency": 0.5, "flash_half_seq": 1000.0}
        attention = fit([rows], flash_ratio, name, guess, memory)
        print("   ", {key: float(f"{value:.3g}") for key, value in attention.items()})
        unit = gpu(name, **attention, **memory)
        print("    flash forward", summary(flash_ratio(row, unit) for row in rows))
        if other:
            report_eager(other, found, stream[other])


def report_eager(name: str, constants: dict[str, float], memory: float) -> None:
    """Speed of eager attention's batched products over that of single ones: geometric mean."""
    unit = gpu(name, **constants, memory_efficiency=memory)
    rows = [row for row in read("attention_bmm_fp16.csv") if row["gpu"] == name]
    medians = []
    for op in ("baddbmm", "bmm"):
        forward, backward = [], []
        for row in (row for row in rows if row["op"] == op):
            heads, s, d = (float(row[key]) for key in ("num_heads", "seq_len", "head_dim"))
            scores = gemm_seconds(s, s, d, unit, batch=heads)
            context = gemm_seconds(s, d, s, unit, batch=heads)
            ahead, back = (scores, 2 * context) if op == "baddbmm" else (context, scores + context)
            forward.append(ahead / (float(row["forward_us"]) * 1e-6))
            backward.append(back / (float(row["backward_us"]) * 1e-6))
        print(f"    {name} {op} forward ", summary(forward))
        print(f"    {name} {op} backward", summary(backward))
        medians += [np.log(np.median(forward)), np.log(np.median(backward))]
    print(f"    {name} batched_gemm_share {np.exp(np.mean(medians)):.2f}")


def report_weight_gradients() -> None:
    """Bytes at streaming speed by which a product that adds into fp32 exceeds its forward."""
    bandwidth = {"a100_pcie_80gb": 1.94e12 * 0.8, "b200": 8e12 * 0.74}
    times: dict[tuple[str, str, tuple[int, ...]], list[float]] = {}
    extra: dict[tuple[str, int], list[float]] = {}
    rows = read("weight_gradient_bf16.csv")
    shapes = [(row, tuple(int(row[name]) for name in "mnk")) for row in rows]
    for row, shape in shapes:
        key = (row["gpu"], row["layout"], tuple(sorted(shape)))
        times.setdefault(key, []).append(float(row["time_us"]) * 1e-6)
    for row, (m, n, k) in shapes:
        others = [(row["gpu"], layout, tuple(sorted((m, n, k)))) for layout in ("TN", "NN")]
        plain = [second for key in others for second in times.get(key, [])]
        if row["layout"] == "NT" and plain:
            more = float(row["time_us"]) * 1e-6 - float(np.mean(plain))
            extra.setdefault((row["gpu"], k), []).append(more * bandwidth[row["gpu"]] / (m * n))
    for (name, tokens), values in sorted(extra.items()):
        if tokens <= 4096:
            print(f"{name} {tokens} tokens, {len(values)} shapes: {np.median(values):.2f} bytes")


def report_host() -> None:
    """Host time of an operator's forward, of runs whose GPUs wait for the host; a median.

    A layer has 14 operators, issued in the forward, again for recomputation, and 1.5 times as
    long in the backward. The one constant that needs runs: no kernel alone shows the host.
    Optimizer, embedding and logits are not subtracted: the presets round down.
    """
    seconds = [
        float(row["step_time_s"]) / (int(row["layers"]) * int(row["num_microbatches"]))
        for row in read("host_bound_a100_vtrain.csv")
    ]
    print(f"host_overhead {np.median(seconds) / (14 * 3.5) * 1e6:.0f} us, {len(seconds)} runs")


def collective_ratio(row: Row) -> float:
    """Predicted over measured time of a collective inside one node. [1]"""
    efficiency = NVLINK_EFFICIENCY[row["gpu"]]
    link = Link(bandwidth=NVLINK[row["gpu"]], latency=3.4e-6, efficiency=efficiency)
    kind, nbytes, size = Collective(row["collective"]), float(row["nbytes"]), int(row["num_gpus"])
    seconds = collective_seconds(kind, nbytes, size, 1, link, Link(bandwidth=25e9, latency=14e-6))
    return seconds / (float(row["time_us"]) * 1e-6)


def fit_collectives(rows: list[Row]) -> None:
    """Print the shared constants of least error, each GPU weighing the same.

    Without all-reduces over all 8 GPUs on NVLink 4 and 5, which NVSwitch sums (NVLS, not modelled),
    and without pairs, whose ring uses the links differently.
    """
    kept = [
        row
        for row in rows
        if row["num_gpus"] != "2"
        and not (
            row["collective"] == "all_reduce"
            and row["num_gpus"] == "8"
            and not row["gpu"].startswith("a100")
        )
    ]
    weight = {name: 1 / sum(row["gpu"] == name for row in kept) for name in NVLINK}

    def loss(x: Vector) -> float:
        if min(x) < 0 or max(x[1:]) > 1:
            return 99.0
        low = communication.LL._replace(bandwidth=float(x[2]))
        fitted: dict[str, Any] = {"PIPELINING": float(x[0]), "ONE_PASS": float(x[1]), "LL": low}
        with patch.multiple(communication, **fitted):
            return float(
                sum(weight[row["gpu"]] * abs(np.log(collective_ratio(row))) for row in kept)
            )

    best = nelder_mead(loss, np.array([0.4, 0.95, 0.4]), np.full(3, 0.05))
    print("PIPELINING, ONE_PASS, LL bandwidth", best.round(3), f"mean |error| {loss(best) / 4:.1%}")


def report_collectives() -> None:
    """Compare collectives inside one node with nccl-tests, by size. Shared constants only."""
    rows = [row | {"source": "aiconfigurator"} for row in read("nccl_one_node.csv")]
    rows += [
        row | {"gpu": "a100_sxm_80gb", "collective": "all_reduce", "source": "vTrain"}
        for row in read("nccl_all_reduce_a100_vtrain.csv")
    ]
    fit_collectives(rows)
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        nbytes = float(row["nbytes"])
        size = "< 4 MiB" if nbytes < 2**22 else "< 64 MiB" if nbytes < 2**26 else ">= 64 MiB"
        key = (row["gpu"], row["collective"], size, row["source"])
        groups.setdefault(key, []).append(collective_ratio(row))
    for group, ratios in groups.items():
        print(*(f"{word:14}" for word in group), summary(ratios))


def main() -> None:
    """Print every fit and every error."""
    report_compute(report_stream())
    report_weight_gradients()
    report_host()
    report_collectives()


if __name__ == "__main__":
    main()
