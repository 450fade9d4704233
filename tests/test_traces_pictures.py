"""Pictures: the colours, what fills each slice of time, and the drawn Gantt chart."""

import io
import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from PIL import Image

from simulator.schedule import Kind
from tests.greedy import gpipe, one_f_one_b, run, split
from traces import animation, gantt, image
from traces.colors import IDLE, color, lightness, ranks, text_color
from traces.gantt import key
from traces.gantt.bars import number_size
from traces.labels import Labels, byte_unit, time_unit
from traces.layout import is_image, labelled_ranks, strip_kinds
from traces.memory import band, envelope, steps
from traces.raster import idle_shares, raster

GOLDEN = Path(__file__).parent / "golden" / "gantt_1f1b_pp4_mb8.svg"
SMALL = run(one_f_one_b(4, 8))
LABELS = Labels("1F1B, 4 ranks, 8 microbatches", "bubble 27.3 %, peak memory 26.0 GB")
LARGE = run(one_f_one_b(64, 512), optimizer=5.0)
CASES = {
    "1f1b": SMALL,
    "gpipe": run(gpipe(8, 32), scale=0.01),
    "interleaved": run(one_f_one_b(4, 8, 2)),
    "transfers": run(one_f_one_b(4, 8), transfer=0.25, optimizer=1.0, scale=2e-6),
    "one_rank": run(gpipe(1, 3)),
    "split_backward": run(split(one_f_one_b(4, 8, 2)), transfer=0.3, optimizer=1.0, scale=2e-3),
    "8_chunks": run(split(one_f_one_b(8, 16, 8)), optimizer=1.0),
    "16_ranks": run(one_f_one_b(16, 64)),
    "large": LARGE,
    "no_memory": run(one_f_one_b(2, 4), memory=False),
}


def svg(timeline, labels=LABELS):
    return image.encode(timeline, labels, ".svg").decode()


def numbers_in(text):
    return [t for t in re.findall(r"<text[^>]*>([^<]*)</text>", text) if t.isdigit()]


# Colours


@pytest.mark.parametrize("num_chunks", [1, 2, 4, 8])
def test_every_fill_has_readable_text(num_chunks):
    for kind, chunk in itertools.product(Kind, range(num_chunks)):
        fill = color(kind, chunk, num_chunks)
        light = (lightness(fill) + 16) / 116
        luminance = light**3
        ink = 0.0 if text_color(fill) == "#000000" else 1.0
        high, low = max(luminance, ink), min(luminance, ink)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_compute_kinds_differ_in_greyscale():
    kinds = (Kind.F, Kind.B, Kind.I, Kind.W)
    for a, b in itertools.combinations(kinds, 2):
        assert abs(lightness(color(a)) - lightness(color(b))) >= 10


def test_shades_of_chunks_climb_towards_white():
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        climb = [lightness(color(kind, chunk, 8)) for chunk in range(8)]
        assert climb == sorted(set(climb))
        assert climb[-1] < lightness(IDLE) + 5


def test_every_rank_has_its_own_line_colour():
    assert len(set(ranks(8))) == 8


# Units


@pytest.mark.parametrize(
    ("seconds", "name"), [(2.0, "s"), (1.0, "s"), (0.5, "ms"), (3e-5, "µs"), (1e-8, "ns")]
)
def test_the_time_unit_suits_the_length(seconds, name):
    assert time_unit(seconds).name == name
    assert time_unit(seconds, "t").name == ""


def test_bytes_are_decimal_as_gpus_are_sold():
    assert byte_unit(80e9).text(80e9) == "80.0 GB"
    assert byte_unit(5.0).text(5.0) == "5.00 B"
    assert byte_unit(5.0, "t").text(5.0) == "5"


# What fills each slice of time


@given(pp=st.integers(1, 4), m=st.integers(1, 6), num_bins=st.integers(1, 70))
def test_shares_add_up_to_the_timeline_exactly(pp, m, num_bins):
    timeline = run(one_f_one_b(pp, m))
    cut = raster(timeline, num_bins)
    width = timeline.makespan / num_bins
    assert np.allclose(cut.shares.sum(axis=2), 1, atol=1e-5)
    for category, kind in enumerate(cut.kinds):
        spans = timeline.of(kind)
        total = np.bincount(spans.rank, spans.end - spans.start, pp)
        assert np.allclose(cut.shares[:, :, category].sum(axis=1) * width, total, rtol=1e-4)
    assert np.allclose(cut.shares[..., -1].mean(axis=1), idle_shares(timeline), atol=1e-5)


def test_a_bin_has_the_category_that_fills_most_of_it():
    cut = raster(SMALL, 33)
    row = [cut.kinds[c].name if c < len(cut.kinds) else "-" for c in cut.main[0].tolist()]
    assert "".join(row) == "FFFF------BBFBBFBBFBBFBB-BB-BB-BB"


def test_collectives_count_only_where_nothing_is_computed():
    timeline = run(one_f_one_b(2, 2), optimizer=1.0)
    cut = raster(timeline, 50)
    compute = timeline.compute
    shares = cut.shares[:, :, [kind.is_compute for kind in cut.kinds] + [False]].sum(axis=(1, 2))
    busy = np.bincount(compute.rank, compute.end - compute.start, 2)
    assert np.allclose(shares * timeline.makespan / 50, busy, rtol=1e-4)


def test_idle_is_the_closed_form_of_1f1b():
    assert idle_shares(SMALL) == pytest.approx([3 / 11] * 4)  # (p - 1) / (m + p - 1)


def test_the_envelope_keeps_every_peak():
    time, value = np.array([0.0, 1.1, 1.2, 2.0]), np.array([1.0, 9.0, 2.0, 3.0])
    low, high = envelope(time, value, np.linspace(0, 2, 3))
    assert (low.tolist(), high.tolist()) == ([1.0, 1.0], [1.0, 9.0])


def test_long_memory_curves_keep_their_peak_and_few_corners():
    time, nbytes = steps(LARGE, 0)
    assert len(time) <= 2001
    assert nbytes.max() == LARGE.peak_memory()[0]
    _, low, high = band(LARGE)
    assert high.max() == LARGE.peak_memory().max()
    assert (low <= high).all()


# Layout


def test_a_low_row_gets_a_name_every_few_ranks():
    assert labelled_ranks(4, 30) == [0, 1, 2, 3]
    assert labelled_ranks(64, 7)[:3] == [0, 2, 4]
    assert labelled_ranks(64, 7)[-1] == 63
    assert labelled_ranks(1, 30) == [0]


def test_transfers_show_only_where_they_are_wide_enough():
    wide = run(one_f_one_b(4, 8), transfer=0.25)
    narrow = run(one_f_one_b(4, 8), transfer=0.001)
    assert set(strip_kinds(wide, 700)) == {Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B}
    assert strip_kinds(narrow, 700) == []
    assert strip_kinds(run(one_f_one_b(16, 16), transfer=0.25), 700) == []


def test_large_timelines_are_images():
    assert is_image(LARGE, 700)
    assert not is_image(SMALL, 700)


# The drawn chart


def test_numbers_are_in_the_bars_when_they_fit():
    assert numbers_in(svg(run(gpipe(2, 3), memory=False))).count("2") >= 4


def test_no_numbers_are_drawn_when_bars_are_too_narrow():
    points = (700.0, 30.0)
    timeline = run(one_f_one_b(4, 100), memory=False)
    assert number_size(SMALL, points) > 0
    assert number_size(timeline, points) == 0
    with_numbers = numbers_in(svg(run(one_f_one_b(4, 8), memory=False)))
    assert len(with_numbers) >= 64
    assert len(numbers_in(svg(timeline))) < 20  # of the time axis


@pytest.mark.parametrize("microbatches", [8, 12, 16, 24, 40])
def test_every_number_is_narrower_than_its_bar(microbatches):
    timeline = run(one_f_one_b(4, microbatches), memory=False)
    width = 72 * (gantt.WIDTH - gantt.LEFT - gantt.RIGHT)
    size = number_size(timeline, (width, 33))
    if size:
        prop = FontProperties(family="DejaVu Sans", size=size)
        text = text_to_path.get_text_width_height_descent(str(microbatches - 1), prop, False)[0]
        assert text < width / timeline.makespan  # a forward lasts 1


@pytest.mark.parametrize("name", CASES)
def test_no_text_overlaps_another_or_leaves_the_page(name, monkeypatch):
    drawn = []
    draw_text = RendererAgg.draw_text

    def record(renderer, gc, x, y, text, prop, angle, ismath=False, mtext=None):
        drawn.append((text, mtext.get_window_extent(renderer)))
        draw_text(renderer, gc, x, y, text, prop, angle, ismath, mtext)

    monkeypatch.setattr(RendererAgg, "draw_text", record)
    with gantt.drawing():
        figure = gantt.figure(CASES[name], LABELS)
        FigureCanvasAgg(figure).draw()
    assert len(drawn) > 10
    for text, box in drawn:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    for (text, box), (other, its) in itertools.combinations(drawn, 2):
        wide = min(box.x1, its.x1) - max(box.x0, its.x0)
        high = min(box.y1, its.y1) - max(box.y0, its.y0)
        assert min(wide, high) <= 1, (text, other)


def test_svg_text_is_text_and_the_ranks_say_their_idle_share():
    text = svg(SMALL)
    for word in ("rank 0", "forward", "backward", "idle", "27.3 %", "26.0 GB", LABELS.title):
        assert f">{word}</text>" in text


def test_the_legend_has_a_line_per_kind_and_breaks_where_the_page_ends():
    text = svg(CASES["split_backward"])
    for word in ("forward, chunks 0 to 1", "weight gradient, chunks 0 to 1", "reduce gradients"):
        assert text.count(f">{word}</text>") == 1
    for kinds in CASES.values():
        lines = key.lines(kinds, 700, 760)
        assert len(lines) <= 2


def test_a_title_with_dollars_is_no_formula():
    assert "costs $1 and $2" in svg(SMALL, Labels("costs $1 and $2"))


def test_the_svg_of_1f1b_is_the_golden_one():
    """After a wanted change, write the file anew and look at it."""
    assert shapes(svg(SMALL)) == shapes(GOLDEN.read_text())


def shapes(text):
    """Filled shapes to a tenth of a point, and texts: the same from any matplotlib."""
    found = []
    for element in ET.fromstring(text).iter():
        tag = element.tag.rpartition("}")[2]
        fill = re.search(r"fill: (#\w+)", element.get("style", ""))
        if tag == "path" and fill and element.get("d"):
            places = [f"{float(n):.1f}" for n in re.findall(r"-?\d+(?:\.\d+)?", element.get("d"))]
            found.append((fill[1], *places))
        elif tag == "text":
            found.append((element.text,))
    return found


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_65536_spans_fit_in_two_megabytes(suffix):
    assert LARGE.compute.num_spans >= 65_536
    assert len(image.encode(LARGE, LABELS, suffix)) < 2e6


# The animation


@pytest.mark.parametrize("timeline", [SMALL, LARGE], ids=["small", "large"])
def test_the_gif_unfolds_from_nothing_to_the_whole_chart(timeline):
    data = animation.encode(timeline, LABELS, ".gif")
    assert len(data) < 2e6
    film = Image.open(io.BytesIO(data))
    assert film.n_frames <= 80

    def inked(frame):
        film.seek(frame)
        return int((np.asarray(film.convert("RGB")).min(axis=2) < 200).sum())

    amounts = [inked(f) for f in (0, film.n_frames // 2, film.n_frames - 1)]
    assert amounts == sorted(set(amounts))
