"""Zero bubble and controllable memory: the papers' closed forms, tables and building blocks."""

import csv
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as pytorch

from simulator import engine
from simulator.costs import uniform
from simulator.costs.memory import memory_samples
from simulator.fabric import ideal
from simulator.job import Plan
from simulator.lower import lower, post_receives_early
from simulator.matching import transfers
from simulator.schedule import Kind, Op
from simulator.schedules import build
from tests import greedy
from validator.pytorch_rows import lowered_by_pytorch

DATA = Path(__file__).parent / "data"

HALVES = ("zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-auto")
ARMS = ("zb-v", "v-half", "v-min")
SPLIT = (*HALVES, "interleaved-zb", *ARMS)


def rows_of(name):
    with (DATA / name).open() as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


SETTINGS = rows_of("zero_bubble_tables.csv")
BLOCKS = {row["schedule"]: row for row in rows_of("controllable_memory.csv")}
every_setting = pytest.mark.parametrize(
    "row", SETTINGS, ids=[f"{r['model']}_m{r['num_microbatches']}" for r in SETTINGS]
)


def play(name, pp, m, times=(1.0, 1.0, 1.0), *, vpp=1, latency=0.0, weight_memory=1.0, **more):
    """The Timeline with memory; times are F, I and W of one microbatch on one rank."""
    forward, input_grad, weight_grad = (seconds / vpp for seconds in times)
    costs = uniform(pp * vpp, forward, input_grad + weight_grad, weight_grad, weight_memory)
    plan = Plan(schedule=name, pp=pp, num_microbatches=m, vpp=vpp, **more)
    lowered = post_receives_early(lower(build(plan, costs, latency)))
    moves = transfers(lowered)
    pairs = set(zip(moves.source.tolist(), moves.target.tolist(), strict=True))
    return memory_samples(engine.run(lowered, costs, ideal(pairs, latency)), costs)


def largest_span(timeline):
    """From first start to last end of the rank for which that is longest: the papers' cost."""
    ranks = (timeline.compute.where(timeline.compute.rank == r) for r in range(timeline.num_ranks))
    return max(float(rank.end.max() - rank.start.min()) for rank in ranks)


def bubble(timeline, m, times=(1.0, 1.0, 1.0)):
    return largest_span(timeline) - m * sum(times)


def setting(row):
    times = tuple(float(row[name]) for name in ("T_F", "T_B", "T_W"))
    return int(row["pp"]), int(row["num_microbatches"]), times, float(row["T_comm"])


def weight_memory(row):
    """M_W / M_B of Table 1: 32 s b h of s b (34 h + 5 a s)."""
    hidden, heads, seq_len = (int(row[name]) for name in ("hidden", "heads", "seq_len"))
    return 32 * hidden / (34 * hidden + 5 * heads * seq_len)


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 24), (16, 48)])
@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (3.0, 2.0, 1.0), (1.2, 1.1, 0.9)])
@pytest.mark.parametrize(("name", "weights"), [("1f1b", -1), ("zb-h1", 1), ("zb-h2", 2)])
def test_bubble_is_pp_minus_1_times_f_plus_i_minus_0_1_or_2_w(pp, m, times, name, weights):
    f, i, w = times
    expected = (pp - 1) * (f + i - weights * w)
    assert bubble(play(name, pp, m, times), m, times) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 24), (8, 64), (16, 48)])
@pytest.mark.parametrize(
    ("name", "weights", "messages"), [("zb-h1", 1, 4), ("zb-h2", 2, 2)], ids=["zb-h1", "zb-h2"]
)
def test_latency_adds_4_messages_a_rank_to_zb_h1_and_2_to_zb_h2(pp, m, name, weights, messages):
    times, latency = (18.5, 18.0, 9.5), 0.6
    f, i, w = times
    expected = (pp - 1) * (f + i - weights * w + messages * latency)
    found = bubble(play(name, pp, m, times, latency=latency), m, times)
    assert found == pytest.approx(expected, rel=1e-9)


@every_setting
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p"])
def test_tables_5_and_6_give_the_printed_bubble_rates_to_4_digits(row, name):
    pp, m, times, latency = setting(row)
    share = weight_memory(row)
    timeline = play(name, pp, m, times, latency=latency, weight_memory=share)
    rate = bubble(timeline, m, times) / largest_span(timeline)
    assert round(rate, 4) == float(row[name.replace("-", "_")])
    limit = {"zb-1p": pp, "zb-2p": 2 * pp}.get(name, 2 * pp - 1)
    assert timeline.peak_memory().max() <= limit * (1 + 1e-8)


@every_setting
def test_tables_5_and_6_give_1f1b_i_to_4_digits_if_pp_messages_are_not_counted(row):
    """The authors' calculator leaves out pp messages' time, for a reason that is not printed."""
    pp, m, times, latency = setting(row)
    timeline = play("interleaved", pp, m, times, vpp=int(row["chunks"]), latency=latency)
    cost = largest_span(timeline) - pp * latency
    assert round(1 - m * sum(times) / cost, 4) == float(row["1f1b_i"])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 24)])
def test_zb_h1_holds_p_minus_i_plus_1_m_b_and_i_minus_1_m_w(pp, m, share):
    stage = np.arange(1, pp + 1)
    peak = play("zb-h1", pp, m, weight_memory=share).peak_memory()
    np.testing.assert_allclose(peak, (pp - stage + 1) + (stage - 1) * share, rtol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 24)])
def test_zb_h2_holds_2p_minus_2i_plus_1_m_b_and_2i_minus_2_m_w(pp, m, share):
    stage = np.arange(1, pp + 1)
    peak = play("zb-h2", pp, m, weight_memory=share).peak_memory()
    np.testing.assert_allclose(peak, (2 * pp - 2 * stage + 1) + (2 * stage - 2) * share, rtol=1e-12)


@pytest.mark.parametrize(("pp", "m", "vpp"), [(4, 8, 2), (8, 32, 2), (8, 32, 4), (4, 7, 3)])
def test_interleaving_divides_zb_h1s_bubble_by_vpp(pp, m, vpp):
    timeline = play("interleaved-zb", pp, m, vpp=vpp)
    assert bubble(timeline, m) == pytest.approx((pp - 1) / vpp, abs=1e-9)


def test_zb_h1_is_interleaved_zb_with_one_chunk():
    for pp, m in ((1, 3), (4, 8), (8, 5)):
        one = build(Plan(schedule="interleaved-zb", pp=pp, num_microbatches=m))
        assert one == build(Plan(schedule="zb-h1", pp=pp, num_microbatches=m))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("pp", [3, 4, 6, 8, 16])
def test_peak_memory_is_the_papers_number_of_microbatches(name, pp):
    vpp = 2 if name in ARMS else 1
    peak = play(name, pp, 3 * pp, vpp=vpp).peak_memory().max() / vpp
    expected = eval(BLOCKS[name]["microbatches"], {"p": pp})
    if name == "zb-2p":  # the limit; 2 p - 1 microbatches are enough for no bubble
        assert peak in (expected - 1, expected)
    else:
        assert peak == expected


@pytest.mark.parametrize(
    ("name", "pp", "microbatches"),
    [
        ("v-min", 4, 2), ("v-min", 8, 4), ("v-min", 16, 6), ("v-min", 64, 22),
        ("v-half", 4, 3), ("v-half", 8, 5), ("v-half", 16, 9), ("v-half", 64, 33),
        ("zb-v", 4, 4), ("zb-v", 8, 8), ("zb-v", 16, 16), ("zb-v", 64, 64),
    ],
)  # fmt: skip
def test_v_schedules_hold_a_third_half_or_all_of_1f1bs_microbatches(name, pp, microbatches):
    peaks = play(name, pp, 2 * pp, vpp=2).peak_memory() / 2
    assert peaks.max() == microbatches
    third_half_or_all = float(Fraction(BLOCKS[name]["memory"])) * pp
    assert third_half_or_all <= microbatches <= third_half_or_all + 4 / 3


@pytest.mark.parametrize(
    ("name", "pp", "expected"),
    [
        ("v-min", 4, 11), ("v-min", 8, 27), ("v-min", 16, 59),
        ("v-half", 4, 5), ("v-half", 8, 17), ("v-half", 16, 41),
        ("zb-v", 4, 0), ("zb-v", 8, 0), ("zb-v", 16, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rounds", [2, 5])
def test_v_schedules_idle_this_many_chunk_passes_whatever_m(name, pp, expected, rounds):
    times = (2.0, 2.0, 2.0)  # of two chunks, so that a pass of one chunk takes 1
    m = pp * rounds
    assert bubble(play(name, pp, m, times, vpp=2), m, times) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("pp", [4, 8, 16])
def test_bubble_is_at_most_the_readmes_share_of_1f1bs(name, pp):
    m = 4 * pp
    ours = bubble(play(name, pp, m, vpp=2 if name in ARMS else 1), m)
    share = float(Fraction(BLOCKS[name]["bubble"]))
    assert ours <= share * bubble(play("1f1b", pp, m), m) + 1e-9


@pytest.mark.parametrize("name", BLOCKS)
def test_messages_are_the_readmes_multiple_of_1f1bs(name):
    """V schedules send twice as often for an even cut, less the turn, where no message is."""
    pp, m = 8, 16
    vpp = 2 if name in ARMS else 1
    sends = play(name, pp, m, vpp=vpp).of(Kind.SEND_F, Kind.SEND_B).num_spans
    assert sends == int(BLOCKS[name]["volume"]) * 2 * (pp - 1) * m


def test_v_min_waits_in_every_block_when_f_i_and_w_differ_and_v_half_does_not():
    times = (1.0, 1.3, 0.7)
    found = {
        (name, m): bubble(play(name, 8, m, times, vpp=2), m, times)
        for name in ("v-min", "v-half")
        for m in (32, 64, 128)
    }
    per_microbatch = (found["v-min", 128] - found["v-min", 64]) / 64
    assert per_microbatch == pytest.approx(0.9, abs=1e-9)
    assert found["v-half", 64] == pytest.approx(found["v-half", 32], abs=1e-9)
    assert found["v-half", 128] == pytest.approx(found["v-half", 32], abs=1e-9)


def pytorchs(kind, pp, m, vpp):
    """Compute-only rows of one of PyTorch's generators, which reads only these attributes."""
    fake = object.__new__(kind)
    fake.pp_group_size, fake._n_microbatches = pp, m
    fake.n_local_stages, fake.num_stages = vpp, pp * vpp
    fake.microbatches_per_round = m // max(1, m // pp)
    rows = [kind._calculate_single_rank_operations(fake, rank) for rank in range(pp)]
    return [[Op.parse(str(action)) for action in row if action is not None] for row in rows]


@given(pp=st.integers(1, 8), m=st.integers(1, 24), vpp=st.integers(1, 4))
def test_interleaved_zb_rows_are_pytorchs(pp, m, vpp):
    if m % max(1, m // pp):
        m = m // pp * pp
    ours = build(Plan(schedule="interleaved-zb", pp=pp, num_microbatches=m, vpp=vpp))
    theirs = pytorchs(pytorch.ScheduleInterleavedZeroBubble, pp, m, vpp)
    assert list(map(list, ours.rows)) == theirs


@given(pp=st.integers(1, 8), m=st.integers(1, 24))
def test_zb_v_rows_are_pytorchs(pp, m):
    ours = build(Plan(schedule="zb-v", pp=pp, num_microbatches=m, vpp=2))
    assert list(map(list, ours.rows)) == pytorchs(pytorch.ScheduleZBVZeroBubble, pp, m, 2)


@pytest.mark.parametrize("name", SPLIT)
@given(pp=st.integers(1, 6), m=st.integers(1, 14))
def test_every_op_stands_once_and_lowering_equals_pytorchs(name, pp, m):
    vpp = 2 if name in (*ARMS, "interleaved-zb") else 1
    if name == "interleaved-zb" and m % max(1, m // pp):
        m = m // pp * pp
    schedule = build(Plan(schedule=name, pp=pp, num_microbatches=m, vpp=vpp))
    ops = [op for row in schedule.rows for op in row]
    kinds = (Kind.F, Kind.I, Kind.W)
    wanted = {Op(s, kind, k) for s in range(pp * vpp) for kind in kinds for k in range(m)}
    assert len(ops) == len(wanted)
    assert set(ops) == wanted
    if name in ARMS:
        homes = set(zip(schedule.rank.tolist(), schedule.stage.tolist(), strict=True))
        assert homes == {(r, s) for r in range(pp) for s in (r, 2 * pp - 1 - r)}
    assert lower(schedule) == lowered_by_pytorch(schedule)


@pytest.mark.parametrize("name", SPLIT)
@given(
    pp=st.integers(1, 5),
    rounds=st.integers(1, 3),
    times=st.tuples(*[st.floats(0.2, 3.0)] * 3),
    latency=st.sampled_from([0.0, 0.3]),
)
def test_engine_agrees_with_the_longest_path(name, pp, rounds, times, latency):
    vpp = 2 if name in (*ARMS, "interleaved-zb") else 1
    ours = play(name, pp, pp * rounds, times, vpp=vpp, latency=latency)
    forward, input_grad, weight_grad = (seconds / vpp for seconds in times)
    costs = uniform(pp * vpp, forward, input_grad + weight_grad, weight_grad)
    plan = Plan(schedule=name, pp=pp, num_microbatches=pp * rounds, vpp=vpp)
    other = greedy.run(build(plan, costs, latency), costs.seconds, transfer=latency, memory=False)
    assert ours.makespan == pytest.approx(other.makespan, rel=1e-9)
    np.testing.assert_allclose(ours.compute.end, other.compute.end, rtol=1e-9)


@given(
    pp=st.integers(1, 6),
    m=st.integers(1, 16),
    times=st.tuples(*[st.floats(0.2, 3.0)] * 3),
    latency=st.sampled_from([0.0, 0.1]),
    share=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_the_heuristic_is_never_longer_than_the_schedule_by_hand(pp, m, times, latency, share):
    for by_hand, automatic, factor in (("zb-h1", "zb-1p", 1), ("zb-h2", "zb-2p", 2)):
        more = {"latency": latency, "weight_memory": share}
        timeline = play(automatic, pp, m, times, **more)
        assert largest_span(timeline) <= largest_span(play(by_hand, pp, m, times, **more)) + 1e-9
        assert timeline.peak_memory().max() <= factor * pp * (1 + 1e-8)


@given(
    pp=st.integers(1, 6),
    m=st.integers(1, 12),
    times=st.tuples(*[st.floats(0.2, 3.0)] * 3),
    share=st.sampled_from([0.0, 0.4, 1.0]),
    limit=st.floats(1.0, 12.0),
)
def test_zb_auto_keeps_any_limit_of_at_least_one_microbatch(pp, m, times, share, limit):
    timeline = play("zb-auto", pp, m, times, weight_memory=share, activation_limit=limit)
    assert timeline.peak_memory().max() <= limit * (1 + 1e-8)


def test_zb_auto_idles_less_the_more_memory_it_may_take():
    limits = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0)
    found = [bubble(play("zb-auto", 8, 32, activation_limit=limit), 32) for limit in limits]
    assert found == sorted(found, reverse=True)
    assert found[3] == pytest.approx(7, abs=1e-9)  # ZB-H1's, at 1F1B's memory
    assert found[-1] == pytest.approx(0, abs=1e-9)


def test_a_limit_below_one_microbatch_names_the_least_possible():
    plan = Plan(schedule="zb-auto", pp=4, num_microbatches=8, activation_limit=0.5)
    with pytest.raises(
        ValueError, match=r"activation_limit is 0.5 bytes.*takes 1, the least possible; use 1 or"
    ):
        build(plan)


@pytest.mark.parametrize("name", ARMS)
def test_v_schedules_refuse_3_chunks_and_name_2(name):
    with pytest.raises(ValueError, match=rf"plan.vpp is 3, but schedule {name}.*; use 2"):
        build(Plan(schedule=name, pp=4, num_microbatches=8, vpp=3))


def test_interleaved_zb_refuses_10_microbatches_in_rounds_and_names_the_nearest_that_work():
    plan = Plan(schedule="interleaved-zb", pp=3, num_microbatches=10, vpp=2)
    with pytest.raises(ValueError, match=r"num_microbatches is 10.*3 rounds.*; use 9 or 12"):
        build(plan)


@pytest.mark.parametrize(("name", "m"), [("v-min", 512), ("zb-v", 512), ("zb-h2", 1024)])
def test_rows_of_64_ranks_are_196608_ops(name, m):
    vpp = 2 if name in ARMS else 1
    schedule = build(Plan(schedule=name, pp=64, num_microbatches=m, vpp=vpp))
    assert schedule.num_ops == 196_608
