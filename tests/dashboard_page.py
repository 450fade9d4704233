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
WAIT = 60.0  # machines are slow [s]
HELD = """
(() => {
    const ask = window.fetch.bind(window);
    window.held = [];
    window.fetch = async (resource, options) => {
        const answer = await ask(resource, options);
        const body = String((options && options.body) || "");
        if (window.late) await new Promise((done) => setTimeout(done, window.late));
        if (window.broken && body.includes(window.broken)) {
            return new Response("{}", { status: 500 });
        }
        if (window.hold && body.includes(window.hold)) {
            await new Promise((done) => window.held.push(done));
        }
        return answer;
    };
})();
"""
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
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * WAIT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def hold_answers(page: Any) -> None:
    """Let a test decide when the server's answers come, from the next page that is opened.

    `window.hold` is a text: answers to requests that contain it wait for `release`. Those to
    requests that contain `window.broken` are failures; all come `window.late` milliseconds late.
    """
    page.add_init_script(HELD)


def until(page: Any, script: str) -> None:
    """Until a script's value is true; the page's policy forbids Playwright's own way."""
    said = page.evaluate(
        f"""() => new Promise((done) => {{
            const start = Date.now();
            const ask = () => {{
                let value = false;
                try {{ value = ({script}); }} catch (error) {{ value = false; }}
                if (value) done(true);
                else if (Date.now() - start > {1000 * WAIT}) done(false);
                else setTimeout(ask, 20);
            }};
            ask();
        }})"""
    )
    assert said, f"not within {WAIT} s: {script}"


def await_held(page: Any, count: int = 1) -> None:
    """Until so many answers are held."""
    until(page, f"window.held.length >= {count}")


def release(page: Any) -> None:
    """Let the answers go that are held."""
    page.evaluate("() => { window.hold = null; window.held.splice(0).forEach((go) => go()); }")


class Watched:
    """A page that keeps what its console said and what it fetched.

    `slower` makes its scripts run so many times slower.
    """

    def __init__(
        self, browser: Any, *, scheme: str = "light", width: int = 1440, slower: float = 1.0
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * WAIT)
        rate = float(os.environ.get("SLOWER", slower))
        if rate > 1:
            tools = self.context.new_cdp_session(self.page)
            tools.send("Emulation.setCPUThrottlingRate", {"rate": rate})
        self.errors: list[str] = []
        self.fetched: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def close(self) -> None:
        """End; fails if the console has told an error before."""
        said = list(self.errors)  # what is cut short by the end is no error
        self.context.close()
        assert not said

    def wait(self, script: str) -> None:
        """Until a script's value is true."""
        until(self.page, script)
