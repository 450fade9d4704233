"""A search in processes of this machine: one, several, killed, interrupted; the same front."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from simulator.search.front import Front
from simulator.search.known import Known
from simulator.search.local import Chunk, Here, Processes, Task, joined, work
from simulator.search.run import SAMPLES, _samples_first, search
from simulator.search.store import opened
from tests import fake_judge

ROOT = Path(__file__).parent.parent


def task_of(points, judge=fake_judge.judge, margin=0.0, seconds=0.05):
    return Task(fake_judge.space(points), margin, judge, seconds)


def found(task, team):
    """A search in a temporary store: its outcome, all rows, and what was dropped."""
    with closing(team), opened(None, {}) as store:
        outcome = search(task, store, team)
        blocks = list(store.blocks())
        index = np.concatenate([b.index for b in blocks]) if blocks else np.empty(0, np.int64)
        assert store.num_judged + len(outcome.set_aside) == task.space.num_points
        assert len(index) + sum(store.dropped().values()) == store.num_judged
        assert (np.diff(index) > 0).all()
        return outcome, index, store.dropped()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def whole(points):
    """The front of all points, judged at once."""
    space = fake_judge.space(points)
    return Front().add(fake_judge.everything(space, 0, points, None))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_processes_finds_the_front_of_5000_points_judged_at_once(num_workers):
    task = task_of(5000)
    team = Here(task) if num_workers == 1 else Processes(task, num_workers)
    outcome, index, dropped = found(task, team)
    assert (outcome.front.index == whole(5000).index).all()
    assert dropped["bound"] > 0
    assert set(whole(5000).index.tolist()) <= set(index.tolist())


def test_without_pruning_two_processes_simulate_exactly_the_legal_points():
    task = task_of(3000, margin=None)
    _, index, dropped = found(task, Processes(task, 2))
    assert (index == fake_judge.everything(task.space, 0, 3000, None).index).all()
    assert set(dropped) == {"illegal"}


def test_a_margin_of_5_percent_keeps_every_plan_that_close_to_the_fastest():
    task = task_of(4000, margin=0.05)
    _, index, _ = found(task, Here(task))
    every = fake_judge.everything(task.space, 0, 4000, None)
    close = every.index[every.step_time < 1.05 * every.step_time.min() * (1 - 1e-9)]
    assert len(close) > 50
    assert set(close.tolist()) <= set(index.tolist())


def test_work_stops_within_its_time_and_says_how_far_it_came():
    task = task_of(10**5, judge=fake_judge.slow, seconds=0.2)
    answer = work(task, Chunk(500, 10**5), Front(), Known())
    assert answer.judged.first == 500
    assert 500 < answer.judged.stop < 1500
    assert answer.seconds < 0.6


def test_joined_pieces_are_the_whole():
    keep = lambda step, _room: np.ones(len(step), bool)  # noqa: E731
    pieces = [fake_judge.judged(a, b, keep) for a, b in ((0, 7), (7, 300), (300, 301))]
    one = fake_judge.judged(0, 301, keep)
    both = joined(pieces)
    assert (both.first, both.stop, both.dropped) == (0, 301, one.dropped)
    assert (both.headroom == one.headroom).all()


def test_processes_killed_on_the_way_are_replaced_and_nothing_is_lost_or_counted_twice():
    task = task_of(6000, judge=fake_judge.slow, seconds=0.1)
    team = Processes(task, 2)
    stop = threading.Event()

    def killer():  # three deaths cannot set a point aside, however slowly processes start
        for _ in range(3):
            if stop.wait(0.7):
                return
            os.kill(team.pids[0], signal.SIGKILL)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        outcome, _, _ = found(task, team)
    finally:
        stop.set()
        thread.join()
    assert outcome.deaths >= 2
    assert outcome.set_aside == ()
    assert (outcome.front.index == whole(6000).index).all()
    assert not any(alive(pid) for pid in team.pids)


def test_a_point_that_kills_its_process_is_found_and_all_others_are_judged():
    task = task_of(2000, judge=fake_judge.trapped, margin=None)
    outcome, index, _ = found(task, Processes(task, 2))
    assert outcome.set_aside == (fake_judge.TRAP,)
    every = fake_judge.everything(task.space, 0, 2000, None).index
    assert (index == every[every != fake_judge.TRAP]).all()


def test_processes_that_all_die_end_the_search_with_the_reason(monkeypatch):
    monkeypatch.setattr("simulator.search.run.MOST_DEATHS", 5)
    task = task_of(2000, judge=fake_judge.deadly)
    with closing(Processes(task, 2)) as team, opened(None, {}) as store:  # noqa: SIM117
        with pytest.raises(ValueError, match="5 workers died one after the other, the last one"):
            search(task, store, team)


def test_a_mistake_in_the_judge_is_raised_with_its_points_not_swallowed():
    task = task_of(100, judge=fake_judge.broken)
    with closing(Processes(task, 2)) as team, opened(None, {}) as store:  # noqa: SIM117
        with pytest.raises(KeyError, match="mistake") as caught:
            search(task, store, team)
    assert "while judging points" in caught.value.__notes__[0]


PARENT = """
import sys
from simulator.search.local import Processes, Task
from simulator.search.run import SAMPLES, _samples_first, search
from simulator.search.store import opened
from tests import fake_judge
if __name__ == "__main__":
    task = Task(fake_judge.space(10**6), 0.0, fake_judge.slow, 0.2)
    team = Processes(task, 2)
    print(*team.pids, flush=True)
    with opened(None, {}) as store:
        search(task, store, team)
"""


def test_processes_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    time.sleep(1.0)
    assert all(map(alive, pids))
    process.kill()
    process.wait()
    process.stdout.close()
    for _ in range(100):
        if not any(map(alive, pids)):
            break
        time.sleep(0.1)
    assert not any(map(alive, pids))


def test_progress_counts_up_to_all_points_with_a_rate_and_the_time_left():
    task = task_of(3000)
    seen = []
    with opened(None, {}) as store:
        search(task, store, Here(task), seen.append)
    judged = [now.num_judged for now in seen]
    assert judged == sorted(judged)
    assert (judged[-1], seen[-1].num_points) == (3000, 3000)
    assert seen[0].rate > 0
    assert seen[-1].seconds_left == 0.0


def test_a_space_of_10_to_the_8_points_is_sampled_everywhere_first_and_then_in_order():
    points = 10**8
    chunks = _samples_first([(0, points)], points)
    samples = chunks[:SAMPLES]
    assert sorted(c.first for c in samples) == [c.first for c in samples]
    assert max(np.diff([0, *(c.first for c in samples), points])) < 3 * points / SAMPLES
    every = sorted((c.first, c.stop) for c in chunks)
    assert [a for a, _ in every] == [0, *(b for _, b in every[:-1])]  # each point once
    assert every[-1][1] == points
    again = _samples_first([(points // 2, points)], points)  # resumed half way
    assert sum(c.stop - c.first for c in again) == points - points // 2


def test_a_small_space_is_judged_in_order():
    assert _samples_first([(0, 10), (20, 1000)], 1000) == [Chunk(0, 10), Chunk(20, 1000)]
