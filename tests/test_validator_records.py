"""Files of raw events: damaged ones are refused in one line, disturbed ones are said to be so."""

import gzip
import json

import pytest

from simulator.cli import main
from tests.test_validator_analysis import made_up, session, with_alike_lone
from validator.analysis import analyse
from validator.events import Measured, load, save
from validator.page import page
from validator.replay import analyse_ranks, ranks_report
from validator.steps import incomplete
from validator.table import report


@pytest.fixture(scope="module")
def known():
    return with_alike_lone(made_up(session()))


def changed(measured, part, **values):
    """A copy in which the first record of a part has other values."""
    at = next(i for i, record in enumerate(measured.records) if record["part"] == part)
    records = list(measured.records)
    records[at] = {**records[at], **values}
    return Measured(measured.session, tuple(records))


def saved(document, path):
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


ROW = [0, 0, 0, 1.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"records": [{}]}, "record 0 has no part that is known"),
        ({"records": [5]}, "record 0 has no part that is known"),
        ({"records": 5}, "its records are no list but int"),
        ({"session": None}, "session"),
        ({"session": "gone"}, "session"),
        ({"records": [{"part": "about"}]}, "record 0, a about: rank: Field required"),
        ({"records": [{"part": "about", "rank": 7}]}, "is of rank 7; there are 2 ranks"),
        ({"records": "step", "play": "zb-x"}, "is of zb-x, which is none of its schedules"),
        ({"records": "step", "events": [ROW[:4]]}, "events.0.4: Field required"),
        ({"records": "step", "events": [[99, *ROW[1:]]]}, "should be less than 13"),
        ({"records": "step", "events": [[0, 8, *ROW[2:]]]}, "has stage 8; 1f1b has 2 stages"),
        ({"records": "step", "events": [[0, 0, 0, 2.0, 1.0, 1.0]]}, "0F0 ends before it begins"),
        ({"records": "step", "events": [[0, 0, 0, "x", 1.0, 1.0]]}, "events.0.3"),
        ({"records": "step", "events": 3}, "events: Input should be a valid list"),
        ({"records": "link", "samples": [[0, 1.0]]}, "samples.0.0"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(known, tmp_path, capsys, change, said):
    document = {
        "format": "bubblescope validation 1",
        "session": known.session.model_dump(mode="json"),
        "records": list(known.records),
    }
    if isinstance(change.get("records"), str):
        part = change.pop("records")
        document["records"] = list(changed(known, part, **change).records)
    else:
        document |= change
    path = saved(document, tmp_path / "events.json.gz")
    assert main(["validate", "--events", str(path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_file_without_a_session_is_refused_in_one_line(tmp_path):
    path = saved({"format": "bubblescope validation 1", "records": []}, tmp_path / "x.json.gz")
    with pytest.raises(ValueError, match="it has no session"):
        load(path)


def test_a_step_cut_short_is_left_out_and_the_error_stays_what_it_was(known):
    first = next(known.of("step"))
    short = changed(known, "step", events=first["events"][:5])
    whole, cut = analyse(known), analyse(short)
    assert [run.error for run in cut] == pytest.approx([run.error for run in whole], abs=1e-3)
    assert cut[0].num_steps == whole[0].num_steps - 1
    assert incomplete(short, short.session.plays[0]) == 1
    assert "1f1b: 1 steps are incomplete and left out" in report(short, cut, 0.1)


def test_when_every_step_is_cut_short_it_is_said(known):
    records = [
        record | {"events": record["events"][:-2]} if record["part"] == "step" else record
        for record in known.records
    ]
    with pytest.raises(ValueError, match="no step of 1f1b was written down whole, 3 incomplete"):
        analyse(Measured(known.session, tuple(records)))


def test_the_launchers_verdict_is_shown_and_not_the_rank_that_noticed(known, tmp_path, capsys):
    said = (
        {"part": "error", "rank": 1, "op": "1B0", "text": "Connection closed", "when": 1.0},
        {"part": "verdict", "rank": 0, "text": "rank 0 was ended at 0F1 by SIGKILL"},
    )
    path = tmp_path / "events.json.gz"
    save(Measured(known.session, known.records + said), path)
    assert load(path).ranks == (0, 1)
    assert main(["validate", "--events", str(path)]) == 0
    out = capsys.readouterr().out
    assert "rank 0 was ended at 0F1 by SIGKILL" in out
    assert "rank 1 failed" not in out


def test_cores_that_other_work_took_half_of_make_a_verdict_of_its_own(known):
    # every op lasts twice as long as its thread works
    busy = with_alike_lone(made_up(session(), slow=(2.0, 2.0, 2.0)))
    runs = analyse(busy)
    text = report(busy, runs, 0.10)
    assert all(run.disturbed > 0.3 for run in runs)
    assert "1f1b not quiet: other work took" in text
    assert text.splitlines()[-1].startswith("NOT QUIET: ")
    assert "quiet ones, or the quietest, that count" in text
    assert "not quiet" in page(busy, runs, 0.10)
    assert report(busy, runs, 9.0).splitlines()[-1].startswith("ok, though ")
    calm = report(known, analyse(known), 0.10)
    assert "not quiet" not in calm
    assert calm.splitlines()[-1].startswith("ok: ")


def test_rows_played_alone_on_a_busy_core_are_said_to_be_so():
    asked = session(transfers="looped")
    busy = with_alike_lone(made_up(asked, slow=(2.0, 2.0, 2.0), wait=False))
    text = ranks_report(busy, analyse_ranks(busy), 0.01)
    assert "on rank 0 not quiet: other work took" in text
    assert text.splitlines()[-1].startswith("NOT QUIET: ")


def test_gpu_steps_that_lie_apart_are_not_steady_and_those_that_do_not_are():
    asked = session(device="cuda")
    shaky = with_alike_lone(made_up(asked, slow=(1.0, 1.3, 1.6, 1.0, 1.3), own=False))
    calm = with_alike_lone(made_up(asked, slow=(1.0, 1.01, 1.0, 3.0, 1.0), own=False))
    assert "1f1b not steady: the middle half of its steps spans" in report(
        shaky, analyse(shaky), 0.01
    )
    assert not any(run.noise for run in analyse(calm))


def test_how_far_clocks_may_be_apart_is_reported(known):
    records = (
        *changed(known, "step", residual=7e-6).records,
        {"part": "offset", "rank": 0, "peer": 1, "seconds": 0.0, "residual": 3e-5},
    )
    found = Measured(known.session, records)
    text = report(found, analyse(found), 0.1)
    assert "clocks           a GPU's and its host's within 7.00 µs, hosts' within 30.0 µs" in text


def test_a_page_of_ranks_played_alone_is_refused_before_anything_else(tmp_path, capsys):
    asked = session(transfers="looped")
    alone = with_alike_lone(made_up(asked, wait=False))
    path = tmp_path / "events.json.gz"
    save(alone, path)
    words = ["validate", "--events", str(path), "-o", str(tmp_path / "p.html")]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "ranks that are played alone have no page" in said.err
    assert not said.out


def test_raw_events_are_written_before_the_analysis_that_fails(tmp_path, capsys, monkeypatch):
    from validator import launch

    empty = Measured(session(), ({"part": "about", "rank": 0}, {"part": "about", "rank": 1}))
    monkeypatch.setattr(launch, "run_ranks", lambda _: empty)
    path = tmp_path / "events.json.gz"
    assert main(["validate", "--cpus", "2", "-o", str(path)]) == 2
    assert "no step of 1f1b was timed" in capsys.readouterr().err
    assert load(path) == empty
