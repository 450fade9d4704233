"""A rank that dies, hangs or runs out of memory is named, and no process is left behind."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.job import Plan
from validator import elastic, machine
from validator.asked import SMALL, scaled, session_of
from validator.beacon import Beacon
from validator.events import load
from validator.launch import GRACE, LAST_WORDS, Failed, run_ranks
from validator.machine import check_gpus, check_torch

MODEL = scaled(
    SMALL, 1.0, {"num_hidden_layers": 2, "hidden_size": 32, "seq_len": 16, "vocab_size": 64}
)


def session(timeout=60.0, **more):
    plan = Plan(num_microbatches=4, micro_batch_size=1)
    options = {"device": "cpu", "dtype": "fp32", "rounds": 10_000, "timeout": timeout, **more}
    return session_of(more.pop("model", MODEL), plan, ["1f1b"], 2, **options)


class Saboteur:
    """Sends a signal to a rank once it has run some ops; remembers every process."""

    def __init__(self, victim, number, after=60):
        self.victim, self.number, self.after = victim, number, after
        self.pids, self.when = set(), None

    def __call__(self, places):
        self.pids |= {place.pid for place in places if place is not None}
        place = places[self.victim]
        if self.when is None and place is not None and place.ended > self.after:
            os.kill(place.pid, self.number)
            self.when = time.monotonic()


def is_gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_a_rank_that_is_killed_is_named_with_its_op():
    kill = Saboteur(0, signal.SIGKILL)
    with pytest.raises(Failed, match=r"rank 0 was ended at .* by SIGKILL") as failed:
        run_ranks(session(), progress=kill)
    assert len(kill.pids) == 2
    assert all(map(is_gone, kill.pids))
    steps = list(failed.value.measured.of("step"))
    assert {record["rank"] for record in steps} == {0, 1}  # what was measured is kept


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_stops_is_named_and_ended_within_the_timeout_and_its_grace(victim):
    stop = Saboteur(victim, signal.SIGSTOP)
    with pytest.raises(Failed, match=rf"^rank {victim} does not answer, last at .*4 s") as failed:
        run_ranks(session(timeout=4.0), progress=stop)
    assert 2 < time.monotonic() - stop.when < 4 + GRACE + LAST_WORDS + 60  # a busy machine's
    verdict = next(failed.value.measured.of("verdict"))
    assert (verdict["rank"], verdict["text"]) == (victim, str(failed.value))
    assert all(map(is_gone, stop.pids))
    assert any(failed.value.measured.of("step"))


def test_a_rank_out_of_memory_names_the_op_and_says_so():
    # GPipe holds 48 forwards of about 30 MB; the limit lets a few of them in
    model = MODEL.model_copy(update={"seq_len": 64, "hidden_size": 64, "head_dim": 16})
    plan = Plan(num_microbatches=48, micro_batch_size=64)
    asked = session_of(model, plan, ["gpipe"], 2, device="cpu", dtype="fp32", timeout=60.0)
    limited = set()

    def limit(places):
        place = places[0]
        if place is not None and place.play >= 0 and place.pid not in limited:
            limited.add(place.pid)
            pages = int(Path(f"/proc/{place.pid}/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + 96 * 2**20
            resource.prlimit(place.pid, resource.RLIMIT_AS, (most, most))

    with pytest.raises(Failed, match=r"rank 0 failed at 0F\d+: RuntimeError: .*memory"):
        run_ranks(asked, progress=limit)


def test_a_failure_is_one_line_and_exit_code_2_and_events_are_kept(tmp_path, capsys, monkeypatch):
    from validator import launch

    kill = Saboteur(1, signal.SIGKILL, after=150)
    real = launch.run_ranks
    monkeypatch.setattr(launch, "run_ranks", lambda asked: real(asked, progress=kill))
    path = tmp_path / "events.json.gz"
    words = ["--cpus", "2", "--layers", "2", "--hidden", "32", "--seq-len", "16", "--vocab", "64"]
    words += ["--schedules", "1f1b", "--rounds", "9999", "-o", str(path)]
    assert main(["validate", *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert sum("rank 1 was ended at" in line for line in said) == 1
    assert main(["validate", "--events", str(path), "--tolerance", "9"]) == 0
    assert "1f1b*" in capsys.readouterr().out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_keeps_its_events_and_leaves_nothing(
    number, code, tmp_path, capsys, monkeypatch
):
    from validator import launch

    pids = set()

    def interrupt(places):
        pids.update(place.pid for place in places if place is not None)
        if all(place is not None and place.ended > 120 for place in places):
            os.kill(os.getpid(), number)

    real = launch.run_ranks
    monkeypatch.setattr(launch, "run_ranks", lambda asked: real(asked, progress=interrupt))
    scratch, path = tmp_path / "scratch", tmp_path / "events.json.gz"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    words = ["--cpus", "2", "--layers", "2", "--hidden", "32", "--seq-len", "16", "--vocab", "64"]
    words += ["--schedules", "1f1b", "--rounds", "9999", "-o", str(path)]
    with pytest.raises(SystemExit) as ended:
        main(["validate", *words])
    assert ended.value.code == code
    said = capsys.readouterr().err.splitlines()
    assert f"bubblescope: interrupted by {signal.Signals(number).name}" in said
    assert len(pids) == 2
    assert all(map(is_gone, pids))
    assert not list(scratch.glob("bubblescope-*"))
    assert any(load(path).of("step"))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "rank 1 was ended at"),
        (signal.SIGSTOP, "rank 1 does not answer, last at"),
    ],
)
def test_under_torchrun_a_rank_that_fails_is_named_and_what_was_measured_is_kept(
    number, said, tmp_path
):
    scratch, path = tmp_path / "scratch", tmp_path / "events.json.gz"
    scratch.mkdir()
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words += ["-m", "validator", "--cpus", "2", "--layers", "2", "--hidden", "32"]
    words += ["--seq-len", "16", "--vocab", "64", "--schedules", "1f1b", "--rounds", "9999"]
    with subprocess.Popen(
        [sys.executable, *words, "--timeout", "4", "-o", str(path)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)},
        cwd=Path(__file__).parent.parent,
    ) as torchrun:
        victim = pid_once_it_measures(scratch, 1)
        os.kill(victim, number)
        while number == signal.SIGSTOP and not path.exists():
            time.sleep(0.1)  # it cannot be told to end
        if number == signal.SIGSTOP:
            os.kill(victim, signal.SIGKILL)
        errors = torchrun.communicate(timeout=60)[1]
    assert torchrun.returncode == 1
    assert f"bubblescope: {said}" in errors
    assert errors.count(f"wrote {path}") == 1
    kept = load(path)
    assert {record["rank"] for record in kept.of("step")} == {0, 1}
    verdict = next(kept.of("verdict"))
    assert verdict["rank"] == 1
    assert verdict["text"].startswith(said)
    if number == signal.SIGKILL:
        assert not list(scratch.glob("bubblescope-*"))


def pid_once_it_measures(scratch, rank):
    """The process of a rank that torchrun has started, once it has written down a step."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for path in scratch.glob(f"bubblescope-torchrun-*/rank{rank}.jsonl"):
            if '"part": "step"' in path.read_text():
                return Beacon.read(path.with_suffix(".beacon")).pid
        time.sleep(0.05)
    raise AssertionError("no step within 90 s")


def test_other_hosts_of_torchrun_keep_their_ranks_beside_the_first_ones(monkeypatch):
    assert elastic._of_host(Path("a/e.json.gz")) == Path("a/e.json.gz")
    monkeypatch.setenv("GROUP_RANK", "1")
    assert elastic._of_host(Path("a/e.json.gz")) == Path("a/e.host1.json.gz")


def test_rows_that_pytorch_cannot_run_are_refused_before_a_process_starts(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", None)
    assert main(["validate", "--cpus", "2", "--schedules", "1f1b,chimera"]) == 2
    assert "chimera cannot be run: stage 0 is on ranks 0 and 1" in capsys.readouterr().err


def test_on_two_hosts_under_torchrun_each_needs_gpus_for_its_own_ranks_only(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with pytest.raises(ValueError, match="finds only 8"):
        check_gpus(16, nccl=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    check_gpus(16, nccl=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "12")
    with pytest.raises(ValueError, match=r"12 of the 16 ranks on this host.*--nproc-per-node 8"):
        check_gpus(16, nccl=False)


def test_fewer_gpus_than_asked_is_one_line(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"--gpus is 8, but torch .* finds only 2; use --gpus 2"):
        check_gpus(8, nccl=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"--gpus is 8, but torch .* finds none; use --cpus"):
        check_gpus(8, nccl=True)


def test_no_nccl_is_one_line(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ValueError, match="has no NCCL"):
        check_gpus(8, nccl=True)
    check_gpus(1, nccl=True)


def test_an_untested_torch_is_one_line_and_can_be_insisted_on(monkeypatch):
    monkeypatch.setattr(machine, "TESTED", ("1.0",))
    with pytest.raises(ValueError, match=r"is untested.*--untested-torch"):
        check_torch()
    check_torch(untested=True)


def test_a_missing_torch_is_answered_with_the_line_that_installs_it(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "validator.machine")
    assert main(["validate", "--cpus", "2"]) == 2
    assert "pip install 'bubblescope[validator]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say where to run"),
        (["--cpus", "0"], "use 1 or more"),
        (["--cpus", "2", "--pp", "4"], "--pp goes with --gpus 1"),
        (["--cpus", "2", "--share"], "goes with --gpus 1"),
        (["--cpus", "2", "--layers", "6"], "use --layers 4"),
        (["--cpus", "2", "--schedules", "pipedream"], "asynchronous"),
        (["--cpus", "2", "--compile"], "one node of the autograd graph"),
        (["--cpus", "2", "--tolerance", "0"], "it is a share"),
        (["--cpus", "2", "-o", "x.pdf"], "cannot write x.pdf; use a name that ends in .html"),
        (["--cpus", "2", "-o", "no/x.html"], "cannot write no/x.html; use a folder that exists"),
        (["--cpus", "1", "--pp", "2", "-o", "p.html"], "played alone have no page"),
        (["--cpus", "2", "--keep"], "--keep is for measurements of GPUs"),
        (["--cpus", "1", "--pp", "2", "--rank", "5"], "--rank is 5"),
        (["--cpus", "2", "examples/korthikanti_22b_full.toml"], "plan.recompute is full"),
        (["--events", "nowhere.json.gz"], "cannot read nowhere.json.gz"),
    ],
)
def test_words_that_make_no_sense_are_refused_in_one_line(words, said, capsys):
    assert main(["validate", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
