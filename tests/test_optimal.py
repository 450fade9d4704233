"""The optimal order: against brute force, the papers' closed forms and every other schedule."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import engine
from simulator.cli import main
from simulator.costs import uniform
from simulator.costs.memory import memory_samples
from simulator.fabric import ideal
from simulator.lower import lower, post_receives_early
from simulator.matching import transfers
from simulator.optimal import optimize
from simulator.optimal.bound import lower_bound
from simulator.optimal.problem import Problem, peak, play, words_of
from simulator.schedule import Kind
from simulator.schedules import schedules

seconds = st.one_of(st.integers(1, 3).map(float), st.floats(0.25, 3.0).map(lambda x: round(x, 3)))
objectives = st.sampled_from(["span", "makespan"])


def rows(num_stages):
    """One of each stage's figures."""
    return st.lists(seconds, min_size=num_stages, max_size=num_stages)


@st.composite
def cases(draw, sizes, placements=None):
    """Costs of unequal stages, with a limit between the least possible and three times that."""
    pp, m = draw(st.sampled_from(sizes))
    home = list(range(pp)) if placements is None else draw(st.sampled_from(placements))
    stages = len(home)
    costs = uniform(stages, 1.0, 2.0)
    table = costs.seconds.copy()
    for kind in (Kind.F, Kind.I, Kind.W):
        table[kind] = draw(rows(stages))
    table[Kind.B] = table[Kind.I] + table[Kind.W]
    kept = np.array(draw(rows(stages)))
    share = st.lists(st.sampled_from([0.0, 0.5, 1.0, -0.25]), min_size=stages, max_size=stages)
    costs = replace(
        costs,
        seconds=table,
        activation_bytes=kept,
        input_grad_bytes=kept * np.array(draw(share)),
        transient_bytes=kept * draw(st.sampled_from([0.0, 0.3])),
    )
    transfer = draw(st.sampled_from([0.0, 0.1, 1.0]))
    objective = draw(objectives)
    problem = Problem.of(costs, home, m, transfer, None, objective)
    factor = draw(st.sampled_from([1.0, 1.5, 2.0, 3.0]))
    limit = [factor * least for least in problem.least]
    return costs, replace(problem, limit=tuple(limit))


def every_word(problem, rank):
    """Every order of one rank's ops in which each op follows its own needs, and memory allows."""
    m, lowest = problem.num_microbatches, problem.stages[rank][0]
    symbols = [3 * s + kind for s in problem.stages[rank] for kind in range(3)]
    done, word, found = dict.fromkeys(symbols, 0), [], []

    def go():
        if len(word) == len(symbols) * m:
            if peak(problem, word) <= problem.limit[rank] * (1 + 1e-9):
                found.append(list(word))
            return
        for s in symbols:
            first = done[s - 1] if s % 3 else m if s // 3 == lowest else done[3 * lowest]
            if done[s] < min(m, first):
                done[s] += 1
                word.append(s)
                go()
                word.pop()
                done[s] -= 1

    go()
    return found


def brute_force(problem):
    """The least objective of all orders."""
    words = [every_word(problem, rank) for rank in range(problem.num_ranks)]
    played = (play(problem, list(choice)) for choice in product(*words))
    return min(p.value for p in played if p is not None)


def solve(costs, problem, **options):
    return optimize(
        costs,
        problem.num_ranks,
        problem.num_microbatches,
        transfer=list(problem.hop),
        activation_limit=list(problem.limit),
        objective=problem.objective,
        placement=problem.home,
        time_limit=None,
        **options,
    )


def measured(schedule, costs, transfer=0.0):
    """What the engine makes of rows: makespan, largest span, peak memory of each rank."""
    lowered = post_receives_early(lower(schedule))
    moves = transfers(lowered)
    pairs = set(zip(moves.source.tolist(), moves.target.tolist(), strict=True))
    timeline = engine.run(lowered, costs, ideal(pairs, transfer))
    timeline = memory_samples(timeline, costs)
    spans = []
    for rank in range(schedule.num_ranks):
        mine = timeline.compute.where(timeline.compute.rank == rank)
        spans.append(mine.end.max() - mine.start.min())
    return timeline.makespan, max(spans), timeline.peak_memory()


@settings(max_examples=60)
@given(cases([(2, 2), (2, 3), (3, 2)]))
def test_it_equals_brute_force_over_all_orders(case):
    costs, problem = case
    found, best = solve(costs, problem), brute_force(problem)
    assert found.objective == pytest.approx(best, rel=1e-6)
    assert found.proven
    assert lower_bound(problem) <= best * (1 + 1e-9)


@settings(max_examples=15)
@given(cases([(2, 1)], [(0, 1, 1, 0), (0, 1, 0, 1)]))
def test_it_equals_brute_force_with_two_stages_on_each_rank(case):
    costs, problem = case
    found = solve(costs, problem)
    assert found.objective == pytest.approx(brute_force(problem), rel=1e-6)
    assert found.proven


@settings(max_examples=25)
@given(cases([(1, 3), (2, 4), (3, 4), (4, 3)]))
def test_the_engine_measures_the_same_objective_and_stays_within_the_limit(case):
    costs, problem = case
    found = solve(costs, problem, effort=0.2)
    makespan, span, memory = measured(found.schedule, costs, max(problem.hop, default=0.0))
    wanted = span if problem.objective == "span" else makespan
    assert wanted == pytest.approx(found.objective, rel=1e-9)
    assert (memory <= np.array(problem.limit) * (1 + 1e-9)).all()


ONE_STAGE_A_RANK = [
    name
    for name, recipe in schedules().items()
    if name != "optimal"
    and recipe.chunks == 1
    and set(recipe.takes)
    <= {"pp", "num_microbatches", "vpp", "costs", "transfer", "activation_limit"}
]


@settings(max_examples=25)
@given(cases([(2, 4), (3, 6), (4, 8)]))
def test_it_is_never_worse_than_any_schedule_within_the_same_memory(case):
    costs, problem = case
    costs = replace(costs, input_grad_bytes=np.maximum(0.0, costs.input_grad_bytes))
    transfer = max(problem.hop)
    pp, m, limit = problem.num_ranks, problem.num_microbatches, max(problem.limit)
    given_ = {"pp": pp, "num_microbatches": m, "vpp": 1, "costs": costs, "transfer": transfer}
    given_["activation_limit"] = limit
    found = optimize(
        costs,
        pp,
        m,
        transfer=transfer,
        activation_limit=limit,
        objective=problem.objective,
        time_limit=None,
        effort=0.05,
    )
    for name in ONE_STAGE_A_RANK:
        recipe = schedules()[name]
        try:
            other = recipe.generator(**{x: given_[x] for x in recipe.takes})
        except ValueError:
            continue
        if words_of(problem, other) is None:  # stages elsewhere, pairs, or several iterations
            continue
        makespan, span, memory = measured(other, costs, transfer)
        if (memory <= limit * (1 + 1e-9)).all():
            value = span if problem.objective == "span" else makespan
            assert found.objective <= value * (1 + 1e-9), name


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (6, 12), (8, 24)])
def test_equal_times_have_no_bubble_with_2p_minus_1_activations(pp, m):
    found = optimize(uniform(pp, 1.0, 2.0), pp, m, activation_limit=2 * pp - 1)
    assert found.objective == 3 * m
    assert found.proven


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (6, 12), (8, 24)])
def test_equal_times_have_zb_h1s_bubble_with_p_activations(pp, m):
    found = optimize(uniform(pp, 1.0, 2.0), pp, m, activation_limit=pp)
    assert found.objective == 3 * m + (pp - 1)
    assert found.proven


def test_the_programme_proves_what_counting_cannot():
    costs = uniform(5, 1.1, 2.2, 0.8)
    found = optimize(costs, 5, 10, transfer=0.1, activation_limit=7)
    counted = lower_bound(Problem.of(costs, range(5), 10, 0.1, 7, "span"))
    assert found.objective == pytest.approx(39.0)
    assert counted == pytest.approx(37.2)
    assert found.proven


# Qi et al., ICLR 2024, Tables 5 and 6: m; F, I, W and a message in ms; ZB-2p's bubble; M_W / M_B.
PROFILED = {
    "6.2B, 24 microbatches": (24, 29.718, 29.444, 19.927, 0.527, 0.0029, 0.4324),
    "6.2B, 32 microbatches": (32, 29.802, 29.428, 19.53, 0.577, 0.0022, 0.4324),
    "1.5B, 32 microbatches": (32, 18.513, 18.086, 9.331, 0.626, 0.0039, 0.3664),
}


@pytest.mark.parametrize("name", PROFILED)
def test_it_reaches_zb_2ps_bubble_on_profiled_times(name):
    m, f, i, w, message, printed, share = PROFILED[name]
    costs = uniform(8, f, i + w, w, weight_memory=share)
    found = optimize(costs, 8, m, transfer=message, activation_limit=16, time_limit=None)
    ideal_time = m * (f + i + w)
    assert (found.objective - ideal_time) / found.objective <= printed + 5e-5


ZB_1P = [  # the same tables: pp, m, F, I, W, message in ms, ZB-1p's bubble, M_W / M_B
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.1585, 0.3664),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1242, 0.3664),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.0674, 0.3664),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.1323, 0.4324),
    (8, 32, 29.802, 29.428, 19.53, 0.577, 0.1045, 0.4324),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 0.0554, 0.4324),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.1397, 0.4324),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 0.1088, 0.4324),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.0576, 0.4324),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.1421, 0.4324),
    (32, 128, 10.408, 10.204, 7.703, 0.408, 0.1106, 0.4324),
    (32, 256, 10.402, 10.248, 7.698, 0.46, 0.0594, 0.4324),
]


@pytest.mark.parametrize(("pp", "m", "f", "i", "w", "message", "printed", "share"), ZB_1P)
def test_no_order_beats_zb_1ps_printed_bubble(pp, m, f, i, w, message, printed, share):
    costs = uniform(pp, f, i + w, w, weight_memory=share)
    bound = lower_bound(Problem.of(costs, range(pp), m, message, pp, "span"))
    assert 1 - m * (f + i + w) / bound == pytest.approx(printed, abs=6e-5)


def test_a_limit_under_the_least_possible_says_the_least_possible():
    costs = replace(uniform(3, 1.0, 2.0), activation_bytes=np.array([2.0, 3.0, 2.0]))
    with pytest.raises(ValueError, match=r"activation_limit is 2\.5 on rank 1.* possible is 3"):
        optimize(costs, 3, 4, activation_limit=2.5)


def test_costs_of_another_size_are_refused():
    with pytest.raises(ValueError, match="costs have 3 stages, but 2 are placed"):
        optimize(uniform(3, 1.0, 2.0), 2, 4)
    with pytest.raises(ValueError, match="must name each of the ranks 0 to 1"):
        optimize(uniform(3, 1.0, 2.0), 2, 4, placement=[0, 1, 2])
    with pytest.raises(ValueError, match="transfer has 3 times, but 3 stages have 2 boundaries"):
        optimize(uniform(3, 1.0, 2.0), 3, 4, transfer=[0.0] * 3)


def test_a_span_that_the_order_does_not_decide_is_refused():
    with pytest.raises(ValueError, match="use objective 'makespan'"):
        optimize(uniform(4, 1.0, 2.0), 2, 2, placement=[0, 0, 1, 1])
    assert optimize(uniform(4, 1.0, 2.0), 2, 2, placement=[0, 0, 1, 1], objective="makespan").proven


def test_progress_only_gets_better_and_ends_at_the_result():
    heard = []
    costs = uniform(4, 1.3, 2.8, 0.7)
    found = optimize(costs, 4, 6, transfer=0.1, activation_limit=5, progress=heard.append)
    assert [p.objective for p in heard] == sorted((p.objective for p in heard), reverse=True)
    assert [p.bound for p in heard] == sorted(p.bound for p in heard)
    assert (heard[-1].objective, heard[-1].bound) == (found.objective, found.bound)
    assert found.bound <= found.objective


@pytest.mark.parametrize("after", [1, 3, 4])
def test_ctrl_c_returns_the_best_so_far(after):
    heard = []

    def interrupt(progress):
        heard.append(progress)
        if len(heard) >= after:
            raise KeyboardInterrupt

    costs = uniform(6, 1.3, 2.7, 0.617)
    found = optimize(costs, 6, 12, transfer=0.113, activation_limit=8, progress=interrupt)
    assert found.objective <= heard[0].objective
    assert found.schedule.num_ops == 6 * 12 * 3
    lower(found.schedule)


def test_without_a_time_limit_the_same_input_gives_the_same_rows():
    costs = uniform(4, 1.3, 2.7, 0.617)
    options = {"transfer": 0.113, "activation_limit": 5, "time_limit": None}
    assert optimize(costs, 4, 8, **options).schedule == optimize(costs, 4, 8, **options).schedule


def test_the_command_simulates_it(capsys):
    words = "simulate --schedule optimal --pp 3 --microbatches 4 --uniform 1,1,1 --no-gantt"
    assert main(words.split()) == 0
    assert re.search(r"step time +14\n", capsys.readouterr().out)
