"""The story: formulas agree with the simulation, the player plays, files come out."""

from itertools import product

import pytest
from playwright.sync_api import expect

from dashboard.callbacks.learn import picture
from dashboard.export import PICTURES, _bytes
from dashboard.figures.stacked import Band, stacked
from dashboard.scenes import STEPS
from dashboard.state import decode, encode
from dashboard.story import LearnState, Numbers, idle_share, run_of
from dashboard.theme import DARK, LIGHT
from tests.pages_served import browser, needs_chromium

TIMES = ((1, 1, 1), (1, 1.2, 0.8), (1, 2, 1), (3, 1, 1), (1, 3, 0.2), (0.3, 1, 1))


@pytest.mark.parametrize("scene", STEPS, ids=lambda scene: scene.name)
def test_a_formula_is_what_the_simulation_says_wherever_it_claims_to_hold(scene):
    checked = 0
    for p, m, (f, i, w) in product((2, 4, 8), (4, 7, 8, 15, 16, 32), TIMES):
        letters = Numbers(p, m, f, i, w)
        if not scene.formula.holds(letters):
            continue
        try:
            run = run_of(scene, LearnState(pp=p, m=m, f=f, i=i, w=w))
        except ValueError:  # the schedule has no such size
            continue
        simulated = idle_share(run.report, scene.formula.of)
        assert scene.formula.value(letters) == pytest.approx(simulated, abs=1e-9), letters
        checked += 1
    assert checked >= 8


def test_the_answer_to_gpipes_question_is_right_27_microbatches_are_not_enough_28_are():
    shares = [
        run_of(STEPS[1], LearnState(step="gpipe", pp=4, m=m)).report.bubble_fraction
        for m in (27, 28)
    ]
    assert shares[0] == pytest.approx(0.1)
    assert shares[1] == pytest.approx(3 / 31)


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (64, 128)])
def test_a_figure_of_the_story_weighs_less_than_a_megabyte(pp, m):
    scene = STEPS[2]
    run = run_of(scene, LearnState(step=scene.name, pp=pp, m=m))
    for look in (LIGHT, DARK):
        assert len(stacked([Band("", run.timeline)], look, unit="t").to_json()) < 1e6


def test_a_state_of_the_story_survives_the_address():
    state = LearnState(step="zb-h1", pp=6, m=12, i=1.5, at=7.25)
    assert decode(LearnState, encode(state)) == state


def test_every_format_for_slides_holds_the_picture():
    found = picture(LearnState(step="1f1b"))
    begins = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF", ".gif": b"GIF89a"}
    for suffix in PICTURES:
        data = _bytes(found, suffix)
        assert data.startswith(begins.get(suffix, data[:1]))
        assert len(data) > 2000, suffix


def test_numbers_that_are_none_are_refused_in_one_sentence():
    for bad in ({"pp": 1}, {"m": 10**9}, {"f": -1}, {"i": "x"}, {"at": float("nan")}):
        with pytest.raises(ValueError, match=r".+"):
            LearnState.model_validate(bad)


@needs_chromium
def test_the_player_plays_steps_and_stands_in_the_address():
    with browser() as page:
        page.goto("/learn?v=1&step=gpipe")
        expect(page.locator("#learn-formula")).to_contain_text("27.3 %")
        expect(page.locator("#learn-formula")).to_contain_text("says the same")
        time = page.locator("#learn-time")
        expect(time).to_have_text("33 / 33")
        page.click("[data-player=restart]")
        page.click("[data-player=forward]")
        expect(time).to_have_text("1 / 33")
        page.wait_for_url("**/learn?*at=1*")
        page.click("[data-player=play]")
        expect(time).not_to_have_text("1 / 33")
        page.click("[data-player=play]")
        expect(page.locator("[data-player=play]")).to_contain_text("Play")
        stands = time.inner_text()
        page.wait_for_timeout(300)
        assert time.inner_text() == stands
        answer = page.locator("#learn-question details p")
        expect(answer).not_to_be_visible()
        page.click("#learn-question summary")
        expect(answer).to_be_visible()


@needs_chromium
def test_steps_go_back_and_forward_and_a_link_downloads_the_picture():
    with browser("dark") as page:
        page.goto("/learn")
        title = page.locator("#learn-story h1")
        expect(title).to_contain_text("One rank")
        page.click("text=ZB-V")
        expect(title).to_contain_text("Fold")
        page.wait_for_url("**step=zb-v*")
        page.wait_for_timeout(1000)  # changes within 0.8 s share one entry of the history
        page.click("text=GPipe")
        expect(title).to_contain_text("fills")
        page.wait_for_url("**step=gpipe*")
        page.go_back()
        expect(title).to_contain_text("Fold")
        page.go_forward()
        expect(title).to_contain_text("fills")
        page.go_back()
        expect(title).to_contain_text("Fold")
        link = page.locator("#learn-exports a[href*='zb-v']", has_text=".svg")
        with page.expect_download() as got:
            link.click()
        assert got.value.suggested_filename == "bubblescope-zb-v-p4-m8.svg"
