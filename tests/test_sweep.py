"""Pictures of a search, and the figures of SC'21 that the example draws."""

import sys
from pathlib import Path

import numpy as np
import pytest

from traces.sweep import Line, Sweep, finding, write_lines, write_sweep

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def sc21():
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import sc21_figures
    finally:
        sys.path.pop(0)
    return sc21_figures


def sweep():
    rate = np.array([100.0, 200.0, 150.0, 90.0])
    knobs = {"tp": [1, 2, 4, 4], "schedule": ["1f1b", "1f1b", "zb-h1", "zb-h1"]}
    return Sweep(
        title="small",
        rate=rate,
        knobs=knobs,
        order={"tp": [1, 2, 4, 8], "schedule": ["1f1b", "zb-h1"]},
    )


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_a_sweep_is_drawn_and_equal_input_gives_equal_bytes(tmp_path, suffix):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        write_sweep(sweep(), path)
    if suffix != ".pdf":  # a PDF states when it was made
        assert paths[0].read_bytes() == paths[1].read_bytes()
    if suffix == ".svg":
        text = paths[0].read_text()
        for word in (
            "tp matters most: 2 reaches 2.00x the rate of 1",
            "tokens/s",
            "no plan",
            "zb-h1",
        ):
            assert word in text


def test_the_finding_names_the_knob_with_the_widest_gap_between_its_best_plans():
    assert finding(sweep()) == "tp matters most: 2 reaches 2.00x the rate of 1"


def test_what_cannot_be_drawn_is_refused_and_the_old_file_stands(tmp_path):
    with pytest.raises(ValueError, match=r"cannot hold this picture; use one of \.pdf \.png \.svg"):
        write_sweep(sweep(), tmp_path / "a.gif")
    flat = Sweep(title="", rate=np.ones(1), knobs={}, order={})
    with pytest.raises(ValueError, match="no knob has two values"):
        write_sweep(flat, tmp_path / "a.svg")
    with pytest.raises(ValueError, match="cannot write"):
        write_sweep(sweep(), tmp_path / "missing" / "a.svg")
    assert list(tmp_path.iterdir()) == []


def test_curves_are_drawn_with_gaps_where_there_is_no_plan(tmp_path):
    lines = [Line(name="batch 32", x=["1", "2", "4"], y=[1.0, None, 2.0])]
    write_lines(lines, tmp_path / "a.svg", title="t", x="size", y="sequences/s", note="assumed")
    text = (tmp_path / "a.svg").read_text()
    assert all(word in text for word in ("size", "sequences/s", "assumed"))


def best(line):
    rates = [y or 0.0 for y in line.y]
    return line.x[int(np.argmax(rates))]


def test_fig_13_162b_on_64_gpus_is_fastest_with_tensor_8_pipeline_8(sc21):
    assert [best(line) for line in sc21.figure_13()] == ["8, 8", "8, 8"]


def test_fig_14_throughput_falls_as_the_pipeline_grows_less_so_with_large_batches(sc21):
    falls = []
    for line in sc21.figure_14():
        assert line.y == sorted(line.y, reverse=True)
        falls.append(line.y[-1] / line.y[0])
    assert line.name == "batch 512"


def test_fig_15_tensor_parallelism_beyond_the_node_collapses(sc21):
    for line in sc21.figure_15():
        assert line.y[line.x.index("16, 4")] < 0.75 * line.y[line.x.index("8, 8")]
        assert line.y[-1] < 0.35 * max(line.y)


def test_fig_16_the_best_microbatch_grows_with_the_batch_and_then_falls(sc21):
    small, large = sc21.figure_16()
    assert best(large) == "2"  # as published for both batches
    assert best(small) in ("1", "2")
    assert small.y[-1] < 0.85 * max(small.y)


def test_fig_17_recomputation_costs_up_to_a_third_but_lets_microbatch_4_run_beyond_batch_16(sc21):
    lines = {line.name: line.y for line in sc21.figure_17()}
    cost = [a / b for a, b in zip(*(lines[f"{n}, microbatch 1"] for n in WITH), strict=True)]
    assert all(0.67 < share < 0.8 for share in cost)
    assert lines["without, microbatch 4"][-1] is None
    assert lines["with recomputation, microbatch 4"][-1] is not None


WITH = ("with recomputation", "without")
