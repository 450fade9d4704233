"""Pictures of the dashboard's Explore page at 1440x900, as docs/dashboard.md shows them.

    python examples/dashboard_pictures.py [FOLDER]

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

LARGE = "?v=1&model=gpt-1t&plan.pp=64&plan.tp=8&plan.num_microbatches=512&plan.recompute=full"
SCENES = {  # name: (address, theme)
    "explore": ("/", "light"),
    "explore_64_ranks": ("/" + LARGE, "light"),
    "explore_zoomed": ("/" + LARGE + "&window=[40,41.2]&ranks=[9.5,21.5]", "light"),
    "explore_bubble": ("/?v=1&bubble=[0,1.2]", "light"),
    "explore_dark": ("/?v=1&critical=true", "dark"),
}


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    listening = make_server("127.0.0.1", 0, server, threaded=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, (address, scheme) in SCENES.items():
            path = folder / f"dashboard_{name}.png"
            shoot(browser, f"http://127.0.0.1:{listening.server_port}{address}", scheme, path)
            print(path)
        browser.close()
    listening.shutdown()


def shoot(browser, url, scheme, path):
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(".js-plotly-plot .main-svg", state="attached", timeout=60_000)
    page.wait_for_timeout(2500)
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    shot.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    context.close()


if __name__ == "__main__":
    main()
