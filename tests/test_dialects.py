"""Rows as text: each dialect there and back, and errors that name rank and column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.dialects import DIALECTS, is_lowered, read_rows, write_rows
from simulator.job import Plan
from simulator.lower import lower
from simulator.schedule import Kind, Op, Schedule
from simulator.schedules import schedules
from tests.greedy import split
from tests.plans import rows_of

SYNCHRONOUS = [name for name, recipe in schedules().items() if recipe.weights is None]


def rows(name, pp, num_microbatches):
    chunks = schedules()[name].chunks
    return rows_of(Plan(schedule=name, pp=pp, num_microbatches=num_microbatches, vpp=chunks))


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_what_an_op_needs_on_its_own_rank_may_not_stand_after_it(name):
    last = rows(name, 4, 8).num_stages - 1
    lines = [list(map(str, row)) for row in lower(rows(name, 4, 8)).rows]
    for line in lines:
        if f"{last}F3" in line:
            line.remove(f"{last}F3")
            line.append(f"{last}F3")
    with pytest.raises(ValueError, match=f"{last}F3, which it needs, stands after it"):
        read_rows("\n".join(map(",".join, lines)), "pytorch-comms")


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_pytorchs_compute_only_text_there_and_back(name):
    schedule = rows(name, 4, 8)
    assert read_rows(write_rows(schedule, "pytorch-compute"), "pytorch-compute") == schedule


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_pytorchs_text_with_communication_is_recognised_and_kept(name):
    schedule = rows(name, 4, 8)
    text = write_rows(schedule, "pytorch-comms")
    lowered = read_rows(text, "pytorch-comms")
    assert is_lowered(lowered)
    assert not is_lowered(schedule)
    assert write_rows(lowered, "pytorch-comms") == text
    bare = [[op for op in row if op.kind is not Kind.REDUCE_GRAD] for row in lowered.rows]
    assert bare == [list(row) for row in lower(schedule).rows]


@given(pp=st.integers(1, 5), m=st.integers(1, 6), halves=st.booleans())
def test_the_zero_bubble_authors_letters_there_and_back(pp, m, halves):
    schedule = rows("1f1b", pp, m)
    schedule = split(schedule) if halves else schedule
    assert read_rows(write_rows(schedule, "zero-bubble"), "zero-bubble") == schedule
    lowered = lower(schedule)
    assert read_rows(write_rows(lowered, "zero-bubble"), "zero-bubble") == lowered


def test_1f1b_of_2_ranks_in_the_zero_bubble_authors_letters():
    assert write_rows(rows("1f1b", 2, 2), "zero-bubble") == "f0 f1 b0 b1\nf0 b0 f1 b1\n"


def test_b_is_the_input_gradient_where_a_w_follows_and_the_whole_backward_where_none_does():
    schedule = read_rows("f0 b0 w0 f1 b1 f2 bw2", "zero-bubble")
    assert str(schedule) == "0F0,0I0,0W0,0F1,0B1,0F2,0B2"


def test_capitals_are_the_second_chunk_on_the_way_back_of_the_v_or_interleaved():
    text = "f0 F0 B0 W0 b0 w0\nf0 F0 B0 W0 b0 w0"
    v, interleaved = (read_rows(text, d) for d in ("zero-bubble", "zero-bubble-interleaved"))
    assert [op.stage for op in v.row(1)][:2] == [1, 2]
    assert [op.stage for op in v.row(0)][:2] == [0, 3]
    assert [op.stage for op in interleaved.row(0)][:2] == [0, 2]
    assert write_rows(v, "zero-bubble") == text + "\n"
    assert write_rows(interleaved, "zero-bubble-interleaved") == text + "\n"


def test_rows_in_capitals_alone_have_one_chunk():
    assert str(read_rows("F0 B0 W0", "zero-bubble")) == "0F0,0I0,0W0"
    assert str(read_rows("F-0 B-0 W-0", "zero-bubble")) == "0F0,0I0,0W0"


def test_interleaved_letters_there_and_back():
    schedule = rows("interleaved", 4, 8)
    text = write_rows(schedule, "zero-bubble-interleaved")
    assert read_rows(text, "zero-bubble-interleaved") == schedule
    with pytest.raises(ValueError, match=r"rank 0, column 4 is 4F0, but dialect zero-bubble has"):
        write_rows(schedule, "zero-bubble")


def test_idle_slots_of_pytorchs_text_are_skipped():
    assert str(read_rows("0F0,,0B0\n,1F0,1B0", "pytorch-compute")) == "0F0,0B0\n1F0,1B0"


def test_pytorchs_sharding_ops_are_read():
    text = "0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n"
    assert write_rows(read_rows(text, "pytorch-comms"), "pytorch-comms") == text


LOWERED = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0"


@pytest.mark.parametrize(
    ("text", "dialect", "message"),
    [
        (LOWERED, "pytorch-compute", "rank 0, column 1 is 0SEND_F0, .* are pytorch-comms"),
        ("0F0,0B0\n1F0,X", "pytorch-compute", "rank 1, column 1: 'X' is no op"),
        ("0F0,0B0,0OPTIMIZER", "pytorch-compute", "rank 0, column 2 is 0OPTIMIZER"),
        ("0F0,0B0\n1F0,1B0", "pytorch-comms", "rank 0, column 1 is 0B0, but 0RECV_B0 does not"),
        ("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0", "pytorch-comms", "1, column 0 is 1F0, but"),
        (
            LOWERED.replace("0SEND_F0,", ""),
            "pytorch-comms",
            "1, column 0 is 1RECV_F0, but 0SEND_F0",
        ),
        (LOWERED + ",1SEND_B1", "pytorch-comms", "rank 1, column 4 is 1SEND_B1, but nothing"),
        ("f0 b0\nf0 x0", "zero-bubble", "rank 1, column 1: 'x0' is no op; write f, b, w or bw"),
        ("f0 bW0", "zero-bubble", "rank 0, column 1: 'bW0' is no op"),
        ("f b0", "zero-bubble", "rank 0, column 0: 'f' is no op"),
        ("0F0", "pytorch", "dialect is 'pytorch'; did you mean pytorch-"),
    ],
)
def test_bad_text_is_named_by_rank_and_column(text, dialect, message):
    with pytest.raises(ValueError, match=message):
        read_rows(text, dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_op_that_a_dialect_lacks_is_named_by_rank_and_column(dialect):
    schedule = Schedule.of([[Op(0, Kind.F, 0), Op(0, Kind.B, 0), Op(0, Kind.OPTIMIZER)]])
    with pytest.raises(ValueError, match=r"row of rank 0, column 2 is 0OPTIMIZER, but dialect"):
        write_rows(schedule, dialect)


def test_a_pair_has_no_letters():
    with pytest.raises(ValueError, match="row of rank 0, column 1 starts a pair"):
        write_rows(Schedule.parse("0F0,(0F1;0B0)OVERLAP_F_B,0B1"), "zero-bubble")


def test_an_empty_text_is_refused():
    for dialect in DIALECTS:
        with pytest.raises(ValueError, match="at least one row"):
            read_rows("", dialect)


def test_types_stay_small():
    assert read_rows("f0 b0 w0", "zero-bubble").stage.dtype == np.int32
