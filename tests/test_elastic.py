"""PipeTransformer: layers freeze, the pipeline shrinks, replicas double; checked against a log."""

import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.load import job_from_options
from simulator.planners.balanced import balanced_split
from simulator.planners.elastic import (
    active_costs,
    elastic_run,
    frozen_layers,
    replicas_in_nodes,
)
from simulator.planners.layerwise import layerwise
from simulator.schedule import Kind
from simulator.simulate import simulate

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "elastic.py"))
JOB = EXAMPLE["job"]()
LAYERS = layerwise(JOB)
RUN = EXAMPLE["logged"]()


@given(st.integers(1, 96), st.floats(0, 0.9), st.integers(1, 30))
def test_the_closed_form_is_the_recursion(layers, alpha, epochs):
    exact, steps = 0.0, []
    for _ in range(epochs):
        steps.append(exact)
        exact += alpha * (layers - exact)
    for whole, step in zip(frozen_layers(layers, alpha, epochs), steps, strict=True):
        assert whole - 1e-6 <= step < whole + 1 + 1e-6


def test_ranks_shrink_8_8_4_4_4_4_2_2_1_1_as_the_log_says():
    assert [phase.pp for phase in RUN] == [8, 8, 4, 4, 4, 4, 2, 2, 1, 1]
    assert all(phase.pp * phase.dp == 16 for phase in RUN)


@pytest.mark.parametrize(("epoch", "measured"), [(0, 430), (2, 600), (4, 1780), (7, 3850)])
def test_throughput_is_within_15_percent_of_the_log(epoch, measured):
    assert RUN[epoch].rate == pytest.approx(measured, rel=0.15)


def test_with_the_fastest_number_of_microbatches_it_would_be_25_to_53_percent_faster():
    best = elastic_run(JOB, EXAMPLE["LOGGED"], EXAMPLE["CIFAR"])
    rates = [round(best[epoch].rate) for epoch in (0, 2, 4, 7)]
    assert rates == [659, 786, 2289, 4799]  # as docs/elastic.md says


def test_the_run_takes_within_10_percent_of_the_logs_599_s_less_28_s_of_start_up():
    assert sum(phase.epoch_time for phase in RUN) == pytest.approx(599 - 28, rel=0.1)


def test_speed_ups_of_the_swept_alphas_enclose_the_published_2_83():
    plain = sum(p.epoch_time for p in elastic_run(JOB, (0,) * 10, EXAMPLE["IMAGENET"]))
    gains = []
    for alpha in (0.2, 0.5):
        run = elastic_run(JOB, frozen_layers(12, alpha, 10), EXAMPLE["IMAGENET"], transition=28.0)
        gains.append(plain / sum(phase.epoch_time for phase in run))
    assert gains[0] < 2.83 < gains[1]


def test_the_step_of_a_pipeline_that_freezes_nothing_is_the_simulators():
    job = job_from_options(
        {
            "model": "gpt-1-7b",
            "cluster": "dgx-a100",
            "pp": 8,
            "num_microbatches": 16,
            "schedule": "gpipe",
        }
    )
    layers = layerwise(job)
    counts = balanced_split(layers.seconds[[Kind.F, Kind.B]].sum(axis=0).tolist(), 8)
    counts = (counts[0] - 1, *counts[1:-1], counts[-1] - 1)  # without the embedding and the head
    plan = job.plan.model_copy(update={"layers_per_stage": counts})
    model = job.model.model_copy(update={"tie_word_embeddings": False})
    job = job.model_copy(update={"plan": plan, "model": model})
    [phase] = elastic_run(job, (0,), 16, microbatches_per_rank=(2,))
    assert phase.step_time == pytest.approx(simulate(job).report.step_time, rel=1e-3)


@pytest.mark.parametrize(("frozen", "pp"), [(1, 8), (6, 4), (10, 2), (12, 1)])
def test_a_frozen_layer_has_a_forward_and_no_backward(frozen, pp):
    costs = active_costs(JOB, LAYERS, frozen, 0, pp)
    assert costs.seconds[Kind.F].sum() == pytest.approx(LAYERS.seconds[Kind.F].sum())
    left = LAYERS.seconds[Kind.B, frozen + 1 :].sum()
    assert costs.seconds[Kind.B].sum() == pytest.approx(left)
    assert costs.gradient_bytes.sum() == pytest.approx(LAYERS.gradient_bytes[frozen + 1 :].sum())


def test_a_cached_layer_has_no_forward_but_a_read_over_the_port():
    costs = active_costs(JOB, LAYERS, 8, 8, 4)
    port = JOB.cluster.intra_node
    read = port.latency + 2 * 40 * 197 * 768 / port.bandwidth  # 40 images in 16 bits on half a port
    left = LAYERS.seconds[Kind.F, 9:].sum()
    assert costs.seconds[Kind.F].sum() == pytest.approx(left + read)


def test_layers_that_froze_this_epoch_run_behind_the_cache():
    both = active_costs(JOB, LAYERS, 8, 6, 4).seconds[Kind.F, 0]
    cached = active_costs(JOB, LAYERS, 8, 8, 4).seconds[Kind.F, 0]
    assert both - cached == pytest.approx(2 * LAYERS.seconds[Kind.F, 5])


def test_more_frozen_layers_are_never_slower():
    phases = elastic_run(JOB, tuple(range(13)), 50_000)
    rates = [phase.rate for phase in phases]
    assert rates == sorted(rates)


def test_freezing_nothing_changes_nothing():
    phases = elastic_run(JOB, frozen_layers(12, 0.0, 3), 50_000, transition=100.0)
    assert len(set(phases)) == 1


def test_replicas_in_nodes_reduce_over_the_nic_and_alone_over_the_ports():
    fabric = replicas_in_nodes(JOB.cluster, 8, 2)
    assert {link for ring in fabric.reduces.values() for link in ring.route.links} == {16}
    one = JOB.cluster.model_copy(update={"num_nodes": 1})
    assert replicas_in_nodes(one, 4, 2).reduces[3].route.links == (6,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frozen_layers(12, 1.0, 3), "use 0 <= alpha < 1"),
        (lambda: elastic_run(JOB, (6, 0), 100), "must not become fewer"),
        (lambda: active_costs(JOB, LAYERS, 13, 0, 1), "the model has 12"),
        (lambda: active_costs(JOB, LAYERS, 4, 6, 1), "cached <= frozen"),
        (lambda: replicas_in_nodes(JOB.cluster, 3, 5), "do not fill 2 nodes"),
        (
            lambda: elastic_run(JOB, (0,), 100, microbatches_per_rank=(3,)),
            "cannot be cut into 8 microbatches",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
