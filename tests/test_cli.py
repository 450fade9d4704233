"""The command, as a user meets it: what it prints, what it writes, how it refuses."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import traces
from simulator.cli import PACKAGES, main
from simulator.load import load_job
from simulator.simulate import simulate

ROOT = Path(__file__).parent.parent
SMALL = str(ROOT / "examples" / "small_8_gpus.toml")


def run(capsys, *words):
    """Exit code, standard output, standard error."""
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *words):
    """The one line of an error."""
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert err.startswith("bubblescope: error: ")
    assert err.count("\n") == 1
    return err


UNIFORM = ("simulate", "--uniform", "1,2")


def test_1f1b_pp4_m8_prints_step_time_33_and_bubble_3_11_and_3_8_of_ideal(capsys):
    _, out, _ = run(capsys, *UNIFORM, "--pp", 4, "--microbatches", 8, "--schedule", "1f1b")
    assert "step time           33\n" in out
    assert "= 3/11 of the step" in out
    assert "= 3/8 of the ideal time" in out


@pytest.mark.parametrize(
    ("pp", "m", "vpp", "ideal"),
    [(4, 8, 2, "3/16"), (8, 32, 4, "7/128"), (8, 8, 2, "7/16"), (12, 12, 4, "11/48")],
)
def test_interleaved_prints_the_bubble_of_the_formula(capsys, pp, m, vpp, ideal):
    words = ("--pp", pp, "--microbatches", m, "--vpp", vpp, "--schedule", "interleaved")
    _, out, _ = run(capsys, *UNIFORM, *words)
    assert f"= {ideal} of the ideal time" in out


def test_the_text_gantt_reads_without_colour(capsys):
    _, out, _ = run(capsys, *UNIFORM, "--pp", 2, "--microbatches", 3, "--width", 79)
    assert out.splitlines()[-4:] == [
        "       0           2           4           6          8           10          12",
        "rank 0 F0────F1────············B0══════════F2────B1══════════······B2══════════",
        "rank 1 ······F0────B0══════════F1────B1══════════F2────B2══════════············",
        "F─ forward  B═ backward  · idle",
    ]


def test_a_job_of_options_equals_the_job_of_its_file(capsys):
    words = ("--model", "gpt-145-6b", "--cluster", "selene", "--gpus", 1536, "--tp", 8, "--pp", 8)
    words += ("--vpp", 2, "--schedule", "interleaved", "--micro-batch-size", 2)
    words += ("--global-batch-size", 2304, "--dtype", "fp16", "--grad-dtype", "fp16")
    words += ("--attention", "eager", "--recompute", "full", "--framework", "megatron-lm-2021")
    _, out, _ = run(capsys, "simulate", *words, "--json")
    _, file, _ = run(capsys, "simulate", ROOT / "examples" / "sc21_145_6b.toml", "--json")
    assert json.loads(out) | {"name": ""} == json.loads(file) | {"name": ""}


def test_json_gives_every_figure_of_the_report(capsys):
    _, out, _ = run(capsys, "simulate", SMALL, "--json")
    report = simulate(load_job(SMALL)).report
    assert json.loads(out) == json.loads(json.dumps(report.to_dict()))


def test_days_for_tokens(capsys):
    _, out, _ = run(capsys, "simulate", SMALL, "--tokens", "1e12", "--no-gantt")
    days = 1e12 / simulate(load_job(SMALL)).report.tokens_per_second / 86400
    assert f"{days:,.1f} days for 1e+12 tokens" in out


SUFFIXES = (".json", ".csv", ".html", ".svg", ".png", ".pdf", ".gif", ".tex", ".txt")


def test_a_run_is_saved_and_exported_in_every_format(capsys, tmp_path):
    saved = tmp_path / "run.json"
    assert run(capsys, "simulate", SMALL, "--no-gantt", "-o", saved)[0] == 0
    outputs = [tmp_path / f"out{suffix}" for suffix in SUFFIXES]
    code, out, err = run(capsys, "export", saved, *outputs)
    assert (code, out) == (0, "")
    assert err.count("wrote ") == len(SUFFIXES)
    assert all(path.stat().st_size > 1000 for path in outputs)
    assert (
        traces.read(saved)
        == traces.read(tmp_path / "out.csv")
        == simulate(load_job(SMALL)).timeline
    )
    assert (tmp_path / "out.json").read_bytes() == saved.read_bytes()


def test_a_saved_run_compares_equal_to_its_job(capsys, tmp_path):
    saved = tmp_path / "run.json"
    run(capsys, "simulate", SMALL, "--no-gantt", "-o", saved)
    _, out, _ = run(capsys, "compare", saved, SMALL)
    assert "no figure differs" in out


def test_compare_puts_what_differs_first(capsys):
    words = [
        ROOT / "examples" / f"korthikanti_22b_{kind}.toml" for kind in ("full", "selective_sp")
    ]
    _, out, _ = run(capsys, "compare", *words)
    differs, same = out.split("the same in all")
    assert "step time" in differs
    assert "forwards in flight" in same


def test_presets_lists_every_kind(capsys):
    _, out, _ = run(capsys, "presets")
    assert [line.split()[0] for line in out.splitlines()] == [
        "models",
        "clusters",
        "gpus",
        "schedules",
    ]
    assert "gpt3-175b" in out
    assert "selene" in out


def test_a_schedule_of_ones_own_runs(capsys, tmp_path):
    rows = tmp_path / "v.csv"
    rows.write_text("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    _, out, _ = run(capsys, *UNIFORM, "--pp", 2, "--vpp", 2, "--rows", rows)
    assert "step time           6\n" in out


GPT = ("simulate", "--model", "gpt3-175b", "--cluster", "selene")
BAD = {
    "an unknown model": (("simulate", "--model", "gpt3-17b", "--cluster", "selene"), "gpt3-175b"),
    "an unknown cluster": (("simulate", "--model", "gpt3-175b", "--cluster", "selen"), "selene"),
    "an unknown schedule": ((*GPT, "--schedule", "1f1"), "did you mean 1f1b"),
    "heads that do not divide": ((*GPT, "--tp", 7), "use one of 1, 2, 3, 4, 6, 8"),
    "layers that do not divide": ((*GPT, "--pp", 7), "must divide model.num_hidden_layers = 96"),
    "a rank without a layer": ((*GPT, "--pp", 100), "at most 96"),
    "a batch that does not split": (
        (*GPT, "--gpus", 64, "--tp", 8, "--global-batch-size", 13),
        "use 8 or 16",
    ),
    "GPUs that do not divide": ((*GPT, "--gpus", 100, "--tp", 8), "96 or 104"),
    "too few GPUs": ((*GPT, "--tp", 8, "--pp", 8, "--num-nodes", 2), "num_nodes = 8"),
    "chunks without interleaving": (
        (*GPT, "--pp", 2, "--vpp", 2),
        "takes no vpp; leave it out, or use schedule",
    ),
    "microbatches of no group": (
        (*UNIFORM, "--pp", 4, "--vpp", 2, "--schedule", "interleaved", "--microbatches", 6),
        "use 4 or 8",
    ),
    "an option that has no effect": ((*UNIFORM, "--tp", 2), "--tp has no effect with --uniform"),
    "a latency of a job": ((*GPT, "--latency", "1"), "--latency needs --uniform"),
    "a job and uniform costs": ((*UNIFORM, SMALL), "takes the place of a job"),
    "uniform costs that are no numbers": (("simulate", "--uniform", "1;2"), "as in 1,2"),
    "uniform costs of nothing": (("simulate", "--uniform", "0,2"), "must be positive"),
    "no job": (("simulate",), "give a JOB file"),
    "no tokens": (("simulate", SMALL, "--tokens", "-1"), "must be positive"),
    "tokens of uniform costs": ((*UNIFORM, "--tokens", "1e9"), "need a model"),
    "a missing file": (("simulate", "nowhere.toml"), "nowhere.toml"),
    "an unknown suffix": (("export", SMALL, "x.doc"), ".html"),
    "a missing folder": (("export", SMALL, "nowhere/x.svg"), "nowhere does not exist"),
    "one run to compare": (("compare", SMALL), "at least two"),
    "uniform costs that are no numbers at all": (("simulate", "--uniform", "nan,1"), "positive"),
    "uniform costs without end": (("simulate", "--uniform", "inf,1"), "less than 1e+12"),
    "a negative latency": ((*UNIFORM, "--latency", "-1"), "at least 0"),
    "more work than is simulated": ((*UNIFORM, "--microbatches", 10**12), "use fewer microbatches"),
    "more GPUs than are simulated": ((*GPT, "--dp", 10**9), "at most 2,000,000"),
    "tp across nodes": ((*GPT, "--tp", 6), "use 1, 2, 4, 8 or a multiple of 8"),
    "sequence parallelism without tp": ((*GPT, "--sequence-parallel"), "no effect"),
    "zero without dp": ((*GPT, "--zero-stage", 1), "no effect"),
    "an output twice": (("export", SMALL, "a.svg", "a.svg"), "given twice"),
    "no number for a number": (("simulate", SMALL, "--tokens", "3T"), "invalid float value"),
    "an unknown option": (("simulate", SMALL, "--tpp", "3"), "--help"),
    "a narrow terminal": ((*UNIFORM, "--width", 12), "too narrow"),
}


@pytest.mark.parametrize(
    "change",
    [
        {"step_time": -1.0},
        {"peak_in_flight": None},
        {"mfu": "half"},
        {"split": 5},
        {"num_ranks": 3},
    ],
    ids=str,
)
def test_a_damaged_report_is_refused(capsys, tmp_path, change):
    saved = tmp_path / "run.json"
    run(capsys, "simulate", SMALL, "--no-gantt", "-o", saved)
    document = json.loads(saved.read_text())
    document["otherData"]["report"] |= change
    saved.write_text(json.dumps(document))
    assert "damaged or of another version" in refused(capsys, "compare", saved, SMALL)


def test_json_with_tokens_has_the_days(capsys):
    _, out, _ = run(capsys, "simulate", SMALL, "--json", "--tokens", "1e12")
    days = simulate(load_job(SMALL)).report.days(1e12)
    assert json.loads(out)["training_days"] == days


@pytest.mark.parametrize(("words", "way_out"), BAD.values(), ids=BAD)
def test_refused_in_one_line(capsys, words, way_out):
    assert way_out in refused(capsys, *words)


def test_a_deadlocked_schedule_names_each_rank(capsys, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("0B0,0F0\n1F0,1B0\n")
    code, out, err = run(capsys, *UNIFORM, "--pp", 2, "--rows", rows)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "bubblescope: error: schedule cannot finish: rank 0 at 0B0 waits for 1B0; "
        "rank 1 at 1F0 waits for 0F0",
        "rank 0  [0B0] 0F0",
        "rank 1  [1F0] 1B0",
    ]


def test_zb_v_hangs_under_blocking_sends_and_says_where(capsys):
    words = ("--pp", 2, "--vpp", 2, "--microbatches", 4, "--schedule", "zb-v")
    assert run(capsys, *UNIFORM, *words)[0] == 0
    code, _, err = run(capsys, *UNIFORM, *words, "--p2p", "blocking")
    assert code == 2
    assert "rank 0 before 3F0 waits for 0SEND_F2 to 1RECV_F2 of rank 1" in err
    assert "[3WAIT]" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('model = "gpt3-175b"\ncluster = "sel', "job.toml"),
        ('model = "gpt3-175b"\ncluster = "selene"\n[plan]\ntpp = 2\n', "plan.tp"),
        ('model = "gpt3-175b"\ncluster = "selene"\n[plan]\ntp = "eight"\n', "plan.tp is"),
        (
            'model = "gpt3-175b"\n[cluster]\npreset = "selene"\ninter_node = {bandwidth = 0.0}\n',
            "cluster.inter_node.bandwidth is 0.0",
        ),
        (
            'model = "gpt3-175b"\n[cluster]\npreset = "selene"\ninter_node = {bandwidth = -1.0}\n',
            "positive",
        ),
    ],
)
def test_a_bad_job_file_is_refused_by_field(capsys, tmp_path, text, message):
    job = tmp_path / "job.toml"
    job.write_text(text)
    assert message in refused(capsys, "simulate", job)


def test_a_truncated_saved_run_is_refused(capsys, tmp_path):
    saved = tmp_path / "run.json"
    run(capsys, "simulate", SMALL, "--no-gantt", "-o", saved)
    saved.write_bytes(saved.read_bytes()[:5000])
    assert "cut off" in refused(capsys, "compare", saved, SMALL)


def test_an_output_that_cannot_be_written_leaves_nothing_behind(capsys, tmp_path):
    (tmp_path / "x.svg").mkdir()
    code, _, err = run(capsys, "export", SMALL, tmp_path / "x.svg")
    assert code == 2
    assert "cannot write" in err
    assert [path.name for path in tmp_path.iterdir()] == ["x.svg"]


def test_no_other_distribution_owns_our_import_names():
    owners = packages_distributions()  # an editable install owns no file
    assert all(set(owners.get(name, ())) <= {"bubblescope"} for name in PACKAGES)


def test_the_command_stops_when_another_package_stands_in_for_ours(tmp_path):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "__init__.py").touch()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from simulator.cli import main; "
        "sys.exit(main(['presets']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "another installed distribution owns that name" in ended.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from simulator.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pydantic', 'simpy', 'matplotlib', 'plotly', 'torch'}\n"
        "heavy.add('importlib.metadata')\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == ""


def test_simulating_needs_no_torch_and_nothing_that_draws_pictures():
    code = (
        "import sys; from simulator.cli import main\n"
        "main(['simulate', '--uniform', '1,2', '--pp', '4', '--microbatches', '8'])\n"
        "heavy = {'matplotlib', 'plotly', 'torch', 'PIL', 'simulator.sensitivity'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == ""


SCHEDULES = ("compare", "--pp", 4, "--microbatches", 8)


def test_compare_ranks_every_schedule_and_names_those_that_refuse(capsys):
    code, out, _ = run(capsys, *SCHEDULES, "--schedules", "all", "--microbatches", 9)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["schedule", "step", "bubble"]
    assert any(line.startswith("interleaved: plan.num_microbatches is 9") for line in lines)
    steps = [line.split("  ")[1:] for line in lines[1:20]]
    times = [float(next(word for word in cells if word.strip())) for cells in steps]
    assert times == sorted(times)


def test_compare_draws_the_schedules_on_one_time_axis(capsys, tmp_path):
    picture = tmp_path / "all.svg"
    run(capsys, *SCHEDULES, "--schedules", "gpipe,1f1b,zb-h1", "-o", picture)
    text = picture.read_text()
    for title in ("gpipe: 33", "1f1b: 33", "zb-h1: 27"):
        assert f">{title}</text>" in text


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        ((*SCHEDULES, "--schedules", "1f1b,nosuch"), "use all, or some of"),
        (("compare", "--schedules", "all", "--pp", 4), "needs --microbatches"),
        ((*SCHEDULES, SMALL, SMALL), "--pp goes with --schedules"),
        ((*SCHEDULES, "--schedules", "all", SMALL), "not both"),
        ((*SCHEDULES, "--schedules", "1f1b", "-o", "x.doc"), ".svg"),
        (("export", "1f1b", "x.csv", "--pp", 2), "need --microbatches"),
        (
            ("export", "1f1b", "x.svg", "--pp", 2, "--microbatches", 2),
            "use the suffix .csv or .txt",
        ),
        (("export", SMALL, "x.svg", "--dialect", "zero-bubble"), "is for the rows of a schedule"),
        ((*SCHEDULES, "--schedules", "all", "--microbatches", 0), "plan.num_microbatches is 0"),
        (("export", "1f1", "x.csv", "--pp", 2, "--microbatches", 2), "did you mean 1f1b"),
        (("optimize", "--pp", 2, "--microbatches", 0), "plan.num_microbatches is 0"),
        (("optimize", "--pp", 2, "--microbatches", 2, "--latency", -1), "at least 0"),
        (("optimize", "--pp", 2, "--microbatches", 2, "--time-limit", -1), "positive"),
        (("explain", SMALL, "--time", 0.1), "--time needs --rank"),
        (("explain", SMALL, "--rank", 9, "--time", 0.1), "ranks 0 to 3"),
        (
            ("optimize", "--pp", 2, "--microbatches", 4, "--activation-limit", "0.5"),
            "the least possible is 1",
        ),
    ],
)
def test_what_these_verbs_refuse(capsys, words, way_out):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert way_out in err


def test_export_writes_rows_in_a_dialect(capsys, tmp_path):
    rows = tmp_path / "rows.csv"
    run(capsys, "export", "1f1b", rows, "--pp", 2, "--microbatches", 2)
    assert rows.read_text() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    run(
        capsys, "export", "1f1b", rows, "--pp", 2, "--microbatches", 2, "--dialect", "pytorch-comms"
    )
    assert "0SEND_F0" in rows.read_text()
    assert run(capsys, *UNIFORM, "--pp", 2, "--microbatches", 2, "--rows", rows)[0] == 0


def test_rows_in_the_zero_bubble_authors_letters_run(capsys, tmp_path):
    rows = tmp_path / "rows.csv"
    words = ("--pp", 2, "--microbatches", 2, "--dialect", "zero-bubble")
    run(capsys, "export", "zb-h1", rows, *words)
    assert "0F0" not in rows.read_text()
    letters = ("simulate", "--uniform", "1,1,1", "--rows", rows, *words)
    assert run(capsys, *letters)[1].splitlines()[2] == "step time           7"
    assert "is of --rows" in refused(capsys, *UNIFORM, "--dialect", "zero-bubble")


def test_explain_names_the_longest_gaps_and_the_critical_path(capsys, tmp_path):
    saved = tmp_path / "run.json"
    run(capsys, *UNIFORM, "--pp", 4, "--microbatches", 8, "--no-gantt", "-o", saved)
    _, out, _ = run(capsys, "explain", saved, "--rank", 0, "--most", 1)
    assert "27.27% of the step" in out
    assert "37.50% of the ideal time, Megatron's" in out
    assert "\nrank 0 idles 6 s from 4 to 10 (warm-up): 0B0 waits for 0RECV_B0 of rank 1" in out
    _, out, _ = run(capsys, "explain", saved, "--critical-path")
    assert out.splitlines()[0].split() == ["0", "1", "rank", "0", "0F0"]
    assert out.splitlines()[-1].split()[-1] == "0B7"


def test_the_critical_path_is_drawn_on_request(capsys, tmp_path):
    plain, marked = tmp_path / "plain.svg", tmp_path / "marked.svg"
    words = (*UNIFORM, "--pp", 4, "--microbatches", 8, "--no-gantt")
    run(capsys, *words, "-o", plain)
    run(capsys, *words, "--critical-path", "-o", marked)
    assert "stroke: #000000; stroke-width: 1.6" not in plain.read_text()
    assert "stroke: #000000; stroke-width: 1.6" in marked.read_text()


def test_optimize_proves_a_small_case_and_writes_rows_that_run(capsys, tmp_path):
    rows = tmp_path / "best.csv"
    _, out, err = run(capsys, "optimize", "--pp", 3, "--microbatches", 4, "-o", rows)
    assert out.startswith("span 13 s, proven best")
    assert "gap 0.00%" in err
    words = ("--uniform", "1,1,1", "--pp", 3, "--microbatches", 4, "--rows", rows)
    assert run(capsys, "simulate", *words)[0] == 0
