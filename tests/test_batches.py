"""Blocking transfers of interleaved schedules, one batch a step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.batches import batch
from simulator.frameworks import load_framework, plan_defaults
from simulator.job import Plan
from simulator.lower import lower
from simulator.schedule import Kind
from simulator.schedules.interleaved import interleaved
from simulator.simulate import simulate_uniform

LATENCY = 0.25


def run(pp, vpp, num_microbatches, executor="auto", latency=LATENCY, group=None):
    plan = Plan(
        schedule="interleaved",
        pp=pp,
        vpp=vpp,
        num_microbatches=num_microbatches,
        microbatch_group_size=group,
        p2p="blocking",
    )
    return simulate_uniform(plan, 1.0 * vpp, 2.0 * vpp, latency=latency, executor=executor)


SIZES = st.tuples(st.integers(2, 8), st.integers(2, 4), st.integers(2, 4))


@given(SIZES)
def test_each_of_m_v_steps_and_of_the_filling_pays_a_batch_s_latency(sizes):
    pp, vpp, groups = sizes
    m = groups * pp
    alone = 3.0 * (m * vpp + pp - 1)
    batches = m * vpp + vpp * pp + pp - 3
    assert run(pp, vpp, m).report.step_time == pytest.approx(alone + batches * LATENCY)


@given(SIZES, st.integers(0, 5))
def test_groups_larger_than_pp_pay_v_minus_1_latencies_more_for_each_microbatch_more(sizes, more):
    pp, vpp, groups = sizes
    m = groups * (pp + more)
    report = run(pp, vpp, m, group=pp + more).report
    alone = 3.0 * (m * vpp + pp - 1)
    batches = m * vpp + vpp * pp + pp - 3 + (vpp - 1) * more
    assert report.step_time == pytest.approx(alone + batches * LATENCY)


@given(SIZES)
def test_free_transfers_leave_interleaving_s_own_bubble(sizes):
    pp, vpp, groups = sizes
    report = run(pp, vpp, groups * pp, latency=0.0).report
    assert report.bubble_to_ideal == pytest.approx((pp - 1) / (vpp * groups * pp))


@pytest.mark.parametrize("m", [4, 8, 12])
def test_the_engine_says_the_same(m):
    one, other = (run(4, 2, m, executor).report.step_time for executor in ("auto", "engine"))
    assert one == other


@given(SIZES)
def test_a_batch_holds_at_most_two_sends_and_two_receives_and_every_transfer_is_waited_for(sizes):
    pp, vpp, groups = sizes
    rows = lower(interleaved(pp, groups * pp, vpp))
    made = batch(rows)
    for rank in range(pp):
        open_kinds = []
        for kind in made.kind[made.offsets[rank] : made.offsets[rank + 1]].tolist():
            if kind == Kind.WAIT:
                assert open_kinds
                assert len(set(open_kinds)) == len(open_kinds)
                open_kinds = []
            elif Kind.SEND_F <= kind <= Kind.RECV_B:
                open_kinds.append(kind)
            else:
                assert not open_kinds
        assert not open_kinds
    assert (made.kind != Kind.WAIT).sum() == rows.num_ops


def test_interleaving_waits_for_its_transfers_in_2021_and_2022_and_no_longer_in_2024():
    def p2p(name):
        return plan_defaults(load_framework(name), dtype="bf16", tp=8, dp=1, pp=4, vpp=2).get("p2p")

    assert p2p("megatron-lm-2021") == p2p("megatron-lm-2022") == "blocking"
    assert p2p("megatron-core") is None
    assert p2p("nanotron") is None
