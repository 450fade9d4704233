"""Rows of one's own: they run, or say where they are stuck; the optimiser improves them."""

import csv
import io
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from dashboard.callbacks.design import picture
from dashboard.design import DesignState, asked_for, cells_of, draft_of, played
from dashboard.improvement import improved
from dashboard.state import decode, encode
from simulator.job import Plan
from simulator.lower import lower
from simulator.schedule import Kind, Op, Schedule
from simulator.schedules import build
from simulator.simulate import simulate_uniform
from tests.dashboard_page import until
from tests.pages_served import browser, needs_chromium

GRAPH = "document.querySelector('#design-figure .js-plotly-plot')"
STUCK = "0F0,0B0,0F1,0B1\n1F0,1B1,1F1,1B0"


def test_the_rows_of_1f1b_take_33_as_the_schedule_itself():
    draft = draft_of(DesignState())
    run = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0, weight_grad=1.0)
    assert draft.run is not None
    assert draft.run.timeline == run.timeline
    assert draft.run.report.step_time == 33


def test_a_deadlock_is_marked_where_each_rank_stands():
    draft = played(STUCK, (1.0, 1.0, 1.0), 0.0)
    assert draft.run is None
    assert "cannot finish" in draft.error
    assert draft.spots == ((0, 1), (1, 1))
    rows = cells_of(draft, STUCK)["rows"]
    assert [rows[rank][at] for rank, at in draft.spots] == ["0B0", "1B1"]


def test_a_deadlock_of_overlapped_pairs_is_marked_at_the_pair():
    text = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1B0,1F0,1F1,1B1"
    draft = played(text, (1.0, 1.0, 1.0), 0.0)
    rows = cells_of(draft, text)["rows"]
    assert [rows[rank][at] for rank, at in draft.spots][-1] == "1B0"


def test_a_cell_that_is_no_op_is_marked():
    draft = played("0F0,0B0\n1F0,1X0", (1.0, 1.0, 1.0), 0.0)
    assert draft.schedule is None
    assert draft.spots == ((1, 1),)


@pytest.mark.parametrize(
    "text",
    ["", "<script>", "0F0", "0F0,0F0,0B0", "9" * 50, "0F0,0B0\n5F0,5B0", "\x00", "0F99999999"],
)
def test_text_that_is_no_schedule_ends_in_a_sentence(text):
    draft = played(text, (1.0, 1.0, 1.0), 0.0)
    assert draft.run is None
    assert draft.error.strip()
    assert "Traceback" not in draft.error


def test_rows_survive_the_address_and_a_schedules_own_rows_stay_out_of_it():
    own = DesignState(rows=STUCK, latency=0.5, limit=3.0)
    assert decode(DesignState, encode(own)) == own
    assert encode(DesignState()) == ""
    large = DesignState(rows=str(build(Plan(schedule="zb-h1", pp=8, num_microbatches=64))))
    assert decode(DesignState, encode(large)) == large


def test_the_optimiser_takes_1f1b_of_4_ranks_and_8_microbatches_from_33_to_27():
    said = []
    improved(asked_for(DesignState(limit=4, seconds=10)), said.append)
    last = said[-1]
    assert last["objective"] == pytest.approx(27)
    again = played(last["rows"], (1.0, 1.0, 1.0), 0.0)
    assert again.run is not None
    assert again.run.report.step_time == pytest.approx(27)
    assert again.run.report.peak_in_flight.max() <= 4


def test_stages_on_two_ranks_are_not_improved_and_the_message_says_so():
    state = DesignState(schedule="dualpipe", pp=4, m=8)
    with pytest.raises(ValueError, match="stands on 2 ranks"):
        asked_for(state)


def test_a_picture_of_rows_that_cannot_run_is_refused():
    with pytest.raises(ValueError, match="cannot finish"):
        picture(DesignState(rows=STUCK))


@needs_chromium
def test_ops_are_clicked_into_the_grid_and_the_csv_is_what_pytorch_runs():
    with browser() as page:
        page.goto("/design?v=1&pp=2&m=2")
        page.locator("#design-result").wait_for()
        expect(page.locator("#design-result")).to_contain_text("step 9")
        cell = page.locator("#design-grid [data-rank='0'][data-at='2']")
        expect(cell).to_have_text("0B0")
        page.locator("#design-tool").get_by_text("erase").click()
        cell.click()
        expect(page.locator("#design-error")).to_contain_text("0B0")
        page.locator("#design-tool").get_by_text("B", exact=True).click()
        cell.click()
        expect(cell).to_have_text("0B0")
        expect(page.locator("#design-error .problem")).to_have_count(0)
        link = page.locator("#design-exports a", has_text="rows .csv")
        with page.expect_download() as got:
            link.click()
        text = got.value.path().read_text()
        assert Schedule.parse(text) == build(Plan(pp=2, num_microbatches=2))
        assert all(Op.parse(x).kind <= Kind.W for row in csv.reader(io.StringIO(text)) for x in row)
        both = page.locator("#design-exports a", has_text="sends")
        with page.expect_download() as got:
            both.click()
        lowered = lower(build(Plan(pp=2, num_microbatches=2)))
        assert Schedule.parse(got.value.path().read_text()) == lowered


@needs_chromium
def test_a_deadlock_is_typed_marked_and_mended():
    with browser("dark") as page:
        page.goto("/design?v=1&pp=2&m=2")
        expect(page.locator("#design-result")).to_contain_text("step 9")
        page.fill("#design-rows", STUCK)
        expect(page.locator("#design-error")).to_contain_text("cannot finish")
        expect(page.locator("#design-grid .stuck")).to_have_count(2)
        page.fill("#design-rows", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")
        expect(page.locator("#design-grid .stuck")).to_have_count(0)
        page.locator("#design-grid [data-rank='0'][data-at='1']").focus()
        page.keyboard.press("Delete")
        expect(page.locator("#design-error")).to_contain_text("0F1")
        page.keyboard.press("f")
        expect(page.locator("#design-error .problem")).to_have_count(0)


@needs_chromium
def test_the_optimiser_runs_in_the_background_and_its_rows_are_taken():
    with browser() as page:
        page.goto("/design")
        expect(page.locator("#design-result")).to_contain_text("step 33")
        page.click("#design-start")
        expect(page.locator("#design-progress")).to_contain_text("Best found")
        expect(page.locator("#design-take")).to_be_enabled()
        page.click("#design-take")
        expect(page.locator("#design-result")).not_to_contain_text("step 33")
        expect(page.locator("#design-result")).to_contain_text("step 2")


def test_a_deadlock_of_64_ranks_is_marked_on_every_rank_that_stands():
    rows = [
        ",".join(
            str(op) for op in build(Plan(schedule="gpipe", pp=64, num_microbatches=8)).row(rank)
        )
        for rank in range(64)
    ]
    rows[63] = rows[63].replace("63F7", "63X").replace("63B7", "63F7").replace("63X", "63B7")
    text = "\n".join(rows)
    draft = played(text, (1.0, 1.0, 1.0), 0.0)
    assert "cannot finish" in draft.error
    assert [rank for rank, _ in draft.spots] == list(range(64))
    cells = cells_of(draft, text)["rows"]
    assert cells[63][draft.spots[63][1]] == "63B7"
    assert cells[0][draft.spots[0][1]].startswith("0B")


def test_a_deadlock_of_64_ranks_with_sends_and_receives_is_marked_on_every_rank():
    sound = lower(build(Plan(pp=64, num_microbatches=8)))
    rows = [list(map(str, sound.items(rank))) for rank in range(64)]
    move(rows[62], ["62RECV_B0", "62B0", "62SEND_B0"], "62RECV_F1")
    move(rows[63], ["63RECV_F1", "63F1"], "63B0")
    text = "\n".join(map(",".join, rows))
    draft = played(text, (1.0, 1.0, 1.0), 0.0)
    assert "cannot finish" in draft.error
    assert [rank for rank, _ in draft.spots] == list(range(64))
    marked = [rows[rank][at] for rank, at in draft.spots]
    assert marked == [f"{rank}B0" for rank in range(63)] + ["63F1"]


def move(row, cells, before):
    for cell in cells:
        row.remove(cell)
    at = row.index(before)
    row[at:at] = cells


def test_a_backward_before_its_forward_is_marked_in_rows_with_sends_and_receives():
    text = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1B0,1F0,1SEND_B0"
    draft = played(text, (1.0, 1.0, 1.0), 0.0)
    assert draft.run is None
    assert "1F0, which it needs, stands after it" in draft.error
    assert draft.spots == ((1, 1),)


def hanging(schedule):
    """Each rank that hangs and its place, by trying every rank again until none moves."""
    last, done = schedule.num_stages - 1, set()
    rows = [schedule.items(rank) for rank in range(schedule.num_ranks)]
    at = [0] * len(rows)

    def ready(op):
        forward = (Kind.F, op.stage, op.microbatch) in done
        below = op.stage == 0 or (Kind.F, op.stage - 1, op.microbatch) in done
        above = op.stage + (op.kind != Kind.W)
        back = any((kind, above, op.microbatch) in done for kind in (Kind.B, Kind.I))
        if op.kind == Kind.F:
            return below
        return back if op.kind == Kind.W else forward and (op.stage == last or back)

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                item = row[at[rank]]
                ops = [item] if isinstance(item, Op) else [item.first, item.second]
                if not all(map(ready, ops)):
                    break
                done.update((op.kind, op.stage, op.microbatch) for op in ops)
                at[rank], moved = at[rank] + 1, True
    return tuple((rank, place) for rank, place in enumerate(at) if place < len(rows[rank]))


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("dualpipe", 1)]
)
def test_spots_are_where_ranks_hang_that_are_tried_again_and_again(schedule, vpp):
    whole = build(Plan(schedule=schedule, pp=4, vpp=vpp, num_microbatches=8))
    marked = 0
    for rank in range(4):
        for at in range(0, len(whole.items(rank)) - 1, 3):
            rows = [list(map(str, whole.items(r))) for r in range(4)]
            rows[rank][at], rows[rank][-1] = rows[rank][-1], rows[rank][at]
            text = "\n".join(map(",".join, rows))
            spots = played(text, (1.0, 1.0, 1.0), 0.0).spots
            assert spots == hanging(Schedule.parse(text))
            marked += bool(spots)
    assert marked > 5


def test_the_zoom_and_the_theme_survive_the_address():
    state = DesignState(view=(5.0, 15.5), theme="dark")
    assert encode(state) == "?v=1&theme=dark&view=%5B5.0,15.5%5D"
    assert decode(DesignState, encode(state)) == state
    large = state.model_copy(update={"rows": str(build(Plan(pp=16, num_microbatches=64))) + "\n"})
    assert encode(large).startswith("?v=1&theme=dark&z=")
    assert decode(DesignState, encode(large)) == large


@needs_chromium
def test_a_zoom_stands_in_the_address_and_opens_as_it_was():
    with browser() as page:
        page.goto("/design")
        expect(page.locator("#design-result")).to_contain_text("step 33")
        area = page.locator("#design-figure .nsewdrag").first
        box = area.bounding_box()
        page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 30, steps=5)
        page.mouse.up()
        page.wait_for_url("**view=*")
        low, high = decode(DesignState, urlsplit(page.url).query).view
        assert (low, high) == pytest.approx((0.25 * 33.132, 0.75 * 33.132), abs=0.2)
        other = page.context.new_page()
        other.goto(page.url)
        expect(other.locator("#design-result")).to_contain_text("step 33")
        until(other, f"{GRAPH}.layout.meta.view")
        assert other.evaluate(f"{GRAPH}.layout.xaxis.range") == pytest.approx([low, high])
        page.mouse.dblclick(box["x"] + 100, box["y"] + 30)
        page.wait_for_url(lambda url: "view" not in url)
