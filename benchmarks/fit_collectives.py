"""Compare the collectives with measured ones, by table and size, and fit their shared constants.

Run `python benchmarks/fit_collectives.py`: it prints the error of every table, the constants
that `simulator/costs/communication.py` holds, and the latencies of a hop over NVLink and EFA that
the clusters in `simulator/specs/clusters` hold. Every measured row and its source is in
`tests/data/kernels/`.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from simulator.costs import communication
from simulator.costs.communication import Collective, bytes_on_wire, collective_seconds
from simulator.job import Link

DATA = Path(__file__).parents[1] / "tests" / "data" / "kernels"
Row = dict[str, str]

# NVLink, one direction [bytes/s], and the share of it that a large ring reaches, as in the presets
PORTS = {
    "a100_sxm_80gb": Link(bandwidth=300e9, latency=7.5e-6, efficiency=0.78),
    "h100_sxm": Link(bandwidth=450e9, latency=2.5e-6, efficiency=0.81),
    "h200": Link(bandwidth=450e9, latency=2.5e-6, efficiency=0.81),
    "b200": Link(bandwidth=900e9, latency=8e-6, efficiency=0.76),
}
NDR = Link(bandwidth=50e9, latency=14e-6, efficiency=0.95)
EFA = Link(bandwidth=50e9, latency=14e-6, efficiency=0.90, low_latency=False)
SIZES = ((2**16, "< 64 KiB"), (2**22, "< 4 MiB"), (2**26, "< 64 MiB"), (2**63, ">= 64 MiB"))


def read(name: str) -> list[Row]:
    """Rows of one table of measured collectives."""
    with (DATA / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def size_of(nbytes: float) -> str:
    """The name of a size's class."""
    return next(name for limit, name in SIZES if nbytes < limit)


def summary(ratios: Iterable[float]) -> str:
    """Errors of predicted over measured times."""
    error = np.array(list(ratios)) - 1
    return (
        f"{len(error):4d} rows, mean |error| {np.mean(abs(error)):6.1%}, "
        f"median {np.median(abs(error)):6.1%}, bias {np.mean(error):+7.1%}"
    )


def one_node_ratio(row: Row) -> float:
    """Predicted over measured time of a collective inside one node. [1]"""
    switch = row["gpu"] in ("h100_sxm", "h200", "b200") and row["collective"] == "all_reduce"
    seconds = collective_seconds(
        Collective(row["collective"]),
        float(row["nbytes"]),
        int(row["num_gpus"]),
        1,
        PORTS[row["gpu"]],
        NDR,
        switch_reduces=switch,
    )
    return seconds / (float(row["time_us"]) * 1e-6)


def busbw_seconds(row: Row) -> float:
    """Measured time of a row that states its bus bandwidth. [s]"""
    kind, gpus = Collective(row.get("collective", "all_reduce")), int(row["num_gpus"])
    return bytes_on_wire(kind, float(row["nbytes"]), gpus) / (float(row["busbw_gbps"]) * 1e9)


def nodes_ratio(row: Row, nic: Link, nics: float) -> float:
    """Predicted over measured time of a collective over all GPUs of some nodes. [1]"""
    nodes, gpus = int(row["num_nodes"]), int(row["num_gpus"])
    kind = Collective(row.get("collective", "all_reduce"))
    switch = row["gpu"] != "gh200"
    port = PORTS.get(row["gpu"], PORTS["h100_sxm"])
    seconds = collective_seconds(
        kind, float(row["nbytes"]), gpus, nodes, port, nic, nics, switch_reduces=switch
    )
    return seconds / (float(row["time_us"]) * 1e-6 if "time_us" in row else busbw_seconds(row))


def tables() -> dict[str, list[Row]]:
    """All measured collectives, by table."""
    vtrain = read("nccl_all_reduce_a100_vtrain.csv")
    ultrascale = read("nccl_efa_h100_ultrascale.csv")
    vista = read("nccl_gh200_vista.csv")
    engineering = read("nccl_all_reduce_ml_engineering.csv")
    return {
        "aiconfigurator": read("nccl_one_node.csv") + read("nccl_one_node_more.csv"),
        "vTrain": [row | {"gpu": "a100_sxm_80gb", "collective": "all_reduce"} for row in vtrain],
        "ml-engineering, one node": [row for row in engineering if row["num_nodes"] == "1"],
        "ml-engineering, EFA v4": [row for row in engineering if row["num_nodes"] != "1"],
        "Ultra-Scale Playbook, EFA v2": [
            row | {"gpu": "h100_sxm", "num_gpus": str(8 * int(row["num_nodes"]))}
            for row in ultrascale
        ],
        "Vista, NDR": [row | {"gpu": "gh200", "num_gpus": row["num_nodes"]} for row in vista],
    }


def efa(rows: list[Row]) -> Link:
    """The EFA link whose hop latency makes the mean |log error| of these rows least."""

    def loss(latency: float) -> float:
        nic = EFA.model_copy(update={"latency": latency})
        return float(np.mean([abs(np.log(nodes_ratio(row, nic, 8.0))) for row in rows]))

    latencies = np.arange(10e-6, 600e-6, 5e-6).tolist()
    return EFA.model_copy(update={"latency": min(latencies, key=loss)})


def loss(rows: list[Row]) -> float:
    """Mean |log error| inside one node, each GPU weighing the same."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        errors.setdefault(row["gpu"], []).append(abs(float(np.log(one_node_ratio(row)))))
    return float(np.mean([np.mean(values) for values in errors.values()]))


def fit(rows: list[Row]) -> None:
    """Print, for each shared constant, the value of least error with the others as they are."""
    kinds = {
        "PIPELINING": np.arange(0.2, 0.61, 0.05),
        "OWN_COPY": np.arange(0.0, 0.81, 0.05),
        "EXCHANGE_SHARE": np.arange(0.6, 1.01, 0.02),
        "NVLS_SHARE": np.arange(0.5, 0.91, 0.02),
    }
    print(f"as shipped: mean |log error| {loss(rows):.3f}")
    for name, grid in kinds.items():
        kept, old = rows, getattr(communication, name)
        if name.startswith(("NVLS", "EXCHANGE")):  # shares of the bandwidth: of large messages
            kept = [row for row in rows if float(row["nbytes"]) >= 2**26]
        losses = {}
        for value in grid.round(2).tolist():
            setattr(communication, name, value)
            losses[value] = loss(kept)
        setattr(communication, name, old)
        best = min(losses, key=lambda value: losses[value])
        print(f"{name:15} {old:g} as shipped, best {best:g}: {losses[best]:.3f}")
    for name, port in dict(PORTS).items():
        losses = {}
        mine = [row for row in rows if row["gpu"] == name]
        for latency in np.arange(1.0e-6, 8.1e-6, 0.5e-6).tolist():
            PORTS[name] = port.model_copy(update={"latency": latency})
            losses[latency] = loss(mine)
        PORTS[name] = port
        best = min(losses, key=lambda value: losses[value])
        print(f"hop of {name:14} {port.latency * 1e6:g} us as shipped, best {best * 1e6:.1f}")


def report(groups: dict[tuple[str, ...], list[float]]) -> None:
    """Print the error of each group."""
    for group, ratios in groups.items():
        print(*(f"{word:14}" for word in group), summary(ratios))


def main() -> None:
    """Print every fit and every error."""
    rows = tables()
    found = efa([row for row in rows["Ultra-Scale Playbook, EFA v2"] if row["num_nodes"] != "1"])
    print(f"latency of an EFA v2 hop: {found.latency * 1e6:.0f} us")
    newer = efa([row for row in rows["ml-engineering, EFA v4"] if float(row["nbytes"]) >= 2**18])
    print(f"latency of an EFA v4 hop: {newer.latency * 1e6:.0f} us")
    fit(rows["aiconfigurator"] + rows["vTrain"])
    groups: dict[tuple[str, ...], list[float]] = {}
    for table in ("aiconfigurator", "vTrain"):
        for row in rows[table]:
            key = (table, row["gpu"], row["collective"], size_of(float(row["nbytes"])))
            groups.setdefault(key, []).append(one_node_ratio(row))
    for table, nic, nics in (
        ("ml-engineering, one node", NDR, 8.0),
        ("ml-engineering, EFA v4", newer, 8.0),
        ("Ultra-Scale Playbook, EFA v2", found, 8.0),
        ("Vista, NDR", NDR, 1.0),
    ):
        for row in rows[table]:
            key = (table, row.get("collective", "all_reduce"), size_of(float(row["nbytes"])))
            groups.setdefault(key, []).append(nodes_ratio(row, nic, nics))
    report(groups)


if __name__ == "__main__":
    main()
