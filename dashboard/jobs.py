"""Work that takes minutes, in a process of its own: started, watched and cancelled from a page.

A job is a folder on the shelf: `asked.json` says what to do, `told.json` what has come of it so
far. Its process ends by itself when it is cancelled, when no page has asked after it for a while,
or when its time is up. A job's token is in the page's address, so that loading the page anew, or
another server process, finds it again. Where enough of them run, a job waits for its turn, first
come, first served; it is the page that asks after it which starts it then.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.shelf import folder_of, new_folder
from traces.replacing import replace_bytes

if sys.platform != "win32":
    import fcntl

__all__ = [
    "ABANDONED",
    "MOST_RUNNING",
    "MOST_SECONDS",
    "MOST_WAITING",
    "Told",
    "cancel",
    "start",
    "told",
]

MOST_SECONDS = 600.0  # of one job [s]
MOST_RUNNING = 4  # jobs on one server [1]
MOST_WAITING = 20  # more than these [1]
ABANDONED = 90.0  # without a page that asks, a job ends [s]
DEAD = 60.0  # without a sign of its process, a job has died [s]

ASKED, TOLD, CANCEL, ALIVE, BEAT = "asked.json", "told.json", "cancel", "alive", "beat"
BEGUN, TURN = "begun", "turn"  # made with a job's process; of the shelf, who may start one
_processes: list["subprocess.Popen[bytes]"] = []  # only to be collected once they have ended


@dataclass(frozen=True)
class Told:
    """How a job is doing."""

    state: str  # waiting, running, done, cancelled, abandoned, out of time, failed
    result: dict[str, Any]  # what has come of it so far, as JSON types
    error: str = ""  # one sentence, where it failed
    num_before: int = 0  # that wait longer, of a job that waits [1]

    @property
    def is_running(self) -> bool:
        """Whether more may come."""
        return self.state in ("waiting", "running")


def start(what: str, asked: dict[str, Any]) -> str:
    """Start a job, or let it wait, and return its token; it may take a second to say anything.

    Args:
        what: `search` or `optimize`, a function of `dashboard.background`.
        asked: its input, JSON types.

    Raises:
        ValueError: too many jobs are waiting.
    """
    token, folder = new_folder()
    _, waiting = _others(folder)
    if len(waiting) >= MOST_WAITING:
        folder.rmdir()
        raise ValueError(
            f"{len(waiting)} jobs are waiting on this server, which runs {MOST_RUNNING} at once "
            f"and lets {MOST_WAITING} wait; try again in a few minutes"
        )
    (folder / ALIVE).touch()
    text = json.dumps({"what": what, "asked": asked, "at": time.time()})
    replace_bytes(folder / ASKED, text.encode())
    _told(folder)
    return token


def _begin(folder: Path) -> None:
    """Start a job's process."""
    for name in (BEAT, BEGUN):
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
    """How a job is doing; one whose turn it is starts."""
    if (folder / BEGUN).exists():
        return _begun(folder)
    with _alone(folder.parent):
        if not (folder / BEGUN).exists():
            if (folder / CANCEL).exists():
                return Told("cancelled", {})
            num_running, waiting = _others(folder)
            before = sum(1 for place in waiting if place < _place(folder))
            if before or num_running >= MOST_RUNNING:
                return Told("waiting", {}, num_before=before)
            _begin(folder)
    return _begun(folder)


@contextmanager
def _alone(shelf: Path) -> Iterator[None]:
    """One request at a time, of all processes that serve: two do not see the same free place."""
    with (shelf / TURN).open("w") as file:
        if sys.platform != "win32":  # which has no such locks; there one process serves
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


def _begun(folder: Path) -> Told:
    """How a job is doing whose process was started."""
    try:
        table = json.loads((folder / TOLD).read_bytes())
    except FileNotFoundError:
        table = {"state": "running", "result": {}}
    found = Told(**table)
    if found.is_running and _quiet(folder / BEAT) > DEAD:
        return Told("failed", found.result, "its process has died; start it again")
    return found


def _others(mine: Path) -> tuple[int, list[tuple[float, str]]]:
    """How many jobs run on this server, whoever started them, and the places of those that wait."""
    num_running, waiting = 0, []
    for one in mine.parent.iterdir():
        try:
            if one == mine or not (one / ASKED).exists():
                continue
            if (one / BEGUN).exists():
                num_running += _begun(one).is_running
            elif _quiet(one / ALIVE) <= ABANDONED and not (one / CANCEL).exists():
                waiting.append(_place(one))
        except (OSError, ValueError):
            continue
    return num_running, waiting


def _place(folder: Path) -> tuple[float, str]:
    """A job's place among those that wait: when it was asked for; of two at a time, any order."""
    return json.loads((folder / ASKED).read_bytes())["at"], folder.name


def _quiet(file: Path) -> float:
    """How long ago a file was touched. [s]"""
    return time.time() - file.stat().st_mtime
