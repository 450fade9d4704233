"""From the times of ops to a Timeline: in order, whatever order the times have."""

import numpy as np
import pytest

from simulator.schedule import Kind, Schedule
from simulator.spans import ordered


@pytest.mark.parametrize("disorder", [0, 3, 10_000], ids=["sorted", "nearly", "shuffled"])
def test_spans_stand_by_rank_then_start_then_row_without_waits(disorder):
    rng = np.random.default_rng(disorder)
    num_ops = 3000
    rows = [
        np.column_stack(
            [
                np.full(num_ops, rank),
                rng.choice([Kind.F, Kind.B, Kind.RECV_F, Kind.SEND_F, Kind.WAIT], num_ops),
                np.arange(num_ops),
            ]
        )
        for rank in range(3)
    ]
    lowered = Schedule.of(rows)
    start = np.tile(np.arange(num_ops, dtype=float), 3)
    start = np.floor(start + rng.uniform(0, disorder + 1e-9, len(start)))  # with ties
    timeline = ordered(lowered, start, start + 0.5)
    expected = sorted(
        (int(lowered.rank[op]), float(start[op]), op)
        for op in range(lowered.num_ops)
        if lowered.kind[op] != Kind.WAIT
    )
    index = [op for _, _, op in expected]
    for name in ("rank", "stage", "kind", "microbatch"):
        np.testing.assert_array_equal(getattr(timeline, name), getattr(lowered, name)[index])
    np.testing.assert_array_equal(timeline.start, start[index])
    np.testing.assert_array_equal(timeline.end, start[index] + 0.5)
