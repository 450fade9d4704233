"""The dashboard in a real browser, for the tests of its pages: one server for a test process."""

import atexit
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="needs chromium"
)
WAIT = 60_000  # machines are slow [ms]
expect.set_options(timeout=WAIT)
SERVE = """
import sys
from werkzeug.serving import run_simple
from dashboard.app import server
run_simple("127.0.0.1", int(sys.argv[1]), server, threaded=True)
"""


@cache
def address() -> str:
    """Where the dashboard is served, in a process of its own that ends with this one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(process.kill)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            with urlopen(f"{url}/"):
                return url
        except URLError:
            assert process.poll() is None, "the dashboard's server did not start"
            time.sleep(0.2)
    raise AssertionError("the dashboard's server does not answer")


@contextmanager
def browser(scheme: str = "light") -> Iterator[Page]:
    """A page; an error in its console fails the test."""
    said: list[str] = []
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = chromium.new_context(
            viewport={"width": 1440, "height": 900}, color_scheme=scheme, base_url=address()
        )
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(f"{error} {error.stack}"))
        yield page
        chromium.close()
    assert not said, said
