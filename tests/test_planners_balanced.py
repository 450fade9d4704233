"""Layers spread over stages: exact, fast, and worth what it says in the simulator."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs import estimate
from simulator.load import job_from_options
from simulator.planners.balanced import (
    Parts,
    balanced_layers,
    balanced_split,
    part_seconds,
    spread,
)
from simulator.schedule import Kind
from simulator.schedules import build, schedules
from simulator.simulate import simulate

LAYERS = st.lists(st.integers(0, 9), min_size=1, max_size=9)


def splits(number, stages):
    """Every way to put layers on stages, at least one each."""
    for cuts in itertools.combinations(range(1, number), stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, number)))


def largest(seconds, split):
    sums, start = [], 0
    for count in split:
        sums.append(sum(seconds[start : start + count]))
        start += count
    return max(sums)


@given(seconds=LAYERS, data=st.data())
def test_the_programme_finds_the_first_of_all_best_splits(seconds, data):
    stages = data.draw(st.integers(1, len(seconds)))
    best = min(splits(len(seconds), stages), key=lambda s: (largest(seconds, s), s))
    assert balanced_split(seconds, stages) == best


def loads(split, groups, parts):
    ends = {0: parts.embedding, len(split) - 1: 0.0}
    ends[len(split) - 1] += parts.head
    return sorted(
        (sum(split[s] * parts.layer + ends.get(s, 0.0) for s in group) for group in groups),
        reverse=True,
    )


@given(
    stages=st.sampled_from([2, 4, 6]),
    extra=st.integers(0, 7),
    embedding=st.integers(0, 3),
    head=st.integers(0, 6),
    kind=st.sampled_from(["straight", "interleaved", "v"]),
)
def test_handing_out_layers_beats_every_other_split(stages, extra, embedding, head, kind):
    half = stages // 2
    groups = {
        "straight": [[s] for s in range(stages)],
        "interleaved": [[r, r + half] for r in range(half)],
        "v": [[r, stages - 1 - r] for r in range(half)],
    }[kind]
    parts = Parts(2.0, float(embedding), float(head))
    found = spread(stages + extra, groups, parts)
    every = [loads(split, groups, parts) for split in splits(stages + extra, stages)]
    assert loads(found, groups, parts) == min(every)  # the busiest rank, then the next


@given(layers=st.integers(4, 30), head=st.integers(0, 8))
def test_alike_layers_take_as_long_as_by_the_programme(layers, head):
    parts = Parts(1.0, 0.5, float(head))
    found = spread(layers, [[0], [1], [2], [3]], parts)
    seconds = [1.5, *[1.0] * (layers - 2), 1.0 + head]
    assert largest(seconds, found) == largest(seconds, balanced_split(seconds, 4))


def llama(**plan):
    asked = {"model": "llama3-8b", "cluster": "dgx-h100", "num_microbatches": 16, "dp": 1} | plan
    return job_from_options(asked)


def test_parts_are_what_the_stages_of_a_job_add_up_to():
    job = llama(pp=4, tp=2, sequence_parallel=True)
    parts = part_seconds(job)
    stages = estimate(job).seconds[[Kind.F, Kind.B]].sum(axis=0)
    assert stages[1] == pytest.approx(8 * parts.layer, rel=1e-12)
    assert stages[0] == pytest.approx(8 * parts.layer + parts.embedding, rel=1e-12)
    assert stages[3] == pytest.approx(8 * parts.layer + parts.head, rel=1e-12)


def test_llama3_8b_over_4_ranks_moves_layers_off_the_head_and_the_step_gets_14_percent_faster():
    even = llama(pp=4)
    split = balanced_layers(even)
    assert split == (8, 9, 9, 6)  # the head is worth 2.75 layers
    balanced = llama(pp=4, layers_per_stage=split)
    gain = simulate(even).report.step_time / simulate(balanced).report.step_time
    assert gain == pytest.approx(1.14, abs=0.02)


@pytest.mark.parametrize("split", [(8, 8, 8, 8), (9, 9, 8, 6), (9, 8, 9, 6), (8, 9, 10, 5)])
def test_no_neighbouring_split_of_llama3_8b_is_faster(split):
    best = simulate(llama(pp=4, layers_per_stage=balanced_layers(llama(pp=4))))
    other = simulate(llama(pp=4, layers_per_stage=split))
    assert best.report.step_time <= other.report.step_time * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name, r in schedules().items() if name != "custom"])
def test_stages_that_share_a_rank_are_those_of_the_schedules_rows(name):
    recipe = schedules()[name]
    job = llama(pp=4).model_copy(
        update={
            "plan": llama(pp=4).plan.model_copy(update={"schedule": name, "vpp": recipe.chunks})
        }
    )
    parts = part_seconds(job)
    split = balanced_layers(job)
    rows = build(job.plan.model_copy(update={"num_microbatches": 8})).rows
    groups = {tuple(sorted({op.stage for op in row})) for row in rows}
    even = [32 // len(split)] * len(split)
    assert sum(split) == 32
    assert loads(split, groups, parts) <= loads(even, groups, parts)
    assert loads(split, groups, parts)[0] < loads(even, groups, parts)[0]


def test_a_limit_keeps_every_rank_within_it():
    free = llama(pp=4, num_microbatches=32)
    peak = simulate(free.model_copy(update={"plan": with_split(free, balanced_layers(free))}))
    limit = peak.report.peak_memory[1] * 0.95
    split = balanced_layers(free, limit=limit)
    assert split != balanced_layers(free)
    held = simulate(free.model_copy(update={"plan": with_split(free, split)}))
    assert held.report.peak_memory.max() <= limit


def with_split(job, split):
    return job.plan.model_copy(update={"layers_per_stage": split})


def test_a_limit_that_no_split_keeps_is_refused():
    with pytest.raises(ValueError, match="the stages have room for 0, 0, 0, 0 layers"):
        balanced_layers(llama(pp=4), limit=1e9)
    with pytest.raises(ValueError, match="raise the limit"):
        spread(9, [[0], [1]], Parts(1.0, 0.0, 0.0), most=[4, 4])


def test_fewer_layers_than_stages_are_refused():
    with pytest.raises(ValueError, match="3 layers for 4 stages"):
        spread(3, [[0], [1], [2], [3]], Parts(1.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="use 1 to 2"):
        balanced_split([1.0, 1.0], 3)


@pytest.mark.parametrize("name", ["1f1b", "zb-auto"])
def test_chunks_that_a_schedule_does_not_have_are_refused(name):
    job = llama(pp=4)
    plan = job.plan.model_copy(update={"schedule": name, "vpp": 2})
    with pytest.raises(ValueError, match="takes no vpp"):
        balanced_layers(job.model_copy(update={"plan": plan}))


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=9),
    st.integers(0, 120),
    st.sampled_from([0.0, 0.3, 2.0, 41.0]),
    st.sampled_from([0.0, 1.5, 7.0]),
)
def test_layers_handed_out_at_once_lie_as_those_handed_out_one_by_one(sizes, more, head, embedding):
    num_stages = sum(sizes)
    groups, first = [], 0
    for size in sizes:
        groups.append(list(range(first, first + size)))
        first += size
    fixed = [0.0] * num_stages
    fixed[0] += embedding
    fixed[-1] += head
    layers = [1] * num_stages
    for _ in range(more):
        busy = [sum(fixed[s] for s in group) + sum(layers[s] for s in group) for group in groups]
        group = groups[max(range(len(groups)), key=lambda at: (-busy[at], at))]
        layers[max(group, key=lambda s: (-fixed[s] - layers[s], s))] += 1
    parts = Parts(layer=1.0, embedding=embedding, head=head)
    assert spread(num_stages + more, groups, parts) == tuple(layers)
