"""Our rows train in PyTorch's runtime, and PyTorch's own classes run the rows that we say."""

import enum
import multiprocessing

import numpy as np
import pytest

from simulator.dialects import read_rows, write_rows
from simulator.job import Plan
from simulator.lower import lower
from simulator.schedule import Schedule
from simulator.schedules import schedules
from tests.plans import rows_of
from validator import pytorch_rows, train
from validator.backports import has_kind
from validator.pytorch_rows import lowered_by_pytorch, why_not

CLOSE = 1e-12  # float64, gradients of order 1


@pytest.fixture(scope="module")
def workers():
    """Processes for all tests of this module; a test that broke them gets new ones."""
    pool = []

    def give(num_ranks=4):
        if not pool or not pool[-1].alive:
            pool.append(train.Workers(num_ranks, timeout=300.0))
        return pool[-1]

    yield give
    for each in pool:
        each.stop()


def rows(name, pp, num_microbatches):
    chunks = schedules()[name].chunks
    return rows_of(Plan(schedule=name, pp=pp, num_microbatches=num_microbatches, vpp=chunks))


@pytest.mark.parametrize(("pp", "num_microbatches"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("name", schedules())
def test_gradients_equal_the_unpipelined_models(workers, name, pp, num_microbatches):
    schedule = rows(name, pp, num_microbatches)
    if why_not(schedule) is not None:
        with pytest.raises(ValueError, match="PyTorch cannot run these rows"):
            workers().train(schedule)
        return
    trained = workers().train(schedule)
    whole = train.unpipelined(schedule.num_stages, num_microbatches)
    assert trained.furthest(whole) < CLOSE
    assert np.abs(np.concatenate([g.ravel() for g in whole.gradients.values()])).max() > 1e-2
    assert list(trained.ran.rows) == list(schedule.rows)


def test_the_schedules_that_pytorch_cannot_run_and_why():
    reasons = {name: why_not(rows(name, 4, 8)) for name in schedules()}
    words = {name: reason.split(";")[0] for name, reason in reasons.items() if reason is not None}
    updates = "0OPTIMIZER stands in the rows"
    twice = "stage 0 is on ranks 0 and 3"
    expected = {
        "pipedream": updates,
        "pipedream-2bw": updates,
        "pipelined-sgd": updates,
        "pipemare": updates,
        "chimera": twice,
        "dualpipe": twice,
    }
    assert words == {name: reason for name, reason in expected.items() if name in reasons}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0F1,0F0,0B0,0B1", "forward number 0 is of microbatch 1"),
        ("0F0,1F0,1B0,0B0\n2F0,2B0", "3 stages on 2 ranks"),
        ("0F0,0WAIT,0B0", "0WAIT stands in the rows"),
    ],
)
def test_rows_that_pytorch_cannot_run_are_told_why(text, reason):
    assert reason in why_not(Schedule.parse(text))


def test_token_slices_are_no_microbatches():
    schedule = rows("gpipe", 2, 4)
    assert why_not(schedule) is None
    assert "2 token slices of each microbatch" in why_not(schedule, num_slices=2)


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
def test_lowered_text_runs_as_it_is_written(workers, name):
    schedule = rows(name, 2, 4)
    lowered = read_rows(write_rows(schedule, "pytorch-comms"), "pytorch-comms")
    trained = workers().train(lowered)
    assert trained.furthest(train.unpipelined(schedule.num_stages, 4)) < CLOSE


@pytest.mark.parametrize(("pp", "num_microbatches"), [(2, 2), (3, 5), (4, 8)])
def test_1f1b_is_what_pytorchs_class_runs(workers, pp, num_microbatches):
    trained = workers().generate("Schedule1F1B", [[rank] for rank in range(pp)], num_microbatches)
    assert trained.ran == rows("1f1b", pp, num_microbatches)
    assert trained.furthest(train.unpipelined(pp, num_microbatches)) < CLOSE


@pytest.mark.parametrize(("pp", "num_microbatches"), [(2, 2), (3, 5), (4, 4)])
def test_gpipe_is_what_pytorchs_class_runs_but_for_the_order_of_backwards(
    workers, pp, num_microbatches
):
    trained = workers().generate("ScheduleGPipe", [[rank] for rank in range(pp)], num_microbatches)
    for theirs, ours in zip(
        trained.ran.rows, rows("gpipe", pp, num_microbatches).rows, strict=True
    ):
        m = num_microbatches
        assert theirs == ours[:m] + ours[m:][::-1]  # oldest first; ours newest first, as the paper


def test_looped_bfs_class_runs_and_is_recorded(workers):
    trained = workers().generate("ScheduleLoopedBFS", [[0, 2], [1, 3]], 3)
    assert trained.ran.row(0)[:6] == Schedule.parse("0F0,0F1,0F2,2F0,2F1,2F2").row(0)
    assert trained.furthest(train.unpipelined(4, 3)) < CLOSE


@pytest.mark.parametrize("name", schedules())
@pytest.mark.parametrize("pp", [2, 4])
def test_lowering_equals_pytorchs_where_its_runtime_can_run_the_rows(name, pp):
    schedule = rows(name, pp, 2 * pp)
    if why_not(schedule) is None and (has_kind("OVERLAP_F_B") or not schedule.paired.any()):
        assert lower(schedule) == lowered_by_pytorch(schedule)


def test_a_process_that_fails_is_named_and_none_is_left():
    workers = train.Workers(2, timeout=300.0)
    mine = list(workers.processes)
    with pytest.raises(RuntimeError, match=r"(?s)process of rank \d: .*no ScheduleNever"):
        workers.generate("ScheduleNever", [[0], [1]], 2)
    assert not workers.alive
    assert all(process not in multiprocessing.active_children() for process in mine)


def test_rows_that_hang_are_ended_after_the_timeout():
    text = "0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"  # rank 0 never sends
    with train.Workers(2, timeout=3.0) as workers:
        with pytest.raises(RuntimeError, match="process of rank"):
            workers.train(Schedule.parse(text))
        assert not workers.alive


def test_a_schedule_with_more_ranks_than_processes_is_refused(workers):
    with pytest.raises(ValueError, match="5 ranks, but there are 4 processes"):
        workers().train(rows("gpipe", 5, 5))


def test_a_missing_private_name_is_told_with_the_versions(monkeypatch):
    monkeypatch.delattr(pytorch_rows.private, "_add_send_recv")
    with pytest.raises(ValueError, match=r"has no _add_send_recv; it was last seen in torch 2\.13"):
        lowered_by_pytorch(rows("1f1b", 2, 2))


def test_older_torch_numbers_its_kinds_of_ops_and_prints_their_words():
    class Kind(enum.Enum):
        FORWARD = 1

        def __str__(self):
            return "F"

    assert pytorch_rows._word(Kind.FORWARD) == "F"
    assert {"F", "B", "I", "W"} < set(
        map(pytorch_rows._word, pytorch_rows.private._ComputationType)
    )
