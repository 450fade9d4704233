"""Figures of Explore: exact in their totals, valid plotly, and small however large the timeline."""

import base64
import json

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.utils import PlotlyJSONEncoder

from dashboard.choice import Choice
from dashboard.figures import grid, split, timeline
from dashboard.figures.detail import DIGIT, MOST_BARS, NARROW, Window, numbered, spans_in, whole
from dashboard.figures.shares import shares
from dashboard.links import link_use
from dashboard.runs import run_of
from dashboard.theme import DARK, LIGHT
from simulator.explain import explain
from simulator.fabric import connect
from simulator.gaps import longest_gaps
from simulator.schedule import Kind
from simulator.schedules import schedules
from traces.raster import raster

SMALL = run_of(Choice(plan={"pp": 4, "tp": 8, "num_microbatches": 8, "recompute": "full"}))
LARGE = run_of(
    Choice(
        model="gpt-1t",
        plan={"pp": 64, "tp": 8, "num_microbatches": 512, "recompute": "full"},
    )
)
REDUCED = run_of(
    Choice(plan={"pp": 8, "tp": 8, "dp": 4, "num_microbatches": 8, "overlap_grad_reduce": True})
)


def size(figure):
    return len(json.dumps(figure, cls=PlotlyJSONEncoder))


def column(packed):
    types = {"f8": np.float64, "f4": np.float32, "i4": np.int32, "u1": np.uint8}
    return np.frombuffer(base64.b64decode(packed["bdata"]), types[packed["dtype"]])


@pytest.mark.parametrize("name", sorted(set(schedules()) - {"optimal"}))
def test_shares_agree_with_the_raster_of_pictures(name):
    """Two programs that share no line: one pass over spans, and knots with owners."""
    chunks = schedules()[name].chunks
    plan = {"schedule": name, "pp": 4, "vpp": chunks, "num_microbatches": 8, "tp": 8}
    if schedules()[name].weights is None:
        plan["dp"] = 2
    run = run_of(Choice(plan=plan))
    cut = shares(run.timeline, 0.0, run.timeline.makespan, 97)
    other = raster(run.timeline, 97)
    assert cut.kinds == other.kinds
    assert cut.chunks == other.chunks
    assert np.abs(cut.filled - other.shares[..., :-1]).max() < 1e-5


def test_the_overview_is_exact_in_its_totals_at_65536_ops():
    t = LARGE.timeline
    cut = shares(t, 0.0, t.makespan, 1600)
    for kind in (Kind.F, Kind.B):
        spans = t.of(kind)
        mine = np.array([k == kind for k in cut.kinds])
        total = cut.filled[..., mine].sum(dtype=np.float64) * cut.width
        assert total == pytest.approx((spans.end - spans.start).sum(), rel=1e-5)


def test_a_window_is_the_same_cut_out_of_the_whole():
    t = REDUCED.timeline
    all_of_it = shares(t, 0.0, t.makespan, 400)
    part = shares(t, t.makespan / 4, t.makespan / 2, 100)
    assert np.abs(part.filled - all_of_it.filled[:, 100:200]).max() < 1e-4


@pytest.mark.parametrize("run", [SMALL, LARGE, REDUCED], ids=["4", "64", "dp"])
@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_plotly_accepts_every_figure_and_it_is_below_a_megabyte(run, look):
    length, rank, time = longest_gaps(run.timeline, 1)[0]
    bubble = explain(run.timeline, rank, time)
    made = [
        timeline.figure(run, look, links=link_use(run, 600), critical_path=True, bubble=bubble),
        timeline.figure(run, look, window=Window(time, time + length), links=link_use(run, 600)),
        split.figure(run.report, look),
        *(grid.figure(run.job, look, by) for by in ("pp", "dp", "cp", "tp")),
    ]
    for figure in made:
        go.Figure(figure)  # refuses what is no plotly
    assert sum(map(size, made[:1] + made[2:4])) < 1_000_000
    assert size(made[1]) < 1_000_000


def test_65536_ops_are_never_65536_nodes():
    t = LARGE.timeline
    assert spans_in(t, whole(t)) is None
    figure = timeline.figure(LARGE, LIGHT)
    assert not [trace for trace in figure["data"] if trace["type"] == "bar"]
    for start in np.linspace(0, 0.95, 7) * t.makespan:
        for share in (0.5, 0.1, 0.02, 0.002):
            figure = timeline.figure(LARGE, LIGHT, window=Window(start, start + share * t.makespan))
            bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
            assert sum(len(column(one["y"])) for one in bars) <= MOST_BARS + t.num_ranks


def test_zoomed_in_the_ops_are_exact_and_numbered():
    t = LARGE.timeline
    middle = t.makespan / 2
    window = Window(middle, middle + 0.01 * t.makespan, 10.0, 18.0)
    figure = timeline.figure(LARGE, LIGHT, window=window)
    bars = [trace for trace in figure["data"] if trace["type"] == "bar" and "hovertext" in trace]
    starts = np.concatenate([column(bar["base"]) for bar in bars])
    ops = t.compute
    seen = (ops.start < window.end) & (ops.end > window.start) & (ops.rank >= 10) & (ops.rank <= 18)
    assert set(ops.start[seen].tolist()) <= set(starts.tolist())
    numbers = [trace for trace in figure["data"] if trace.get("mode") == "text"]
    assert numbers
    assert set(numbers[0]["text"]) <= {str(m) for m in range(512)}


def test_a_number_that_the_windows_edge_would_cut_is_left_out():
    run, view, width = LARGE, Window(40.0, 41.2, 9.5, 21.5), 3 * DIGIT  # 512 microbatches
    ops = spans_in(run.timeline, view)
    middle = (run.timeline.start + run.timeline.end) / 2
    shown = numbered(run.timeline, ops, view, 20.0)
    for edge in (view.start, view.end):
        near = [np.abs(middle[some] - edge) * NARROW / view.length for some in (ops, shown)]
        assert near[0].min() < width / 2 <= near[1].min()


def test_a_tooltip_says_what_an_op_is_its_parts_and_its_bytes():
    figure = timeline.figure(SMALL, LIGHT)
    texts = [line for trace in figure["data"] for line in trace.get("hovertext", [])]
    backward = next(text for text in texts if "<b>3B0</b>" in text)
    assert "backward of stage 3, microbatch 0, rank 3" in backward
    assert "compute" in backward
    assert "recomputation" in backward
    assert "tensor-parallel communication" in backward
    assert "of activations" in backward


def test_link_use_adds_up_to_the_bytes_that_are_sent():
    use = link_use(SMALL, 500)
    costs, t, job = SMALL.costs, SMALL.timeline, SMALL.job
    fabric = connect(job, {(a, a + 1) for a in range(3)} | {(a + 1, a) for a in range(3)})
    sent = dict.fromkeys(fabric.names, 0.0)
    for stage, kind in zip(t.stage.tolist(), t.kind.tolist(), strict=True):
        ends = {Kind.SEND_F: (stage, stage + 1), Kind.SEND_B: (stage, stage - 1)}.get(Kind(kind))
        if ends:
            route = fabric.sends[ends]
            for link, copies in zip(route.links, route.copies, strict=True):
                sent[fabric.names[link]] += copies * costs.boundary_bytes[min(ends)]
    capacity = dict(zip(fabric.names, fabric.capacity, strict=True))
    for name, share in zip(use.names, use.share, strict=True):
        assert share.sum() * use.width * capacity[name] == pytest.approx(sent[name], rel=1e-9)


def test_the_grid_has_every_gpu_once_in_megatrons_order():
    at = grid.places(REDUCED.job)
    assert at["node"].tolist() == [gpu // 8 for gpu in range(8 * 4 * 8)]
    assert at["tp"].tolist() == [gpu % 8 for gpu in range(256)]
    assert at["dp"].tolist() == [gpu // 8 % 4 for gpu in range(256)]
    assert at["pp"].tolist() == [gpu // 32 for gpu in range(256)]


def test_the_split_of_each_rank_adds_up_to_100_percent():
    figure = split.figure(REDUCED.report, LIGHT)
    total = np.sum([column(trace["x"]) for trace in figure["data"]], axis=0)
    assert total == pytest.approx(np.full(8, 100.0), abs=0.5)
