"""The compute streams alone give what the rows with every message give, to the last bit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import execution
from simulator.causes import causes, implied_causes
from simulator.costs.slices import sliced
from simulator.execution import Work, execute, execute_lowered, with_transfers
from simulator.explain import explain_longest
from simulator.fabric import ideal
from simulator.load import load_job
from simulator.lower import reduce_at_end, reduce_when_ready, step_optimizer, unshard_after_step
from simulator.matching import match
from simulator.report import in_flight, spans_of_ranks
from simulator.routes import talking
from simulator.schedule import Kind
from simulator.simulate import simulate
from simulator.split import SPLIT, split_by_costs
from tests.plans import QUICK, nearest, rows_of
from tests.test_longest_path import one_link_each, random_costs

EXAMPLES = Path(__file__).parent.parent / "examples"
ENDS = {
    "no optimizer": lambda rows, _: rows,
    "reduced at the end": lambda rows, _: step_optimizer(reduce_at_end(rows)),
    "reduced when ready": lambda rows, _: step_optimizer(reduce_when_ready(rows)),
    "gathered": lambda rows, _: unshard_after_step(step_optimizer(reduce_at_end(rows))),
}
UNPAIRED = [name for name in QUICK if not rows_of(nearest(name, 4, 2, 2)).paired.any()]


def both_ways(work):
    """What the streams say, and what the lowered rows say; None where messages meet."""
    ours = execute(work, "longest_path")
    lowered = work.finish(with_transfers(work.schedule, work.plan), work.plan)
    matches = match(lowered)
    fabric = work.wire(talking(lowered, matches), lowered)
    given = (lowered, matches, work.costs, fabric, work.stragglers)
    return ours, execute_lowered(*given, "longest_path")


def assert_same(ours, theirs, costs, slow):
    """Times, figures and words are equal, not only close."""
    assert ours.executor == theirs.executor
    np.testing.assert_array_equal(ours.lone, theirs.lone)
    lean, whole = ours.timeline, theirs.timeline
    assert lean == whole.where((whole.kind <= Kind.OPTIMIZER) | (whole.kind >= Kind.UNSHARD))
    assert ours.whole() == whole
    known, implied = causes(whole), implied_causes(lean)
    one, other = (
        split_by_costs(t, costs, lone=theirs.lone, stragglers=slow, cause=cause)
        for t, cause in ((lean, implied), (whole, known))
    )
    for part in SPLIT:
        np.testing.assert_array_equal(getattr(one, part), getattr(other, part), part)
    words = {"lone": theirs.lone, "stragglers": slow, "activation_limit": None}
    said = explain_longest(lean, 99, cause=implied, **words)
    assert said == explain_longest(whole, 99, cause=known, **words)
    assert lean.makespan == whole.makespan
    np.testing.assert_array_equal(in_flight(lean), in_flight(whole))
    np.testing.assert_array_equal(spans_of_ranks(lean), spans_of_ranks(whole))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", UNPAIRED)
@settings(max_examples=4)
@given(seed=st.integers(0, 10**6))
def test_streams_equal_the_lowered_rows_bit_for_bit_with_random_costs(name, end, seed):
    plan = nearest(name, 4, 2, 2)
    schedule = rows_of(plan)
    if (schedule.kind == Kind.OPTIMIZER).any() and end != "no optimizer":
        return  # it has steps of its own
    costs = random_costs(plan.num_stages, seed)
    if seed % 3 == 0:
        costs = sliced(costs, [3, 2], 0.2)
    slow = {seed % 4: 1.25} if seed % 2 else {}

    def wire(pairs, _):
        if end == "no optimizer" and seed % 5:
            return ideal(pairs, seed % 3 / 10)
        lowered = with_transfers(schedule, plan)
        return one_link_each(ENDS[end](lowered, plan), seed)

    work = Work(
        schedule=schedule, plan=plan, costs=costs, wire=wire, finish=ENDS[end], stragglers=slow
    )
    ours, theirs = both_ways(work)
    assert ours.whole is not None
    assert_same(ours, theirs, costs, slow)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_s_report_is_that_of_the_lowered_rows(path, monkeypatch):
    job = load_job(path)
    ours = simulate(job, "longest_path")
    monkeypatch.setattr(execution, "_implies_messages", lambda _: False)
    theirs = simulate(job, "longest_path")
    assert ours.report.to_dict() == theirs.report.to_dict()
    assert ours.timeline == theirs.timeline
    assert simulate(job).report.executor == theirs.report.executor or (
        theirs.report.executor == "longest_path, contention ignored"
    )
