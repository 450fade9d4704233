"""The file of results: kept at kill -9, refused when it is another's, quick at 10^8 points."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simulator.search import store as module
from simulator.search.local import Here, Task
from simulator.search.run import search
from simulator.search.space import KNOBS, Space
from simulator.search.store import COLUMNS, SCHEMA, model_version, opened
from tests import fake_judge

ROOT = Path(__file__).parent.parent
ABOUT = {"space": json.dumps({"global_batch_size": 64, "job": {"model": {"seq_len": 2048}}})}


def always(step, _room):
    return np.ones(len(step), bool)


def chunk(first, stop):
    return fake_judge.judged(first, stop, always)


def test_chunks_in_any_order_join_to_one_range(tmp_path):
    cuts = list(range(0, 1001, 50))
    pieces = list(pairwise(cuts))
    random.Random(0).shuffle(pieces)
    with opened(tmp_path / "a.sqlite", ABOUT) as store:
        for first, stop in pieces:
            store.record([chunk(first, stop)])
        assert (store.num_ranges, store.num_judged, store.gaps(1000)) == (1, 1000, [])
        assert store.num_simulated + sum(store.dropped().values()) == 1000


def test_a_chunk_that_comes_twice_counts_once(tmp_path):
    with opened(tmp_path / "a.sqlite", ABOUT) as store:
        assert len(store.record([chunk(0, 300), chunk(0, 300), chunk(400, 500)])) == 2
        before = store.num_simulated, store.dropped()
        assert store.record([chunk(100, 200)]) == []
        assert (store.num_simulated, store.dropped()) == before
        assert store.gaps(600) == [(300, 400), (500, 600)]


def test_rows_come_back_bit_for_bit(tmp_path):
    whole = chunk(0, 500)
    with opened(tmp_path / "a.sqlite", ABOUT) as store:
        store.record([chunk(250, 500), chunk(0, 250)])
    with opened(tmp_path / "a.sqlite", ABOUT) as store:
        (block,) = store.blocks()
        best = store.best("tokens", 5)
    assert (block.index == whole.index).all()
    for name in COLUMNS:
        assert (getattr(block, name) == getattr(whole, name)).all()
    assert sorted(whole.step_time)[:5] == best.step_time.tolist()


def test_a_file_of_anything_else_is_left_as_it_is(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("do not lose this\n" * 100)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    for path, words in ((text, "is not a file of results"), (other, "not one of results")):
        before = path.read_bytes()
        with pytest.raises(ValueError, match=words), opened(path, ABOUT):
            pass
        assert path.read_bytes() == before


def test_another_version_is_refused_and_left_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "a.sqlite"
    with opened(path, ABOUT) as store:
        store.record([chunk(0, 100)])
    before = path.read_bytes()
    monkeypatch.setattr(module, "model_version", lambda: "9.9, cost model 00000000")
    words = f"was written by bubblescope {model_version()}, this is 9.9"
    with pytest.raises(ValueError, match=words), opened(path, ABOUT):
        pass
    monkeypatch.undo()
    monkeypatch.setattr(module, "SCHEMA", SCHEMA + 1)
    with pytest.raises(ValueError, match="version 1 of the file format"), opened(path, ABOUT):
        pass
    assert path.read_bytes() == before


def test_another_search_is_refused_and_says_what_changed(tmp_path):
    path = tmp_path / "a.sqlite"
    with opened(path, ABOUT):
        pass
    before = path.read_bytes()
    other = {"space": ABOUT["space"].replace("2048", "4096")}
    with (
        pytest.raises(ValueError, match=r"job\.model\.seq_len was 2048, is 4096.*use another file"),
        opened(path, other),
    ):
        pass
    assert path.read_bytes() == before


def test_two_searches_on_one_file_are_refused(tmp_path):
    path = tmp_path / "a.sqlite"
    line = "from tests.test_search_store import ABOUT\nfrom simulator.search.store import opened\n"
    line += f"with opened({str(path)!r}, ABOUT): pass"
    with opened(path, ABOUT) as store:
        second = subprocess.run(
            [sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert "is in use by another search" in second.stderr
        store.record([chunk(0, 10)])
    free = subprocess.run([sys.executable, "-c", line], cwd=ROOT, check=False)
    assert free.returncode == 0


@pytest.mark.parametrize("name", ["missing/a.sqlite", "."])
def test_a_path_that_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"cannot (open|write)"), opened(tmp_path / name, ABOUT):
        pass


SEARCH = """
import sys
from pathlib import Path
from simulator.search.local import Here, Task
from simulator.search.run import search
from simulator.search.store import opened
from tests import fake_judge
space = fake_judge.space(3000)
task = Task(space, 0.05, fake_judge.slow, 0.05)
with opened(Path(sys.argv[1]), {"space": space.model_dump_json()}) as store:
    print("begun", flush=True)
    search(task, store, Here(task), lambda progress: print(progress.num_judged, flush=True))
"""


def test_killed_at_five_random_moments_and_resumed_is_as_if_nothing_had_happened(tmp_path):
    path, seeded = tmp_path / "a.sqlite", random.Random(7)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = [0]
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", SEARCH, str(path)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "begun\n"
        time.sleep(seeded.uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        space = fake_judge.space(3000)
        with opened(path, {"space": space.model_dump_json()}) as store:
            kept = store.num_judged
            assert store.num_simulated + sum(store.dropped().values()) == kept
        assert kept >= int(lines[-1] if lines else told[-1])  # what it had said was there
        told.append(kept)
    assert 0 < told[-1] < 3000
    assert told == sorted(told)
    subprocess.run([sys.executable, "-c", SEARCH, str(path)], env=environment, check=True)
    task = Task(space, 0.05, fake_judge.judge, 0.05)
    with opened(None, {}) as whole, opened(path, {"space": space.model_dump_json()}) as store:
        outcome = search(task, whole, Here(task))
        again = search(task, store, Here(task))
        assert (store.num_judged, store.num_ranges, again.num_judged) == (3000, 1, 0)
        assert store.num_simulated + sum(store.dropped().values()) == 3000
        assert store.dropped()["illegal"] == whole.dropped()["illegal"]
        assert (outcome.front.index == again.front.index).all()


def test_a_transaction_cut_short_by_kill_9_leaves_no_trace(tmp_path):
    path = tmp_path / "a.sqlite"
    line = f"""
import os, signal
from simulator.search.store import opened
from tests.test_search_store import ABOUT, chunk
with opened({str(path)!r}, ABOUT) as store:
    store.record([chunk(0, 20000)])
    store._connection.execute("PRAGMA cache_size = 1")  # so that pages are written on the way
    store._connection.execute("BEGIN IMMEDIATE")
    store._add_range(20000, 60000)
    store._add_plans(chunk(20000, 60000))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", line], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.with_name("a.sqlite-journal").stat().st_size > 0  # it was in the middle
    with opened(path, ABOUT) as store:
        assert (store.num_judged, store.gaps(60000)) == (20000, [(20000, 60000)])
        assert store.num_simulated + sum(store.dropped().values()) == 20000


def test_ten_to_the_eight_points_are_few_rows_and_indices_beyond_2_to_31_hold(tmp_path):
    points, step = 3 * 10**8, 100_000
    empty = {name: np.empty(0) for name in COLUMNS}
    with opened(tmp_path / "a.sqlite", ABOUT) as store:
        far = 2**33
        for begin in range(0, points, 50 * step):
            parts = [
                module.Judged(
                    first=far + first,
                    stop=far + first + step,
                    dropped={"illegal": step},
                    index=np.empty(0, np.int64),
                    **empty,
                )
                for first in range(begin, begin + 50 * step, step)
            ]
            store.record(random.Random(begin).sample(parts, len(parts)))
        assert (store.num_ranges, store.num_judged) == (1, points)
        assert store.gaps(far + points) == [(0, far)]
        assert store.dropped() == {"illegal": points}
        store.record([chunk(0, 10)])
        last = chunk(2**40, 2**40 + 9)
        store.record([last])
        assert list(store.blocks())[-1].index.tolist()[-1] == last.index[-1] > 2**40
    assert (tmp_path / "a.sqlite").stat().st_size < 100_000


def test_a_space_of_ten_to_the_ten_points_counts_its_points_as_a_mixed_radix():
    sizes = {
        "tp": (1, 2, 4, 8),
        "pp": tuple(range(1, 65)),
        "vpp": tuple(range(1, 129)),
        "cp": tuple(range(1, 17)),
        "ep": tuple(range(1, 17)),
        "micro_batch_size": tuple(range(1, 257)),
        "recompute": ("none", "full"),
        "zero_stage": (0, 1),
    }
    big = Space(job=fake_judge.JOB, global_batch_size=64, num_gpus=8, **sizes)
    total = 1
    for knob in KNOBS:
        total *= len(getattr(big, knob))
    assert big.num_points == total == 4 * 64 * 128 * 16 * 16 * 256 * 2 * 2 > 2**31
