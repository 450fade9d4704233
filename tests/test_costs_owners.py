"""ZeRO that deals out whole weights: sums for all, and one broadcast from each owner."""

import numpy as np
import pytest

from simulator.costs.communication import Collective, group_of, group_seconds
from simulator.costs.owners import owner_pace, sums_everywhere
from simulator.costs.sharding import whole_buffers
from simulator.load import job_from_options
from simulator.simulate import simulate

PARAMETERS = 6.7e9


def job(gpus, framework="internlm", **options):
    """Llama 2 7B, data-parallel over nodes of 8 GPUs and four 100 Gb/s NICs."""
    return job_from_options(
        {
            "model": "llama2-7b",
            "cluster": "cloud-a100-4x100",
            "gpus": gpus,
            "framework": framework,
            "zero_stage": 1,
            "dtype": "bf16",
            "global_batch_size": gpus,
        }
        | options
    )


def test_broadcasts_are_as_many_small_gathers_as_there_are_weights_in_32_layers():
    many = job(1024)
    group = group_of(1024, 1, many.cluster)
    one = group_seconds(Collective.ALL_GATHER, 2 * PARAMETERS / 288, group, many.cluster)
    whole = group_seconds(Collective.ALL_GATHER, 2 * PARAMETERS, group, many.cluster)
    assert owner_pace(PARAMETERS, many) == pytest.approx(288 * one / whole)
    assert owner_pace(PARAMETERS, many) > 3


def test_broadcasts_over_the_8_gpus_of_a_node_take_a_fifth_more_at_most():
    assert 1 < owner_pace(PARAMETERS, job(1024, shard_size=8)) < 1.2


def test_a_step_on_1024_gpus_is_longer_where_owners_are_all_of_them():
    over_all, over_nodes = (simulate(job(1024, shard_size=n)).report for n in (1024, 8))
    assert over_all.step_time > 1.2 * over_nodes.step_time


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-core", "nanotron"])
def test_other_frameworks_split_weights_evenly(framework):
    even = job(64, framework)
    assert owner_pace(PARAMETERS, even) == 1.0
    assert not sums_everywhere(even)
    assert sums_everywhere(job(64))


def test_buffers_grow_by_the_pace_of_the_weights_alone():
    column = np.array([PARAMETERS])
    reduced, gathered = whole_buffers(column, None, job(1024))
    assert reduced[0] == 2 * PARAMETERS
    assert gathered[0] == pytest.approx(2 * PARAMETERS * owner_pace(PARAMETERS, job(1024)))
