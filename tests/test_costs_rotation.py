"""PyTorch's context parallelism: what crosses the network, what kernels move, and what hides."""

import pytest

from simulator.costs.communication import Collective, group_of, group_seconds, p2p_seconds
from simulator.costs.context import context_exchange
from simulator.costs.kernels import stream_seconds
from simulator.load import job_from_options

LONG = {"model": "llama3-8b", "cluster": "dgx-h100", "num_nodes": 4, "attention": "flash"}
QUERIES = 4096  # 32 heads of 128, for which 8 heads of keys and values are repeated


def job(seq_len=8192, **plan):
    made = job_from_options(LONG | plan)
    return made.model_copy(update={"model": made.model.model_copy(update={"seq_len": seq_len})})


def test_compiled_each_layer_waits_for_one_gather_and_for_4_blocks_gradients_in_fp32():
    plan = job(framework="torchtitan", cp=4)
    own = 8192 / 4 * QUERIES
    group = group_of(4, 1, plan.cluster)
    gather = group_seconds(Collective.ALL_GATHER, 4 * (2 * 2 * own), group, plan.cluster)
    passed = p2p_seconds(2 * 4 * own, plan.cluster.intra_node)
    found, gpu = context_exchange(plan), plan.cluster.gpu
    assert found.forward == pytest.approx(gather + stream_seconds((12 + 3 * 10 + 8) * own, gpu))
    moved = stream_seconds((30 + 4 * 30 + 8) * own, gpu)
    assert found.backward == pytest.approx(gather + 4 * passed + moved)


def test_uncompiled_long_attention_hides_the_gather_but_kernels_move_3_times_as_much():
    own, gpu = 262144 / 8 * QUERIES, job(cp=8).cluster.gpu
    eager = context_exchange(job(262144, framework="torchtitan-eager", cp=8))
    compiled = context_exchange(job(262144, framework="torchtitan", cp=8))
    streams = [
        stream_seconds(nbytes * own, gpu) for nbytes in (12 + 7 * 38 + 7 * 8, 12 + 7 * 10 + 8)
    ]
    assert streams[0] > 3 * streams[1]
    assert eager.forward - streams[0] < 0.3 * (compiled.forward - streams[1])


def test_passing_wide_keys_in_blocks_takes_longer_than_a_ring_of_narrow_ones():
    ring = context_exchange(job(65536, cp=8))
    blocks = context_exchange(job(65536, framework="torchtitan", cp=8))
    assert blocks.forward > 4 * ring.forward
    assert blocks.backward > 4 * ring.backward
