"""The dashboard in a real browser, for the tests of its pages: one server for a test process."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from playwright.sync_api import Page, expect, sync_playwright

from tests.dashboard_page import CHROMIUM, HELD, WAIT, needs_chromium

__all__ = ["address", "browser", "needs_chromium"]

expect.set_options(timeout=1000 * WAIT)
SERVE = """
import os, sys, threading
from werkzeug.serving import make_server
from dashboard.app import server
listening = make_server("127.0.0.1", 0, server, threaded=True)
print(listening.server_port, flush=True)
threading.Thread(target=listening.serve_forever, daemon=True).start()
sys.stdin.read()  # until the tests have ended, in whatever way
os._exit(0)
"""


@cache
def address() -> str:
    """Where the dashboard is served, in a process of its own that ends with this one.

    It keeps uploads and jobs in a folder of its own: jobs end when it is removed, and those of
    other test processes do not count towards the most that a server takes.
    """
    folder = tempfile.mkdtemp()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"TMPDIR": folder},
    )
    atexit.register(_end, process, folder)
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    assert port.isdecimal(), "the dashboard's server did not start"
    return f"http://127.0.0.1:{port}"


def _end(process: "subprocess.Popen[str]", folder: str) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def browser(scheme: str = "light", *, held: bool = False) -> Iterator[Page]:
    """A page; an error in its console fails the test. `held`: see `hold_answers`."""
    said: list[str] = []
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = chromium.new_context(
            viewport={"width": 1440, "height": 900}, color_scheme=scheme, base_url=address()
        )
        if held:
            context.add_init_script(HELD)
        page = context.new_page()
        page.set_default_timeout(1000 * WAIT)
        if "SLOWER" in os.environ:
            rate = {"rate": float(os.environ["SLOWER"])}
            context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", rate)
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(f"{error} {error.stack}"))
        yield page
        before_the_end = list(said)  # what is cut short by the end is no error
        chromium.close()
    assert not before_the_end, before_the_end
