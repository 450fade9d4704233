"""The search as a job: it finds what the search itself finds, is cancelled, ends when abandoned."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

from dashboard import jobs
from dashboard.choice import job_of
from dashboard.figures.pareto import pareto
from dashboard.jobs import Told, cancel, start, told
from dashboard.pages.explore import PAGE as EXPLORE
from dashboard.planning import (
    MARGIN,
    SearchState,
    choice_at,
    numbers_of,
    space_for,
    table_rows,
)
from dashboard.shelf import folder_of, new_folder
from dashboard.state import decode, encode
from dashboard.theme import LIGHT
from simulator.search.local import Here, Task
from simulator.search.run import search
from simulator.search.space import plan_at
from simulator.search.store import opened
from tests.pages_served import browser, needs_chromium

SMALL = SearchState(
    model="gpt-1-7b", num_gpus=8, global_batch_size=32, tp=(1, 2), pp=(1, 2, 4), vpp=(1,),
    micro_batch_size=(1, 2), schedule=("1f1b", "zb-h1"), recompute=("none",),
)  # fmt: skip


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A shelf of this test alone; its jobs find it too."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def asked(state):
    return {"space": space_for(state).model_dump_json(), "margin": MARGIN}


LARGE = SearchState(model="gpt-1t", num_gpus=3072, global_batch_size=1536, recompute=None)


def begun(token, seconds=120.0):
    """Until a job says what it has found so far."""
    until = time.monotonic() + seconds
    while not (now := told(token, "search")).result:
        assert time.monotonic() < until, now
        assert now.is_running, now
        time.sleep(0.05)


def ended(token, seconds=120.0):
    """What a job says once it has ended."""
    until = time.monotonic() + seconds
    while (now := told(token, "search")).is_running:
        assert time.monotonic() < until, now
        time.sleep(0.1)
    return now


@pytest.mark.usefixtures("shelf")
def test_a_job_finds_what_the_search_finds_and_its_best_plan_opens_in_explore():
    space = space_for(SMALL)
    token = start("search", asked(SMALL))
    now = ended(token)
    assert (now.state, now.error) == ("done", "")
    task = Task(space, MARGIN)
    with opened(None, {}) as store:
        outcome = search(task, store, Here(task))
        best = store.best("tokens", 3)
    found = now.result
    assert found["num_judged"] == found["num_points"] == space.num_points
    assert [plan["index"] for plan in found["best"]["tokens"][:3]] == best.index.tolist()
    assert {point["index"] for point in found["front"]} == set(outcome.front.index.tolist())
    winner = found["best"]["tokens"][0]
    choice = decode(EXPLORE.state, winner["explore"].removeprefix("/"))
    assert job_of(choice).plan == plan_at(space, winner["index"]).plan
    rows = table_rows(found["best"]["tokens"], found["memory"])
    assert rows[0]["rank"] == 1
    assert rows[0]["open"] == f"[Explore]({winner['explore']})"


def test_every_plan_of_the_front_is_a_job_that_explore_takes():
    space = space_for(SMALL)
    made = 0
    for index in range(0, space.num_points, 7):
        try:
            wanted = plan_at(space, index)
        except ValueError:
            continue
        assert job_of(choice_at(space, index)).plan == wanted.plan
        made += 1
    assert made > 5


@pytest.mark.usefixtures("shelf")
def test_a_job_is_cancelled_and_keeps_what_it_found():
    token = start("search", asked(LARGE))
    begun(token)
    cancel(token)
    now = ended(token)
    assert now.state == "cancelled"
    assert 0 < now.result["num_judged"] < now.result["num_points"]


@pytest.mark.usefixtures("shelf")
def test_a_job_that_no_page_asks_after_ends_by_itself():
    token = start("search", asked(LARGE))
    folder = folder_of(token)
    begun(token)
    long_ago = time.time() - jobs.ABANDONED - 1
    os.utime(folder / jobs.ALIVE, (long_ago, long_ago))
    until = time.monotonic() + 60
    while json.loads((folder / jobs.TOLD).read_bytes())["state"] == "running":
        assert time.monotonic() < until
        time.sleep(0.1)
    assert told(token, "search").state == "abandoned"


@pytest.mark.usefixtures("shelf")
def test_a_job_whose_process_has_died_says_so():
    token, folder = new_folder()
    (folder / jobs.ASKED).write_text('{"what": "search", "at": 0}')
    for name in (jobs.ALIVE, jobs.BEAT, jobs.BEGUN):
        (folder / name).touch()
    assert told(token, "search").is_running
    long_ago = time.time() - jobs.DEAD - 1
    os.utime(folder / jobs.BEAT, (long_ago, long_ago))
    assert told(token, "search").state == "failed"
    assert "died" in told(token, "search").error


def taken(count):
    """Folders of jobs that run, as far as anyone can tell."""
    folders = [new_folder()[1] for _ in range(count)]
    for folder in folders:
        (folder / jobs.ASKED).write_text('{"what": "search", "at": 0}')
        for name in (jobs.ALIVE, jobs.BEAT, jobs.BEGUN):
            (folder / name).touch()
    return folders


def let_end(folder):
    (folder / jobs.TOLD).write_text(json.dumps({"state": "done", "result": {}}))


@pytest.mark.usefixtures("shelf")
def test_a_fifth_job_waits_until_one_of_four_ends_and_a_sixth_waits_for_it():
    running = taken(jobs.MOST_RUNNING)
    fifth, sixth = (start("search", asked(SMALL)) for _ in range(2))
    assert told(sixth, "search") == Told("waiting", {}, num_before=1)
    assert told(fifth, "search") == Told("waiting", {}, num_before=0)
    let_end(running[0])
    assert told(sixth, "search").state == "waiting"  # it is not its turn
    assert told(fifth, "search").state == "running"
    assert told(sixth, "search") == Told("waiting", {}, num_before=0)
    let_end(running[1])
    assert ended(sixth).state == ended(fifth).state == "done"


@pytest.mark.usefixtures("shelf")
def test_ten_users_at_once_start_four_processes(monkeypatch):
    started = []

    class Process:
        def __init__(self, words, **_):
            started.append(words[-1])

        def poll(self):
            return None

    monkeypatch.setattr(jobs.subprocess, "Popen", Process)
    monkeypatch.setattr(jobs, "_processes", [])
    with ThreadPoolExecutor(10) as users:
        tokens = list(users.map(lambda _: start("search", asked(SMALL)), range(10)))
        states = [one.state for one in users.map(lambda token: told(token, "search"), tokens)]
    assert len(set(started)) == len(started) == jobs.MOST_RUNNING
    assert sorted(states) == ["running"] * jobs.MOST_RUNNING + ["waiting"] * 6


@pytest.mark.usefixtures("shelf")
def test_a_waiting_job_that_is_cancelled_or_left_makes_room():
    taken(jobs.MOST_RUNNING)
    first, second, third = (start("search", asked(SMALL)) for _ in range(3))
    cancel(first)
    assert told(first, "search").state == "cancelled"
    assert told(third, "search").num_before == 1
    long_ago = time.time() - jobs.ABANDONED - 1
    os.utime(folder_of(second) / jobs.ALIVE, (long_ago, long_ago))
    assert told(third, "search").num_before == 0


@pytest.mark.usefixtures("shelf")
def test_what_waits_is_bounded_and_the_message_says_so():
    taken(jobs.MOST_RUNNING)
    for _ in range(jobs.MOST_WAITING):
        start("search", asked(SMALL))
    with pytest.raises(ValueError, match="runs 4 at once and lets 20 wait"):
        start("search", asked(SMALL))


@pytest.mark.usefixtures("shelf")
def test_a_token_of_an_upload_or_of_nothing_is_no_search():
    token, _ = new_folder()
    optimising, folder = new_folder()
    (folder / jobs.ASKED).write_text('{"what": "optimize"}')
    for other in (token, optimising, "0" * 32, "../x"):
        with pytest.raises(ValueError, match=r"upload|optimize|server"):
            told(other, "search")


def test_what_makes_no_space_is_refused_in_a_sentence():
    for bad, words in (
        ({"num_gpus": 10**9}, "num_gpus"),
        ({"global_batch_size": 10**9}, "global_batch_size"),
        ({"schedule": ("nonsense",)}, "unknown"),
        ({"model": "nonsense"}, "preset"),
        ({"recompute": ("<b>",)}, "recompute"),
        ({"num_gpus": 7680, "global_batch_size": 720_720, "schedule": None}, "at most"),
    ):
        with pytest.raises(ValueError, match=words):
            space_for(SearchState(**bad))
    for text in ("a", "1;2", "-1", "1.5", "0", "1," * 100 + "1"):
        with pytest.raises(ValueError, match="whole numbers"):
            numbers_of(text)


def test_a_search_survives_the_address():
    state = SMALL.model_copy(update={"job": "0123456789abcdef" * 2, "by": "cost"})
    assert decode(SearchState, encode(state)) == state


def test_the_front_falls_from_the_fastest_to_the_roomiest_and_marks_the_chosen_plan():
    front = [
        {"index": i, "knobs": {"tp": "<b>"}, "tokens_per_second": 10.0 - i, "headroom": i * 1e9}
        for i in range(4)
    ]
    fig = pareto(front, LIGHT, chosen=2)
    assert list(fig.data[1].x) == [0, 1, 2, 3]
    assert list(fig.data[1].marker.symbol).index("diamond") == 2
    assert "<b>" not in fig.data[1].hovertext[0]


@needs_chromium
def test_a_search_runs_shows_its_front_and_a_row_opens_in_explore():
    with browser() as page:
        page.goto("/search" + encode(SMALL))
        page.click("#search-start")
        expect(page.locator("#search-progress")).to_contain_text("Done", timeout=120_000)
        page.wait_for_url("**job=*")
        page.reload()
        expect(page.locator("#search-progress")).to_contain_text("plans judged")
        link = page.locator("#search-table a").first
        expect(link).to_have_text("Explore")
        link.click()
        page.wait_for_url("**model=gpt-1-7b*")


@needs_chromium
def test_a_search_is_cancelled_from_the_page_and_a_bad_knob_is_told_at_its_field():
    with browser("dark") as page:
        page.goto("/search" + encode(LARGE))
        page.get_by_label("tp", exact=True).fill("1,x")
        expect(page.locator("#search-progress").locator("xpath=../..")).to_contain_text("No search")
        expect(page.get_by_text("is no list of whole numbers")).to_be_visible()
        page.get_by_label("tp", exact=True).fill("")
        expect(page.get_by_text("is no list of whole numbers")).to_have_count(0)
        page.click("#search-start")
        expect(page.locator("#search-progress")).to_contain_text("simulated")
        page.click("#search-cancel")
        expect(page.locator("#search-progress")).to_contain_text("ancelled")
        expect(page.locator("#search-cancel")).to_be_disabled()
