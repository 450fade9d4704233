"""The optimal partition of a graph: brute force, chains, and a transformer's own operators."""

import itertools
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.costs import estimate
from simulator.load import job_from_options
from simulator.planners.balanced import balanced_layers, balanced_split
from simulator.planners.operator_graph import operator_graph
from simulator.planners.tarnawski import Graph, ideals, load, tarnawski
from simulator.schedule import Kind

ROOT = Path(__file__).parent.parent


@st.composite
def graphs(draw, most=6):
    number = draw(st.integers(1, most))
    pairs = list(itertools.combinations(range(number), 2))
    edges = tuple(pair for pair in pairs if draw(st.booleans()))
    numbers = st.lists(st.integers(0, 9), min_size=number, max_size=number).map(tuple)
    return Graph(draw(numbers), draw(numbers), draw(numbers), edges)


def partitions(graph, num_devices):
    """Every way to place operators so that no edge goes back."""
    number = len(graph.seconds)
    for place in itertools.product(range(num_devices), repeat=number):
        if all(place[a] <= place[b] for a, b in graph.edges):
            yield [[i for i in range(number) if place[i] == d] for d in range(num_devices)]


@settings(deadline=None)
@given(graph=graphs(), num_devices=st.integers(1, 3), memory=st.sampled_from([8, 15, 30, 1000]))
def test_no_contiguous_partition_that_fits_is_better(graph, num_devices, memory):
    fits = [
        max(load(graph, part) for part in parts)
        for parts in partitions(graph, num_devices)
        if all(sum(graph.nbytes[i] for i in part) <= memory for part in parts)
    ]
    if not fits:
        with pytest.raises(ValueError, match="use more devices"):
            tarnawski(graph, num_devices, memory)
        return
    found = tarnawski(graph, num_devices, memory)
    assert found.seconds == min(fits)
    assert max(load(graph, part) for part in found.devices) == found.seconds
    assert [list(part) for part in found.devices] in list(partitions(graph, num_devices))
    assert all(sum(graph.nbytes[i] for i in part) <= memory for part in found.devices)


@given(graph=graphs(most=7))
def test_ideals_are_all_sets_that_hold_what_they_need(graph):
    number = len(graph.seconds)
    every = [
        bits
        for bits in range(2**number)
        if all(bits >> a & 1 or not bits >> b & 1 for a, b in graph.edges)
    ]
    assert sorted(ideals(graph)) == every


@given(seconds=st.lists(st.integers(1, 9), min_size=1, max_size=12), data=st.data())
def test_a_chain_with_free_transfers_is_cut_as_by_the_balanced_programme(seconds, data):
    stages = data.draw(st.integers(1, len(seconds)))
    number = len(seconds)
    free = (0,) * number
    graph = Graph(tuple(seconds), free, free, tuple(itertools.pairwise(range(number))))
    split = balanced_split(seconds, stages)
    sums = [sum(seconds[sum(split[:k]) : sum(split[: k + 1])]) for k in range(stages)]
    assert tarnawski(graph, stages).seconds == max(sums)


def llama(pp, **plan):
    asked = {"model": "llama3-8b", "cluster": "dgx-h100", "pp": pp, "num_nodes": 2}
    return job_from_options(asked | {"num_microbatches": 16, "dp": 1} | plan)


@pytest.mark.parametrize("model", ["llama3-8b", "llama2-7b", "gpt-22b"])
def test_the_operators_of_a_model_take_the_time_of_its_stages(model):
    job = llama(4, model=model)
    total = estimate(job).seconds[[Kind.F, Kind.B]].sum()
    assert sum(operator_graph(job).seconds) == pytest.approx(total, rel=1e-9)


def test_the_graphs_weights_are_those_of_the_stages_but_for_norms_and_positions():
    job = llama(4)
    costs = estimate(job)
    kept = (costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes).sum()
    assert sum(operator_graph(job).nbytes) == pytest.approx(kept, rel=1e-4)


def test_llama3_8b_has_420_operators_and_581_ideals():
    graph = operator_graph(llama(8))
    assert len(graph.seconds) == 1 + 32 * 13 + 3
    # a layer: q, k, v in 8 ways and up, gate in 4 ways instead of one after the other
    assert len(ideals(graph)) == 1 + 1 + 32 * 18 + 3


def test_cut_between_operators_8_ranks_of_llama3_8b_are_7_percent_less_loaded():
    job = llama(8)
    graph = operator_graph(job)
    split = balanced_layers(job)
    ends = [i for i, name in enumerate(graph.names) if name.endswith("mlp residual")]
    cuts = [0, *(ends[sum(split[:k]) - 1] + 1 for k in range(1, 8)), len(graph.names)]
    layers = max(load(graph, range(a, b)) for a, b in itertools.pairwise(cuts))
    assert layers / tarnawski(graph, 8).seconds == pytest.approx(1.073, abs=0.002)


def test_the_authors_bert_24_on_6_accelerators_is_13_percent_faster_than_their_expert():
    graph, expert = runpy.run_path(str(ROOT / "examples" / "planners.py"))["bert_24"]()
    by_hand = max(load(graph, part) for part in expert)
    assert by_hand == pytest.approx(20.084e-3, abs=1e-6)  # 4 layers, pooler, head and one tensor
    # a chain with a shortcut: all partitions are cuts of the row
    between = {(a, b): load(graph, range(a, b)) for a, b in itertools.combinations(range(28), 2)}
    best = min(
        max(between[pair] for pair in itertools.pairwise((0, *cuts, 27)))
        for cuts in itertools.combinations(range(1, 27), 5)
    )
    found = tarnawski(graph, 6, 17185374208.0)
    assert found.seconds == pytest.approx(best, rel=1e-12)
    assert by_hand / found.seconds == pytest.approx(1.129, abs=0.001)


def test_a_graph_that_is_too_wide_is_refused():
    free = (1,) * 14
    with pytest.raises(ValueError, match="14 operators has more than 5,000 ideals"):
        tarnawski(Graph(free, free, free, ()), 2)


def test_edges_that_go_back_are_refused():
    with pytest.raises(ValueError, match="an edge from 1 to 0"):
        Graph((1, 1), (0, 0), (0, 0), ((1, 0),))


def test_a_plan_that_splits_operators_is_refused():
    with pytest.raises(ValueError, match="use tp = 1"):
        operator_graph(llama(4, tp=2))
