"""Fit the GPU presets' efficiency on measured kernels, and print the error of each table.

Run `python benchmarks/fit_kernels.py`: it prints the constants that `simulator/specs/gpus/*.toml`
and `simulator/costs/` hold. Every measured row and its source is in `tests/data/kernels/`. Only the
host's overhead is fitted on training runs, 48 of small models, as one median.
"""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from kernel_tables import Row, fit, gpu, read, summary

from simulator.costs.kernels import (
    attention_product_seconds,
    flash_seconds,
    gemm_seconds,
    stream_seconds,
)
from simulator.hardware import GPU

BURST = 4e-3  # products up to this long run at full clocks [s]
SUSTAINED = 8e-3  # longer ones are slowed by the power limit [s]


def seconds(row: Row, key: str = "time_us") -> float:
    """A measured time. [s]"""
    return float(row[key]) * 1e-6


def shape(row: Row) -> tuple[float, float, float]:
    """Sizes of a product. [1]"""
    return float(row["m"]), float(row["n"]), float(row["k"])


def forward_ratio(row: Row, unit: GPU) -> float:
    """Predicted over measured time of a matrix product. [1]"""
    return gemm_seconds(*shape(row), unit) / seconds(row)


def backward_ratio(row: Row, unit: GPU) -> float:
    """Predicted over measured time of a linear layer's two gradients. [1]"""
    m, n, k = shape(row)
    return (gemm_seconds(m, k, n, unit) + gemm_seconds(k, n, m, unit)) / seconds(row)


def fp8_ratio(row: Row, unit: GPU) -> float:
    """Predicted over measured time of an fp8 product whose input is quantised before. [1]

    `launch_overhead` stands for what the quantisation's kernels take besides their bytes.
    """
    m, n, k = shape(row)
    quantise = stream_seconds(3 * m * k, unit)
    return (gemm_seconds(m, n, k, unit, dtype="fp8") + quantise) / seconds(row)


def flash_ratio(row: Row, unit: GPU) -> float:
    """Predicted over measured time of causal attention with rotary positions and cache write."""
    heads, key_heads = (float(row["batch"]) * float(row[name]) for name in ("heads", "kv_heads"))
    tokens = int(row["seq_len"])
    beside = stream_seconds(2 * 2 * (heads + 2 * key_heads) * tokens * 128, unit)
    return (flash_seconds(heads, tokens, unit, head_dim=128) + beside) / seconds(row)


def training_ratio(row: Row, unit: GPU) -> float:
    """Predicted over measured time of one pass of causal attention in training. [1]"""
    heads, tokens = float(row["batch"]) * float(row["heads"]), int(row["seq_len"])
    measured = 4 * heads * tokens**2 * 128 / (float(row["efficiency"]) * unit.peak_flops["bf16"])
    return flash_seconds(heads, tokens, unit, head_dim=128) / measured


def of(rows: list[Row], name: str) -> list[Row]:
    """Rows of one GPU."""
    return [row for row in rows if row["gpu"] == name]


def report_stream() -> dict[str, float]:
    """Streaming efficiency of each measured GPU: the mean over elementwise operators."""
    rows, efficiency = read("stream_fp16.csv"), {}
    for name in ("a100_sxm_80gb", "gh200"):
        unit = gpu(name, memory_efficiency=1.0)
        medians: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in of(rows, name):
            share = stream_seconds(float(row["nbytes"]), unit) / seconds(row)
            medians[row["op"], row["pass"]].append(share)
        shares = {key: float(np.median(values)) for key, values in medians.items()}
        efficiency[name] = float(np.mean([v for k, v in shares.items() if k[0] != "layernorm"]))
        print(name, "memory_efficiency", round(efficiency[name], 3))
        for key, share in shares.items():
            print("   ", *key, f"{share:.2f} of peak, {share / efficiency[name]:.2f} of streaming")
    return efficiency


def report_operators(stream: dict[str, float]) -> None:
    """Bytes at streaming speed of operators that are several kernels, for each element."""
    rows = read("operators_fp16.csv")
    for name, efficiency in stream.items():
        unit = gpu(name, memory_efficiency=efficiency)
        speed = unit.memory_bandwidth * unit.memory_efficiency
        for op in sorted({row["op"] for row in rows}):
            found = [
                [seconds(row, key) * speed / float(row["elements"]) for row in of(rows, name)
                 if row["op"] == op]
                for key in ("forward_us", "backward_us")
            ]  # fmt: skip
            ahead, back = (float(np.median(values)) for values in found)
            print(f"    {name} {op:32} {ahead:6.1f} and {back:6.1f} bytes an element")


def report_products(name: str, memory: dict[str, float]) -> dict[str, float]:
    """Fit products in short bursts; long ones show the power limit; then fp8.

    A100's clocks hardly fall, so that all of its products count; its two sets weigh the same, and a
    backward, two products, twice a forward. GH200 has another power limit than H100, so that its
    set is only compared with.
    """
    products = of(read("gemm_bf16.csv"), name)
    short = [row for row in products if seconds(row) < BURST]
    linear, back = read("linear_fp16.csv"), read("linear_backward_fp16.csv")
    tables: list[tuple[float, list[Row], Callable[[Row, GPU], float]]] = [
        (3.0, short, forward_ratio)
    ]
    if name.startswith("a100"):
        tables = [
            (3.0, products, forward_ratio),
            (1.0, of(linear, name), forward_ratio),
            (2.0, of(back, name), backward_ratio),
        ]
    found = fit(tables, name, {"gemm_efficiency": 0.84, "gemm_half_k": 140.0}, memory)
    unit = gpu(name, **found, **memory)
    print(name, {key: float(f"{value:.3g}") for key, value in found.items()})
    for _, rows, ratio in tables:
        print("   ", ratio.__name__, summary(ratio(row, unit) for row in rows))
    slow = [forward_ratio(row, unit) for row in products if seconds(row) > SUSTAINED]
    fast = [forward_ratio(row, unit) for row in short if seconds(row) > 1e-3]
    sustained = min(1.0, float(np.median(slow) / np.median(fast)))
    print(f"    sustained_share {sustained:.3f} of {len(slow)} products over 8 ms")
    if name == "h100_sxm":
        grace = gpu("gh200", **found, memory_efficiency=memory["memory_efficiency"])
        for rows, ratio in ((linear, forward_ratio), (back, backward_ratio)):
            print("    GH200, not fitted", summary(ratio(row, grace) for row in of(rows, "gh200")))
    eight = [row for row in of(read("gemm_fp8.csv"), name) if seconds(row) < BURST]
    if eight:
        constants = fit(
            [(1.0, eight, fp8_ratio)],
            name,
            {"fp8_efficiency": 0.7, "launch_overhead": 2e-5},
            {**memory, **found},
        )
        unit = gpu(name, **{**memory, **found, **constants})
        print(f"    fp8_efficiency {constants['fp8_efficiency']:.3f}", end=" ")
        print(summary(fp8_ratio(row, unit) for row in eight))
    return found


def report_flash(name: str, memory: dict[str, float]) -> None:
    """Fit causal flash attention: serving kernels of every GPU, training kernels of two."""
    rows = [row for row in of(read("flash_forward_bf16.csv"), name) if seconds(row) > 3e-5]
    training = read("flash_training_bf16.csv")
    guess = {"flash_efficiency": 0.55, "flash_half_seq": 500.0}
    found = fit([(1.0, rows, flash_ratio)], name, guess, memory)
    unit = gpu(name, **found, **memory)
    print("   ", {key: float(f"{value:.3g}") for key, value in found.items()})
    print("    flash forward, serving", summary(flash_ratio(row, unit) for row in rows))
    other = {"a100_sxm_80gb": "a100_pcie_80gb", "b200": "b200"}.get(name)
    if other is None:
        return
    for op in ("sdp_fwd", "sdp_bwd"):
        table = [row for row in of(training, other) if row["op"] == op]
        alone = fit(
            [(1.0, table, training_ratio)],
            other,
            {"flash_efficiency": 0.6},
            {**memory, "flash_half_seq": 1e-9},
        )
        unit = gpu(other, **{**memory, **alone, "flash_half_seq": 0.0})
        print(f"    {op} flash_efficiency {alone['flash_efficiency']:.3f}", end=" ")
        print(summary(training_ratio(row, unit) for row in table))


def report_eager(name: str, constants: dict[str, float], memory: float) -> None:
    """Speed of eager attention's batched products over that of single ones."""
    rows = of(read("attention_bmm_fp16.csv"), name)

    def ratios(unit: GPU) -> dict[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            heads, s, d = (float(row[key]) for key in ("num_heads", "seq_len", "head_dim"))
            scores = attention_product_seconds(s, s, d, unit, batch=heads)
            context = attention_product_seconds(s, d, s, unit, batch=heads)
            ahead, back = (scores, 2 * context)
            if row["op"] == "bmm":
                ahead, back = context, scores + context
            found[row["op"] + " forward"].append(ahead / seconds(row, "forward_us"))
            found[row["op"] + " backward"].append(back / seconds(row, "backward_us"))
        return found

    shares = np.linspace(0.5, 1.0, 51)
    units = [
        gpu(name, **constants, memory_efficiency=memory, batched_gemm_share=float(share))
        for share in shares
    ]
    losses = [np.mean([abs(np.log(v)) for r in ratios(u).values() for v in r]) for u in units]
    best = int(np.argmin(losses))
    print(f"    {name} batched_gemm_share {shares[best]:.2f}")
    for op, values in ratios(units[best]).items():
        print(f"    {name} {op:16}", summary(values))


def report_forward_layouts() -> None:
    """Products of two more machines, forward and input gradient: an A100 PCIe and a slower B200.

    That B200's clocks fall to 0.69 of a short burst's in products of more than 1 ms.
    """
    rows = [row for row in read("weight_gradient_bf16.csv") if row["layout"] != "NT"]
    memory = {"memory_efficiency": 0.8}
    cards = of(rows, "a100_pcie_80gb")
    guess = {"gemm_efficiency": 0.76, "gemm_half_k": 140.0}
    found = fit([(1.0, cards, forward_ratio)], "a100_pcie_80gb", guess, memory)
    unit = gpu("a100_pcie_80gb", **found, **memory)
    print("a100_pcie_80gb", {key: float(f"{value:.3g}") for key, value in found.items()}, end=" ")
    print(summary(forward_ratio(row, unit) for row in cards))
    unit = gpu("b200", gemm_efficiency=0.724, gemm_half_k=38.5, memory_efficiency=0.74)
    long = [forward_ratio(row, unit) for row in of(rows, "b200") if seconds(row) > 1e-3]
    print(
        f"b200 of SimuMax: {np.median(long):.2f} of a short burst, {len(long)} products over 1 ms"
    )


def report_weight_gradients() -> None:
    """Bytes at streaming speed by which a product that adds into fp32 exceeds its forward."""
    bandwidth = {"a100_pcie_80gb": 1.94e12 * 0.8, "b200": 8e12 * 0.74}
    times: dict[tuple[str, str, tuple[int, ...]], list[float]] = defaultdict(list)
    extra: dict[tuple[str, int], list[float]] = defaultdict(list)
    rows = read("weight_gradient_bf16.csv")
    for row in rows:
        m, n, k = (int(row[name]) for name in "mnk")
        times[row["gpu"], row["layout"], tuple(sorted((m, n, k)))].append(seconds(row))
    for row in rows:
        m, n, k = (int(row[name]) for name in "mnk")
        others = [(row["gpu"], layout, tuple(sorted((m, n, k)))) for layout in ("TN", "NN")]
        plain = [second for key in others for second in times.get(key, [])]
        if row["layout"] == "NT" and plain:
            more = seconds(row) - float(np.mean(plain))
            extra[row["gpu"], k].append(more * bandwidth[row["gpu"]] / (m * n))
    for (name, tokens), values in sorted(extra.items()):
        if tokens <= 4096:
            print(f"{name} {tokens} tokens, {len(values)} shapes: {np.median(values):.2f} bytes")


def report_host() -> None:
    """Host time of an operator's forward, of runs whose GPUs wait for the host; a median.

    A layer has 14 operators, and 2 collectives with tensor parallelism; embedding and head have 14
    more. All are issued in the forward, the layer's again for recomputation, and for 1.5 times as
    long in the backward. The one constant that needs runs: no kernel alone shows the host.
    """
    found = []
    for row in read("host_bound_a100_vtrain.csv"):
        layer = 14 + (2 if int(row["tp"]) > 1 else 0)
        count = int(row["layers"]) * layer * 3.5 + 14 * 2.5
        found.append(float(row["step_time_s"]) / int(row["num_microbatches"]) / count)
    print(f"host_overhead {np.median(found) * 1e6:.0f} us, {len(found)} runs")


def main() -> None:
    """Print every fit and every error."""
    stream = report_stream()
    report_operators(stream)
    for name in ("a100_sxm_80gb", "h100_sxm", "h200", "b200"):
        memory = {"memory_efficiency": stream["a100_sxm_80gb" if "a100" in name else "gh200"]}
        found = report_products(name, memory)
        report_flash(name, memory)
        other = {"a100_sxm_80gb": "a100_sxm_80gb", "h100_sxm": "gh200"}.get(name)
        if other:
            report_eager(other, found, stream[other])
    report_forward_layouts()
    report_weight_gradients()
    report_host()


if __name__ == "__main__":
    main()
