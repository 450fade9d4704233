"""Work that takes minutes, in a process of its own: started, watched and cancelled from a page.

A job is a folder on the shelf: `asked.json` says what to do, `told.json` what has come of it so
far. Its process ends by itself when it is cancelled, when no page has asked after it for a while,
or when its time is up. A job's token is in the page's address, so that loading the page anew, or
another server process, finds it again.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.shelf import folder_of, new_folder
from traces.replacing import replace_bytes

__all__ = [
    "ABANDONED",
    "MOST_RUNNING",
    "MOST_SECONDS",
    "Told",
    "cancel",
    "start",
    "told",
]

MOST_SECONDS = 600.0  # of one job [s]
MOST_RUNNING = 4  # jobs on one server [1]
ABANDONED = 90.0  # without a page that asks, a job ends [s]
DEAD = 60.0  # without a sign of its process, a job has died [s]

ASKED, TOLD, CANCEL, ALIVE, BEAT = "asked.json", "told.json", "cancel", "alive", "beat"
_processes: list["subprocess.Popen[bytes]"] = []  # only to be collected once they have ended


@dataclass(frozen=True)
class Told:
    """How a job is doing."""

    state: str  # running, done, cancelled, abandoned, out of time, failed
    result: dict[str, Any]  # what has come of it so far, as JSON types
    error: str = ""  # one sentence, where it failed

    @property
    def is_running(self) -> bool:
        """Whether more may come."""
        return self.state == "running"


def start(what: str, asked: dict[str, Any]) -> str:
    """Start a job and return its token; its process may take a second to say anything.

    Args:
        what: `search` or `optimize`, a function of `dashboard.background`.
        asked: its input, JSON types.

    Raises:
        ValueError: too many jobs are running.
    """
    running = _running()
    if running >= MOST_RUNNING:
        raise ValueError(
            f"{running} jobs are running on this server, which takes {MOST_RUNNING} at once; "
            "wait for one to end, or cancel yours"
        )
    token, folder = new_folder()
    text = json.dumps({"what": what, "asked": asked})
    replace_bytes(folder / ASKED, text.encode())
    for name in (ALIVE, BEAT):
        (folder / name).touch()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(  # noqa: S603 - our own module, our own folder
        [sys.executable, "-m", "dashboard.background", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    _processes[:] = [one for one in _processes if one.poll() is None]
    _processes.append(process)
    return token


def told(token: str, what: str) -> Told:
    """How a job of a kind is doing; asking keeps it alive.

    Raises:
        ValueError: there is no such job any more.
    """
    folder = folder_of(token)
    try:
        kind = json.loads((folder / ASKED).read_bytes()).get("what")
    except FileNotFoundError:
        kind = None
    if kind != what:
        raise ValueError(
            f"this address names {kind or 'an upload'} where {what} should be; start it again"
        )
    (folder / ALIVE).touch()
    return _told(folder)


def cancel(token: str) -> None:
    """End a job soon; it keeps what it has found. One that has ended stays as it is."""
    (folder_of(token) / CANCEL).touch()


def _told(folder: Path) -> Told:
    try:
        table = json.loads((folder / TOLD).read_bytes())
    except FileNotFoundError:
        table = {"state": "running", "result": {}}
    found = Told(**table)
    if found.is_running and time.time() - (folder / BEAT).stat().st_mtime > DEAD:
        return Told("failed", found.result, "its process has died; start it again")
    return found


def _running() -> int:
    """Jobs that run on this server, whichever of its processes started them. [1]"""
    _, folder = new_folder()
    shelf = folder.parent
    folder.rmdir()
    count = 0
    for one in shelf.iterdir():
        try:
            count += (one / ASKED).exists() and _told(one).is_running
        except (OSError, ValueError):
            continue
    return count
