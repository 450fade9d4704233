"""A dashboard that serves, and a browser to look at it, for the tests of its pages."""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.serving import make_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="needs chromium"
)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of a dashboard that runs in a thread of this process."""
    from dashboard.app import server

    listening = make_server("127.0.0.1", 0, server, threaded=True)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """A Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page that keeps what its console said and what it fetched."""

    def __init__(self, browser: Any, *, scheme: str = "light", width: int = 1440) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.fetched: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def wait(self, script: str, timeout: float = 20.0) -> None:
        """Until a script's value is true; the page's policy forbids Playwright's own way."""
        said = self.page.evaluate(
            f"""() => new Promise((done) => {{
                const start = Date.now();
                const ask = () => {{
                    let value = false;
                    try {{ value = ({script}); }} catch (error) {{ value = false; }}
                    if (value) done(true);
                    else if (Date.now() - start > {1000 * timeout}) done(false);
                    else setTimeout(ask, 20);
                }};
                ask();
            }})"""
        )
        assert said, f"not within {timeout} s: {script}"
