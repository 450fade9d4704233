"""The split of a step, against the same rules one op at a time, and closed forms at full size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import engine
from simulator.causes import causes
from simulator.costs import uniform
from simulator.job import Plan
from simulator.report import in_flight, spans_of_ranks
from simulator.schedule import Kind
from simulator.simulate import simulate_uniform
from simulator.split import SPLIT, by_kind_and_stage, shortest, split, split_by_costs
from tests.test_engine import cases, with_costs
from tests.timelines import compiled, odd, of_rows, rows_of


def plain(timeline, recompute, tensor, lone):
    """Seconds of each rank by cause; `recompute` and `tensor` are of spans, as lists."""
    rows, cause = rows_of(timeline), causes(timeline).tolist()
    parts = {name: [0.0] * timeline.num_ranks for name in SPLIT}
    for rank in range(timeline.num_ranks):
        mine = [a for a, row in enumerate(rows) if row[0] == rank and row[2] <= Kind.OPTIMIZER]
        forward = max((rows[a][4] for a in mine if rows[a][2] == Kind.F), default=0.0)
        backward = [rows[a][4] for a in mine if rows[a][2] in (Kind.B, Kind.I)]
        ends = [0.0, *(rows[a][5] for a in mine)]
        busy = [rows[a][5] - max(rows[a][4], ends[n]) for n, a in enumerate(mine)]
        second = [n > 0 and busy[n] <= 0 and rows[a][4] < ends[n] for n, a in enumerate(mine)] + [
            False
        ]
        for n, at in enumerate(mine):
            _, _, kind, _, start, _ = rows[at]
            after = mine[n + 1 : n + 2] if second[n + 1] else []
            again = 0.0 if second[n] else sum(recompute[a] for a in [at, *after])
            exposed = 0.0 if second[n] else sum(tensor[a] for a in [at, *after])
            again = min(again, busy[n])
            exposed = min(exposed, busy[n] - again)
            step = kind == Kind.OPTIMIZER
            parts["recompute"][rank] += again
            parts["tensor"][rank] += exposed
            parts["optimizer" if step else "compute"][rank] += busy[n] - again - exposed
            gap, way = max(0.0, start - ends[n]), 0.0
            if cause[at] >= 0 and rows[cause[at]][2] > Kind.OPTIMIZER:
                _, stage, message, _, left, arrived = rows[cause[at]]
                way = min(max(arrived - max(ends[n], left), 0.0), gap)
                data = step or message == Kind.UNSHARD
                longer = arrived - left - float(lone[message, stage])
                link = min(way, longer) if not data and longer > 1e-12 * arrived else 0.0
                parts["link"][rank] += link
                parts["data" if data else "pipeline"][rank] += way - link
            idle = "drain" if start > forward else "dependency"
            idle = "warm_up" if start <= min(backward, default=np.inf) else idle
            parts[idle][rank] += gap - way
        last = max(ends)
        gathers = [r[5] for r in rows if r[0] == rank and r[2] == Kind.UNSHARD]
        parts["data"][rank] += max([last, *gathers]) - last
        parts["drain"][rank] += timeline.makespan - max([last, *gathers])
    return parts


def same(parts, expected, makespan):
    for name in SPLIT:
        np.testing.assert_allclose(
            getattr(parts, name), expected[name], rtol=1e-12, atol=1e-12 * makespan, err_msg=name
        )


@given(st.integers(0, 10_000))
def test_the_split_of_odd_timelines_is_that_of_the_plain_rules_compiled_or_not(seed):
    timeline = odd(seed)
    rng = np.random.default_rng(seed)
    recompute, tensor = rng.uniform(0, 0.5, (2, timeline.num_spans))
    expected = plain(timeline, recompute.tolist(), tensor.tolist(), shortest(timeline))
    same(split(timeline, recompute=recompute, tensor=tensor), expected, timeline.makespan)
    with compiled():
        same(split(timeline, recompute=recompute, tensor=tensor), expected, timeline.makespan)


@given(cases(), st.integers(0, 1000))
def test_the_split_by_costs_is_that_of_what_each_span_costs(case, seed):
    lowered, costs, fabric = case
    rng = np.random.default_rng(seed)
    costs = with_costs(
        costs,
        tensor_seconds=costs.seconds * rng.uniform(0, 0.5, costs.seconds.shape),
        recompute_seconds=costs.seconds[Kind.F] * rng.random(),
    )
    slow = {0: 1.5}
    timeline = engine.run(lowered, costs, fabric, slow)
    recompute, tensor = [], []
    for rank, stage, kind, *_ in rows_of(timeline):
        again = float(costs.recompute_seconds[stage]) if kind in (Kind.B, Kind.I) else 0.0
        recompute.append(again * slow.get(rank, 1.0))
        tensor.append(float(costs.tensor_seconds[kind, stage]))
    for first in timeline.pairs().tolist():
        kinds, stages = timeline.kind[first : first + 2], timeline.stage[first : first + 2]
        both = float(costs.seconds[kinds, stages].sum())
        hidden = both * (1 - float(costs.pair_time[stages[0]]))
        tensor[first] = max(0.0, tensor[first] + tensor[first + 1] - hidden)
        tensor[first + 1] = 0.0
    lone = shortest(timeline)
    expected = plain(timeline, recompute, tensor, lone)
    parts = split_by_costs(timeline, costs, lone=lone, stragglers=slow)
    same(parts, expected, timeline.makespan)
    np.testing.assert_allclose(parts.total, timeline.makespan, rtol=1e-9)


@given(st.integers(0, 10_000))
def test_forwards_in_flight_are_those_begun_less_the_backwards_ended(seed):
    timeline = odd(seed)
    rows, most = rows_of(timeline), [0] * timeline.num_ranks
    for rank, _, kind, _, now, _ in rows:
        if kind == Kind.F:
            mine = [row for row in rows if row[0] == rank]
            begun = sum(row[2] == Kind.F and row[4] <= now for row in mine)
            ended = sum(row[2] in (Kind.B, Kind.W) and row[5] <= now for row in mine)
            most[rank] = max(most[rank], begun - ended)
    assert in_flight(timeline).tolist() == most
    with compiled():
        assert in_flight(timeline).tolist() == most


@given(cases())
def test_a_ranks_span_is_its_work_and_the_idle_between(case):
    timeline = engine.run(*case)
    span, idle = spans_of_ranks(timeline)
    for rank in range(timeline.num_ranks):
        work = {row[4:] for row in rows_of(timeline) if row[0] == rank and row[2] <= Kind.W}
        first, last = min(a for a, _ in work), max(b for _, b in work)
        assert span[rank] == last - first
        busy = sum(b - a for a, b in work)  # overlapped pairs stand once in a set
        assert idle[rank] == pytest.approx(last - first - busy, abs=1e-9 * last)


def test_1f1b_pp64_m512_idles_189_s_a_rank_and_holds_64_less_rank_forwards():
    """65,536 ops: idle 3 (p - 1); rank r warms up 2 (p - 1) + p - 1 - r s, first work included."""
    with compiled():
        run = simulate_uniform(Plan(schedule="1f1b", pp=64, num_microbatches=512), 1.0, 2.0)
    report, rank = run.report, np.arange(64)
    np.testing.assert_allclose(report.split.idle, 189.0)
    np.testing.assert_allclose(report.split.drain, 63.0 + rank)
    np.testing.assert_allclose(report.split.warm_up, 126.0 - rank)
    np.testing.assert_allclose(report.split.compute, 1536.0)
    assert report.peak_in_flight.tolist() == (64 - rank).tolist()
    assert run.timeline.peak_memory().tolist() == (64 - rank).tolist()


def test_lone_times_of_spans_and_of_kinds_and_stages_say_the_same():
    run = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0, latency=0.5)
    timeline, nothing = run.timeline, np.zeros(run.timeline.num_spans)
    table = np.full((len(Kind), 4), 0.25)
    lone = table[timeline.kind, timeline.stage]
    assert (by_kind_and_stage(timeline, lone)[timeline.kind, timeline.stage] == lone).all()
    by_span = split(timeline, recompute=nothing, tensor=nothing, lone=lone)
    by_costs = split_by_costs(timeline, run.costs, lone=table)
    assert by_span.link.any()
    for name in SPLIT:
        np.testing.assert_array_equal(getattr(by_span, name), getattr(by_costs, name))


def test_columns_of_another_timeline_and_costs_of_another_plan_are_refused():
    timeline = of_rows([(0, 1, Kind.F, 0, 0, 1)])
    with pytest.raises(ValueError, match=r"tensor has shape \(2,\); it must be \(1,\)"):
        split(timeline, recompute=np.zeros(1), tensor=np.zeros(2))
    with pytest.raises(ValueError, match="2 stages, but the costs have 1"):
        split_by_costs(timeline, uniform(1, 1.0, 1.0))
