"""Explore in a real browser: a slider's move to the redrawn page, the first load, panning.

    python benchmarks/dashboard.py [--moves 15] [--loads 5] [--url http://127.0.0.1:8050/]

A move is a key press on a slider's thumb; it ends when plotly has drawn the timeline of the answer.
A load is a new browser context, nothing cached; it ends when the timeline is drawn (first_loads.py
says why it is not Playwright's). Panning drags
the timeline by mouse, to and fro, over a part of the step; a frame is the time between two of the
browser's animation frames while the button is down, with the answers that arrive meanwhile. Needs
Chromium and the extras `dashboard` and `dev`.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from urllib.parse import urlencode

from first_loads import first_loads
from playwright.sync_api import sync_playwright

JOBS = {  # what is moved, and the goal [ms]
    "p=8, m=64": ({"plan.pp": 8, "plan.tp": 8, "plan.num_microbatches": 64}, 150),
    "p=64, m=512": (
        {"model": "gpt-1t", "plan.pp": 64, "plan.tp": 8, "plan.num_microbatches": 512},
        600,
    ),
}
WINDOWS = {  # what is panned over, of the largest job
    "pan, ops, p=64, m=512": "&window=[40,41.2]&ranks=[9.5,17.5]",
    "pan, overview, p=64, m=512": "&window=[30,50]",
}
FRAME = 50  # the goal for 95 of 100 frames [ms]
FRAMES = """() => {
    window.frames_seen = [];
    let last = 0, dragging = false;
    document.addEventListener('mousedown', () => { dragging = true; last = 0; }, true);
    document.addEventListener('mouseup', () => { dragging = false; }, true);
    const see = (now) => {
        if (dragging && last) window.frames_seen.push(now - last);
        last = now;
        requestAnimationFrame(see);
    };
    requestAnimationFrame(see);
}"""
FLAGS = ["--no-sandbox", "--disable-gpu"]
PLOT = "document.querySelector('#explore-run .js-plotly-plot')"
DRAWN = "document.querySelector('#explore-run .bars path, #explore-run image')"
WATCH = f"""() => {{
    window.drawn = 0; window.pressed = 0;
    {PLOT}.on('plotly_afterplot', () => {{
        requestAnimationFrame(() => {{ window.drawn = window.drawn || performance.now(); }});
    }});
    document.addEventListener('keydown', () => {{ window.pressed = performance.now(); }}, true);
}}"""
ENDED = "() => new Promise((done) => { const ask = () => window.drawn ? done(window.drawn - \
window.pressed) : setTimeout(ask, 2); ask(); })"
FIRST = f"() => new Promise((done) => {{ const ask = () => {DRAWN} ? \
requestAnimationFrame(() => done(performance.now())) : setTimeout(ask, 5); ask(); }})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=15)
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--url", help="a dashboard that runs already, ending with /")
    arguments = parser.parse_args()
    if arguments.url:
        measure(arguments.url, arguments.moves, arguments.loads)
        return
    words = [sys.executable, "-m", "simulator", "dashboard", "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().split()[-1]
        try:
            measure(url, arguments.moves, arguments.loads)
        finally:
            server.terminate()


def measure(url, moves, loads):
    say("first load", first_loads(url, loads, FIRST), 2000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, (query, goal) in JOBS.items():
            times, nbytes = moved(browser, url + "?" + urlencode({"v": 1, **query}), moves)
            say(f"slider move, {name}", times, goal)
            print(f"{'':28} {nbytes / 1e3:.0f} kB in an answer, unpacked")
        query, _ = JOBS["p=64, m=512"]
        for what, window in WINDOWS.items():
            address = url + "?" + urlencode({"v": 1, **query, "plan.recompute": "full"}) + window
            frames = panned(browser, address)
            late = sorted(frames)[int(0.95 * len(frames))]
            middle = statistics.median(frames)
            met = "within" if late <= FRAME else "over"
            print(
                f"{what:28} median {middle:6.0f} ms, 95 % below {late:.0f} ms, longest "
                f"{max(frames):.0f} ms of {len(frames)} frames, {met} {FRAME} ms",
                flush=True,
            )
        browser.close()


def moved(browser, url, moves):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    sizes = []
    page.on("response", lambda answer: keep(answer, sizes))
    page.goto(url)
    page.evaluate(FIRST)
    page.wait_for_timeout(2000)
    page.locator('[role=slider][aria-label^="micro_batch_size"]').focus()
    page.evaluate(WATCH)
    times = []
    for turn in range(moves):
        page.evaluate("window.drawn = 0")
        page.keyboard.press("ArrowRight" if turn % 2 == 0 else "ArrowLeft")
        times.append(page.evaluate(ENDED))
        page.wait_for_timeout(400)
    context.close()
    return times, max(sizes)


def panned(browser, url):
    """The frames of five drags with a pause between, as a person pans. [ms]"""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.evaluate(FIRST)
    page.wait_for_timeout(2000)
    box = page.locator('#explore-run .nsewdrag[data-subplot="xy"]').bounding_box()
    middle, high = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.evaluate(FRAMES)
    for turn in range(5):
        way = 1 if turn % 2 else -1
        page.mouse.move(middle, high)
        page.mouse.down()
        for step in range(40):
            page.mouse.move(middle + way * 6 * step, high)
            page.wait_for_timeout(12)
        page.mouse.up()
        page.wait_for_timeout(150)
    frames = page.evaluate("window.frames_seen")
    context.close()
    return frames


def keep(answer, sizes):
    if "_dash-update-component" in answer.url:
        sizes.append(len(answer.body()))


def say(what, times, goal):
    middle = statistics.median(times)
    low, high = min(times), max(times)
    met = "within" if middle <= goal else "over"
    print(
        f"{what:28} median {middle:6.0f} ms ({low:.0f} to {high:.0f}), {met} {goal} ms", flush=True
    )


if __name__ == "__main__":
    started = time.time()
    main()
    print(f"{time.time() - started:.0f} s in all")
