"""Blocking transfers: the compiled rows are those that the rule gives, op by op, in Python."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.batches import batch
from simulator.blocking import block
from simulator.lower import lower
from simulator.schedule import NO_MICROBATCH, Kind, Op, Pair, Schedule
from simulator.schedules.interleaved import interleaved
from tests.plans import QUICK, nearest, rows_of

OTHER = {
    Kind.SEND_F: (Kind.RECV_F, 1),
    Kind.RECV_F: (Kind.SEND_F, -1),
    Kind.SEND_B: (Kind.RECV_B, -1),
    Kind.RECV_B: (Kind.SEND_B, 1),
}


def wait(stage):
    return Op(stage, Kind.WAIT, NO_MICROBATCH)


def is_transfer(item):
    return isinstance(item, Op) and item.kind in OTHER


def message(op, end, known):
    """The send or receive of an op's result or input, if it has one: a list of none or one."""
    if op.kind > Kind.I:
        return []
    forward, backward = (Kind.SEND_F, Kind.SEND_B) if end == "send" else (Kind.RECV_F, Kind.RECV_B)
    found = Op(op.stage, forward if op.kind == Kind.F else backward, op.microbatch)
    return [found] if found in known else []


def one_by_one(lowered):
    """A rank receives, computes and sends; what goes over one pair of ranks goes together."""
    home = {op: rank for rank, row in enumerate(lowered.rows) for op in row}
    rows = []
    for rank in range(lowered.num_ranks):
        row, open_to = [], None
        for item in lowered.items(rank):
            ops = item if isinstance(item, Pair) else (item,)
            moves = [m for op in ops for m in message(op, "receive", home)]
            if is_transfer(item):
                moves = [] if item.kind.is_receive else [item]
            for move in moves:
                kind, step = OTHER[move.kind]
                peer = home[Op(move.stage + step, kind, move.microbatch)]
                row += [wait(ops[0].stage)] * (open_to not in (None, peer)) + [move]
                open_to = peer
            if not is_transfer(item):
                row += [wait(ops[0].stage)] * (open_to is not None) + [item]
                open_to = None
        rows.append(row + [wait(lowered.row(rank)[-1].stage)] * (open_to is not None))
    return Schedule.of(rows)


def way(op):
    """F of a forward, B of a backward, None of the rest."""
    return {Kind.F: Kind.F, Kind.B: Kind.B, Kind.I: Kind.B}.get(op.kind)


def step_by_step(lowered):
    """Between two steps what the last one made and what the next one takes goes together.

    The first rank takes what the last has made a pipeline's length later, if that is before need.
    """
    known = {op for row in lowered.rows for op in row}
    nth = {}  # forward or backward of its rank
    for row in lowered.rows:
        for kind in (Kind.F, Kind.B):
            made = [op for op in row if way(op) == kind]
            nth |= {(op.stage, kind, op.microbatch): n for n, op in enumerate(made)}
    rows = []
    for all_ops in lowered.rows:
        work = [op for op in all_ops if not is_transfer(op)]
        taken = defaultdict(list)  # by forward or backward, and which of them
        for op in work:
            for receive in message(op, "receive", known):
                maker = op.stage + (-1 if way(op) == Kind.F else 1)
                late = nth[maker, way(op), op.microbatch] + lowered.num_ranks
                own = nth[op.stage, way(op), op.microbatch]
                taken[way(op), min(own, late)].append(receive)
        kinds = [Kind.F, *(op.kind for op in work), Kind.B, None]  # before and after the row
        row, due, at = [], [], 0
        while at < len(work):
            before, ahead, back, after = kinds[at : at + 4]
            both = at + 1 < len(work) and (ahead, back) == (Kind.F, Kind.B)
            step = work[at : at + 1 + (both and (before == Kind.B or after == Kind.F))]
            for op in step:
                due += taken[way(op), nth.get((op.stage, way(op), op.microbatch))]
            row += due + [wait(move.stage) for move in due[:1]] + step
            due = [m for op in step for m in message(op, "send", known)]
            at += len(step)
        rows.append(row + due + [wait(move.stage) for move in due[:1]])
    return Schedule.of(rows)


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=5)
@given(pp=st.integers(1, 6), rounds=st.integers(1, 4), vpp=st.integers(1, 3))
def test_both_ways_of_blocking_give_the_rows_of_their_rule_over_all_schedules(
    name, pp, rounds, vpp
):
    lowered = lower(rows_of(nearest(name, pp, rounds, vpp)))
    assert block(lowered) == one_by_one(lowered)
    if not lowered.paired.any():
        assert batch(lowered) == step_by_step(lowered)


@given(pp=st.integers(2, 6), vpp=st.integers(2, 4), more=st.integers(0, 3), m=st.integers(0, 20))
def test_batches_are_those_of_the_rule_with_larger_groups_of_microbatches(pp, vpp, more, m):
    group = pp + more
    lowered = lower(interleaved(pp, group * (1 + m // group), vpp, group))
    assert batch(lowered) == step_by_step(lowered)


@pytest.mark.parametrize(("made", "rule"), [(block, one_by_one), (batch, step_by_step)])
def test_compiled_rows_of_72_800_ops_are_those_of_the_rule(made, rule):
    lowered = lower(interleaved(8, 520, 3))  # loops compile from 20,000 elements on
    assert lowered.num_ops == 72_800
    assert made(lowered) == rule(lowered)
