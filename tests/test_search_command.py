"""`bubblescope search`, from the words to the tables, on real jobs."""

import csv
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.commands.spaces import space_from
from simulator.load import load_job
from simulator.search.local import Task
from simulator.search.space import job_at
from simulator.search.store import opened
from simulator.simulate import simulate

ROOT = Path(__file__).parent.parent
JOB = str(ROOT / "examples" / "small_8_gpus.toml")
NARROW = "--tp 1,2,4 --pp 1,2,4 --cp 1 --vpp 1,2 --schedule 1f1b,interleaved --recompute none "
NARROW += "--layer-split even --zero-stage 0,1 --micro-batch-size 1,2,4"
WORDS = ["search", JOB, *NARROW.split(), "--workers", "1"]


def printed(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def answer(capsys, *words):
    return json.loads(printed(capsys, *words, "--json"))


def refused(capsys, *words):
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_every_point_is_counted_and_the_winner_is_the_fastest_of_all_simulated_one_by_one(
    capsys, tmp_path
):
    made = answer(capsys, *WORDS, "--csv", str(tmp_path / "a.csv"))
    assert made["num_points"] == made["num_judged"] == 3 * 3 * 2 * 2 * 2 * 3 * 2
    assert made["num_simulated"] + sum(made["dropped"].values()) == made["num_points"]
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == made["num_simulated"] > 50
    fastest = min(rows, key=lambda row: float(row["step_time"]))
    assert made["best"][0]["step_time"] == pytest.approx(float(fastest["step_time"]), rel=1e-9)
    for row in random.Random(1).sample(rows, 8):
        assert int(row["tp"]) * int(row["pp"]) * int(row["dp"]) == 8
        words = ["simulate", JOB, "--json"]
        for name in ("tp", "pp", "dp", "vpp", "schedule", "micro_batch_size", "zero_stage"):
            words += [f"--{name.replace('_', '-')}", row[name]]
        count = 32 // int(row["dp"]) // int(row["micro_batch_size"])
        words += ["--num-microbatches", str(count)]
        words += ["--sequence-parallel"] if row["sequence_parallel"] == "true" else []
        report = json.loads(printed(capsys, *words))
        assert float(row["step_time"]) == report["step_time"]
        room = report["memory_capacity"] - max(report["peak_memory"])
        assert float(row["headroom"]) == pytest.approx(room, rel=1e-9)


def test_the_winner_is_the_best_of_all_plans_in_the_event_engine(capsys, tmp_path):
    made = answer(capsys, *WORDS, "--csv", str(tmp_path / "a.csv"))
    task = _task()
    with (tmp_path / "a.csv").open() as file:
        points = [int(row["point"]) for row in csv.DictReader(file)]
    times = [simulate(job_at(task.space, point), "engine").report.step_time for point in points]
    assert made["engine_step_time"] == min(times)
    assert made["best"][0]["step_time"] == pytest.approx(min(times), rel=1e-9)
    assert len(points) > 20


def _task():
    import argparse

    from simulator.commands.search import add

    parser = argparse.ArgumentParser()
    add(parser)
    return Task(space_from(parser.parse_args([*WORDS[1:]])), None)


def test_the_printed_command_simulates_the_printed_step(capsys):
    made = answer(capsys, *WORDS)
    program, *words = shlex.split(made["simulate"])
    assert program == "bubblescope"
    report = json.loads(printed(capsys, *words, "--json"))
    assert report["step_time"] == made["best"][0]["step_time"]


def test_the_saved_job_is_the_winner(capsys, tmp_path):
    path = tmp_path / "winner.toml"
    made = answer(capsys, *WORDS, "--save-job", str(path))
    step = simulate(load_job(path)).report.step_time
    assert step == made["best"][0]["step_time"]


@pytest.mark.parametrize("by", ["tokens", "headroom", "cost"])
def test_front_and_winner_are_the_same_with_one_two_and_three_processes_and_unpruned(capsys, by):
    words = [*WORDS[:-1], "1", "--by", by]
    one = answer(capsys, *words)
    points = [plan["point"] for plan in one["front"]]
    assert len(points) > 3
    for more in (["--workers", "2"], ["--workers", "3"], ["--exhaustive"]):
        other = answer(capsys, *words, *more)
        assert [plan["point"] for plan in other["front"]] == points
        assert other["best"][0]["point"] == one["best"][0]["point"]


def test_tokens_headroom_and_cost_rank_by_what_they_say(capsys):
    best = {
        by: answer(capsys, *WORDS, "--exhaustive", "--by", by)["best"]
        for by in ("tokens", "headroom", "cost")
    }
    rates = [plan["tokens_per_second"] for plan in best["tokens"]]
    rooms = [plan["headroom"] for plan in best["headroom"]]
    costs = [plan["gpu_seconds_per_token"] for plan in best["cost"]]
    assert rates == sorted(rates, reverse=True)
    assert rooms == sorted(rooms, reverse=True)
    assert costs == sorted(costs)
    assert rooms[0] > best["tokens"][0]["headroom"]


def test_cost_is_gpus_times_time_times_price_over_tokens(capsys):
    text = printed(capsys, *WORDS, "--price-per-gpu-hour", "2", "--top", "1")
    made = answer(capsys, *WORDS)["best"][0]
    tokens = 32 * 1024
    dollars = 8 * made["step_time"] / 3600 * 2 / tokens * 1e6
    row = next(line for line in text.splitlines() if line.startswith("1 "))
    assert "$/M tokens" in text
    assert row.split()[-1] == f"{dollars:.4g}"


def test_a_search_run_again_prints_the_same_and_judges_nothing(capsys, tmp_path):
    words = [*WORDS, "-o", str(tmp_path / "a.sqlite")]
    first = printed(capsys, *words)
    assert main(words) == 0
    again = capsys.readouterr()
    assert again.out == first
    assert "all points were judged before" in again.err


def test_a_changed_job_is_refused_and_says_what_changed(capsys, tmp_path):
    words = [*WORDS, "-o", str(tmp_path / "a.sqlite")]
    printed(capsys, *words)
    error = refused(capsys, *words, "--seq-len", "2048")
    assert "job.model.seq_len was 1024, is 2048" in error
    assert "use another file" in error
    error = refused(capsys, *words, "--tp", "1,2")
    assert "tp was 1,2,4, is 1,2" in error


def test_an_empty_space_says_which_rule_emptied_it_and_the_way_out(capsys):
    words = ["--model", "gpt3-175b", "--cluster", "selene", "--gpus", "16"]
    words += ["--global-batch-size", "16", "--tp", "8", "--pp", "2", "--cp", "1", "--vpp", "1"]
    words += ["--schedule", "1f1b", "--layer-split", "even"]
    error = refused(capsys, "search", *words)
    assert re.search(
        r"of [\d,]+ points none that is a legal plan fits in 8\d GB; does not fit: ", error
    )
    assert "use more --gpus than 16" in error
    error = refused(capsys, "search", JOB, "--tp", "3", "--cp", "1", "--pp", "1")
    assert re.search(r"a legal plan; (num_gpus|plan\.tp): .*; leave (--\w+ and )*--\w+ out", error)
    rule = "num_gpus: it must be a multiple of tp x pp x cp"
    error = refused(capsys, "search", JOB, "--pp", "3", "--cp", "1", "--tp", "1,2")
    assert re.search(rf"legal plan; {rule}", error)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search"], "give a JOB file"),
        (["search", "--model", "gpt3-175b", "--cluster", "selene", "--gpus", "8"], "global-batch"),
        (["search", JOB, "--dp", "2"], "--dp is no knob"),
        (["search", JOB, "--top", "0"], "--top is 0; it must be at least 1"),
        (["search", JOB, "--workers", "0"], "--workers is 0"),
        (["search", JOB, "--price-per-gpu-hour", "-1"], "must be positive"),
        (["search", JOB, "--plot", "a.gif"], "a.gif cannot hold a plot; use one of .pdf .png .svg"),
        (["search", JOB, "--csv", "missing/a.csv"], "there is no such folder"),
        (["search", JOB, "-o", "missing/a.sqlite"], "cannot (open|write) missing/a.sqlite"),
        (["search", JOB, "--scheduler", "host:8786"], "no address; write it as in tcp://host:8786"),
        (["search", JOB, "--schedule", "1f2b"], "1f2b"),
        (["search", JOB, "--tp", "x"], "tp"),
        (["search", "missing.toml"], "cannot read missing.toml"),
        (["search", JOB, "--tp", "0"], r"error: --tp is 0 .*; it must be at least 1"),
        (["search", JOB, "--price-per-gpu-hour", "1e10"], "positive and less than 1e9"),
        (["search", JOB, "--workers", "100000"], r"this machine has \d+ cores?; use at most \d+"),
        (["search", JOB, "--csv", "."], "it is a folder"),
        (["search", JOB, "--csv", "/dev/null"], "it is no plain file"),
        (["search", JOB, "--csv", "a.csv", "-o", "./a.csv"], "--csv and -o are the same file"),
        (["search", JOB, "--save-job", JOB], "--save-job and JOB are the same file"),
        (["search", JOB, "--set", "plan.tp=2"], "is about a knob of the search; use --tp"),
        (["search", JOB, "--set", "plan.dp=2"], "no knob of a search: it is what tp, pp and cp"),
        (["search", JOB, "--set", "gpus=4"], "use --gpus"),
        (["search", JOB, "--set", "cluster.stragglers.0=2"], "search one pp, or leave the"),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(capsys, words, says):
    assert re.search(says, refused(capsys, *words))


def test_a_file_without_a_plan_is_a_job_to_search(capsys, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'model = "gpt-1-7b"\ncluster = "dgx-a100"\ngpus = 8\n[plan]\nglobal_batch_size = 12\n'
    )
    made = answer(capsys, "search", str(path), *NARROW.split(), "--workers", "1")
    for plan in made["best"]:
        assert 12 % (plan["dp"] * plan["micro_batch_size"]) == 0


@pytest.mark.parametrize("plan", ["plan = 3", '[plan]\nglobal_batch_size = "x"'])
def test_a_malformed_file_is_one_clear_line(capsys, tmp_path, plan):
    path = tmp_path / "job.toml"
    path.write_text(f'model = "gpt-1-7b"\ncluster = "dgx-a100"\ngpus = 8\n{plan}\n')
    assert re.search(r'plan is 3; it must be a table|global.batch.size is "x"; it must be a whole',
                     refused(capsys, "search", str(path)))  # fmt: skip


SMALL = [
    "search",
    JOB,
    "--tp",
    "1,2",
    "--pp",
    "1,2",
    "--cp",
    "1",
    "--vpp",
    "1",
    "--zero-stage",
    "1",
]
SMALL += ["--schedule", "1f1b,zb-h1", "--recompute", "none", "--layer-split", "even"]
SMALL += ["--micro-batch-size", "4", "--workers", "1"]


def test_set_changes_what_is_searched_what_is_printed_and_what_a_file_holds(capsys, tmp_path):
    path = tmp_path / "a.sqlite"
    words = [*SMALL, "-o", str(path), "--set", "cluster.gpu.peak_flops.bf16=2x"]
    slow, fast = answer(capsys, *SMALL), answer(capsys, *words)
    assert fast["best"][0]["step_time"] < 0.8 * slow["best"][0]["step_time"]
    report = json.loads(printed(capsys, *shlex.split(fast["simulate"])[1:], "--json"))
    assert report["step_time"] == fast["best"][0]["step_time"]
    error = refused(capsys, *words[:-1], "cluster.gpu.peak_flops.bf16=3x")
    assert "job.cluster.gpu.peak_flops.bf16 was" in error


def test_a_file_of_results_is_never_a_target(capsys, tmp_path):
    path = tmp_path / "a.sqlite"
    printed(capsys, *SMALL, "-o", str(path))
    before = path.read_bytes()
    for flag in ("--csv", "--save-job"):
        assert "it is an SQLite file" in refused(capsys, *SMALL, flag, str(path))
    assert path.read_bytes() == before


def test_memory_is_a_files_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed(capsys, *SMALL, "-o", ":memory:")
    assert (tmp_path / ":memory:").stat().st_size > 0


def test_schedules_that_differ_in_name_alone_are_listed_once(capsys):
    best = answer(capsys, *SMALL, "--exhaustive")["best"]
    alone = [plan["schedule"] for plan in best if plan["tp"] == plan["pp"] == 1]
    assert alone == ["1f1b"]  # one microbatch on one stage: zb-h1 takes as long


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _processes_below(pid):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat[1]) == pid and stat[0] != "Z":
            found.append(int(folder.name))
    return found


BIG = ["search", "--model", "gpt3-175b", "--cluster", "selene", "--gpus", "512"]
BIG += ["--global-batch-size", "1536", "--cp", "1"]


def test_ctrl_c_prints_the_best_so_far_keeps_the_file_and_leaves_no_process(tmp_path):
    path = tmp_path / "a.sqlite"
    words = [*BIG, "--workers", "2", "--schedule", "1f1b,interleaved", "-o", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _wait_until_it_grows(path, process)
    children = _processes_below(process.pid)
    assert len(children) >= 2
    os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C goes to all of them
    out, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in error + out
    assert "interrupted; run the same command again to go on" in error
    assert "not judged" in out
    for _ in range(100):
        if not any(map(_runs, children)):
            break
        time.sleep(0.1)
    assert [pid for pid in children if _runs(pid)] == []
    assert path.stat().st_size > 0


def test_killed_with_9_three_times_and_resumed_the_results_are_those_of_an_undisturbed_run(
    tmp_path, capsys
):
    wide = ["search", JOB, "--cp", "1", "--recompute", "none,full", "--layer-split", "even"]
    wide += ["--schedule", "1f1b,interleaved", "--vpp", "1,2", "--workers", "2", "--exhaustive"]
    path, seeded = tmp_path / "a.sqlite", random.Random(3)
    kept = [0]
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "simulator", *wide, "-o", str(path)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait_until_it_grows(path, process)
        time.sleep(seeded.uniform(0.0, 0.2))
        process.kill()
        process.wait()
        kept.append(_judged_in(path))
    assert kept == sorted(kept)
    resumed = answer(capsys, *wide, "-o", str(path))
    whole = answer(capsys, *wide)
    assert 0 < kept[1] < whole["num_points"]  # killed on the way
    for name in ("num_points", "num_judged", "num_simulated", "dropped", "front"):
        assert resumed[name] == whole[name], name
    assert [p["point"] for p in resumed["best"]] == [p["point"] for p in whole["best"]]


def _wait_until_it_grows(path, process):
    """Until a transaction has been written, however slow the machine is."""
    first = 0
    while process.poll() is None:
        size = path.stat().st_size if path.exists() else 0
        first = first or size
        if size > first:
            return
        time.sleep(0.01)


def _judged_in(path):
    import sqlite3

    if not path.exists():
        return 0
    connection = sqlite3.connect(path)
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    text = "SELECT coalesce(sum(stop - first), 0) FROM judged"
    count = connection.execute(text).fetchone()[0] if tables else 0
    connection.close()
    return count


def test_progress_without_a_terminal_is_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr("simulator.commands.search.LINE_EVERY", 0.0)
    assert main(WORDS) == 0
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"100%  432 of 432 points, [\d,]+/s, 0:00 left", lines[-2])
    rate = r"[\d,]+ a second"
    said = rf"432 points judged in [\d.]+ s, {rate}; [\d,]+ legal plans of them, {rate}"
    assert re.fullmatch(said, lines[-1])


def test_the_temporary_store_leaves_nothing_behind():
    with opened(None, {}) as store:
        assert store.num_judged == 0
        assert store.path is None
