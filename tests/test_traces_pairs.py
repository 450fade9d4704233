"""Overlapped pairs in pictures: bars stand one over the other; elsewhere each gets half."""

import re
from collections import Counter

import numpy as np
import pytest

from dashboard.figures import gantt as dashboard_gantt
from simulator.job import Plan
from simulator.schedule import Kind
from simulator.simulate import simulate_uniform
from traces import image
from traces.labels import Labels
from traces.layout import BAR, lanes
from traces.pairs import halves, side_by_side
from traces.raster import idle_shares, raster
from traces.text import text_gantt
from traces.tikz import encode

DUALPIPE = simulate_uniform(Plan(schedule="dualpipe", pp=8, num_microbatches=20), 1.0, 2.0).timeline
PLAIN = simulate_uniform(Plan(schedule="1f1b", pp=4, num_microbatches=8), 1.0, 2.0).timeline
LABELS = Labels("DualPipe", unit="t")
MIDDLE = sum(BAR) / 2


def test_a_pair_is_a_forward_over_a_backward_and_nothing_else_is_one():
    compute = DUALPIPE.compute
    half = halves(compute)
    first, second = np.flatnonzero(half == 1), np.flatnonzero(half == 2)
    assert np.array_equal(first + 1, second)
    assert set(compute.kind[first].tolist()) == {Kind.F}
    assert set(compute.kind[second].tolist()) == {Kind.B}
    assert len(first) == 2 * (9 + 10 + 11 + 11)
    assert not halves(PLAIN).any()


def test_a_pairs_bars_have_half_the_height_and_share_the_middle():
    compute = DUALPIPE.compute
    half = halves(compute)
    top, bottom = lanes(compute, BAR)
    assert set(zip(top.tolist(), bottom.tolist(), strict=True)) == {
        BAR,
        (BAR[0], MIDDLE),
        (MIDDLE, BAR[1]),
    }
    assert (bottom[half == 1] == MIDDLE).all()
    assert (top[half == 2] == MIDDLE).all()


def test_both_numbers_of_every_pair_are_in_the_svg():
    text = image.encode(DUALPIPE, LABELS, ".svg").decode()
    found = Counter(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    compute = DUALPIPE.compute
    drawn = Counter(map(str, compute.microbatch.tolist()))
    assert all(found[number] >= times for number, times in drawn.items())


def test_the_dashboards_bars_have_half_the_height():
    figure = dashboard_gantt.figure(DUALPIPE, unit="t")
    heights = Counter(
        round(float(width), 6)
        for trace in figure.data
        if trace.type == "bar" and trace.name != "idle"
        for width in np.atleast_1d(trace.width)
    )
    assert heights[round((BAR[1] - BAR[0]) / 2, 6)] == 2 * 2 * (9 + 10 + 11 + 11)


def test_the_tex_picture_stacks_a_pair():
    text = encode(DUALPIPE, LABELS, ".tex").decode()
    paired = re.findall(
        r"filldraw.* \(([\d.]+),(-?[\d.]+)\) rectangle \(([\d.]+),(-?[\d.]+)\)", text
    )
    heights = {round(float(y1) - float(y0), 2) for _, y0, _, y1 in paired}
    assert len(heights) == 2
    assert max(heights) == pytest.approx(2 * min(heights), abs=0.02)


@pytest.mark.parametrize("width", [60, 100, 400])
def test_text_rows_keep_their_width_and_show_both_ops_of_a_pair(width):
    lines = text_gantt(DUALPIPE, width=width, unit="t").plain.splitlines()[1:9]
    assert {len(line) for line in lines} == {width}
    assert all(width == 400 or ("F" in line and "B" in line) for line in lines)


def test_idle_counts_a_pair_once_6_of_66():
    np.testing.assert_allclose(idle_shares(DUALPIPE), 6 / 66)


def test_a_raster_gives_each_op_of_a_pair_half_of_its_time():
    cut = raster(DUALPIPE, 66)
    shared = side_by_side(DUALPIPE)
    for kind in (Kind.F, Kind.B):
        mine = [i for i, other in enumerate(cut.kinds) if other == kind]
        spans = shared.of(kind)
        total = cut.shares[..., mine].sum()
        assert total == pytest.approx((spans.end - spans.start).sum(), rel=1e-5)
    np.testing.assert_allclose(cut.shares[..., -1].sum(axis=1), 6, rtol=1e-4)


def test_timelines_without_pairs_are_untouched():
    assert side_by_side(PLAIN) is PLAIN
