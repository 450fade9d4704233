"""Kernel and collective times against measured tables, and their closed forms."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.communication import (
    Collective,
    bytes_on_wire,
    collective_latency,
    collective_seconds,
    tensor_parallel_seconds,
)
from simulator.costs.kernels import flash_seconds, gemm_seconds, stream_seconds
from simulator.job import Link
from simulator.load import load_cluster, load_gpu, preset_names

DATA = Path(__file__).parent / "data" / "kernels"
NODES = {
    "a100_sxm_80gb": "selene",
    "h100_sxm": "dgx-h100",
    "h200": "dgx-h100",
    "b200": "dgx-b200",
}


def rows(name, gpu):
    with (DATA / name).open() as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        return [row for row in lines if row["gpu"] == gpu]


def errors(table, predict):
    """|predicted / measured - 1| of each row."""
    return np.array([abs(predict(row) / (float(row["time_us"]) * 1e-6) - 1) for row in table])


@pytest.mark.parametrize("name", NODES)
def test_products_have_a_median_error_below_5_percent(name):
    gpu = load_gpu(name.replace("_", "-"))
    table = rows("gemm_bf16.csv", name)
    error = errors(table, lambda r: gemm_seconds(*(float(r[x]) for x in "mnk"), gpu))
    assert np.median(error) < 0.05
    assert np.mean(error) < 0.07


@pytest.mark.parametrize("name", NODES)
def test_flash_attention_has_a_median_error_below_8_percent(name):
    gpu = load_gpu(name.replace("_", "-"))
    table = rows("flash_forward_bf16.csv", name)
    error = errors(
        table,
        lambda r: flash_seconds(float(r["batch"]) * float(r["heads"]), int(r["seq_len"]), 128, gpu),
    )
    assert np.median(error) < 0.08


def test_elementwise_kernels_of_the_a100_are_within_12_percent():
    gpu = load_gpu("a100-sxm-80gb")
    table = [r for r in rows("stream_fp16.csv", "a100_sxm_80gb") if r["op"] != "layernorm"]
    error = errors(table, lambda r: stream_seconds(float(r["nbytes"]), gpu))
    assert np.percentile(error, 90) < 0.12


@pytest.mark.parametrize("name", NODES)
def test_large_collectives_in_a_node_have_a_median_error_below_20_percent(name):
    cluster = load_cluster(NODES[name])
    table = [r for r in rows("nccl_one_node.csv", name) if float(r["nbytes"]) >= 2**26]
    error = errors(
        table,
        lambda r: tensor_parallel_seconds(
            Collective(r["collective"]), float(r["nbytes"]), int(r["num_gpus"]), cluster
        ),
    )
    assert np.median(error) < 0.2


@pytest.mark.parametrize("name", preset_names("gpus"))
def test_presets_reach_between_half_and_all_of_their_peak(name):
    gpu = load_gpu(name)
    dtype = "bf16" if "bf16" in gpu.peak_flops else "fp16"
    flops = 2 * 8192.0**3 / gemm_seconds(8192, 8192, 8192, gpu, dtype=dtype)
    assert 0.5 < flops / gpu.peak_flops[dtype] < 0.9
    assert gpu.source


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096))
def test_products_never_beat_the_peak_or_the_memory(m, n, k):
    gpu = load_gpu("h100-sxm")
    seconds = gemm_seconds(m, n, k, gpu)
    assert seconds > 2 * m * n * k / gpu.peak_flops["bf16"]
    assert seconds > 2 * (m * k + k * n + m * n) / gpu.memory_bandwidth


def test_reduce_scatter_and_all_gather_send_what_an_all_reduce_sends():
    halves = [Collective.REDUCE_SCATTER, Collective.ALL_GATHER]
    for n in (1, 2, 3, 8):
        whole = bytes_on_wire(Collective.ALL_REDUCE, 1e9, n)
        assert sum(bytes_on_wire(half, 1e9, n) for half in halves) == pytest.approx(whole)


def test_a_group_of_one_costs_nothing():
    port = Link(bandwidth=1e9, latency=1e-6)
    assert collective_latency(Collective.ALL_REDUCE, 1, 1, port, port) == 0
    assert collective_seconds(Collective.ALL_REDUCE, 1e9, 1, 1, port, port) == 0


def test_tree_latency_grows_with_the_logarithm_of_the_nodes():
    port, nic = Link(bandwidth=1e9, latency=3e-6), Link(bandwidth=1e9, latency=14e-6)
    latency = [collective_latency(Collective.ALL_REDUCE, n, n, port, nic) for n in (64, 128)]
    assert latency[1] - latency[0] == pytest.approx(2 * 14e-6)


def test_tensor_parallelism_over_two_nodes_is_bound_by_the_nics():
    cluster = load_cluster("selene").model_copy(update={"num_nodes": 2})
    inside = tensor_parallel_seconds(Collective.ALL_REDUCE, 1e9, 8, cluster)
    across = tensor_parallel_seconds(Collective.ALL_REDUCE, 1e9, 16, cluster)
    wire = bytes_on_wire(Collective.ALL_REDUCE, 1e9, 16)
    assert across > wire / (8 * 25e9)
    assert across > inside


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bytes_on_wire(Collective.ALL_REDUCE, -1, 2), "use at least 0 bytes"),
        (lambda: bytes_on_wire(Collective.ALL_REDUCE, 1, 0), "at least one GPU"),
        (
            lambda: collective_latency(
                Collective.ALL_GATHER,
                2,
                4,
                Link(bandwidth=1, latency=0),
                Link(bandwidth=1, latency=0),
            ),
            "2 GPUs on 4 nodes",
        ),
        (
            lambda: collective_seconds(
                Collective.ALL_GATHER,
                1.0,
                2,
                2,
                Link(bandwidth=1, latency=0),
                Link(bandwidth=1, latency=0),
                0,
            ),
            "nics_share is 0",
        ),
    ],
)
def test_bad_groups_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
