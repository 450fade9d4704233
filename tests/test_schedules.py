"""Rows and their lowering: the papers' counts, and PyTorch's own lowering of the same rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.job import Plan
from simulator.lower import (
    lower,
    post_receives_early,
    reduce_at_end,
    reduce_when_ready,
    step_optimizer,
    unshard_after_step,
)
from simulator.schedule import Deadlock, Kind, Op, Schedule
from simulator.schedules import build
from tests.plans import QUICK, nearest, rows_of
from validator.pytorch_rows import lowered_by_pytorch

sizes = {"pp": st.integers(1, 6), "rounds": st.integers(1, 4), "vpp": st.integers(1, 3)}
every_schedule = pytest.mark.parametrize("name", QUICK)


@every_schedule
@given(**sizes)
def test_every_op_stands_once(name, pp, rounds, vpp):
    p = nearest(name, pp, rounds, vpp)
    schedule = rows_of(p)
    ops = [op for row in schedule.rows for op in row if op.kind is not Kind.OPTIMIZER]
    assert len(ops) == len(set(ops))
    forwards = {(op.stage, op.microbatch) for op in ops if op.kind is Kind.F}
    whole = {(op.stage, op.microbatch) for op in ops if op.kind is Kind.B}
    input_grads = {(op.stage, op.microbatch) for op in ops if op.kind is Kind.I}
    weight_grads = {(op.stage, op.microbatch) for op in ops if op.kind is Kind.W}
    stages, microbatches = range(p.num_stages), range(schedule.num_microbatches)
    assert forwards == {(s, m) for s in stages for m in microbatches}
    assert input_grads == weight_grads
    assert not whole & input_grads
    assert whole | input_grads == forwards


@every_schedule
@given(**sizes)
def test_lowering_equals_pytorchs(name, pp, rounds, vpp):
    schedule = rows_of(nearest(name, pp, rounds, vpp))
    held = set(zip(schedule.stage.tolist(), schedule.rank.tolist(), strict=True))
    if len(held) > schedule.num_stages:
        pytest.skip("PyTorch holds each stage on one rank")
    if (schedule.kind == Kind.OPTIMIZER).any():
        pytest.skip("PyTorch's rows hold one iteration, without the optimizer step")
    assert lower(schedule) == lowered_by_pytorch(schedule)


@every_schedule
@given(**sizes)
def test_text_round_trip(name, pp, rounds, vpp):
    lowered = lower(rows_of(nearest(name, pp, rounds, vpp)))
    assert Schedule.parse(str(lowered)) == lowered


@every_schedule
@given(**sizes)
def test_both_ends_of_each_pair_list_their_transfers_in_one_order(name, pp, rounds, vpp):
    lowered = lower(rows_of(nearest(name, pp, rounds, vpp)))
    ends = [
        (rank, op) for rank, row in enumerate(lowered.rows) for op in row if not op.kind.is_compute
    ]
    home = {op: rank for rank, op in ends}
    far = {
        Kind.SEND_F: (Kind.RECV_F, 1),
        Kind.RECV_F: (Kind.SEND_F, -1),
        Kind.SEND_B: (Kind.RECV_B, -1),
        Kind.RECV_B: (Kind.SEND_B, 1),
    }
    sent, received = {}, {}
    for rank, op in ends:
        kind, step = far[op.kind]
        peer = home[Op(op.stage + step, kind, op.microbatch)]
        if op.kind.is_send:
            sent.setdefault((rank, peer), []).append((kind, op.stage + step, op.microbatch))
        else:
            received.setdefault((peer, rank), []).append((op.kind, op.stage, op.microbatch))
    assert sent == received


def test_1f1b_of_4_ranks_warms_up_with_3_2_1_0_forwards():
    rows = build(Plan(schedule="1f1b", pp=4, num_microbatches=8)).rows
    warmups = [next(i for i, op in enumerate(row) if op.kind is Kind.B) - 1 for row in rows]
    assert warmups == [3, 2, 1, 0]


@pytest.mark.parametrize(("pp", "vpp", "m"), [(4, 2, 8), (8, 3, 16), (2, 4, 6)])
def test_interleaved_warms_up_with_megatrons_count(pp, vpp, m):
    rows = build(Plan(schedule="interleaved", pp=pp, vpp=vpp, num_microbatches=m)).rows
    warmups = [next(i for i, op in enumerate(row) if op.kind is Kind.B) - 1 for row in rows]
    assert warmups == [min(2 * (pp - 1 - r) + (vpp - 1) * pp, m * vpp) for r in range(pp)]


def test_interleaved_runs_all_forwards_first_when_there_are_pp_microbatches():
    for row in build(Plan(schedule="interleaved", pp=4, vpp=2, num_microbatches=4)).rows:
        assert [op.kind for op in row] == [Kind.F] * 8 + [Kind.B] * 8


def test_interleaved_refuses_6_microbatches_on_4_ranks_and_names_4_or_8():
    with pytest.raises(ValueError, match=r"num_microbatches is 6.* multiple of pp = 4; use 4 or 8"):
        build(Plan(schedule="interleaved", pp=4, vpp=2, num_microbatches=6))


def test_an_unknown_schedule_is_answered_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"'interleave', which is unknown; did you mean interleaved"
    ):
        build(Plan(schedule="interleave"))


def test_chunks_are_refused_by_a_schedule_without_them():
    with pytest.raises(
        ValueError, match=r"plan.vpp is 2, but schedule 1f1b takes no vpp; leave it out, or"
    ):
        build(Plan(schedule="1f1b", pp=2, vpp=2, num_microbatches=2))


def test_rows_that_cannot_finish_name_each_stuck_rank_and_what_it_waits_for():
    rows = Schedule.parse("0B0,0F0\n1F0,1B0")
    with pytest.raises(Deadlock, match=r"rank 0 at 0B0 waits for 1B0; rank 1 at 1F0 waits for 0F0"):
        lower(rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0F0,0B0", "row of rank 0, column 1 is 0F0 for the second time"),
        (
            "0F0,0B0\n1F0",
            "row of rank 1, column 0 is 1F0, but stage 1, microbatch 0 has no backward",
        ),
        ("0B0", "row of rank 0, column 0 is 0B0, but stage 0, microbatch 0 has no forward"),
        ("0F0\n0B0,1F0,1B0", "row of rank 1, column 0 is 0B0, but rank 0 ran its forward"),
        ("0F0,0I0", "stage 0, microbatch 0 has half a backward"),
        ("0F0,0B0,0I0,0W0", "has a full and a split backward"),
        (
            "0F0,0SEND_F0,0B0",
            "column 1 is 0SEND_F0, but rows to lower hold only F, B, I, W and OPT",
        ),
    ],
)
def test_bad_rows_are_named_by_place(text, message):
    with pytest.raises(ValueError, match=message):
        lower(Schedule.parse(text))


def test_a_word_that_is_no_op_is_named_by_rank_and_column():
    with pytest.raises(ValueError, match=r"row of rank 1, column 0: 'X7' is no op"):
        Schedule.parse("0F0,0B0\nX7")


def test_an_empty_schedule_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        Schedule.parse("")


def test_the_split_backward_sends_after_the_input_gradient():
    lowered = lower(Schedule.parse("0F0,0I0,0W0\n1F0,1I0,1W0"))
    assert str(lowered) == "0F0,0SEND_F0,0RECV_B0,0I0,0W0\n1RECV_F0,1F0,1I0,1SEND_B0,1W0"


def test_stages_on_one_rank_need_no_transfer():
    lowered = lower(Schedule.parse("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0"))
    assert [op for op in lowered.row(1) if op.kind.is_send] == [
        Op(2, Kind.SEND_F, 0),
        Op(1, Kind.SEND_B, 0),
    ]


def test_gradients_are_reduced_after_the_last_backward_or_at_the_end():
    rows = lower(build(Plan(schedule="interleaved", pp=2, vpp=2, num_microbatches=2)))
    early, late = reduce_when_ready(rows), reduce_at_end(rows)
    assert (
        str(early)
        .splitlines()[0]
        .endswith("2B1,2REDUCE_GRAD,2SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD")
    )
    assert str(late).splitlines()[0].endswith("0B1,0REDUCE_GRAD,2REDUCE_GRAD")
    whole = unshard_after_step(step_optimizer(late))
    assert str(whole).splitlines()[1].endswith("1OPTIMIZER,1UNSHARD,3OPTIMIZER,3UNSHARD")


def test_receives_posted_early_keep_their_order_and_everything_else():
    rows = lower(build(Plan(schedule="1f1b", pp=3, num_microbatches=4)))
    for before, after in zip(rows.rows, post_receives_early(rows).rows, strict=True):
        receives = [op for op in before if op.kind.is_receive]
        assert list(after) == receives + [op for op in before if not op.kind.is_receive]


def test_rows_of_262144_ops_are_columns():
    schedule = build(Plan(schedule="interleaved", pp=64, vpp=4, num_microbatches=512))
    assert schedule.num_ops == 262_144
    assert schedule.stage.dtype == np.int32
    assert schedule.kind.dtype == np.int8
