"""The interactive Gantt chart: few traces, exact shares, one page without a network."""

import base64
import io
import json
import os
import re

import numpy as np
import pytest
from PIL import Image

from dashboard.figures import gantt
from simulator.schedule import Kind
from tests.greedy import one_f_one_b, run, split
from traces import colors
from traces.colors import color

SMALL = run(one_f_one_b(4, 8))
INTERLEAVED = run(one_f_one_b(4, 8, 2))
TRANSFERS = run(one_f_one_b(4, 8), transfer=0.25, optimizer=1.0)
LARGE = run(one_f_one_b(64, 512))


def bars(fig):
    return {trace.name: trace for trace in fig.data if trace.type == "bar"}


def test_one_trace_per_kind_not_per_op():
    assert list(bars(gantt.figure(SMALL))) == ["idle", "forward", "backward"]
    assert len([t for t in gantt.figure(INTERLEAVED).data if t.type == "bar"]) == 1 + 2 * 2
    names = list(bars(gantt.figure(TRANSFERS)))
    assert names[-3:] == ["activation transfer", "gradient transfer", "reduce gradients"]


def test_the_legend_has_one_line_a_kind():
    fig = gantt.figure(run(split(one_f_one_b(4, 8, 2)), transfer=0.3, optimizer=1.0))
    names = [t.name for t in fig.data if t.type == "bar" and t.showlegend is not False]
    assert len(names) == len(set(names)) == 8
    assert names[1] == "forward, chunks 0 to 1"


def test_bars_hold_every_span_and_its_number():
    forward = bars(gantt.figure(SMALL, unit="t"))["forward"]
    spans = SMALL.of(Kind.F)
    assert np.array_equal(forward.base, spans.start)
    assert np.array_equal(forward.y, spans.rank)
    assert list(forward.text)[:8] == [str(m) for m in spans.microbatch[:8]]
    assert forward.hovertext[0] == "0F0"
    assert forward.marker.color == color(Kind.F)


def test_the_axis_is_in_the_unit_that_suits():
    fig = gantt.figure(run(one_f_one_b(4, 8), scale=1e-3))
    assert fig.layout.xaxis.title.text == "time [ms]"
    assert fig.layout.xaxis.range[1] == pytest.approx(33)
    assert gantt.figure(SMALL, unit="t").layout.xaxis.title.text == "time"


def test_rank_0_is_on_top_and_says_its_idle_share_and_peak():
    fig = gantt.figure(SMALL)
    low, high = fig.layout.yaxis.range
    assert low > high
    texts = [note.text for note in fig.layout.annotations if note.y == 0]
    assert texts == ["27.3 %", "26.0 GB"]


def test_memory_is_a_line_per_rank_or_a_band():
    few = [t for t in gantt.figure(SMALL).data if t.yaxis == "y2"]
    many = [t for t in gantt.figure(LARGE).data if t.yaxis == "y2"]
    assert [t.name for t in few] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert [t.name for t in many if t.showlegend is not False] == ["all ranks", "rank 0", "rank 63"]
    assert not [
        t for t in gantt.figure(run(one_f_one_b(2, 2), memory=False)).data if t.yaxis == "y2"
    ]


def test_a_large_timeline_is_a_raster_with_exact_shares():
    fig = gantt.figure(LARGE)
    assert not bars(fig)
    (answering,) = (trace for trace in fig.data if trace.type == "heatmap")
    shares = np.asarray(answering.customdata, float)  # forward, backward, idle
    assert np.abs(shares.sum(axis=2) - 100).max() <= 2
    mean = shares.mean(axis=(0, 1)) / 100
    assert mean == pytest.approx([512 / 1725, 1024 / 1725, 189 / 1725], abs=0.01)
    (image,) = fig.layout.images
    assert (image.x, image.y, image.sizex, image.sizey) == (0, -0.5, LARGE.makespan, 64)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(image.source.split(",")[1]))))
    rows = pixels[:: gantt.LINES].astype(float)  # the first line of each rank
    palette = [colors.color(Kind.F), colors.color(Kind.B), colors.IDLE]
    wanted = np.tensordot(shares / 100, np.stack([colors.rgb(fill) for fill in palette]), axes=1)
    assert np.abs(rows - wanted).max() < 8  # shares are shown in whole percent


def test_the_page_needs_no_network_and_stays_small(tmp_path):
    gantt.write_html(LARGE, tmp_path / "t.html", title="a <b> & c")
    page = (tmp_path / "t.html").read_text()
    assert len(page.encode()) < 8e6
    assert "<title>a &lt;b&gt; &amp; c</title>" in page
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", page)
    assert [file.name for file in tmp_path.iterdir()] == ["t.html"]


def test_a_failure_leaves_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "t.html"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"cannot write .*t\.html: No space left"):
        gantt.write_html(SMALL, path)
    assert path.read_text() == "old"


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="nothing to draw"):
        gantt.figure(SMALL.where(np.zeros(SMALL.num_spans, bool)))


def test_an_unknown_unit_is_named():
    with pytest.raises(ValueError, match="unit is 'ms'"):
        gantt.figure(SMALL, unit="ms")


def test_the_same_timeline_gives_the_same_figure():
    assert gantt.figure(SMALL).to_json() == gantt.figure(SMALL).to_json()
    assert json.loads(gantt.figure(SMALL).to_json())["layout"]["barmode"] == "overlay"
