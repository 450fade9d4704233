"""The longest idle gaps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.gaps import longest_gaps, longest_of_ranks
from simulator.schedule import Kind
from tests.timelines import compiled, odd, of_rows, rows_of


def plain(timeline):
    """Every gap of every rank: (-length, rank, middle)."""
    gaps, end = [], max(timeline.end.tolist(), default=0.0)
    for rank in range(timeline.num_ranks):
        reach = 0.0
        stream = [r for r in rows_of(timeline) if r[0] == rank and r[2] <= Kind.OPTIMIZER]
        for start, stop in [row[4:] for row in stream] + [(end, end)]:
            if start - reach > 1e-9 * end:
                gaps.append((reach - start, rank, (start + reach) / 2))
            reach = max(reach, stop)
    return sorted(gaps)


@given(st.integers(0, 10_000))
def test_gaps_are_the_times_that_no_op_of_the_rank_covers(seed):
    timeline = odd(seed)
    expected = [(-length, rank, middle) for length, rank, middle in plain(timeline)]
    assert longest_gaps(timeline) == expected
    for rank in range(timeline.num_ranks):
        assert longest_gaps(timeline, rank) == [gap for gap in expected if gap[1] == rank]


@given(st.integers(0, 10_000))
def test_each_ranks_longest_gap_is_the_first_of_its_gaps_compiled_or_not(seed):
    timeline = odd(seed)
    first = {}
    for gap in plain(timeline):
        first.setdefault(gap[1], gap)
    expected = [(rank, -length, middle) for length, rank, middle in first.values()]
    found = longest_of_ranks(timeline)
    middle = found.begin + found.length / 2
    assert [(r, x) for r, x, _ in expected] == list(
        zip(found.rank.tolist(), found.length.tolist(), strict=True)
    )
    np.testing.assert_allclose(middle, [m for *_, m in expected], rtol=1e-12)
    ends = np.where(found.following >= 0, timeline.start[found.following], timeline.makespan)
    np.testing.assert_allclose(ends - found.begin, found.length, rtol=1e-12)
    with compiled():
        again = longest_of_ranks(timeline)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))


def test_a_rank_without_compute_idles_throughout():
    timeline = of_rows([(0, 0, Kind.F, 0, 0, 3), (1, 1, Kind.RECV_F, 0, 1, 2)])
    assert longest_gaps(timeline) == [(3.0, 1, 1.5)]
    assert longest_of_ranks(timeline).following.tolist() == [-1]
