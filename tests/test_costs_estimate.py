"""Costs of whole jobs: what they must obey whatever the constants are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs import estimate
from simulator.costs.flops import hardware_flops, layer_flops, model_flops
from simulator.job import Job, Model, Plan
from simulator.load import load_cluster, load_model, preset_names
from simulator.schedule import Kind


def job_of(cluster="selene", model="gpt3-175b", **plan):
    values = {"tp": 8, "attention": "eager", "dtype": "fp16", **plan}
    made = Plan(**values)
    node = load_cluster(cluster)
    nodes = -(-made.num_gpus // node.gpus_per_node)
    sized = node.model_copy(update={"num_nodes": nodes})
    return Job(model=load_model(model), cluster=sized, plan=made)


def test_without_tensor_parallelism_b_is_i_plus_w():
    seconds = estimate(job_of(model="gpt-1-7b", tp=1, pp=4)).seconds
    assert seconds[Kind.B] == pytest.approx(seconds[Kind.I] + seconds[Kind.W], rel=1e-12)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_split_backward_loses_the_overlap_of_tensor_communication(sequence_parallel):
    costs = estimate(job_of(pp=8, sequence_parallel=sequence_parallel))
    apart = costs.seconds[Kind.I] + costs.seconds[Kind.W]
    assert (costs.seconds[Kind.B] < apart).all()
    more = costs.tensor_seconds[Kind.I] + costs.tensor_seconds[Kind.W]
    saved = more - costs.tensor_seconds[Kind.B]
    assert apart - costs.seconds[Kind.B] == pytest.approx(saved, rel=1e-9)


def test_recomputation_adds_its_seconds_to_the_backward_alone():
    none = estimate(job_of(pp=8))
    for recompute in ("selective", "full"):
        costs = estimate(job_of(pp=8, recompute=recompute))
        more = costs.seconds[Kind.B] - none.seconds[Kind.B]
        communication = costs.tensor_seconds[Kind.B] - none.tensor_seconds[Kind.B]
        assert more == pytest.approx(costs.recompute_seconds + communication, rel=1e-9)
        assert (costs.seconds[[Kind.F, Kind.W]] == none.seconds[[Kind.F, Kind.W]]).all()
    forward = none.seconds[Kind.F, 3] - none.tensor_seconds[Kind.F, 3]
    assert costs.recompute_seconds[3] == pytest.approx(forward, rel=1e-12)


def test_embedding_makes_the_first_stage_and_logits_the_last_slower():
    forward = estimate(job_of(pp=8, vpp=3)).seconds[Kind.F]
    assert np.unique(forward[1:-1]).size == 1
    assert forward[1] < forward[0] < forward[-1]


def test_boundary_is_split_over_tp_by_scatter_gather_or_sequence_parallelism():
    b_s_h = 2 * 2048 * 12288
    whole = estimate(job_of(pp=8, scatter_gather=False))
    scattered = estimate(job_of(pp=8))
    sequence = estimate(job_of(pp=8, sequence_parallel=True))
    assert (whole.boundary_bytes == b_s_h).all()
    assert (scattered.boundary_bytes == b_s_h / 8).all()
    assert (sequence.boundary_bytes == b_s_h / 8).all()
    assert (scattered.boundary_gather > 0).all()
    assert not whole.boundary_gather.any()
    assert not sequence.boundary_gather.any()


def test_gradients_are_reduced_in_the_dtype_they_accumulate_in():
    for dtype, width in (("fp32", 4), ("fp16", 2)):
        costs = estimate(job_of(pp=8, dp=2, grad_dtype=dtype))
        assert (costs.reduce_bytes == width * costs.weight_bytes / 2).all()


def test_tied_embedding_costs_an_all_reduce_on_the_first_and_last_stage():
    costs = estimate(job_of(pp=8))
    first, middle = costs.seconds[Kind.OPTIMIZER, [0, 3]]
    gradient = 4 * 51200 * 12288 / 8
    assert first - middle > gradient / 25e9


def test_zero_divides_the_optimizer_step_but_not_the_zeroing():
    whole = estimate(job_of(pp=8, dp=64, tp=1)).seconds[Kind.OPTIMIZER, 1]
    split = estimate(job_of(pp=8, dp=64, tp=1, zero_stage=1)).seconds[Kind.OPTIMIZER, 1]
    assert split / whole == pytest.approx((54 / 64 + 4) / 58, rel=1e-3)


def test_layers_per_stage_move_time_and_memory():
    costs = estimate(job_of(pp=4, layers_per_stage=(12, 36, 36, 12)))
    ratio = costs.activation_bytes[1] / costs.activation_bytes[0]
    assert 2.9 < ratio < 3
    assert costs.seconds[Kind.F, 1] == costs.seconds[Kind.F, 2]


@given(
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([1, 2, 8]),
    st.booleans(),
    st.sampled_from([1, 4]),
)
def test_every_time_and_size_is_finite_and_not_negative(recompute, tp, sequence_parallel, b):
    costs = estimate(
        job_of(pp=4, vpp=2, tp=tp, dp=2, recompute=recompute, micro_batch_size=b,
               sequence_parallel=sequence_parallel and tp > 1, zero_stage=1)
    )  # fmt: skip
    for name in costs.__dataclass_fields__:
        column = getattr(costs, name)
        assert np.isfinite(column).all()
        assert (column >= 0).all() or name == "input_grad_bytes"
    assert (costs.tensor_seconds <= costs.seconds).all()
    assert (costs.input_grad_bytes <= costs.activation_bytes).all()


@given(st.sampled_from([1, 2, 4]))
def test_twice_the_microbatch_takes_at_most_twice_the_time(b):
    once, twice = (estimate(job_of(pp=8, micro_batch_size=size)) for size in (b, 2 * b))
    for kind in (Kind.F, Kind.B):
        assert (once.seconds[kind] < twice.seconds[kind]).all()
        assert (twice.seconds[kind] < 2.02 * once.seconds[kind]).all()


def test_no_stage_beats_the_peak():
    job = job_of(pp=8, sequence_parallel=True)
    seconds = estimate(job).seconds[[Kind.F, Kind.B]].sum()
    flops = model_flops(job.model, 1) / 8
    assert 0.5 < flops / seconds / 312e12 < 0.8


def test_a_small_layer_takes_as_long_as_the_host_needs_to_issue_it():
    """Bang et al., vTrain, MICRO 2024, look-up data: 3.1 to 3.5 ms on A100, tp = 1, 2 and 4."""
    small = Model(
        name="GPT",
        num_hidden_layers=24,
        hidden_size=1024,
        num_attention_heads=16,
        vocab_size=51200,
        seq_len=1024,
        learned_positions=True,
        bias=True,
        norm="layernorm",
        dropout=True,
    )
    for tp in (1, 2, 4):
        plan = Plan(pp=3, tp=tp, dtype="fp16", attention="eager", recompute="full")
        cluster = load_cluster("dgx-a100").model_copy(update={"num_nodes": 2})
        seconds = estimate(Job(model=small, cluster=cluster, plan=plan)).seconds
        layer = (seconds[Kind.F] + seconds[Kind.B])[1] / 8
        operators = 14 if tp == 1 else 16  # with two collectives
        assert layer == pytest.approx(operators * 62e-6 * 3.5, rel=1e-9)
        assert 3.0e-3 < layer < 3.5e-3


@pytest.mark.parametrize("name", preset_names("models"))
def test_every_model_preset_has_costs_on_h100(name):
    model = load_model(name)
    cluster = load_cluster("dgx-h100").model_copy(update={"num_nodes": 1})
    tp = min(8, model.num_key_value_heads)
    plan = Plan(tp=tp, sequence_parallel=True, micro_batch_size=4)
    costs = estimate(Job(model=model, cluster=cluster, plan=plan))
    forward = costs.seconds[Kind.F, 0]
    flops = model_flops(model, 4) / 3 / tp
    assert 0.1 < flops / forward / 989e12 < 0.8


def test_estimate_is_deterministic():
    job = job_of(pp=8, vpp=3, recompute="selective", sequence_parallel=True)
    first, again = estimate(job), estimate(job)
    for name in first.__dataclass_fields__:
        assert np.array_equal(getattr(first, name), getattr(again, name))


def test_selective_overhead_of_gpt3_is_the_strict_attention_core():
    job = job_of(pp=8, recompute="selective", num_microbatches=64)
    model = job.model
    core = 4 * 2048**2 * 12288 * 96 * 64
    assert hardware_flops(job) - model_flops(model, 64) == core
    assert core / model_flops(model, 64) == pytest.approx(0.009, abs=5e-4)


def test_grouped_query_attention_and_swiglu_by_hand():
    llama = Model(
        name="llama",
        num_hidden_layers=1,
        hidden_size=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=10,
        vocab_size=16,
        seq_len=3,
        gated_mlp=True,
    )
    assert layer_flops(llama) == {
        "qkv": 2 * 3 * 8 * (8 + 4 + 4),
        "core": 4 * 3 * 3 * 8,
        "projection": 2 * 3 * 8 * 8,
        "mlp": 3 * 2 * 3 * 8 * 10,
    }


def test_flops_of_no_sequence_are_refused():
    with pytest.raises(ValueError, match="num_sequences is 0"):
        model_flops(load_model("gpt3-175b"), 0)


def test_an_overlapped_pair_hides_tensor_parallel_communication_and_nothing_else():
    alone, split = estimate(job_of(pp=8, tp=1)), estimate(job_of(pp=8, tp=8))
    assert (alone.pair_time == 1).all()
    whole = split.seconds[Kind.F] + split.seconds[Kind.B]
    exposed = split.tensor_seconds[Kind.F] + split.tensor_seconds[Kind.B]
    assert (split.pair_time < 1).all()
    assert (split.pair_time * whole > whole - exposed).all()
