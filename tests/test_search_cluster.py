"""A search on a real Dask cluster of processes, with workers killed on the way."""
# ruff: noqa: SIM117 - a store within a team within a cluster

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from simulator.cli import main
from simulator.search import cluster as module
from simulator.search.cluster import Cluster, checked_address, judge_chunk
from simulator.search.front import Front
from simulator.search.local import Here, Task
from simulator.search.run import search
from simulator.search.store import COLUMNS, opened
from tests import fake_judge

pytest.importorskip("distributed")
ROOT = Path(__file__).parent.parent


class Gardener:
    """Worker processes of a scheduler, each replaced when it dies, also while it starts."""

    def __init__(self, address, num_workers):
        words = [sys.executable, "-m", "dask", "worker", address, "--no-nanny", "--nthreads", "1"]
        self._command = [*words, "--no-dashboard", "--death-timeout", "300"]
        self._environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "300s",
        }
        self.processes = [self._started() for _ in range(num_workers)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tend)
        self._thread.start()

    def _started(self):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self._command, env=self._environment, **quiet)

    def _tend(self):
        while not self._over.wait(0.1):
            for at, process in enumerate(self.processes):
                if process.poll() is not None:
                    self.processes[at] = self._started()

    def close(self):
        self._over.set()
        self._thread.join()
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def scheduler(num_workers):
    """A scheduler and its workers, each a process of its own; the cluster and its gardener.

    Dask's own nannies leave a worker dead that dies before its nanny has heard of its start.
    """
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as cluster:
        cluster.gardener = Gardener(cluster.scheduler_address, num_workers)
        with closing(cluster.gardener):
            while len(cluster.scheduler_info["workers"]) < num_workers:
                time.sleep(0.05)
            yield cluster


def task_of(points, judge=fake_judge.judge, margin=0.0, seconds=0.1):
    return Task(fake_judge.space(points), margin, judge, seconds)


def rows(store):
    blocks = list(store.blocks())
    return {n: np.concatenate([getattr(b, n) for b in blocks]) for n in ("index", *COLUMNS)}


def test_two_workers_killed_again_and_again_give_the_serial_result():
    task = task_of(5000, judge=fake_judge.slow)
    with scheduler(2) as cluster:
        stop = threading.Event()
        killed = []

        def killer():
            while not stop.wait(1.0):
                process = cluster.gardener.processes[len(killed) % 2]
                killed.append(process.pid)
                process.kill()
                if len(killed) == 3:
                    return

        thread = threading.Thread(target=killer)
        team = Cluster(task, cluster.scheduler_address)
        with closing(team), opened(None, {}) as store:
            thread.start()
            outcome = search(task, store, team)
            stop.set()
            thread.join()
            assert (store.num_judged, store.num_ranges) == (5000, 1)
            assert store.num_simulated + sum(store.dropped().values()) == 5000
            illegal = store.dropped()["illegal"]
    assert len(killed) == 3
    serial = Task(task.space, 0.0, fake_judge.judge, 0.1)
    with opened(None, {}) as store:
        alone = search(serial, store, Here(serial))
        assert (alone.front.index == outcome.front.index).all()
        assert store.dropped()["illegal"] == illegal


def test_a_point_that_kills_its_workers_is_found_on_a_cluster_too():
    import dask

    task = task_of(760, judge=fake_judge.trapped, margin=None)
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), scheduler(2) as cluster:
        with closing(Cluster(task, cluster.scheduler_address)) as team, opened(None, {}) as store:
            outcome = search(task, store, team)
            every = fake_judge.everything(task.space, 0, 760, None).index
            assert outcome.set_aside == (fake_judge.TRAP,)
            assert (rows(store)["index"] == every[every != fake_judge.TRAP]).all()


def test_without_pruning_the_rows_of_a_cluster_are_those_of_one_process_bit_for_bit():
    task = task_of(3000, margin=None)
    with scheduler(2) as cluster:
        with closing(Cluster(task, cluster.scheduler_address)) as team, opened(None, {}) as store:
            assert team.num_workers == 2
            search(task, store, team)
            spread = rows(store)
    with opened(None, {}) as store:
        search(task, store, Here(task))
        alone = rows(store)
    for name in alone:
        assert (spread[name] == alone[name]).all()


def test_a_search_that_stops_on_a_cluster_goes_on_in_local_processes(tmp_path):
    task, path = task_of(3000, judge=fake_judge.slow), tmp_path / "a.sqlite"

    class Enough(Exception):
        pass

    def until(now):
        if now.num_judged > 500:
            raise Enough

    with scheduler(1) as cluster:
        with closing(Cluster(task, cluster.scheduler_address)) as team, opened(path, {}) as store:
            with pytest.raises(Enough):
                search(task, store, team, until)
    with opened(path, {}) as store:
        before = store.num_judged
        outcome = search(task_of(3000), store, Here(task_of(3000)))
        assert outcome.num_judged == 3000 - before
        assert store.num_simulated + sum(store.dropped().values()) == 3000


def test_a_cluster_that_loses_all_workers_and_gets_none_says_so_and_keeps_what_was_judged(
    monkeypatch,
):
    monkeypatch.setattr(module, "DESERTED", 1.0)
    task = task_of(5000, judge=fake_judge.slow)
    with scheduler(2) as cluster:

        def end_the_workers(now):
            if now.num_judged > 100:
                cluster.gardener.close()

        with closing(Cluster(task, cluster.scheduler_address)) as team, opened(None, {}) as store:
            with pytest.raises(ValueError, match=r"no workers for 1 s; .* start some with `dask w"):
                search(task, store, team, end_the_workers)
            assert 100 < store.num_judged < 5000


def test_a_worker_with_another_version_is_refused():
    task = task_of(1000)
    with scheduler(1) as cluster:
        with closing(Cluster(task, cluster.scheduler_address)) as team, opened(None, {}) as store:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "model_version", lambda: "9.9, cost model 00000000")
                words = r"the worker at tcp://\S+ has bubblescope \S+, cost model \w+, this is 9\.9"
                with pytest.raises(ValueError, match=words):
                    search(task, store, team)
            assert store.num_judged == 0


def test_what_travels_is_plain_data():
    import pickle

    task = task_of(1000)
    front = Front().add(fake_judge.everything(task.space, 0, 100, None))
    answer = judge_chunk(
        {
            "version": module.model_version(),
            "space": task.space.model_dump_json(),
            "margin": 0.0,
            "judge": task.judge,
            "seconds": 0.1,
            "chunk": {"first": 100, "stop": 200, "size": 64, "deaths": 0},
            "front": front.arrays(),
        }
    )
    assert {type(value) for value in answer["judged"].values()} == {int, dict, np.ndarray}
    assert b"simulator" not in pickle.dumps(answer)


@pytest.mark.parametrize("text", ["tcp://", "host:8786", "http://host:80", "tcp://h:99999", ""])
def test_a_wrong_address_is_refused_before_anything_is_tried(text):
    with pytest.raises(ValueError, match="which is no address; write it as in tcp://host:8786"):
        checked_address(text)


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:1", "tcp://no-such-host.invalid:8786"])
def test_an_unreachable_scheduler_says_so_in_seconds_in_one_line(text):
    words = ["search", "examples/small_8_gpus.toml", "--scheduler", text]
    made = subprocess.run(
        [sys.executable, "-m", "simulator", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert made.returncode == 2
    assert made.stderr.startswith(f"bubblescope: error: no scheduler answers at {text} within 5 s")
    assert made.stderr.count("\n") == 1


def test_what_is_no_scheduler_is_told_in_seconds_in_one_line():
    import http.server

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = ["search", "examples/small_8_gpus.toml", "--scheduler"]
    made = subprocess.run(
        [sys.executable, "-m", "simulator", *words, f"tcp://127.0.0.1:{server.server_port}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    server.shutdown()
    server.server_close()
    assert made.returncode == 2
    assert "is no Dask scheduler" in made.stderr
    assert made.stderr.count("\n") == 1


def test_each_thread_of_a_worker_knows_for_itself():
    text = task_of(10).space.model_dump_json()
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(module._space(text)[1])) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert found[0] is not found[1]
    assert module._space(text)[1] is module._space(text)[1]


def test_a_scheduler_without_workers_says_how_to_start_one():
    with scheduler(0) as cluster:
        with pytest.raises(ValueError, match="has no workers; start some with `dask worker"):
            Cluster(task_of(10), cluster.scheduler_address)


def test_the_command_on_a_cluster_prints_what_it_prints_without_one(capsys):
    words = ["search", str(ROOT / "examples" / "small_8_gpus.toml"), "--json", "--exhaustive"]
    words += ["--tp", "1,2,4", "--pp", "1,2", "--cp", "1", "--vpp", "1,2", "--recompute", "none"]
    words += ["--schedule", "1f1b,interleaved", "--layer-split", "even"]
    with scheduler(2) as cluster:
        assert main([*words, "--scheduler", cluster.scheduler_address]) == 0
    spread = json.loads(capsys.readouterr().out)
    assert main([*words, "--workers", "1"]) == 0
    alone = json.loads(capsys.readouterr().out)
    for made in (spread, alone):
        del made["seconds"]
    assert spread == alone
    assert len(spread["best"]) == 10
