"""Collectives against measured tables and closed forms; which GPUs a group spans."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.communication import (
    EXCHANGE_SHARE,
    NVLS_LATENCY,
    NVLS_SHARE,
    PIPELINING,
    Collective,
    bytes_on_wire,
    collective_seconds,
    group_of,
    group_seconds,
)
from simulator.job import Link
from simulator.load import load_cluster

DATA = Path(__file__).parent / "data" / "kernels"
NODE_OF = {"a100_sxm_80gb": "dgx-a100", "h100_sxm": "dgx-h100", "b200": "dgx-b200"}


def rows(name):
    with (DATA / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def ratio(row):
    cluster = load_cluster(NODE_OF[row["gpu"]])
    group = group_of(int(row["num_gpus"]), 1, cluster)
    seconds = group_seconds(Collective(row["collective"]), float(row["nbytes"]), group, cluster)
    return seconds / (float(row["time_us"]) * 1e-6)


@pytest.mark.parametrize("gpu", NODE_OF)
@pytest.mark.parametrize("collective", [kind.value for kind in Collective])
def test_messages_from_64_mib_have_a_mean_error_below_20_percent(gpu, collective):
    tables = rows("nccl_one_node.csv") + rows("nccl_one_node_more.csv")
    kept = [r for r in tables if r["gpu"] == gpu and r["collective"] == collective]
    ratios = [ratio(row) for row in kept if float(row["nbytes"]) >= 2**26]
    assert len(ratios) >= 12
    assert np.mean(np.abs(np.array(ratios) - 1)) < 0.2


@pytest.mark.parametrize("gpu", NODE_OF)
def test_messages_of_any_size_have_a_mean_error_below_30_percent(gpu):
    tables = rows("nccl_one_node.csv") + rows("nccl_one_node_more.csv")
    ratios = np.array([ratio(row) for row in tables if row["gpu"] == gpu])
    assert np.mean(np.abs(ratios - 1)) < 0.3


def test_all_reduces_over_2_to_8_nodes_with_one_nic_are_within_10_percent_on_average():
    nic = Link(bandwidth=50e9, latency=14e-6, efficiency=0.95)
    port = load_cluster("dgx-h100").intra_node
    ratios = []
    for row in rows("nccl_gh200_vista.csv"):
        nodes = int(row["num_nodes"])
        arguments = (Collective.ALL_REDUCE, float(row["nbytes"]), nodes, nodes, port, nic)
        ratios.append(collective_seconds(*arguments) / (float(row["time_us"]) * 1e-6))
    assert np.mean(np.abs(np.array(ratios) - 1)) < 0.1


def test_gathers_and_scatters_of_256_mb_over_2_to_64_nodes_of_efa_are_within_25_percent():
    cluster = load_cluster("aws-p5")
    ratios = []
    for row in rows("nccl_efa_h100_ultrascale.csv"):
        nodes, kind = int(row["num_nodes"]), Collective(row["collective"])
        if nodes == 1 or kind is Collective.ALL_REDUCE:
            continue
        wire = bytes_on_wire(kind, float(row["nbytes"]), 8 * nodes)
        group = group_of(8 * nodes, 1, cluster)
        seconds = group_seconds(kind, float(row["nbytes"]), group, cluster)
        ratios.append(seconds * float(row["busbw_gbps"]) * 1e9 / wire)
    assert len(ratios) == 12
    assert np.mean(np.abs(np.array(ratios) - 1)) < 0.25


def test_the_switch_sends_each_byte_once_where_a_ring_sends_it_1_75_times():
    cluster = load_cluster("dgx-h100")
    group, nbytes = group_of(8, 1, cluster), 16e9
    port = cluster.intra_node.bandwidth * cluster.intra_node.efficiency
    transfer = nbytes / (NVLS_SHARE * port)
    expected = NVLS_LATENCY + transfer + PIPELINING * (NVLS_LATENCY * transfer) ** 0.5
    assert group_seconds(Collective.ALL_REDUCE, nbytes, group, cluster) == pytest.approx(expected)
    without = cluster.model_copy(update={"switch_reduces": False})
    ring = group_seconds(Collective.ALL_REDUCE, nbytes, group, without)
    assert ring / expected == pytest.approx(1.75 * NVLS_SHARE, rel=0.05)


def test_four_gpus_reduce_in_a_ring_although_the_switch_could():
    cluster = load_cluster("dgx-h100")
    without = cluster.model_copy(update={"switch_reduces": False})
    both = [
        group_seconds(Collective.ALL_REDUCE, 1e9, group_of(4, 1, c), c) for c in (cluster, without)
    ]
    assert both[0] == both[1]


def test_an_exchange_over_8_gpus_sends_seven_eighths_of_the_buffer():
    cluster = load_cluster("dgx-h100")
    port = cluster.intra_node.bandwidth * cluster.intra_node.efficiency
    seconds = group_seconds(Collective.ALL_TO_ALL, 8e9, group_of(8, 1, cluster), cluster)
    assert seconds == pytest.approx(7e9 / (port * EXCHANGE_SHARE), rel=0.01)


def test_an_exchange_over_nodes_is_bound_by_the_nic_that_carries_what_leaves_the_node():
    cluster = load_cluster("dgx-h100")
    nic = cluster.inter_node.bandwidth * cluster.inter_node.efficiency
    seconds = group_seconds(Collective.ALL_TO_ALL, 16e9, group_of(16, 1, cluster), cluster)
    assert seconds == pytest.approx(8e9 / (nic * EXCHANGE_SHARE), rel=0.01)


def test_every_eighth_gpu_of_four_nodes_shares_8_nics_with_7_other_groups():
    cluster = load_cluster("dgx-h100")
    assert group_of(4, 8, cluster) == (4, 4, 1.0)
    assert group_of(8, 2, cluster) == (8, 2, 4.0)
    assert group_of(16, 1, cluster) == (16, 2, 8.0)


@given(
    st.sampled_from(list(Collective)),
    st.floats(1e3, 1e10),
    st.sampled_from([2, 4, 8, 16, 64]),
    st.sampled_from([1, 2, 8]),
)
def test_more_bytes_never_take_less_time(collective, nbytes, num_gpus, stride):
    cluster = load_cluster("dgx-h100")
    group = group_of(num_gpus, stride, cluster)
    less, more = (group_seconds(collective, n, group, cluster) for n in (nbytes, 1.5 * nbytes))
    assert 0 < less <= more


def test_a_link_without_low_latency_protocols_pays_the_whole_hop_for_a_small_message():
    cluster = load_cluster("dgx-h100")
    nic = cluster.inter_node.model_copy(update={"low_latency": False})
    slow = cluster.model_copy(update={"inter_node": nic})
    group = group_of(16, 1, cluster)
    few, all_of_it = (group_seconds(Collective.ALL_GATHER, 1e4, group, c) for c in (cluster, slow))
    assert all_of_it > 8.4e-6 + 2 * 14e-6 + 13 * 2.5e-6 > few
