"""Attention in a window of the sequence: its scores, FLOP, time, and what is refused."""

import re
from functools import partial

import numpy as np
import pytest

from simulator.accuracy.outside import outside
from simulator.costs.attention import core_operators
from simulator.costs.flops import attention_core_flops, hardware_flops, model_flops
from simulator.costs.kernels import flash_seconds
from simulator.costs.layers import layer_costs
from simulator.job import Job, Model, Plan
from simulator.load import load_cluster
from simulator.simulate import simulate

MISTRAL = Model(
    name="Mistral 7B",
    num_hidden_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14336,
    vocab_size=32000,
    seq_len=32768,
    gated_mlp=True,
    sliding_window=4096,
)


def with_window(window, full=0):
    sizes = {"sliding_window": window, "num_full_attention_layers": full}
    return Model.model_validate(MISTRAL.model_dump() | sizes)


def job_of(model, cluster="dgx-h100", **plan):
    made = Plan(**{"attention": "flash"} | plan)
    node = load_cluster(cluster)
    nodes = -(-made.num_gpus // node.gpus_per_node)
    return Job(model=model, cluster=node.model_copy(update={"num_nodes": nodes}), plan=made)


@pytest.mark.parametrize("window", [1, 64, 500, 1024, 4096])
def test_the_reach_is_the_share_of_the_pairs_that_a_mask_of_1024_tokens_leaves(window):
    token, other = np.ogrid[:1024, :1024]
    causal = other <= token
    inside = causal & (token - other < window)
    model = Model.model_validate(MISTRAL.model_dump() | {"seq_len": 1024, "sliding_window": window})
    # the formula counts a token's own pair half: one in 2 x 1024 of the causal pairs
    assert model.window_reach == pytest.approx(inside.sum() / causal.sum(), abs=1 / 1024)


def test_mistrals_window_of_4096_leaves_15_of_64_scores_of_32768_tokens():
    whole = attention_core_flops(with_window(None))
    assert attention_core_flops(MISTRAL) / whole == 15 / 64  # 1 - (1 - 1 / 8)^2
    assert attention_core_flops(with_window(4096, full=16)) / whole == (15 / 64 + 1) / 2


def test_a_window_as_long_as_the_sequence_changes_nothing():
    for window in (32768, 40000):
        assert layer_costs(job_of(with_window(window))) == layer_costs(job_of(with_window(None)))


def test_model_flops_and_hardware_flops_lose_what_the_window_leaves_out():
    windowed, whole = (job_of(model, recompute="full") for model in (MISTRAL, with_window(None)))
    lost = 32 * 2 * 32768**2 * 2 * 4096 * (1 - 15 / 64)  # forward, of 32 layers and one sequence
    assert model_flops(whole.model, 1) - model_flops(MISTRAL, 1) == pytest.approx(3 * lost)
    assert hardware_flops(whole) - hardware_flops(windowed) == pytest.approx(4 * lost)


def test_a_flash_kernel_takes_the_time_of_its_blocks_in_the_window_counted_one_by_one():
    job = job_of(MISTRAL, "dgx-a100")
    gpu, tokens = job.cluster.gpu, MISTRAL.seq_len
    rows = columns = gpu.flash_rows
    first = np.arange(0, tokens, rows)[:, None]  # first token of each row of blocks
    block = np.arange(0, tokens, columns)[None, :]
    causal = block <= first + rows - 1
    inside = causal & (block + columns - 1 >= first - 4096 + 1)
    (found,) = core_operators(job)
    (whole,) = core_operators(job_of(with_window(None), "dgx-a100"))
    assert found.forward / whole.forward == pytest.approx(inside.sum() / causal.sum(), rel=0.03)
    assert found.input_grad / found.forward == pytest.approx(whole.input_grad / whole.forward)


def test_layers_with_and_without_a_window_take_their_mean():
    times = [core_operators(job_of(with_window(1024, full=full)))[0].forward for full in (0, 8, 16)]
    (whole,) = core_operators(job_of(with_window(None)))
    assert times[1] == pytest.approx((24 * times[0] + 8 * whole.forward) / 32)
    assert times[2] == pytest.approx((times[0] + whole.forward) / 2)


def test_a_kernel_of_4096_keys_costs_no_less_than_its_window_of_4096_in_each_of_8_parts():
    gpu = load_cluster("dgx-a100").gpu
    seconds = partial(flash_seconds, gpu=gpu, head_dim=128)
    (found,) = core_operators(job_of(MISTRAL, "dgx-a100"))
    # 15 halves of 4096 x 4096: 8 triangles on the diagonal and 7 at the edge
    assert found.forward == pytest.approx(15 * seconds(32, 4096), rel=0.12)


def test_eager_attention_computes_the_whole_matrix_and_masks_it():
    windowed, whole = (
        core_operators(job_of(model, attention="eager")) for model in (MISTRAL, with_window(None))
    )
    assert windowed == whole


def test_a_step_of_32768_tokens_loses_the_time_of_its_kernels_alone_and_its_mfu_their_flops():
    jobs = [
        job_of(model, tp=8, num_microbatches=4, recompute="full")
        for model in (MISTRAL, with_window(None))
    ]
    windowed, whole = (simulate(job).report for job in jobs)
    near, far = (core_operators(job)[0] for job in jobs)
    lost = 2 * (far.forward - near.forward) + far.input_grad - near.input_grad
    assert whole.step_time - windowed.step_time == pytest.approx(4 * 32 * lost)
    flops = model_flops(MISTRAL, 4) / windowed.step_time / 8
    assert windowed.tflops_per_gpu == pytest.approx(flops / 1e12)


def test_a_job_in_a_window_says_that_none_was_measured():
    says = "no measured run of a dense model attends to a window of its sequence"
    assert says in outside(job_of(MISTRAL))
    assert says not in outside(job_of(with_window(None)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: with_window(None, full=4),
            "model.num_full_attention_layers is 4, but model.sliding_window is left out, so that "
            "all layers are full; state the window, or leave both out",
        ),
        (
            lambda: with_window(4096, full=32),
            "model.num_full_attention_layers is 32 of 32 layers, so that none has a window",
        ),
        (
            lambda: job_of(MISTRAL, cp=2),
            "model.sliding_window is 4096 and plan.cp is 2: a ring passes all keys on, and kernels "
            'in it know no window; use cp_comm = "all_gather", or cp = 1',
        ),
        (
            lambda: simulate(job_of(MISTRAL, schedule="terapipe", pp=2, num_slices=4)),
            "model.sliding_window is 4096, but slices of attention in a window are not costed yet",
        ),
    ],
)
def test_refusal_names_the_window_the_rule_and_the_way_out(make, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        make()


def test_gathered_keys_allow_a_window_with_context_parallelism():
    alone, split = (
        core_operators(job_of(MISTRAL, **plan))[0].forward
        for plan in ({}, {"cp": 2, "cp_comm": "all_gather"})
    )
    assert split == pytest.approx(alone / 2, rel=0.03)
