"""Parameters, activations and memory over time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs import estimate, uniform
from simulator.costs.activations import (
    core_bytes,
    embedding_bytes,
    head_bytes,
    layer_bytes,
    saved_layer_bytes,
    weight_grad_bytes,
)
from simulator.costs.memory import (
    layer_parameters,
    memory_samples,
    stage_parameters,
    static_bytes,
)
from simulator.job import Job, Model, Plan
from simulator.load import load_cluster
from simulator.schedule import Kind
from tests.timelines import compiled, odd, of_rows, rows_of

B, S, H, A, V, TP = 2, 64, 128, 16, 512, 4
SBH = B * S * H


def job_of(model=None, layers=8, **plan):
    sizes = {
        "name": "GPT",
        "num_hidden_layers": layers,
        "hidden_size": H,
        "num_attention_heads": A,
        "vocab_size": V,
        "seq_len": S,
        "bias": True,
        "norm": "layernorm",
        "dropout": True,
        "learned_positions": True,
        "tie_word_embeddings": True,
    }
    values = {"micro_batch_size": B, "attention": "eager", **plan}
    cluster = load_cluster("selene").model_copy(update={"num_nodes": 64})
    return Job(model=Model(**sizes | (model or {})), cluster=cluster, plan=Plan(**values))


CORE = 5 * A * S / H
TABLE_2 = {
    "no parallelism": ({}, 34 + CORE),
    "tensor": ({"tp": TP}, 10 + 24 / TP + CORE / TP),
    "tensor and sequence": ({"tp": TP, "sequence_parallel": True}, (34 + CORE) / TP),
    "tensor, selective": ({"tp": TP, "recompute": "selective"}, 10 + 24 / TP),
    "tensor and sequence, selective": (
        {"tp": TP, "sequence_parallel": True, "recompute": "selective"},
        34 / TP,
    ),
    "full": ({"tp": TP, "recompute": "full"}, 2),
}


@pytest.mark.parametrize(("plan", "expected"), TABLE_2.values(), ids=TABLE_2)
def test_activations_equal_table_2_of_korthikanti(plan, expected):
    assert saved_layer_bytes(job_of(**plan)) == SBH * expected


# layers, hidden, heads, pp, vpp, b; GiB of weights and optimizer, of baseline, of present work
FIGURE_1 = [
    (48, 6144, 64, 1, 1, 4, 45.5625, 59.25, 9.5625),
    (96, 12288, 96, 8, 3, 1, 45.5625, 66.84375, 12.3515625),
    (105, 20480, 128, 35, 3, 1, 31.640625, 114.0234375, 23.076171875),
    (128, 25600, 160, 64, 1, 1, 32.958984375, 131.25, 26.5625),
]


@pytest.mark.parametrize("row", FIGURE_1, ids=["22B", "175B", "530B", "1T"])
def test_first_stage_activations_equal_figure_1_of_korthikanti(row):
    layers, hidden, heads, pp, vpp, b, static, baseline, present = row
    in_flight = layers * (1 + (pp - 1) / (pp * vpp) if vpp > 1 else 1)
    model = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "seq_len": 2048,
        "vocab_size": 51200,
    }
    shape = {"micro_batch_size": b, "pp": pp, "vpp": vpp, "tp": 8}
    plain = job_of(model, **shape)
    saving = job_of(model, sequence_parallel=True, recompute="selective", **shape)
    assert in_flight * saved_layer_bytes(plain) / 2**30 == pytest.approx(baseline, rel=1e-12)
    assert in_flight * saved_layer_bytes(saving) / 2**30 == pytest.approx(present, rel=1e-12)
    assert 18 * 12 * layers * hidden**2 / (8 * pp) / 2**30 == pytest.approx(static, rel=1e-12)


def test_first_and_last_stage_keep_the_extra_terms_of_section_4_3():
    job = job_of(tp=TP, sequence_parallel=True)
    assert embedding_bytes(job) == SBH / TP
    assert head_bytes(job) == 4 * SBH / TP * (1 + V / H)
    costs = estimate(job_of(tp=TP, sequence_parallel=True, pp=4))
    layers = 2 * saved_layer_bytes(job)
    assert costs.activation_bytes.tolist() == [
        layers + embedding_bytes(job),
        layers,
        layers,
        layers + head_bytes(job),
    ]


def test_weight_gradient_holds_32_sbh_as_zero_bubble_table_1():
    assert weight_grad_bytes(job_of()) == 32 * SBH
    costs = estimate(job_of(pp=4))
    assert costs.input_grad_bytes[1] == 2 * SBH * (2 + CORE)


def test_flash_attention_keeps_one_fp32_a_row_and_no_score_matrix():
    job = job_of(attention="flash")
    assert core_bytes(job) == 4 * B * S * A
    assert layer_bytes(job) == 34 * SBH + 4 * B * S * A


def test_without_dropout_eager_attention_keeps_the_softmax_alone():
    assert core_bytes(job_of({"dropout": False})) == 2 * B * A * S * S


def test_llama_layer_by_hand():
    llama = {
        "num_key_value_heads": 4,
        "intermediate_size": 320,
        "gated_mlp": True,
        "bias": False,
        "norm": "rmsnorm",
        "dropout": False,
        "learned_positions": False,
        "tie_word_embeddings": False,
    }
    job = job_of(llama, attention="flash")
    keys = 4 * 8
    wide = 2 * H + 2 * keys + 3 * 320
    assert layer_bytes(job) == 2 * B * S * (4 * H + wide) + 4 * B * S * A
    assert layer_parameters(job.model) == 2 * H * H + 2 * H * keys + 3 * H * 320 + 2 * H


def test_stage_parameters_add_up_to_equation_2_of_sc21_and_the_final_norm():
    job = job_of()
    equation_2 = 12 * 8 * H**2 * (1 + 13 / (12 * H) + (V + S) / (12 * 8 * H))
    assert sum(stage_parameters(job)) == pytest.approx(equation_2 + 2 * H, rel=1e-12)


def test_pipeline_copies_the_tied_embedding_to_the_last_stage():
    one, four = stage_parameters(job_of()), stage_parameters(job_of(pp=4))
    assert sum(four) == sum(one) + V * H


def test_static_bytes_are_18_a_parameter_and_zero_splits_12_of_them():
    plain, zero = estimate(job_of(dp=4)), estimate(job_of(dp=4, zero_stage=1))
    parameters = stage_parameters(job_of())[0]
    total = plain.weight_bytes + plain.gradient_bytes + plain.optimizer_bytes
    assert total.tolist() == [18 * parameters]
    assert zero.optimizer_bytes.tolist() == [3 * parameters]
    assert zero.unshard_bytes.tolist() == [2 * parameters]
    assert estimate(job_of(dtype="fp16", grad_dtype="fp16")).gradient_bytes[0] == 2 * parameters


def test_split_backward_frees_in_two_steps_and_recomputation_is_transient():
    costs = uniform(2, 1.0, 2.0)
    for name, value in (("weight_bytes", 100), ("input_grad_bytes", 0.25), ("transient_bytes", 7)):
        object.__setattr__(costs, name, np.full(2, float(value)))
    timeline = of_rows(
        [(0, 0, Kind.F, 0, 0, 1), (0, 0, Kind.I, 0, 2, 3), (0, 0, Kind.W, 0, 3, 4),
         (1, 1, Kind.F, 0, 1, 2), (1, 1, Kind.B, 0, 2, 4)]
    )  # fmt: skip
    memory = memory_samples(timeline, costs)
    time_0, level_0 = memory.memory_of(0)
    assert time_0.tolist() == [0, 2, 3, 4]
    assert level_0.tolist() == [101, 108, 100.75, 100]
    time_1, level_1 = memory.memory_of(1)
    assert time_1.tolist() == [0, 1, 2, 4]
    assert level_1.tolist() == [100, 101, 108, 100]


def test_a_rank_that_holds_two_stages_starts_with_both():
    costs = estimate(job_of(pp=2, vpp=2))
    timeline = of_rows([(0, 0, Kind.F, 0, 1, 2), (0, 2, Kind.F, 0, 2, 3), (1, 1, Kind.F, 0, 2, 3),
                      (1, 3, Kind.F, 0, 3, 4)])  # fmt: skip
    static = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    memory = memory_samples(timeline, costs)
    assert [memory.memory_of(rank)[1][0] for rank in (0, 1)] == [
        static[0] + static[2] + costs.fixed_bytes[0],
        static[1] + static[3] + costs.fixed_bytes[0],
    ]


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 100))
def test_memory_equals_adding_up_every_change(pp, m, seed):
    rng = np.random.default_rng(seed)
    costs = estimate(job_of(layers=12, pp=pp, recompute="selective", tp=2))
    rows = []
    for rank in range(pp):
        clock = 0.0
        for kind in (Kind.F, Kind.B):
            for microbatch in range(m):
                start = clock + rng.integers(0, 2)
                clock = float(start + rng.integers(1, 3))
                rows.append((rank, rank, kind, microbatch, start, clock))
    memory = memory_samples(of_rows(rows), costs)
    for rank in range(pp):
        times, levels = memory.memory_of(rank)
        assert times[0] == 0
        assert (np.diff(times) > 0).all()
        base = costs.weight_bytes[rank] + costs.gradient_bytes[rank] + costs.optimizer_bytes[rank]
        base += costs.fixed_bytes[0]
        for now, level in zip(times, levels, strict=True):
            ahead = [r for r in rows if r[0] == rank]
            live = sum(r[4] <= now for r in ahead if r[2] == Kind.F)
            live -= sum(r[5] <= now for r in ahead if r[2] == Kind.B)
            running = sum(r[4] <= now < r[5] for r in ahead if r[2] == Kind.B)
            expected = live * costs.activation_bytes[rank] + running * costs.transient_bytes[rank]
            assert level == pytest.approx(base + expected, rel=1e-9)


def test_gradients_that_products_do_not_add_up_take_2_bytes_more():
    fused, apart = (
        static_bytes(1.0, job_of(attention="flash", framework=name))
        for name in ("megatron-core", "nanotron")
    )
    assert (sum(fused), sum(apart)) == (18, 20)


def test_the_loss_holds_its_gradients_beside_the_logits_while_the_last_backward_runs():
    costs = estimate(job_of(pp=2, tp=2))
    logits = B * S * V / 2
    assert costs.transient_bytes[-1] == 6 * logits
    assert costs.transient_bytes[0] == 0


def test_a_stage_may_hold_the_head_alone():
    costs = estimate(job_of(pp=2, layers_per_stage=(8, 0)))
    assert costs.weight_bytes[1] == 2 * (V * H + 2 * H)
    assert (costs.seconds[Kind.B] > 0).all()
    assert np.isfinite(costs.pair_time).all()


def test_costs_of_another_plan_are_refused():
    with pytest.raises(ValueError, match="2 stages, but the costs have 1"):
        memory_samples(of_rows([(0, 1, Kind.F, 0, 0, 1)]), uniform(1, 1.0, 1.0))


@given(st.integers(0, 10_000))
def test_memory_of_odd_timelines_equals_adding_up_every_change_compiled_or_not(seed):
    timeline, rng = odd(seed), np.random.default_rng(seed)
    names = ("activation_bytes", "input_grad_bytes", "transient_bytes", "weight_bytes")
    draws = {name: rng.integers(0, 3, timeline.num_stages).astype(float) for name in names}
    costs = replace(
        uniform(timeline.num_stages, 1.0, 2.0), slice_tokens=np.array([0.25, 0.75]), **draws
    )
    activation, input_grad, transient, weight = draws.values()
    changes = [[] for _ in range(timeline.num_ranks)]
    for rank, stage, kind, microbatch, start, end in rows_of(timeline):
        share = (0.25, 0.75)[microbatch % 2]
        begins, ends = {
            Kind.F: (activation[stage], 0.0),
            Kind.B: (transient[stage], -activation[stage] - transient[stage]),
            Kind.I: (transient[stage], -input_grad[stage] - transient[stage]),
            Kind.W: (0.0, input_grad[stage] - activation[stage]),
        }.get(kind, (0.0, 0.0))
        changes[rank] += [(start, begins * share), (end, ends * share)]
    memory = memory_samples(timeline, costs)
    with compiled():
        again = memory_samples(timeline, costs)
    assert memory == again
    assert (np.diff(memory.memory_rank) >= 0).all()
    for rank, mine in enumerate(changes):
        held = np.unique(timeline.stage[timeline.rank == rank])
        times, levels = memory.memory_of(rank)
        assert times.tolist() == sorted({0.0} | {time for time, nbytes in mine if nbytes})
        expected = [sum(x for when, x in mine if when <= now) for now in times.tolist()]
        np.testing.assert_allclose(levels, weight[held].sum() + expected, atol=1e-9)
        assert memory.peak_memory()[rank] == max(levels.max(), 0.0)
