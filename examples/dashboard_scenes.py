"""Pictures of the pages that need something done first: a search, an upload, a deadlock, a play.

    python examples/dashboard_scenes.py [FOLDER]

Needs Chromium and the extras `dashboard` and `dev`.
"""

import io
import shutil
import sys
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from werkzeug.serving import make_server

from dashboard.app import server

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
STUCK = "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1B1,1F2,1B0,1B2\n2F0,2B0,2F1,2F2,2B2,2B1"
LARGE = (
    '/compare?v=1&runs=[{"plan":{"schedule":"1f1b","pp":64,"num_microbatches":128}},'
    '{"plan":{"schedule":"zb-h1","pp":64,"num_microbatches":128}}]'
)


def compare_four(page):
    page.goto("/compare")
    page.wait_for_selector("#compare-table [row-index='0']")


def compare_64_ranks(page):
    page.goto(LARGE)
    page.wait_for_selector("#compare-table [row-index='0']")


def search_front(page):
    page.goto("/search")
    page.click("#search-start")
    page.wait_for_selector("#search-progress >> text=Done", timeout=300_000)


def design_zb_h1(page):
    page.goto("/design?v=1&schedule=zb-h1")
    page.wait_for_selector("#design-grid button")


def design_deadlock(page):
    page.goto("/design?v=1&pp=3&m=3")
    page.wait_for_selector("#design-grid button")
    page.wait_for_timeout(1500)
    page.fill("#design-rows", STUCK)
    page.wait_for_selector("#design-grid .stuck")


def measure_trace(page):
    page.goto("/measure")
    files = [TRACES / f"1f1b_rank{rank}.json.gz" for rank in (0, 1)]
    page.set_input_files("#measure-trace-file-drop input", files)
    page.wait_for_selector("#measure-finding >> text=measured")


def learn_zb_h1(page):
    page.goto("/learn?v=1&step=zb-h1&at=15")
    page.wait_for_selector("#learn-formula .equation")


def learn_64_ranks(page):
    page.goto("/learn?v=1&step=1f1b&pp=64&m=128&at=300")
    page.wait_for_selector("#learn-formula .equation")


SCENES = (
    (compare_four, "light"),
    (compare_64_ranks, "dark"),
    (search_front, "light"),
    (design_zb_h1, "light"),
    (design_deadlock, "dark"),
    (measure_trace, "light"),
    (learn_zb_h1, "light"),
    (learn_64_ranks, "dark"),
)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    listening = make_server("127.0.0.1", 0, server, threaded=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for scene, scheme in SCENES:
            context = browser.new_context(
                viewport={"width": 1440, "height": 900},
                color_scheme=scheme,
                base_url=f"http://127.0.0.1:{listening.server_port}",
            )
            page = context.new_page()
            page.set_default_timeout(60_000)
            scene(page)
            page.wait_for_timeout(2500)
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            path = folder / f"dashboard_{scene.__name__}.png"
            shot.quantize(256, method=Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
            print(path)
            context.close()
        browser.close()
    listening.shutdown()


if __name__ == "__main__":
    main()
