"""First loads of a page as a reader's browser does them: nothing cached, no debugger attached.

Playwright has V8's debugger on. Each exception that plotly catches at its start then makes V8 read
the whole script again for a line number: 0.5 s of CPU time that no reader waits for. So this talks
to Chromium in its own protocol, and turns nothing on but the page.
"""

import asyncio
import json
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager

from tornado.websocket import websocket_connect

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
SIZE = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}


def first_loads(url, count, drawn):
    """How long each load takes until `drawn`, a script of a promise of the time, resolves. [ms]"""
    with _chromium() as address:
        return asyncio.run(_loads(address, url, count, drawn))


@contextmanager
def _chromium():
    """Where a browser listens."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        words = [shutil.which("chromium"), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as browser:
            try:
                yield next(filter(None, (re.search(r"ws://\S+", one) for one in browser.stderr)))[0]
            finally:
                browser.terminate()


async def _loads(address, url, count, drawn):
    browser = await websocket_connect(address)
    times, number = [], 0

    async def ask(method, session=None, **words):
        """Send one command, and wait for its answer."""
        nonlocal number
        number += 1
        sent = {"id": number, "method": method, "params": words}
        await browser.write_message(json.dumps(sent | ({"sessionId": session} if session else {})))
        while True:
            said = json.loads(await browser.read_message())
            if said.get("id") == number:
                return said.get("result", {})

    for _ in range(count):
        context = (await ask("Target.createBrowserContext"))["browserContextId"]
        made = await ask("Target.createTarget", url="about:blank", browserContextId=context)
        page = (await ask("Target.attachToTarget", targetId=made["targetId"], flatten=True))[
            "sessionId"
        ]
        await ask("Emulation.setDeviceMetricsOverride", page, **SIZE)
        await ask("Page.navigate", page, url=url)
        taken = None
        while taken is None:  # the first answers may be of the page before
            said = await ask(
                "Runtime.evaluate",
                page,
                expression=f"location.href === 'about:blank' ? null : ({drawn})()",
                awaitPromise=True,
                returnByValue=True,
            )
            taken = said.get("result", {}).get("value")
        times.append(taken)
        await ask("Target.disposeBrowserContext", browserContextId=context)
    return times
