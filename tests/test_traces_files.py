"""Files of timelines: what is written is read, at once or not at all, and errors name the file."""

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traces
from simulator.schedule import Kind
from simulator.timeline import Timeline
from tests.greedy import gpipe, one_f_one_b, run
from traces import tikz
from traces.labels import Labels

TIMELINES = {
    "gpipe": run(gpipe(3, 4)),
    "1f1b": run(one_f_one_b(4, 8), transfer=0.1, optimizer=1.0),
    "interleaved": run(one_f_one_b(4, 8, 2), scale=1 / 3e3),
    "no_memory": run(one_f_one_b(2, 2), memory=False),
    "empty": run(one_f_one_b(2, 2)).where(np.zeros(8, bool)),
}
SECONDS = st.floats(0, 1e6) | st.sampled_from([0.1 + 0.2, 1 / 3, 5e-324, 1e-9, 123456.789012345])
SPAN = st.tuples(
    st.integers(0, 5),
    st.integers(0, 9),
    st.sampled_from(Kind),
    st.integers(-1, 99),
    SECONDS,
    SECONDS,
)
SAMPLE = st.tuples(st.integers(0, 5), SECONDS, st.floats(0, 1e15))


@st.composite
def timelines(draw):
    spans = sorted(draw(st.lists(SPAN, max_size=20)), key=lambda s: (s[0], s[4]))
    rank, stage, kind, microbatch, start, duration = (
        np.array(column) for column in (zip(*spans, strict=True) if spans else ((),) * 6)
    )
    samples = draw(st.lists(SAMPLE, max_size=20))
    memory = [np.array(c) for c in (zip(*samples, strict=True) if samples else ((),) * 3)]
    return Timeline(
        rank=rank.astype(np.int32),
        stage=stage.astype(np.int32),
        kind=kind.astype(np.int8),
        microbatch=microbatch.astype(np.int32),
        start=start.astype(float),
        end=(start + duration).astype(float),
    ).with_memory(memory[0].astype(np.int32), memory[1].astype(float), memory[2].astype(float))


@pytest.mark.parametrize("suffix", traces.readable_suffixes())
@pytest.mark.parametrize("name", TIMELINES)
def test_what_is_written_is_read(name, suffix, tmp_path):
    traces.write(TIMELINES[name], tmp_path / f"t{suffix}", title="a", subtitle="b")
    assert traces.read(tmp_path / f"t{suffix}") == TIMELINES[name]


@pytest.mark.parametrize("suffix", traces.readable_suffixes())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(timeline=timelines())
def test_any_timeline_comes_back_bit_for_bit(timeline, suffix, tmp_path):
    traces.write(timeline, tmp_path / f"t{suffix}")
    back = traces.read(tmp_path / f"t{suffix}")
    assert back == timeline
    assert back.start.tobytes() == timeline.start.tobytes()
    assert [column.dtype for column in (back.rank, back.kind, back.memory_rank)] == [
        np.int32,
        np.int8,
        np.int32,
    ]


@pytest.mark.parametrize("suffix", traces.writable_suffixes())
def test_every_format_writes_and_leaves_no_other_file(suffix, tmp_path):
    traces.write(TIMELINES["1f1b"], tmp_path / f"t{suffix}", title="1F1B", unit="t")
    assert [file.name for file in tmp_path.iterdir()] == [f"t{suffix}"]
    assert (tmp_path / f"t{suffix}").stat().st_size > 100


@pytest.mark.parametrize("suffix", traces.writable_suffixes())
def test_the_same_timeline_gives_the_same_bytes(suffix, tmp_path):
    for name in ("a", "b"):
        traces.write(TIMELINES["1f1b"], tmp_path / f"{name}{suffix}", title="1F1B")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", traces.writable_suffixes())
def test_a_failure_leaves_the_old_file(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"t{suffix}"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"cannot write .*t\.[a-z]+: No space left on device"):
        traces.write(TIMELINES["1f1b"], path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_path_in_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot write .*nowhere/t\.csv: No such file"):
        traces.write(TIMELINES["1f1b"], tmp_path / "nowhere" / "t.csv")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*t\.csv: No such file"):
        traces.read(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["t.xyz", "t"])
def test_an_unknown_suffix_is_named_with_the_known_ones(name, tmp_path):
    known = r"\.csv \.gif \.json \.pdf \.png \.svg \.tex"
    with pytest.raises(
        ValueError, match=rf"suffix (\.xyz|\(none\)), which cannot be written.*{known}"
    ):
        traces.write(TIMELINES["1f1b"], tmp_path / name)
    with pytest.raises(ValueError, match=r"cannot be read here; use one of \.csv \.json"):
        traces.read(tmp_path / "t.svg")


def test_a_suffix_in_capitals_is_known(tmp_path):
    traces.write(TIMELINES["1f1b"], tmp_path / "T.CSV")
    assert traces.read(tmp_path / "T.CSV") == TIMELINES["1f1b"]


def test_an_unknown_unit_is_named(tmp_path):
    with pytest.raises(ValueError, match="unit is 'ms'; use 's' for seconds or 't'"):
        traces.write(TIMELINES["1f1b"], tmp_path / "t.svg", unit="ms")


def test_dropping_a_file_in_the_folder_adds_a_suffix(tmp_path, monkeypatch):
    (tmp_path / "dropped_format.py").write_text(
        'SUFFIXES = (".dropped",)\n'
        "def encode(timeline, labels, suffix):\n"
        "    return str(timeline.num_spans).encode()\n"
    )
    monkeypatch.setattr(traces, "__path__", [*traces.__path__, str(tmp_path)])
    traces._modules.cache_clear()
    try:
        traces.write(TIMELINES["1f1b"], tmp_path / "t.dropped")
        assert int((tmp_path / "t.dropped").read_text()) == TIMELINES["1f1b"].num_spans
    finally:
        traces._modules.cache_clear()
        sys.modules.pop("traces.dropped_format", None)


GOOD = "rank,stage,kind,microbatch,start,end,bytes\n0,0,F,0,0.0,1.0,\n"
ABOUT = {"otherData": {"format": "bubblescope timeline 1"}}
SPAN_EVENT = {"ph": "X", "pid": 0, "args": {"stage": 0, "kind": "F", "microbatch": 0, "start": 0.0}}
BAD = {
    "empty.csv": ("", "first line lacks the columns rank stage kind microbatch start end bytes"),
    "foreign.csv": ("name,rank\nx,1\n", "lacks the columns stage kind microbatch start end bytes"),
    "cut.csv": (GOOD[:-5], "its last line does not end, so the file is cut off"),
    "short.csv": (GOOD + "0,0\n", "line 3 has 2 of 7 cells"),
    "kind.csv": (GOOD + "0,0,X,0,0.0,1.0,\n", "line 3 has the kind 'X'; kinds are F B I W"),
    "number.csv": (
        GOOD + "0,0,F,0,zero,1.0,\n",
        "line 3: could not convert string to float: 'zero'",
    ),
    "large.csv": (GOOD + "99999999999,0,F,0,0.0,1.0,\n", "a number is too large"),
    "negative.csv": (GOOD + "-1,0,F,0,0.0,1.0,\n", "a rank or a stage is negative"),
    "empty.json": ("", "it is no JSON, or is cut off"),
    "cut.json": ('{"traceEvents":[{"ph":"X","pid"', "it is no JSON, or is cut off"),
    "list.json": ("[]", "it holds no events"),
    "foreign.json": ('{"traceEvents":[]}', "it holds no events"),
    "nothing.json": ("{}", "it holds no events"),
    "null.json": ("null", "it holds no events"),
    "deep.json": ("[" * 200_000, "it is no JSON, or is cut off"),
    "other.json": (
        '{"traceEvents":[{}]}',
        'otherData.format = "bubblescope timeline 1" is missing',
    ),
    "events.json": (json.dumps(ABOUT), "the list traceEvents is missing"),
    "end.json": (
        json.dumps(ABOUT | {"traceEvents": [SPAN_EVENT]}),
        "event 0 of traceEvents lacks 'end'",
    ),
    "event.json": (
        json.dumps(ABOUT | {"traceEvents": [7]}),
        "event 0 of traceEvents is malformed",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_what_is_missing(name, tmp_path):
    text, reason = BAD[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="holds no timeline") as error:
        traces.read(tmp_path / name)
    assert name in str(error.value)
    assert reason in str(error.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    for name in ("t.csv", "t.json"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00PNG")
        with pytest.raises(ValueError, match=f"{name} holds no timeline"):
            traces.read(tmp_path / name)


def test_json_has_no_infinity(tmp_path):
    spans = run(one_f_one_b(2, 2), memory=False)
    endless = replace(spans, end=np.where(spans.end > 3, np.inf, spans.end))
    with pytest.raises(ValueError, match="not finite"):
        traces.write(endless, tmp_path / "t.json")


@pytest.mark.parametrize("suffix", [".svg", ".gif", ".tex"])
def test_nothing_to_draw_is_an_error(suffix, tmp_path):
    with pytest.raises(ValueError, match="nothing to draw"):
        traces.write(TIMELINES["empty"], tmp_path / f"t{suffix}")
    assert not list(tmp_path.iterdir())


def test_tex_has_a_limit_and_names_it():
    large = run(one_f_one_b(8, 160), memory=False)
    with pytest.raises(ValueError, match=r"at most 2000 spans.*has 2560; write a \.pdf instead"):
        tikz.encode(large, Labels(), ".tex")


def test_tex_escapes_what_tex_would_read_and_balances_its_braces():
    text = tikz.encode(TIMELINES["1f1b"], Labels("50% of a_b & {c}", "x^2 ~ \\y"), ".tex").decode()
    assert r"50\% of a\_b \& \{c\}" in text
    assert r"x\textasciicircum{}2 \textasciitilde{} \textbackslash{}y" in text
    bare = text.replace(r"\{", "").replace(r"\}", "")
    assert bare.count("{") == bare.count("}")
    assert bare.count(r"\begin{") == bare.count(r"\end{") == 2


def test_tex_has_a_rectangle_per_span_of_compute():
    text = tikz.encode(TIMELINES["gpipe"], Labels(unit="t"), ".tex").decode()
    assert text.count("\\filldraw") == 3 * 4 * 2
