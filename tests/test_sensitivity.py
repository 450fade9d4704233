"""What each quantity is worth: closed forms, and the critical path against runs."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simulator import fabric
from simulator.attribution import path_of_step, pieces
from simulator.changes import CONSTANTS, changes, quantities
from simulator.cli import main
from simulator.costs import communication
from simulator.costs.parameters import stage_parameters
from simulator.job import Plan
from simulator.load import job_from_options, load_job
from simulator.schedule import Kind
from simulator.schedules import schedules
from simulator.sensitivity import FAMILIES, least_share, sensitivity, sensitivity_uniform
from simulator.simulate import simulate, simulate_uniform
from simulator.system import played, step_seconds, system_of, uniform_system
from tests.plans import QUICK

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SMALL = EXAMPLES / "small_8_gpus.toml"
SAVED = 1 - 1 / 1.1

JOBS = {  # words to lay over small_8_gpus
    "as it is": [],
    "stragglers": ["cluster.stragglers.1=1.3", "cluster.stragglers.3=0.7"],
    "blocking transfers": ["plan.p2p=blocking"],
    "zero": ["plan.zero_stage=1", "plan.pp=2", "gpus=16", "plan.dp=8"],
    "overlapped reductions": ["plan.overlap_grad_reduce=true"],
    "tensor parallel": ["plan.tp=2", "plan.pp=2", "plan.recompute=full"],
    "over nodes": ["cluster.gpus_per_node=1", "cluster.nics_per_node=1"],
    "oversubscribed": [
        "cluster.gpus_per_node=1", "cluster.nics_per_node=1", "cluster.oversubscription=4",
    ],
    "split backward": ["plan.schedule=zb-h1"],
    "two directions": ["plan.schedule=chimera"],
    "overlapped pairs": ["plan.schedule=dualpipe"],
    "slices": ["plan.schedule=terapipe"],
    "host-bound": ["cluster.gpu.host_overhead=20x"],
    "offloaded": ["plan.offload=cpu", "plan.zero_stage=1", "plan.pp=2", "plan.dp=4"],
    "offloaded to drives": [
        "plan.offload=nvme", "cluster.nvme.bandwidth=100e9", "cluster.nvme.latency=1e-4",
        "plan.pp=2", "plan.dp=4", "cluster.gpus_per_node=4", "cluster.nics_per_node=4",
    ],
    "offloaded activations": ["plan.offload_activations=true"],
}  # fmt: skip


def job_of(name):
    return job_from_options({}, SMALL, JOBS[name])


def by_name(found, family):
    return {row.name: row for row in found.family(family)}


@pytest.mark.parametrize(("pp", "m", "f", "b"), [(4, 8, 1.0, 2.0), (8, 8, 2.0, 3.0), (3, 30, 1, 1)])
def test_1f1b_a_faster_forward_is_worth_f_over_f_plus_b_both_ways(pp, m, f, b):
    found = sensitivity_uniform(Plan(pp=pp, num_microbatches=m), f, b)
    assert found.step_time == pytest.approx((m + pp - 1) * (f + b), rel=1e-12)
    rows = by_name(found, "op")
    for name, share in (("F", f / (f + b)), ("B", b / (f + b))):
        assert rows[name].share == pytest.approx(share, rel=1e-12)
        assert rows[name].predicted == pytest.approx(-share * SAVED, rel=1e-12)
        assert rows[name].simulated == pytest.approx(-share * SAVED, rel=1e-9)
        assert rows[name].note == ""


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 32), (4, 16)])
def test_1f1b_latency_is_worth_its_coefficient_of_zero_bubbles_table_5(pp, m):
    latency, times = 1e-3, (1.0, 2.0)
    found = sensitivity_uniform(Plan(pp=pp, num_microbatches=m), *times, latency=latency)
    coefficient = 2 * (pp - 1) * m / pp + 2 * (pp - 2)
    step = (m + pp - 1) * sum(times) + coefficient * latency
    assert found.step_time == pytest.approx(step, rel=1e-12)
    row = by_name(found, "part")["pp comm."]
    assert row.share == pytest.approx(coefficient * latency / step, rel=1e-9)
    assert row.simulated == pytest.approx(row.predicted, rel=1e-6)


def test_compute_alone_shares_the_step_of_one_rank_by_f_and_b():
    found = sensitivity_uniform(Plan(pp=1, num_microbatches=4), 1.0, 3.0, change=1.0)
    assert {row.name: row.simulated for row in found.family("op")} == {"F": -0.125, "B": -0.375}
    assert by_name(found, "rank")["rank 0"].simulated == -0.5
    assert by_name(found, "rank")["all communication"].simulated == 0.0


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 32), (3, 5)])
def test_1f1b_every_path_meets_each_rank_for_one_microbatch_and_the_last_rank_for_two(pp, m):
    found = sensitivity_uniform(Plan(pp=pp, num_microbatches=m), 1.0, 2.0)
    rows = by_name(found, "rank")
    for rank in range(pp):
        row, least = rows[f"rank {rank}"], (1 + (rank == pp - 1)) / (m + pp - 1)
        assert row.least_share == pytest.approx(least, rel=1e-6)
        assert row.predicted == pytest.approx(-least * SAVED, rel=1e-6)
        assert row.simulated == pytest.approx(row.predicted, rel=1e-6)
        assert ("other paths are as long" in row.note) == (row.share > least * (1 + 1e-6))
    assert sum(rows[f"rank {rank}"].share for rank in range(pp)) == pytest.approx(1.0)


def least_on_a_longest_path(schedule, rank):
    """Seconds of one rank on that longest path which has least of them, op by op.

    Forward 1, backward 2 in all, free messages; (end, seconds of the rank) of each op.
    """
    took = {Kind.F: 1.0, Kind.B: 2.0, Kind.I: 1.0, Kind.W: 1.0}
    rows, found = list(map(list, schedule.rows)), {}
    last = [(0.0, 0.0)] * len(rows)
    while any(rows):
        for at, row in enumerate(rows):
            while row:
                op = row[0]
                if op.kind == Kind.F:
                    needs = [(op.stage - 1, Kind.F, op.microbatch)] if op.stage else []
                elif op.kind == Kind.W:
                    needs = []  # its other half is before it in the row
                elif op.stage == schedule.num_stages - 1:
                    needs = [(op.stage, Kind.F, op.microbatch)]
                else:
                    needs = [(op.stage + 1, kind, op.microbatch) for kind in (Kind.B, Kind.I)]
                ready = [found[need] for need in needs if need in found]
                if needs and not ready:
                    break
                start = max(end for end, _ in [*ready, last[at]])
                seconds = min(s for end, s in [*ready, last[at]] if end == start)
                more = took[op.kind] if at == rank else 0.0
                found[tuple(op)] = last[at] = (start + took[op.kind], seconds + more)
                row.pop(0)
    step = max(end for end, _ in found.values())
    return min(s for end, s in found.values() if end == step) / step


@pytest.mark.parametrize(
    "words",
    [
        {"schedule": "1f1b"},
        {"schedule": "gpipe"},
        {"schedule": "zb-h1"},
        {"schedule": "chimera"},
        {"schedule": "hanayo", "vpp": 2},
    ],
    ids=lambda words: words["schedule"],
)
def test_the_least_share_is_that_of_the_path_which_has_least_found_op_by_op(words):
    run = simulate_uniform(
        Plan(pp=4, num_microbatches=8, **words), words.get("vpp", 1), 2.0 * words.get("vpp", 1)
    )
    system = uniform_system(run, 0.0)
    step, path = run.report.step_time, path_of_step(run.timeline)
    ranks = [one for one in changes(system, path) if one.name.startswith("rank")]
    assert len(ranks) == 4
    for rank, one in enumerate(ranks):
        least = least_on_a_longest_path(run.schedule, rank)
        assert least_share(one, step) == pytest.approx(least, abs=1e-5)
        assert least <= one.seconds / step + 1e-12


@pytest.mark.parametrize("name", JOBS)
def test_each_family_adds_up_to_the_whole_critical_path(name):
    found = sensitivity_rows(job_of(name))
    for family in FAMILIES:
        shares = [share for one, share in found if one.family == family]
        assert sum(shares) == pytest.approx(1.0, abs=1e-8), family
        assert min(shares) > -1e-8, family


def sensitivity_rows(job):
    """Every change with its share, without the neighbouring plans."""
    system = system_of(simulate(job))
    timeline = played(system)
    path = path_of_step(timeline)
    assert path.waiting < 1e-9 * path.total
    assert path.total == pytest.approx(timeline.makespan, rel=1e-12)
    return [(one, one.seconds / path.total) for one in changes(system, path)]


@pytest.mark.parametrize("name", JOBS)
def test_the_systems_step_is_the_reports_to_the_last_bit(name):
    run = simulate(job_of(name))
    system = system_of(run)
    assert step_seconds(system, played(system)) == run.report.step_time


@pytest.mark.parametrize("name", JOBS)
def test_the_pieces_of_each_span_are_its_length(name):
    system = system_of(simulate(job_of(name)))
    path = path_of_step(played(system))
    free = pieces(path, system.costs, system.fabric, system.stragglers)
    lengths = free.stretched(path, free).total
    assert lengths == pytest.approx(path.seconds, rel=1e-9)
    assert (free.total <= path.seconds * (1 + 1e-9)).all()  # other traffic only delays


@pytest.mark.parametrize("name", JOBS)
def test_the_path_s_share_lies_between_what_a_millionth_faster_saves_and_slower_costs(name):
    job = job_of(name)
    system = system_of(simulate(job))
    timeline = played(system)
    step, path = step_seconds(system, timeline), path_of_step(timeline)
    for one in changes(system, path):
        if one.faster is None:
            continue
        least = least_share(one, step)
        slower = (one.same_rows or one.faster)(1 - 1e-6)
        most = (step_seconds(slower, played(slower)) / step - 1) / 1e-6
        assert least - 1e-3 <= one.seconds / step <= most + 1e-3, one.name


@pytest.mark.parametrize("name", ["two directions", "overlapped pairs"])
def test_what_the_paths_say_of_a_rank_is_no_less_than_the_run_where_paths_are_tied(name):
    ranks = by_name(sensitivity(job_of(name)), "rank")
    tied = [row for row in ranks.values() if row.least_share < row.share - 1e-3]
    assert tied
    for row in ranks.values():
        assert row.simulated >= row.predicted - 1e-3  # a shorter path cannot help more
        assert row.predicted == pytest.approx(-row.least_share * SAVED)
        assert row.note or row.simulated == pytest.approx(row.predicted, abs=5e-4)


@pytest.mark.parametrize("name", ["tensor parallel", "over nodes", "as it is"])
def test_what_no_quantity_explains_is_nccls_base_latency(name, monkeypatch):
    job = job_of(name)
    rest = {one.name: one.seconds for one, _ in sensitivity_rows(job)}[CONSTANTS]
    step = simulate(job).report.step_time
    for how in ("SIMPLE", "LL128", "LL"):
        protocol = getattr(communication, how)
        monkeypatch.setattr(communication, how, protocol._replace(base=protocol.base * 1.001))
    fabric._connected.cache_clear()  # it depends on the constant
    changed = simulate(job).report.step_time
    fabric._connected.cache_clear()
    assert (changed - step) / 1e-3 == pytest.approx(rest, abs=1e-6 * step)


def test_a_uniformly_faster_cluster_saves_what_all_quantities_save():
    job = load_job(SMALL)
    rates = ["cluster.gpu.memory_bandwidth", "cluster.intra_node.bandwidth"]
    rates += ["cluster.inter_node.bandwidth", "cluster.gpu.peak_flops.bf16"]
    times = ["cluster.gpu.launch_overhead", "cluster.gpu.host_overhead"]
    times += ["cluster.intra_node.latency", "cluster.inter_node.latency"]
    words = [f"{name}=2x" for name in rates] + [f"{name}=0.5x" for name in times]
    fast = simulate(job_from_options({}, SMALL, words)).report.step_time
    assert fast == pytest.approx(simulate(job).report.step_time / 2, rel=1e-4)


def test_zero_offload_on_one_gpu_two_copies_hang_on_the_host_link_and_adam_on_the_hosts_memory():
    words = ["gpus=1", "plan.pp=1", "plan.dp=1", "plan.offload=cpu"]
    job = job_from_options({}, SMALL, words)
    found, parameters = sensitivity(job), stage_parameters(job)[0]
    rows, link = by_name(found, "hardware"), job.cluster.host_link
    copies = 2 * 2 * parameters / (link.bandwidth * link.efficiency)  # of 2 bytes, down and up
    adam = 30 * parameters / job.cluster.host_memory_bandwidth
    expected = {"host_link.bandwidth": copies, "host_memory_bandwidth": adam}
    expected["host_link.latency"] = 2 * link.latency
    for name, seconds in expected.items():
        row = rows[f"cluster.{name}"]
        assert row.share == pytest.approx(seconds / found.step_time, rel=1e-6)
        assert row.simulated == pytest.approx(-row.share * SAVED, rel=1e-6)


def test_hosts_and_drives_are_quantities_of_plans_that_use_them_alone():
    hosts = {"cluster.host_memory_bandwidth"}
    links = {"cluster.host_link.bandwidth", "cluster.host_link.latency"}
    drives = {"cluster.nvme.bandwidth", "cluster.nvme.latency"}
    used = {
        "as it is": set(),
        "offloaded": hosts | links,
        "offloaded to drives": hosts | links | drives,
        "offloaded activations": links,
    }
    for name, expected in used.items():
        found = quantities(job_of(name)).keys()
        assert found & (hosts | links | drives) == expected, name


def test_a_quantity_without_effect_is_shown_with_zero():
    rows = by_name(sensitivity(load_job(SMALL)), "hardware")
    for name in ("cluster.gpu.host_overhead", "cluster.inter_node.bandwidth"):
        assert (rows[name].share, rows[name].predicted, rows[name].simulated) == (0.0, 0.0, 0.0)


def test_hardware_by_a_run_equals_the_assignment_on_the_command_line():
    rows = by_name(sensitivity(load_job(SMALL)), "hardware")
    base = simulate(load_job(SMALL)).report.step_time
    for name in ("cluster.gpu.memory_bandwidth", "cluster.intra_node.bandwidth"):
        other = simulate(job_from_options({}, SMALL, [f"{name}=1.1x"])).report.step_time
        assert rows[name].simulated == pytest.approx(other / base - 1, rel=1e-9)


def test_an_oversubscribed_uplink_is_worth_more_than_the_nics_before_it():
    rows = {one.name: share for one, share in sensitivity_rows(job_of("oversubscribed"))}
    assert rows["cluster.oversubscription"] > 0
    assert rows["cluster.oversubscription"] > rows["cluster.inter_node.bandwidth"]


def test_an_asynchronous_pipeline_is_measured_by_its_steady_iteration():
    found = sensitivity_uniform(Plan(schedule="pipedream", pp=4, num_microbatches=8), 1.0, 2.0)
    assert found.step_time == pytest.approx(24.0)  # 8 (F + B), no bubble
    rows = by_name(found, "op")
    assert rows["F"].simulated == pytest.approx(-SAVED / 3, rel=1e-9)
    assert sum(row.share for row in found.family("op")) == pytest.approx(1.0)


def test_rows_stand_by_worth_and_neighbours_keep_gpus_and_batch():
    job = load_job(SMALL)
    found = sensitivity(job)
    worth = [row.predicted if row.simulated is None else row.simulated for row in found.rows]
    assert worth == sorted(worth)
    legal = [one for one in found.neighbours if one.simulated is not None]
    assert all(a.simulated <= b.simulated for a, b in pairwise(legal))
    for one in legal:
        words = [f"{one.knob}={one.value}"]
        words += [f"plan.{word}" for word in one.follows.split()]
        other = job_from_options({}, SMALL, words)
        assert other.plan.num_gpus == job.plan.num_gpus
        assert other.plan.global_batch_size == job.plan.global_batch_size
        report = simulate(other).report
        assert one.simulated == pytest.approx(report.step_time / found.step_time - 1, abs=1e-9)
        assert (one.peak_memory, one.fits) == (report.peak_memory.max(), report.fits)


def test_every_knob_has_its_neighbours_or_a_reason():
    found = sensitivity(load_job(SMALL)).neighbours
    knobs = {one.knob for one in found}
    assert {"plan.pp", "plan.tp", "plan.vpp", "plan.micro_batch_size", "plan.recompute"} <= knobs
    values = {one.value for one in found if one.knob == "plan.pp"}
    assert values == {"2", "8"}
    named = {one.value for one in found if one.knob == "plan.schedule"}
    synchronous = {name for name in QUICK if schedules()[name].weights is None}
    paired = {"dualpipe", "dualpipe-v", "1f1b-overlap"}  # for models with experts
    assert named == synchronous - {"1f1b", "custom"} - paired
    assert all(one.refused for one in found if one.simulated is None)


@pytest.mark.parametrize("change", [0.0, -0.1, float("nan"), 1e9])
def test_a_change_that_is_none_is_refused(change):
    with pytest.raises(ValueError, match="it must be positive"):
        sensitivity_uniform(Plan(), 1.0, 2.0, change=change)


def test_the_command_prints_every_row_and_writes_its_picture(capsys, tmp_path):
    picture = tmp_path / "tornado.svg"
    assert main(["sensitivity", str(SMALL), "-o", str(picture)]) == 0
    out = capsys.readouterr().out
    found = sensitivity(load_job(SMALL))
    for row in found.rows:
        assert f"{row.name} " in out
    for one in found.neighbours:
        assert f"{one.knob}={one.value}" in out
    drawn = re.findall(r">([^<>]+)</text>", picture.read_text())
    assert "change of the step time [%]" in drawn
    assert "cluster.gpu.peak_flops" in drawn


def test_json_holds_the_same_numbers(capsys):
    assert main(["sensitivity", str(SMALL), "--json", "--change", "0.2"]) == 0
    values = json.loads(capsys.readouterr().out)
    found = sensitivity(load_job(SMALL), 0.2)
    assert values == json.loads(json.dumps(found.to_dict()))
    assert np.isclose(values["change"], 0.2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a JOB file"),
        ([str(SMALL), "--change", "0"], "it must be positive"),
        ([str(SMALL), "-o", "x.gif"], "use one of .pdf .png .svg"),
        ([str(SMALL), "-o", "nowhere/x.svg"], "does not exist"),
        ([str(SMALL), "--latency", "1"], "--latency needs --uniform"),
        ([str(SMALL), "--uniform", "1,2"], "takes the place of a job"),
        (["--uniform", "1,2", "--set", "plan.pp=2"], "leave out --set or --uniform"),
        ([str(SMALL), "--set", "plan.ppp=2"], "did you mean plan.pp"),
    ],
)
def test_wrong_words_are_one_clear_line(capsys, words, said):
    assert main(["sensitivity", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
