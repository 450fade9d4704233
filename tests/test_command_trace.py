"""`bubblescope trace`: its answer, its files, its refusals in one line."""

import gzip
import json
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.job import Plan
from simulator.simulate import simulate_uniform
from tests.recordings import Setting, documents, write_documents

REAL = [str(Path(__file__).parent / "data" / "traces" / f"1f1b_rank{r}.json.gz") for r in (0, 1)]
ANSWER = ("--no-gantt", "--gaps", "1")


@pytest.fixture(scope="module")
def run():
    return simulate_uniform(Plan(pp=4, num_microbatches=8), 1e-3, 2e-3, latency=1e-4)


@pytest.fixture
def paths(run, tmp_path):
    made, _ = documents(
        run.timeline, Setting(offsets=(0.0, 0.5, -2.0, 3e-4), waits=5e-4, steps=3, first_step=10)
    )
    return [str(path) for path in write_documents(tmp_path, made)]


def said(capsys, *words):
    assert main(["trace", *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    assert main(["trace", *words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("bubblescope: error: ")
    assert error.count("\n") == 1
    return error


def test_it_says_where_the_step_went(run, paths, capsys):
    text = said(capsys, *paths, "--width", "80")
    assert "ranks     0, 1, 2, 3; times of kernels" in text
    assert "step      11, of 10, 11, 12" in text
    assert "clocks    up to 2 s apart, aligned to within 300 us" in text
    assert f"step time {1e3 * run.report.step_time:.4g} ms" in text
    assert f"bubble    {100 * run.report.bubble_fraction:.2f}% of the step" in text
    rows = {line[:6]: line.split() for line in text.splitlines() if line.startswith("rank ")}
    shares = [100 * run.report.split.compute[0] / run.report.makespan]
    assert f"{shares[0]:.1f}" in text
    assert "waits for sender" in text
    assert "rank 3 idles 3.3 ms from 0 to 3.3 ms (warm-up): 3F0 waits for 3RECV_F0" in text
    assert "F─ forward  B═ backward  · idle" in text
    assert len(rows) == 4


def test_json_holds_the_report_the_clocks_and_the_messages(run, paths, capsys):
    found = json.loads(said(capsys, *paths, "--json", "--step", "11"))
    assert found["step"] == 11
    assert found["steps"] == [10, 11, 12]
    assert found["bubble_fraction"] == pytest.approx(run.report.bubble_fraction, abs=1e-6)
    assert found["clock_offset"] == pytest.approx([0.0, -0.5, 2.0, -3e-4], abs=1e-7)
    assert found["clock_margin"] == pytest.approx([0.0, 1e-4, 2e-4, 3e-4], abs=1e-7)
    assert found["messages"]["received"] == [8, 16, 16, 8]
    assert found["messages"]["moving"] == pytest.approx([8e-4, 16e-4, 16e-4, 8e-4], rel=1e-3)


def test_a_saved_step_says_the_same_again_with_its_waits(paths, tmp_path, capsys):
    saved = str(tmp_path / "step.json")
    first = said(capsys, *paths, *ANSWER, "-o", saved)
    again = said(capsys, saved, *ANSWER)
    assert again.startswith("ranks     0, 1, 2, 3; a saved run")
    assert first.partition("step time")[2] == again.partition("step time")[2]
    assert main(["compare", saved, saved]) == 0
    assert "no figure differs" in capsys.readouterr().out


def test_against_a_job_the_same_ops_stand_side_by_side(paths, tmp_path, capsys):
    saved = str(tmp_path / "simulated.json")
    words = ["--pp", "4", "--microbatches", "8", "--uniform", "1e-3,2e-3", "--latency", "1e-4"]
    assert main(["simulate", *words, "-o", saved, "--no-gantt"]) == 0
    capsys.readouterr()
    text = said(capsys, *paths, *ANSWER, "--against", saved)
    table = text[text.index("measured") :]
    for start in ("step time", "one F ", "one B ", "one RECV_F", "one RECV_B"):
        line = next(line for line in table.splitlines() if line.startswith(start))
        assert line.endswith("1.000")
    assert table.endswith("the order of ops is the same\n")
    assert main(["simulate", "--schedule", "gpipe", *words, "-o", saved, "--no-gantt"]) == 0
    capsys.readouterr()
    text = said(capsys, *paths, *ANSWER, "--against", saved)
    assert "the order of ops differs: op 4 of rank 0 was 0B0, in the simulation it is 0F4" in text


def test_every_format_is_written(paths, tmp_path, capsys):
    names = ["a.json", "a.csv", "a.html", "a.svg", "a.png", "a.txt", "a.tex"]
    words = [word for name in names for word in ("-o", str(tmp_path / name))]
    said(capsys, *paths, *words, "-o", f"{tmp_path}/ranks/")
    for name in names:
        assert (tmp_path / name).stat().st_size > 100
    ranks = sorted((tmp_path / "ranks").iterdir())
    assert [path.name for path in ranks] == [f"rank_{rank}.json.gz" for rank in range(4)]
    document = json.loads(gzip.decompress(ranks[2].read_bytes()))
    assert document["distributedInfo"]["rank"] == 2


def test_the_page_of_perfetto_has_ranks_threads_arrows_and_memory(paths, tmp_path, capsys):
    said(capsys, *paths, *ANSWER, "-o", str(tmp_path / "a.json"))
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert processes == {"rank 0", "rank 1", "rank 2", "rank 3"}
    assert {"compute", "send", "receive"} <= threads
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == 48


def test_a_real_recording_is_explained(capsys):
    text = said(capsys, *REAL, "--width", "100")
    assert "clocks    one, of one machine" in text
    assert "times of the host" in text
    assert "step      1, of 1, 2" in text
    assert "longest gaps, one a rank:" in text
    assert said(capsys, *reversed(REAL), "--width", "100") == text


def test_large_files_are_read_with_progress(paths, capsys, monkeypatch):
    monkeypatch.setattr("simulator.commands.trace.LARGE", 1.0)
    assert main(["trace", *paths, *ANSWER]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("  0% of 0.0 GB; reading ")
    assert lines[3].startswith(" 7")


REFUSED = {
    "--step 99": "step 99 is not complete in all files; complete are 10, 11, 12",
    "--ranks 0,x": "--ranks is '0,x'; give whole numbers with commas between",
    "--ranks 0,7": "rank 7 is in no file; the files are of ranks 0, 1, 2, 3",
    "--ranks 0,0": "--ranks names a rank twice: 0,0",
    "--ranks 1,2,3": "no file holds stage 0",
    "--mapping none.toml": "cannot read none.toml",
    "--against none.toml": "none.toml",
    "--gaps -1": "--gaps is -1; it must be at least 0",
    "-o x.xyz": "x.xyz has the suffix .xyz",
    "-o nowhere/x.svg": "the folder nowhere does not exist",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(words, paths, capsys):
    assert REFUSED[words] in refused(capsys, *paths, *words.split())


def test_files_that_are_no_traces_are_refused_in_one_line(paths, tmp_path, capsys):
    (tmp_path / "cut.json.gz").write_bytes(Path(REAL[0]).read_bytes()[:5000])
    assert "it is cut off: the compressed data ends early" in refused(
        capsys, str(tmp_path / "cut.json.gz")
    )
    (tmp_path / "cut.json").write_text(Path(paths[0]).read_text()[:5000])
    assert "it is no JSON, or is cut off" in refused(capsys, str(tmp_path / "cut.json"))
    assert "No such file" in refused(capsys, str(tmp_path / "none.json"))
    (tmp_path / "empty.json").write_text('{"traceEvents":[]}')
    assert "it holds no events" in refused(capsys, str(tmp_path / "empty.json"))
    assert "No such file" in refused(capsys, str(tmp_path / "none.json.gz"))
    (tmp_path / "other.bin").write_bytes(b"\0")
    assert "holds no timeline" in refused(capsys, str(tmp_path / "other.bin"), paths[0])
    assert "cannot be read here" in refused(capsys, str(tmp_path / "other.bin"))
    assert "is a saved run" in refused(capsys, saved(tmp_path, capsys), "--step", "1")
    assert "rank 0 is there twice" in refused(capsys, *paths, paths[0])


def saved(folder, capsys):
    said(capsys, *REAL, *ANSWER, "-o", str(folder / "saved.json"))
    return str(folder / "saved.json")
