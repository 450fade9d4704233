"""Holistic Trace Analysis opens what we write, and finds what our Report says."""

import logging
import warnings

import numpy as np
import pytest

from simulator.job import Plan
from simulator.schedule import Kind
from simulator.simulate import simulate_uniform
from traces.measured.findings import report_of
from traces.measured.holistic import write_ranks
from traces.measured.imported import bring_in

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    hta = pytest.importorskip("hta.trace_analysis")

SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)]


@pytest.fixture(params=SCHEDULES, ids=lambda one: one[0])
def run(request):
    schedule, vpp = request.param
    plan = Plan(schedule=schedule, pp=4, vpp=vpp, num_microbatches=8)
    return simulate_uniform(plan, 1e-3, 2e-3, latency=1e-4)


@pytest.fixture
def analysis(run, tmp_path):
    paths = write_ranks(run.timeline, tmp_path)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield hta.TraceAnalysis(trace_files={r: str(p) for r, p in enumerate(paths)})
    finally:
        logging.disable(logging.NOTSET)


def union(start, end):
    """Seconds covered by intervals."""
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[-np.inf], end[:-1]])
    return float((end - np.maximum(start, before)).clip(0).sum())


def test_its_temporal_breakdown_has_our_compute_and_idle(run, analysis):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = analysis.get_temporal_breakdown(visualize=False)
    t, step = run.timeline, 2.0  # it rounds each kernel to whole us
    for rank in range(4):
        row = table[table["rank"] == rank].iloc[0]
        mine = t.where(t.rank == rank)
        compute = run.report.split.compute[rank] * 1e6
        slack = step * mine.num_spans
        assert row["compute_time(us)"] == pytest.approx(compute, abs=slack)
        span = (mine.end.max() - mine.start.min()) * 1e6
        assert row["kernel_time(us)"] == pytest.approx(span, abs=step)
        idle = span - 1e6 * union(mine.start, mine.end)
        assert row["idle_time(us)"] == pytest.approx(idle, abs=slack)
        alone = 1e6 * union(mine.start, mine.end) - compute
        assert row["non_compute_time(us)"] == pytest.approx(alone, abs=2 * slack)


def test_its_overlap_of_communication_is_the_time_behind_compute(run, analysis):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = analysis.get_comm_comp_overlap(visualize=False)
    t = run.timeline
    for rank in range(4):
        mine = t.where(t.rank == rank)
        moved = mine.kind > Kind.OPTIMIZER
        both = union(mine.start[moved], mine.end[moved]) + union(
            mine.start[~moved], mine.end[~moved]
        )
        hidden = both - union(mine.start, mine.end)
        share = 100 * hidden / union(mine.start[moved], mine.end[moved])
        row = table[table["rank"] == rank].iloc[0]
        assert row["comp_comm_overlap_pctg"] == pytest.approx(share, abs=4.0)


def test_we_read_our_own_export_again(run, tmp_path):
    back = bring_in(write_ranks(run.timeline, tmp_path))
    t, order = run.timeline, []
    for one in (back.timeline, t):
        order.append(np.lexsort((one.microbatch, one.kind, one.stage, one.rank)))
    for name in ("rank", "stage", "kind", "microbatch"):
        ours, theirs = getattr(back.timeline, name)[order[0]], getattr(t, name)[order[1]]
        assert np.array_equal(ours, theirs)
    assert back.timeline.start[order[0]] == pytest.approx(t.start[order[1]], abs=1e-9)
    assert back.timeline.end[order[0]] == pytest.approx(t.end[order[1]], abs=1e-9)
    assert report_of(back, "x").split.compute == pytest.approx(run.report.split.compute, rel=1e-6)
