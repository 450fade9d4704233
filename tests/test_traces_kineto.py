"""PyTorch profiler traces: a known timeline on wrong clocks comes back to its jitter."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traces
from simulator.job import Plan
from simulator.report import spans_of_ranks
from simulator.schedule import Kind
from simulator.simulate import simulate_uniform
from tests.recordings import Setting, documents, write_documents
from traces.measured.findings import messages_of, report_of
from traces.measured.imported import bring_in
from traces.measured.mapping import BUILT_IN, Named, read_mapping

DATA = Path(__file__).parent / "data"
LATENCY = 100e-6
OFFSETS = (0.0, 0.0123, -0.5, 2.0, 1e-4, -1e-6, 0.3, -0.07)


def simulated(schedule="1f1b", pp=4, m=8, vpp=1):
    plan = Plan(schedule=schedule, pp=pp, vpp=vpp, num_microbatches=m)
    return simulate_uniform(plan, 1e-3, 2e-3, latency=LATENCY)


def setting(pp=4, **options):
    return Setting(offsets=OFFSETS[:pp], **options)


def brought(tmp_path, run, how, **options):
    made, posted = documents(run.timeline, how)
    return bring_in(write_documents(tmp_path, made, how.ranks), **options), posted


def same_spans(ours, theirs, within):
    """Equal ops, whatever their order at equal times, each begun and ended within a time."""
    tables = []
    for t in (ours, theirs):
        order = np.lexsort((t.microbatch, t.kind, t.stage, t.rank))
        tables.append((np.column_stack([t.rank, t.stage, t.kind, t.microbatch])[order], t, order))
    assert np.array_equal(tables[0][0], tables[1][0])
    for name in ("start", "end"):
        a, b = (getattr(t, name)[order] for _, t, order in tables)
        assert np.abs(a - b).max() <= within


SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2)]


@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
@pytest.mark.parametrize("jitter", [0.0, 2e-6])
def test_any_schedule_comes_back_from_clocks_seconds_apart(schedule, vpp, jitter, tmp_path):
    run = simulated(schedule, vpp=vpp)
    how = setting(jitter=jitter, waits=5e-4)
    back, _ = brought(tmp_path, run, how)
    same_spans(back.timeline, run.timeline, within=8 * jitter + 2e-8)
    assert back.clocks.offset == pytest.approx(-np.array(OFFSETS[:4]), abs=6 * jitter + 2e-8)
    assert LATENCY < 1.001 * back.clocks.margin.max() <= 3.6 * LATENCY
    assert back.on_device
    assert back.step == 3


@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
def test_the_report_of_a_recorded_run_is_the_simulated_one(schedule, vpp, tmp_path):
    run = simulated(schedule, vpp=vpp)
    back, _ = brought(tmp_path, run, setting())
    report = report_of(back, "x")
    assert report.step_time == pytest.approx(run.report.step_time, rel=1e-5)
    assert report.bubble_fraction == pytest.approx(run.report.bubble_fraction, abs=1e-4)
    for name in ("compute", "pipeline", "warm_up", "drain", "dependency"):
        ours, theirs = getattr(report.split, name), getattr(run.report.split, name)
        assert ours == pytest.approx(theirs, abs=2e-6)
    assert report.split.total == pytest.approx(report.makespan, rel=1e-9)
    assert spans_of_ranks(back.timeline)[0] == pytest.approx(
        spans_of_ranks(run.timeline)[0], abs=1e-6
    )


def test_waiting_for_the_peer_is_told_from_moving_for_either_end(tmp_path):
    run = simulated()
    back, posted = brought(tmp_path, run, setting(waits=8e-4))
    t = run.timeline
    receive, send = np.isin(t.kind, (6, 8)), np.isin(t.kind, (5, 7))
    posted = np.maximum(posted, 0.0)
    found = messages_of(back)
    for rank in range(4):
        mine = t.rank == rank
        early = (t.start - posted)[mine & receive].sum(), (t.start - posted)[mine & send].sum()
        assert found.receive_wait[rank] == pytest.approx(early[0], abs=1e-6)
        assert found.send_wait[rank] == pytest.approx(early[1], abs=1e-6)
        assert found.moving[rank] == pytest.approx(LATENCY * (mine & receive).sum(), rel=1e-3)
    assert found.fastest == pytest.approx(LATENCY, rel=1e-3)
    assert found.receive_wait.max() > 1e-3  # there is something to tell apart


def test_drift_of_100_us_a_second_is_fitted(tmp_path):
    run = simulated()
    drifts = (0.0, 100e-6, -60e-6, 30e-6)
    back, _ = brought(tmp_path, run, setting(drifts=drifts, steps=40, jitter=1e-6))
    slow = -np.array(drifts)
    assert back.clocks.drift - back.clocks.drift[0] == pytest.approx(slow, abs=4e-6)
    same_spans(back.timeline, run.timeline, within=1e-5)
    assert back.clocks.residual <= 4e-6


def test_ranks_of_one_host_share_its_clock(tmp_path):
    run = simulated()
    how = Setting(offsets=(0.5,) * 4, same_host=True, waits=1e-4)
    back, _ = brought(tmp_path, run, how)
    assert not back.clocks.offset.any()
    same_spans(back.timeline, run.timeline, within=2e-8)


@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2)])
def test_megatron_names_without_numbers_are_counted(schedule, vpp, peers, tmp_path):
    run = simulated(schedule, vpp=vpp)
    (tmp_path / "map.toml").write_text(f"num_chunks = {vpp}\n")
    back, _ = brought(
        tmp_path,
        run,
        setting(names="megatron", peers=peers, steps=2),
        mapping=read_mapping(tmp_path / "map.toml"),
    )
    assert back.notes == ()
    same_spans(back.timeline, run.timeline, within=2e-8)


def test_a_batch_of_transfers_in_one_kernel_still_gives_every_op(tmp_path):
    run = simulated()
    how = Setting(offsets=(0.0,) * 4, names="megatron", fused=True, same_host=True)
    back, _ = brought(tmp_path, run, how)
    assert back.notes == ()
    compute = [t.where(t.kind <= Kind.OPTIMIZER) for t in (back.timeline, run.timeline)]
    same_spans(*compute, within=2e-8)
    assert back.timeline.num_spans == run.timeline.num_spans
    alone, _ = brought(tmp_path, run, Setting(offsets=(0.0,) * 4, names="megatron", fused=True,
                                              same_host=True, peers=False))  # fmt: skip
    assert "messages, so waiting and moving are not told apart" in alone.notes[0]
    same_spans(alone.timeline, compute[1], within=2e-8)


def test_a_pair_that_ran_together_is_one_time_of_two_ops(tmp_path):
    run = simulated("dualpipe-v", pp=2, m=4, vpp=2)
    first = run.timeline.pairs()
    made, _ = documents(run.timeline, setting(2))
    t = run.timeline
    for at in first.tolist():
        ops = [f"{t.stage[i]}{Kind(t.kind[i]).name}{t.microbatch[i]}" for i in (at, at + 1)]
        events = made[t.rank[at]]["traceEvents"]
        one, two = (next(e for e in events if e["name"] == f"PP:{op}") for op in ops)
        assert one["ts"] < two["ts"]
        one["dur"] = two["ts"] + two["dur"] - one["ts"]
        one["name"] = f"PP:({ops[0]};{ops[1]})OVERLAP_F_B"
        events.remove(two)
    back = bring_in(write_documents(tmp_path, made))
    assert len(first) > 0
    assert len(back.timeline.pairs()) == len(first)
    same_spans(back.timeline, run.timeline, within=2e-8)


def test_two_pipelines_ranks_are_chosen_and_ordered(tmp_path):
    run = simulated()
    made, _ = documents(run.timeline, setting(ranks=(0, 2, 4, 6)))
    other, _ = documents(run.timeline, setting(ranks=(1, 3, 5, 7)))
    paths = write_documents(tmp_path, made, (0, 2, 4, 6))
    paths += write_documents(tmp_path, other, (1, 3, 5, 7))
    with pytest.raises(ValueError, match=r"ranks 0 and 1 both run stage 0.*--ranks"):
        bring_in(paths)
    back = bring_in(paths, ranks=[1, 3, 5, 7])
    assert back.ranks == (1, 3, 5, 7)
    same_spans(back.timeline, run.timeline, within=2e-8)


def test_the_median_complete_step_is_chosen_and_any_can_be(tmp_path):
    run = simulated()
    made, _ = documents(run.timeline, setting(steps=5))
    last = [event for event in made[0]["traceEvents"] if event["name"] == "PP:0F7"]
    last[1]["name"] = "other"  # so step 4 is cut off on rank 0
    paths = write_documents(tmp_path, made)
    back = bring_in(paths)
    assert back.steps == (3, 5, 6, 7)
    assert back.step in back.steps
    assert bring_in(paths, step=6).step == 6
    with pytest.raises(ValueError, match=r"step 4 is not complete.* 3, 5, 6, 7"):
        bring_in(paths, step=4)


def test_collectives_that_nothing_hides_are_tensor_communication(tmp_path):
    run = simulated(pp=2, m=2)
    made, _ = documents(run.timeline, setting(2))
    events = made[0]["traceEvents"]
    for event in events:
        if event["cat"] == "kernel" and "gemm" in event["name"]:
            event["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
            hidden = event["dur"] * 1e-6
            break
    report = report_of(bring_in(write_documents(tmp_path, made)), "x")
    assert report.split.tensor == pytest.approx([hidden, 0.0], rel=1e-6)
    assert report.split.compute[1] - report.split.compute[0] == pytest.approx(hidden, rel=1e-6)


def test_gradient_reductions_before_the_optimizer_are_data_communication(tmp_path):
    run = simulated(pp=2, m=2)
    made, _ = documents(run.timeline, setting(2))
    for rank, document in enumerate(made):
        host = max(e["ts"] for e in document["traceEvents"] if e["cat"] == "cuda_runtime")
        step = next(e for e in document["traceEvents"] if "ProfilerStep" in e["name"])
        step["dur"] += 1000
        end = max(e["ts"] + e["dur"] for e in document["traceEvents"] if e["cat"] == "kernel")
        table = [
            ("kernel", "ncclDevKernel_ReduceScatter_Sum", end, 500.0, 900001),
            ("cuda_runtime", "cudaLaunchKernel", host + 20, 1.0, 900001),
            ("user_annotation", "Optimizer.step#AdamW.step", host + 30, 10.0, 0),
            ("cuda_runtime", "cudaLaunchKernel", host + 32, 1.0, 900002),
            ("kernel", "multi_tensor_apply", end + 500, 250.0, 900002),
        ]
        for cat, name, ts, dur, number in table:
            document["traceEvents"].append(
                {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": rank,
                 "tid": 1, "args": {"correlation": number}}
            )  # fmt: skip
    report = report_of(bring_in(write_documents(tmp_path, made)), "x")
    assert report.split.data == pytest.approx(500e-6, rel=1e-5)
    assert report.split.optimizer == pytest.approx(250e-6, rel=1e-5)


@pytest.mark.parametrize("group", ["mesh_dp", "DATA_PARALLEL_GROUP", "mesh_fsdp"])
def test_a_reduction_that_a_backward_starts_does_not_make_it_longer(group, tmp_path):
    """Launched within the first backward, it runs beside the second and on to the optimizer."""
    run = simulated(pp=1, m=2)
    made, _ = documents(run.timeline, setting(1))
    events = made[0]["traceEvents"]
    early = next(e for e in events if e["name"] == "PP:0B0")
    step = next(e for e in events if "ProfilerStep" in e["name"])
    host = step["ts"] + step["dur"]
    step["dur"] += 100
    end = max(e["ts"] + e["dur"] for e in events if e["cat"] == "kernel")
    begun = end - 2500
    for cat, name, ts, dur, number in [
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16", begun, 3000.0, 900001),
        ("cuda_runtime", "cudaLaunchKernel", early["ts"] + early["dur"] / 2, 0.0, 900001),
        ("user_annotation", "Optimizer.step#AdamW.step", host + 1, 10.0, 0),
        ("cuda_runtime", "cudaLaunchKernel", host + 2, 1.0, 900002),
        ("kernel", "multi_tensor_apply", end + 500, 250.0, 900002),
    ]:
        args = {"correlation": number, "Process Group Description": group}
        event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 1}
        events.append({**event, "ts": ts, "dur": dur, "args": args})
    back = bring_in(write_documents(tmp_path, made))
    compute = back.timeline.of(Kind.F, Kind.B)
    assert compute.end == pytest.approx(run.timeline.of(Kind.F, Kind.B).end, abs=2e-8)
    split = report_of(back, "x").split
    assert split.data == pytest.approx(500e-6, rel=1e-5)
    assert split.tensor == pytest.approx(0.0, abs=1e-12)


def test_the_devices_own_ranges_stand_in_for_missing_ones_of_the_host(tmp_path):
    named = [("PP:0F0", 10.0, 5.0), ("PP:0B0", 20.0, 10.0)]
    document = {"traceEvents": [
        {"ph": "X", "cat": "gpu_user_annotation", "name": name, "pid": 0, "tid": 7, "ts": ts,
         "dur": dur} for name, ts, dur in named
    ]}  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps(document))
    assert bring_in([tmp_path / "t.json"]).timeline.end == pytest.approx([5e-6, 20e-6])


def test_memory_of_the_device_is_kept(tmp_path):
    run = simulated(pp=2, m=2)
    made, _ = documents(run.timeline, setting(2))
    first = min(e["ts"] for e in made[1]["traceEvents"] if e["cat"] == "kernel")
    for at, (nbytes, device) in enumerate([(5e9, 1), (7e9, 1), (99e9, 0), (6e9, 1)]):
        made[1]["traceEvents"].append(
            {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": first + 100 * at,
             "args": {"Total Allocated": nbytes, "Device Type": device}}
        )  # fmt: skip
    back = bring_in(write_documents(tmp_path, made))
    assert back.timeline.peak_memory().tolist() == [0.0, 7e9]
    assert report_of(back, "x").peak_memory.max() == 7e9


REAL = {"1f1b": 1, "interleaved": 2}


def row(timeline, rank):
    t = timeline.where((timeline.rank == rank) & (timeline.kind < Kind.OPTIMIZER))
    return [*zip(t.stage.tolist(), t.kind.tolist(), t.microbatch.tolist(), strict=True)]


@pytest.mark.parametrize("name", REAL)
def test_a_recorded_run_of_pytorch_gives_pytorchs_order(name):
    """Recorded with gloo on two processes of one machine; tests/data/traces/README.md."""
    paths = [DATA / "traces" / f"{name}_rank{rank}.json.gz" for rank in (0, 1)]
    back = bring_in(paths)
    chunks = REAL[name]
    run = simulated(name, pp=2, m=4, vpp=chunks)
    for rank in range(2):
        assert row(back.timeline, rank) == row(run.timeline, rank)
    t = back.timeline
    receives = t.of(Kind.RECV_F)
    assert receives.num_spans == 4 * (2 * chunks - 1)
    for stage, microbatch, end in zip(
        receives.stage, receives.microbatch, receives.end, strict=True
    ):
        use = (t.kind == Kind.F) & (t.stage == stage) & (t.microbatch == microbatch)
        assert end <= t.start[use][0] + 1e-12
    assert not back.on_device
    assert back.steps == (1, 2)
    assert not back.clocks.offset.any()
    assert back.clocks.residual == 0.0  # one machine: no message arrives before it was sent
    assert (back.wait >= 0).all()
    report = report_of(back, name)
    assert 0.02 < report.bubble_fraction < 0.8
    assert report.split.total == pytest.approx(report.makespan, rel=1e-9)


def test_a_recorded_runs_clocks_are_found_again_from_its_messages(tmp_path):
    """The same run with one process's host renamed: its clock is then to be found, and is right."""
    paths = []
    for rank in (0, 1):
        data = gzip.decompress((DATA / "traces" / f"1f1b_rank{rank}.json.gz").read_bytes())
        document = json.loads(data)
        document["host_name"] = f"host{rank}"
        document["baseTimeNanoseconds"] += rank * 7_000_000_000
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(document))
    clocks = bring_in(paths).clocks
    assert abs(clocks.offset[1] + 7.0) <= clocks.margin[1]
    assert clocks.margin[1] < 1e-3


def test_read_gives_the_same_timeline(tmp_path):
    run = simulated()
    made, _ = documents(run.timeline, setting())
    paths = write_documents(tmp_path, made)
    assert traces.read(*paths) == bring_in(paths).timeline
    packed = []
    for path in paths:
        packed.append(path.with_suffix(".json.gz"))
        packed[-1].write_bytes(gzip.compress(path.read_bytes()))
    assert traces.read(*packed) == traces.read(*paths)


def test_chrome_json_with_begins_and_ends_or_as_a_bare_list(tmp_path):
    names = [("0F0", 0, 1000), ("0B0", 1500, 3500)]
    pairs = [
        {"ph": phase, "name": name, "pid": 0, "tid": 0, "ts": ts}
        for name, start, end in names
        for phase, ts in (("B", start), ("E", end))
    ]
    text = json.dumps(pairs)
    for data in (text, text[:-1] + ",", json.dumps({"traceEvents": pairs})):
        (tmp_path / "t.json").write_text(data)
        timeline = traces.read(tmp_path / "t.json")
        assert timeline.start.tolist() == [0.0, pytest.approx(1.5e-3)]
        assert timeline.end.tolist() == pytest.approx([1e-3, 3.5e-3])


def test_a_users_mapping_reads_kind_stage_and_microbatch_from_groups(tmp_path):
    (tmp_path / "map.toml").write_text(
        r"""
        step = 'iteration (\d+)'
        [[op]]
        name = 's(?P<stage>\d+) (?P<kind>fwd|bwd) m(?P<microbatch>\d+)'
        kinds = { fwd = "F", bwd = "B" }
        [[op]]
        name = 'update'
        kind = "OPTIMIZER"
        """
    )
    mapping = read_mapping(tmp_path / "map.toml")
    assert mapping.read("s1 bwd m3") == (Named(Kind.B, 1, 3),)
    assert mapping.read("update")[0].kind is Kind.OPTIMIZER
    assert mapping.read("PP:1F2") == BUILT_IN.read("PP:1F2")
    assert mapping.step_of("iteration 12") == 12


MAPPINGS = {
    "opp = 1": "opp has no meaning; use op, num_chunks and step",
    "op = 1": "op is no list of tables",
    "num_chunks = 0": "num_chunks is 0; it must be a whole number from 1",
    "step = '('": "step is no regular expression",
    "[[op]]\nkind = 'F'": "op[0].name is missing",
    "[[op]]\nname = '['\nkind = 'F'": "op[0].name is no regular expression",
    "[[op]]\nname = 'a'": "op[0] needs kind, or else a group",
    "[[op]]\nname = 'a'\nkind = 'X'": "op[0].kind is 'X'; kinds are F B I W",
    "[[op]]\nname = '(?P<mb>a)'\nkind = 'F'": "has the group mb; groups are kind, stage",
    "[[op]]\nname = 'a'\nkind = 'F'\nstge = 1": "op[0].stge has no meaning",
    "[[op": "line 1",
}


@pytest.mark.parametrize("text", MAPPINGS)
def test_a_bad_mapping_is_refused_in_one_line(text, tmp_path):
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(ValueError, match=r"map\.toml") as error:
        read_mapping(tmp_path / "map.toml")
    assert MAPPINGS[text] in str(error.value)
    assert "\n" not in str(error.value)


def events(*names, **more):
    return [
        {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1,
         "ts": 10.0 * at, "dur": 5.0, **more}
        for at, name in enumerate(names)
    ]  # fmt: skip


GOOD = {"traceEvents": events("PP:0F0", "PP:0B0")}
DOUBLE = events("PP:0F0", "PP:0F0")
BAD = {
    "cut.json.gz": (gzip.compress(json.dumps(GOOD).encode())[:-12], "cut off"),
    "plain.json.gz": (b'{"traceEvents":[]}', "no gzip"),
    "cut.json": (json.dumps(GOOD).encode()[:-9], "no JSON, or is cut off"),
    "latin.json": (json.dumps(GOOD).encode().replace(b"PP:0F0", b"\xff\xfe"), ""),
    "list.json": (json.dumps({"traceEvents": events("a", args=[1])}).encode(), "no trace: "),
    "text.json": (json.dumps({"traceEvents": events("a", ts="soon")}).encode(), "no trace"),
    "none.json.gz": (gzip.compress(b'{"traceEvents":[{"ph":"M","name":"x"}]}'), "0 events"),
    "names.json": (
        json.dumps({"traceEvents": events("step_a", "step_a", "my_forward")}).encode(),
        "most frequent names are 'step_a' (2x), 'my_forward' (1x); say what they mean with --map",
    ),
    "huge.json": (
        json.dumps({"traceEvents": [*DOUBLE, *events("PP:0F1", ts=1e300)]}).encode(),
        "which is no time",
    ),
    "stage.json": (
        json.dumps({"traceEvents": events("PP:999999999F0")}).encode(),
        "has a number beyond 1,048,576",
    ),
    "less.json": (json.dumps({"traceEvents": events("PP:0F0", dur=-4.0)}).encode(), "lasts -"),
    "twice.json": (
        json.dumps({"traceEvents": [*DOUBLE, *events("ProfilerStep#1", dur=99.0)]}).encode(),
        "rank 0 runs 0F0 2 times in step 1",
    ),
    "gap.json": (
        json.dumps({"traceEvents": events("PP:0F0", "PP:2F0")}).encode(),
        "no file holds stage 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused_in_one_line(name, tmp_path):
    data, reason = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        bring_in([tmp_path / name])
    assert reason in str(error.value)


def test_missing_and_doubled_ranks_and_steps_that_differ_are_named(tmp_path):
    run = simulated()
    made, _ = documents(run.timeline, setting())
    paths = write_documents(tmp_path, made)
    with pytest.raises(ValueError, match="no file holds stage 2"):
        bring_in([paths[0], paths[1], paths[3]])
    (tmp_path / "copy.json").write_bytes(paths[0].read_bytes())
    with pytest.raises(ValueError, match="no file holds stage 3, but there are stages up to 3"):
        bring_in(paths[:3])
    with pytest.raises(ValueError, match=r"rank 0 is there twice: .*rank0\.json and .*copy"):
        bring_in([*paths, tmp_path / "copy.json"])
    with pytest.raises(ValueError, match="rank 9 is in no file; the files are of ranks 0, 1, 2, 3"):
        bring_in(paths, ranks=[0, 9])
    other, _ = documents(run.timeline, setting(first_step=50))
    paths[2].write_text(json.dumps(other[2]))
    with pytest.raises(ValueError, match=r"no step is in all files: rank 0 has 3; .*rank 2 has 50"):
        bring_in(paths)
    group = {"rank": 0, "pg_config": [{"pg_desc": "mesh_pp", "ranks": [0, 1, 2, 3]}]}
    for at, document in enumerate(made):
        document["distributedInfo"] = {**group, "rank": at}
    paths = write_documents(tmp_path, made)
    with pytest.raises(ValueError, match="of ranks 0, 1, 2, 3, but rank 3 is in no file"):
        bring_in(paths[:3])


@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6))
def test_a_damaged_trace_is_read_or_refused_in_one_line(seed, tmp_path):
    shuffled = np.random.default_rng(seed)
    made, _ = documents(simulated(pp=2, m=2).timeline, setting(2))
    data = bytearray(json.dumps(made[0]).encode())
    for at in shuffled.integers(0, len(data), shuffled.integers(1, 20)).tolist():
        data[at] = int(shuffled.choice(list(b'0123456789"{}[],:.-eFB')))
    (tmp_path / "rank0.json").write_bytes(data)
    (tmp_path / "rank1.json").write_text(json.dumps(made[1]))
    try:
        back = bring_in([tmp_path / "rank0.json", tmp_path / "rank1.json"])
        report_of(back, "x")
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_hostile_names_do_no_harm(tmp_path):
    names = [
        "PP:",
        "PP:0F0\n",
        "PP:(0F0;1B0)",
        "forward_step" * 5000,
        "\u202e0F0",
        "0F" + "9" * 400,
    ]
    document = {"traceEvents": events("PP:0F0", *names, "PP:0B0")}
    (tmp_path / "t.json").write_text(json.dumps(document))
    assert bring_in([tmp_path / "t.json"]).timeline.num_spans in (2, 3)
