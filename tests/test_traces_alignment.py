"""Clocks without messages: one zero, the order of ops, and processes that share a file."""

import json
import sqlite3
from itertools import pairwise

import numpy as np
import pytest

import traces
from simulator.cli import main
from simulator.job import Plan
from simulator.schedule import Kind
from simulator.simulate import simulate_uniform
from tests.test_traces_nsys import PROCESS, SCHEMA
from traces.measured.findings import report_of
from traces.measured.imported import bring_in

# 1F1B of 2 stages, 3 microbatches, in ms: 120 ms, of which 45 ms a rank idle on average
ROWS = (
    (("F", 0, 0, 10), ("F", 1, 10, 20), ("B", 0, 40, 60), ("F", 2, 60, 70), ("B", 1, 70, 90),
     ("B", 2, 100, 120)),
    (("F", 0, 10, 20), ("B", 0, 20, 30), ("F", 1, 50, 60), ("B", 1, 60, 70), ("F", 2, 80, 90),
     ("B", 2, 90, 100)),
)  # fmt: skip


def events(stage, ahead=0.0, pid=0):
    """Chrome's complete events of a stage, by a clock that is ahead. [s]"""
    return [
        {"ph": "X", "name": f"PP:{stage}{kind}{number}", "pid": pid, "tid": 1,
         "ts": 1e6 * ahead + 1e3 * start, "dur": 1e3 * (end - start)}
        for kind, number, start, end in ROWS[stage]
    ]  # fmt: skip


def saved(folder, *documents):
    paths = []
    for rank, document in enumerate(documents):
        paths.append(folder / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(document))
    return paths


def same_rows(timeline, within=1e-9):
    for stage, row in enumerate(ROWS):
        mine = timeline.where(timeline.rank == stage)
        assert mine.start == pytest.approx([1e-3 * one[2] for one in row], abs=within)
        assert mine.end == pytest.approx([1e-3 * one[3] for one in row], abs=within)


@pytest.mark.parametrize("pids", [(0, 1), (7001, 7000), ("a", "b")])
def test_a_file_of_two_processes_is_two_ranks_with_a_bubble_of_37_5_percent(pids, tmp_path):
    """The ids may stand against the stages, as the system gives them."""
    both = [event for stage in (0, 1) for event in events(stage, pid=pids[stage])]
    (tmp_path / "one.json").write_text(json.dumps({"traceEvents": both}))
    back = bring_in([tmp_path / "one.json"])
    assert back.ranks == (0, 1)
    assert back.aligned_by == "one clock"
    same_rows(back.timeline)
    assert report_of(back, "x").bubble_fraction == pytest.approx(0.375)


def launches(pid, first, device):
    """An op on the host, its two launches and their kernels on a device."""
    made = [{"ph": "X", "cat": "user_annotation", "name": f"PP:{device}F0", "pid": pid, "tid": 1,
             "ts": 0.0, "dur": 10.0}]  # fmt: skip
    for at in (1, 2):
        args = {"correlation": first + at}
        made += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": 1,
             "ts": float(at), "dur": 1.0, "args": args},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": device, "tid": 7,
             "ts": 100.0 * (device + 1) + 10 * at, "dur": 10.0, "args": args},
        ]  # fmt: skip
    return made


def test_a_kernel_in_a_file_of_two_processes_is_of_the_one_that_launched_it(tmp_path):
    document = {"traceEvents": launches(1, 100, 0) + launches(50, 200, 1)}
    t = bring_in(saved(tmp_path, document)).timeline
    assert t.rank.tolist() == [0, 1]
    assert t.start == pytest.approx([0.0, 100e-6])
    assert t.end == pytest.approx([20e-6, 120e-6])
    alike = {"traceEvents": launches(1, 100, 0) + launches(50, 100, 1)}
    with pytest.raises(ValueError, match=r"number their kernels alike.*give one file a rank"):
        bring_in(saved(tmp_path, alike))


def test_a_rank_whose_first_event_is_at_10_ms_stays_there(tmp_path):
    back = bring_in(saved(tmp_path, events(0), events(1)))
    assert back.aligned_by == "record"
    assert not back.clocks.offset.any()
    same_rows(back.timeline)


@pytest.mark.parametrize("ahead", [7.0, -3.0, 0.05])
def test_clocks_apart_are_found_from_the_order_of_ops_alone(ahead, tmp_path, capsys):
    """Forwards and backwards follow at once somewhere, so that the order leaves no room."""
    paths = saved(tmp_path, events(0), events(1, ahead))
    back = bring_in(paths)
    assert back.aligned_by == "order of ops"
    assert back.clocks.offset == pytest.approx([0.0, -ahead], abs=1e-8)
    same_rows(back.timeline, within=1e-8)
    assert main(["trace", *map(str, paths), "--no-gantt"]) == 0
    assert "apart, aligned by the order of ops to within 0 us\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("gpipe", 1), ("1f1b", 1), ("zb-h1", 1), ("zb-v", 2)]
)
def test_four_clocks_without_messages_come_back_within_their_margins(schedule, vpp, tmp_path):
    """Every op needs its input 0.1 ms before, so the truth lies in the room that is left."""
    run = simulate_uniform(
        Plan(schedule=schedule, pp=4, vpp=vpp, num_microbatches=8), 1e-3, 2e-3, latency=1e-4
    )
    t, ahead = run.timeline, np.array([0.0, 2.0, -0.5, 31.0])
    documents = [
        [
            {"ph": "X", "name": f"{t.stage[i]}{Kind(t.kind[i]).name}{t.microbatch[i]}",
             "pid": 0, "tid": 0, "ts": 1e6 * (t.start[i] + ahead[rank]),
             "dur": 1e6 * (t.end[i] - t.start[i])}
            for i in np.flatnonzero((t.rank == rank) & (t.kind <= Kind.W)).tolist()
        ]
        for rank in range(4)
    ]  # fmt: skip
    back = bring_in(saved(tmp_path, *documents))
    assert back.clocks.residual <= 1e-9
    assert (np.abs(back.clocks.offset + ahead) <= 1.001 * back.clocks.margin + 1e-7).all()
    assert np.diff(back.clocks.offset + ahead).tolist() == pytest.approx([0.0] * 3, abs=1e-3)
    for a, b in pairwise(range(4)):
        first = [back.timeline.where((back.timeline.rank == r) & (back.timeline.kind == Kind.F))
                 for r in (a, b)]  # fmt: skip
        assert first[0].end[0] <= first[1].start[0] + 1e-9


def test_files_that_count_from_their_own_zeros_are_never_as_recorded(tmp_path, capsys):
    """One in Unix time, one from its machine's start, forwards only: nothing bounds both sides."""
    first = {"traceEvents": events(0), "baseTimeNanoseconds": 1_790_000_000 * 10**9}
    second = {"traceEvents": [{**events(1, 5.0)[0], "name": "PP:1F9"}]}
    paths = saved(tmp_path, first, second)
    assert bring_in(paths).aligned_by == "nothing"
    assert main(["trace", *map(str, paths), "--no-gantt"]) == 0
    text = capsys.readouterr().out
    assert "clocks    unknown, so each file begins at its first event" in text
    assert "as recorded" not in text


def test_exports_of_nsight_systems_without_a_session_start_are_aligned_by_order(tmp_path):
    paths = []
    for rank, row in enumerate(ROWS):
        paths.append(tmp_path / f"rank{rank}.sqlite")
        database = sqlite3.connect(paths[-1])
        database.executescript(SCHEMA)
        for kind, number, start, end in row:
            database.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) "
                "VALUES (?, ?, 59, ?, ?)",
                ((start + 3 * rank) * 10**6, (end + 3 * rank) * 10**6, f"{rank}{kind}{number}",
                 PROCESS),
            )  # fmt: skip
        database.commit()
        database.close()
    back = bring_in(paths)
    assert back.aligned_by == "order of ops"
    same_rows(back.timeline)
    assert traces.read(*paths) == back.timeline
