"""The compute streams alone give what the rows with every message give, to the last bit."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import execution
from simulator.aligned import reduce_aligned, unshard_ahead, unshard_aligned
from simulator.causes import causes, implied_causes
from simulator.costs.slices import sliced
from simulator.execution import Work, execute, execute_lowered, with_transfers
from simulator.explain import explain_longest
from simulator.fabric import ideal
from simulator.job import Plan
from simulator.load import job_from_options, load_job
from simulator.lower import reduce_at_end, reduce_when_ready, step_optimizer, unshard_after_step
from simulator.matching import match
from simulator.report import in_flight, spans_of_ranks
from simulator.routes import talking
from simulator.schedule import Deadlock, Kind, Schedule
from simulator.simulate import simulate, simulate_uniform
from simulator.split import SPLIT, split_by_costs
from tests.plans import QUICK, nearest, rows_of
from tests.test_longest_path import one_link_each, random_costs
from tests.test_sensitivity import JOBS, job_of

EXAMPLES = Path(__file__).parent.parent / "examples"
ENDS = {
    "no optimizer": lambda rows, _: rows,
    "reduced at the end": lambda rows, _: step_optimizer(reduce_at_end(rows)),
    "reduced when ready": lambda rows, _: step_optimizer(reduce_when_ready(rows)),
    "gathered": lambda rows, _: unshard_after_step(step_optimizer(reduce_at_end(rows))),
    "gathered ahead": lambda rows, _: step_optimizer(reduce_when_ready(unshard_ahead(rows))),
    "aligned": lambda rows, _: step_optimizer(reduce_aligned(unshard_aligned(rows))),
}
UNPAIRED = [name for name in QUICK if not rows_of(nearest(name, 4, 2, 2)).paired.any()]


def both_ways(work):
    """What the streams say, and what the lowered rows say."""
    ours = execute(work, "longest_path")
    lowered = work.finish(with_transfers(work.schedule, work.plan), work.plan)
    matches = match(lowered)
    fabric = work.wire(talking(lowered, matches), lowered)
    given = (lowered, matches, work.costs, fabric, work.stragglers)
    return ours, execute_lowered(*given, "longest_path")


def assert_same(ours, theirs, costs, slow):
    """Times, figures and words are equal, not only close."""
    assert ours.executor == theirs.executor
    np.testing.assert_array_equal(ours.lone, theirs.lone)
    lean, whole = ours.timeline, theirs.timeline
    assert lean == whole.where((whole.kind <= Kind.OPTIMIZER) | (whole.kind >= Kind.UNSHARD))
    assert ours.whole() == whole
    known, implied = causes(whole), implied_causes(lean)
    one, other = (
        split_by_costs(t, costs, lone=theirs.lone, stragglers=slow, cause=cause)
        for t, cause in ((lean, implied), (whole, known))
    )
    for part in SPLIT:
        np.testing.assert_array_equal(getattr(one, part), getattr(other, part), part)
    words = {"lone": theirs.lone, "stragglers": slow, "activation_limit": None}
    said = explain_longest(lean, 99, cause=implied, **words)
    assert said == explain_longest(whole, 99, cause=known, **words)
    assert lean.makespan == whole.makespan
    np.testing.assert_array_equal(in_flight(lean), in_flight(whole))
    np.testing.assert_array_equal(spans_of_ranks(lean), spans_of_ranks(whole))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", UNPAIRED)
@settings(max_examples=4)
@given(seed=st.integers(0, 10**6))
def test_streams_equal_the_lowered_rows_bit_for_bit_with_random_costs(name, end, seed):
    plan = nearest(name, 4, 2, 2)
    schedule = rows_of(plan)
    if (schedule.kind == Kind.OPTIMIZER).any() and end != "no optimizer":
        return  # it has steps of its own
    costs = random_costs(plan.num_stages, seed)
    if seed % 3 == 0:
        costs = sliced(costs, [3, 2], 0.2)
    slow = {seed % 4: 1.25} if seed % 2 else {}

    def wire(pairs, _):
        if end == "no optimizer" and seed % 5:
            return ideal(pairs, seed % 3 / 10)
        lowered = with_transfers(schedule, plan)
        return one_link_each(ENDS[end](lowered, plan), seed)

    work = Work(
        schedule=schedule, plan=plan, costs=costs, wire=wire, finish=ENDS[end], stragglers=slow
    )
    ours, theirs = both_ways(work)
    assert ours.whole is not None
    assert_same(ours, theirs, costs, slow)


REAL = (
    "korthikanti_22b_full",
    "korthikanti_175b_selective_sp",
    "korthikanti_530b_selective_sp_2240_gpus",
    "llama3_70b_dgx_h100",
    "sc21_145_6b",
)
LEAN = [name for name in JOBS if name not in ("blocking transfers", "overlapped pairs")]


@pytest.mark.parametrize("name", [*REAL, *LEAN, "asynchronous"])
def test_a_job_s_report_is_that_of_the_lowered_rows_to_the_last_digit(name, monkeypatch):
    if name in REAL:
        job = load_job(EXAMPLES / f"{name}.toml")
        early = job.plan.model_copy(update={"p2p": "overlapped"})  # three have it otherwise
        job = job.model_copy(update={"plan": early})
    elif name in JOBS:
        job = job_of(name)
    else:
        words = ["plan.schedule=pipedream", "plan.dp=1", "plan.num_microbatches=8", "gpus=4"]
        job = job_from_options({}, EXAMPLES / "small_8_gpus.toml", words)
    ours = simulate(job, "longest_path")
    assert ours.messages is not None
    monkeypatch.setattr(execution, "_implies_messages", lambda _: False)
    theirs = simulate(job, "longest_path")
    assert theirs.messages is None
    assert ours.report.to_dict() == theirs.report.to_dict()
    assert ours.timeline == theirs.timeline


PEAK = """
import re, sys
from pathlib import Path
from simulator.job import Plan
from simulator.kernel import compile_all
from simulator.simulate import simulate_uniform

def held(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

compile_all()
words = {"schedule": sys.argv[1], "vpp": int(sys.argv[2]), "pp": 64}
simulate_uniform(Plan(num_microbatches=64, **words), 1.0, 2.0)
before = held("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of compiling
run = simulate_uniform(Plan(num_microbatches=int(sys.argv[3]), **words), 1.0, 2.0)
print(run.schedule.num_ops, held("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("name", "vpp", "m"), [("1f1b", 1, 12_800), ("interleaved", 4, 3_200), ("zb-h1", 1, 8_533)]
)
def test_a_whole_call_of_1_6_million_ops_takes_at_most_100_bytes_an_op(name, vpp, m):
    command = [sys.executable, "-c", PEAK, name, str(vpp), str(m)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    ops, peak = map(int, done.stdout.split())
    assert 1.6e6 < ops < 1.7e6
    assert 28 * ops < peak <= 100 * ops  # the columns of the answer alone are 28 bytes an op


def test_messages_are_spans_only_when_asked_for_and_then_once():
    run = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0, latency=0.1)
    assert run.streams.num_spans == 2 * 4 * 8
    assert run.timeline.num_spans == 2 * 4 * 8 + 4 * 3 * 8  # two ends, both ways
    assert run.timeline is run.timeline
    assert run.timeline.memory_of(0)[1].tolist() == run.streams.memory_of(0)[1].tolist()


@pytest.mark.parametrize("text", ["0F0,0B0\n1B0,1F0", "0B0,0F0\n1F0,1B0", "0F0,0W0,0I0\n1F0,1B0"])
def test_rows_that_cannot_finish_are_refused_as_lowering_refuses_them(text):
    schedule = Schedule.parse(text)
    costs = random_costs(2, 0)
    work = Work(
        schedule=schedule,
        plan=Plan(pp=2, num_microbatches=1),
        costs=costs,
        wire=lambda pairs, _: ideal(pairs),
        finish=lambda rows, _: rows,
    )
    with pytest.raises(Deadlock, match="cannot finish: rank"):
        execute(work, "auto")


@pytest.mark.parametrize("name", ["sc21_1008b", "korthikanti_530b_selective_sp"])
def test_jobs_that_wait_for_their_transfers_run_with_every_message(name):
    job = load_job(EXAMPLES / f"{name}.toml")
    assert job.plan.p2p == "blocking"
    run = simulate(job, "longest_path")
    assert run.messages is None
    ends = np.isin(run.timeline.kind, (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B))
    crossings = 2 * (job.plan.num_stages - 1) * job.plan.num_microbatches
    assert ends.sum() == 2 * crossings


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
def test_overlapped_pairs_run_with_every_message(name):
    run = simulate_uniform(nearest(name, 4, 2, 2), 1.0, 2.0)
    assert run.messages is None
    assert np.isin(run.timeline.kind, (Kind.SEND_F, Kind.RECV_F)).any()


def test_messages_that_meet_are_found_without_lowering_and_the_events_run():
    job = job_from_options(
        {},
        EXAMPLES / "small_8_gpus.toml",
        ["cluster.gpus_per_node=1", "cluster.nics_per_node=1", "cluster.oversubscription=4"],
    )
    assert simulate(job).report.executor == "events"
    alone = simulate(job, "longest_path").report
    assert alone.executor == "longest_path, contention ignored"
    assert alone.step_time <= simulate(job).report.step_time
