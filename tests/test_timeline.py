"""A timeline's columns, seen by compute stream."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs import uniform
from simulator.costs.memory import memory_samples
from simulator.schedule import Kind
from simulator.timeline import Timeline
from tests.timelines import NAMES, compiled, odd, of_rows


@given(st.integers(0, 10_000), st.booleans())
def test_streams_are_the_compute_spans_by_start_and_by_end(seed, ordered):
    timeline = odd(seed, ordered=ordered)
    compute = np.flatnonzero(timeline.kind <= Kind.OPTIMIZER)
    by_start = compute[np.lexsort((timeline.start[compute], timeline.rank[compute]))]
    assert timeline.on_stream.tolist() == by_start.tolist()
    by_end = by_start[np.lexsort((timeline.end[by_start], timeline.rank[by_start]))]
    assert timeline.by_end.tolist() == by_end.tolist()
    order = np.lexsort((timeline.start, timeline.rank))
    assert timeline.is_sorted == (order == np.arange(len(order))).all()
    streams = [timeline.stream_of(rank).tolist() for rank in range(timeline.num_ranks)]
    assert [at for mine in streams for at in mine] == by_start.tolist()
    assert all((timeline.rank[mine] == rank).all() for rank, mine in enumerate(streams))
    with compiled():
        again = Timeline(**{name: getattr(timeline, name) for name in NAMES})
        assert again.by_end.tolist() == by_end.tolist()


@given(st.integers(0, 1000))
def test_a_rank_holds_the_stages_of_its_spans(seed):
    timeline = odd(seed)
    pairs = set(zip(timeline.rank.tolist(), timeline.stage.tolist(), strict=True))
    assert set(zip(*(i.tolist() for i in np.nonzero(timeline.held)), strict=True)) == pairs


def test_memory_samples_leave_the_spans_and_what_is_known_of_them():
    timeline = of_rows([(0, 0, Kind.F, 0, 0, 1), (0, 0, Kind.B, 0, 1, 3)])
    streams, makespan = timeline.on_stream, timeline.makespan
    memory = memory_samples(timeline, uniform(1, 1.0, 2.0))
    assert memory.on_stream is streams
    assert memory.makespan == makespan
    assert memory.peak_memory().tolist() == [1.0]
    assert timeline.peak_memory().tolist() == [0.0]


def test_the_peak_of_samples_in_any_order_is_each_ranks_largest():
    spans = of_rows([(rank, rank, Kind.F, 0, 0, 1) for rank in range(3)])
    rank, level = np.array([2, 0, 2, 0], np.int32), np.array([1.0, 5.0, 7.0, 2.0])
    assert spans.with_memory(rank, np.zeros(4), level).peak_memory().tolist() == [5.0, 0.0, 7.0]


@pytest.mark.parametrize("row", [(-1, 0, 0, 0), (0, -2, 0, 0), (0, 0, 13, 0), (0, 0, 0, -2)])
def test_spans_that_no_timeline_holds_are_refused(row):
    with pytest.raises(ValueError, match="span 1 has rank"):
        _ = of_rows([(0, 0, Kind.F, 0, 0, 1), (*row, 0, 1)]).on_stream


def test_an_empty_timeline_has_no_streams():
    empty = of_rows([])
    assert len(empty.on_stream) == len(empty.by_end) == 0
    assert empty.held.shape == (0, 0)
