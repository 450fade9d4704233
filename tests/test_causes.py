"""Causes, against a plain search for each span among all spans."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import engine
from simulator.causes import causes
from simulator.job import Plan
from simulator.schedule import Kind
from simulator.simulate import simulate_uniform
from simulator.timeline import Timeline
from tests.test_engine import cases
from tests.timelines import MESSAGES, NAMES, compiled, odd, of_rows, rows_of

BACKWARD = (Kind.B, Kind.I)


def plain(timeline):
    """The same rules, read off one span at a time."""
    rows, deepest = rows_of(timeline), timeline.num_stages - 1
    where, gathered = {}, {}
    for at, (rank, stage, kind, microbatch, *_) in enumerate(rows):
        where[kind, stage, microbatch] = where[kind, stage, microbatch, rank] = at
        if kind == Kind.UNSHARD:
            gathered.setdefault((stage, rank), at)

    def end(at):
        return -np.inf if at is None else rows[at][5]

    def made(stage, microbatch, rank, *kinds):
        found = [where.get((kind, stage, microbatch)) for kind in kinds]
        there = max((at for at in found if at is not None), default=None)
        return there if there is not None and rows[there][0] == rank else None

    def ended(rank, time):
        stream = [a for a, row in enumerate(rows) if row[0] == rank and row[2] <= Kind.OPTIMIZER]
        return max((a for a in stream if end(a) <= time), key=lambda a: (end(a), a), default=None)

    def of_compute(at):
        rank, stage, kind, microbatch, start, _ = rows[at]
        stream = [a for a in range(at) if rows[a][0] == rank and rows[a][2] <= Kind.OPTIMIZER]
        if stream and start < end(stream[-1]):
            stream.pop()
        last = stream[-1] if stream else None
        local = message = weights = standing = None
        if kind == Kind.F:
            weights = gathered.get((stage, rank))
            weights = weights if end(weights) <= start else None
            local = made(stage - 1, microbatch, rank, Kind.F)
            message = where.get((Kind.RECV_F, stage, microbatch))
        elif kind in BACKWARD:
            local = made(stage + 1, microbatch, rank, *BACKWARD)
            if stage == deepest:
                local = made(stage, microbatch, rank, Kind.F)
            message = where.get((Kind.RECV_B, stage, microbatch))
        elif kind == Kind.W:
            local = made(stage, microbatch, rank, Kind.I)
        else:
            message = where.get((Kind.REDUCE_GRAD, stage, -1, rank))
        if start > (0.0 if last is None else end(last)):
            for other, row in enumerate(rows):
                if row[0] == rank and row[2] in MESSAGES and row[5] == start:
                    standing = other
        for candidate in (local, message, weights, standing):
            if candidate is not None and end(candidate) > end(last):
                last = candidate
        return last

    cause = []
    for at, (rank, _, kind, _, start, _) in enumerate(rows):
        cause.append(of_compute(at) if kind <= Kind.OPTIMIZER else ended(rank, start))
    for at in range(len(rows) - 1):
        a, b = rows[at], rows[at + 1]
        pair = a[0] == b[0] and max(a[2], b[2]) <= Kind.OPTIMIZER and a[4:] == b[4:] and a[5] > a[4]
        if pair and end(cause[at]) < min(end(cause[at + 1]), a[4]):
            cause[at] = cause[at + 1]
    for at, (rank, stage, kind, microbatch, *_) in enumerate(rows):
        if kind in (Kind.SEND_F, Kind.SEND_B):
            makers, there = ((Kind.F,), Kind.RECV_F), stage + 1
            if kind == Kind.SEND_B:
                makers, there = (BACKWARD, Kind.RECV_B), stage - 1
            receive = where.get((makers[1], there, microbatch))
            if receive is not None:
                maker = made(stage, microbatch, rank, *makers[0])
                ready = ended(rows[receive][0], rows[receive][4])
                cause[at] = cause[receive] = ready if end(ready) > end(maker) else maker
    return [-1 if at is None else at for at in cause]


@given(cases())
def test_causes_are_those_of_a_plain_search(case):
    timeline = engine.run(*case)
    assert causes(timeline).tolist() == plain(timeline)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
def test_causes_at_blocking_transfers_are_those_of_a_plain_search(name):
    plan = Plan(schedule=name, pp=4, num_microbatches=8, p2p="blocking")
    timeline = simulate_uniform(plan, 1.0, 2.0, latency=0.25).timeline
    assert causes(timeline).tolist() == plain(timeline)


@given(st.integers(0, 10_000))
def test_causes_of_odd_timelines_are_those_of_a_plain_search_compiled_or_not(seed):
    timeline = odd(seed)
    expected = plain(timeline)
    assert causes(timeline).tolist() == expected
    with compiled():
        assert causes(timeline).tolist() == expected


@given(st.integers(0, 1000))
def test_causes_of_unsorted_spans_are_those_of_the_sorted_ones(seed):
    timeline = odd(seed)
    order = np.random.default_rng(seed).permutation(timeline.num_spans)
    shuffled = Timeline(**{name: getattr(timeline, name)[order] for name in NAMES})
    back = np.lexsort((shuffled.start, shuffled.rank))  # ties may stand in another order
    sorted_ = Timeline(**{name: getattr(shuffled, name)[back] for name in NAMES})
    found, expected = causes(shuffled), causes(sorted_)
    for at, cause in zip(back.tolist(), expected.tolist(), strict=True):
        assert found[at] == (back[cause] if cause >= 0 else -1)


def test_a_span_that_is_none_is_refused():
    with pytest.raises(ValueError, match="span 1 has rank 0, stage 0, kind 13 and microbatch 0"):
        causes(of_rows([(0, 0, Kind.F, 0, 0, 1), (0, 0, 13, 0, 1, 2)]))
    with pytest.raises(ValueError, match="span 0 has rank 0, stage -1"):
        causes(of_rows([(0, -1, Kind.F, 0, 0, 1)]))
