"""What browsers leave with the server for a while: uploads and background jobs, a folder each.

A folder's name is a random token that only the browser that asked for it learns; whoever has the
token, as in an address that was passed on, sees what is in it. Nobody can list the tokens. Names
of uploaded files are words to show: no path is ever made of them. Old folders go first when the
shelf is full. Several server processes share one shelf, so that any of them can answer.
"""

import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints

__all__ = ["MOST_BYTES", "MOST_FOLDERS", "Token", "folder_of", "new_folder"]

MOST_FOLDERS = 200  # on the shelf [1]
MOST_BYTES = 2_000_000_000  # on the shelf; the oldest folders go first [bytes]
KEPT = 24 * 3600.0  # an untouched folder [s]

Token = Annotated[str, StringConstraints(min_length=32, max_length=32, pattern="^[0-9a-f]+$")]
_TOKEN = re.compile(r"[0-9a-f]{32}")


def new_folder() -> tuple[str, Path]:
    """An empty folder and its token; makes room for it.

    Raises:
        ValueError: the server's temporary folder cannot be used.
    """
    shelf = _shelf()
    _make_room(shelf)
    token = secrets.token_hex(16)
    path = shelf / token
    path.mkdir(mode=0o700)
    return token, path


def folder_of(token: str) -> Path:
    """The folder of a token, which stays longer for being asked for.

    Raises:
        ValueError: there is no such folder, or no more.
    """
    path = _shelf() / token if _TOKEN.fullmatch(token) else None
    if path is None or not path.is_dir():
        raise ValueError(
            "what this address refers to is no longer on the server, which keeps uploads and "
            f"searches for {KEPT / 3600:.0f} hours at most; upload it again, or start it again"
        )
    os.utime(path)
    return path


def _shelf() -> Path:
    """Our own folder among the temporary ones, closed to other users of the machine."""
    who = os.getuid() if hasattr(os, "getuid") else "user"
    path = Path(tempfile.gettempdir()) / f"bubblescope-dashboard-{who}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ValueError(f"the server cannot keep files: {error.strerror}") from None
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    if not mine or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise ValueError("the server's temporary folder belongs to somebody else; remove it")
    return path


def _make_room(shelf: Path) -> None:
    """Remove what is old, then the oldest until there is room for one more."""
    now = time.time()
    folders = sorted((f for f in shelf.iterdir() if f.is_dir()), key=_age, reverse=True)
    sizes = {folder: _size(folder) for folder in folders}
    total, count = sum(sizes.values()), len(folders)
    for folder in folders:
        if now - _touched(folder) < KEPT and total <= MOST_BYTES and count < MOST_FOLDERS:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= sizes[folder]
        count -= 1


def _age(folder: Path) -> float:
    return -_touched(folder)


def _touched(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # another process has just removed it
        return 0.0


def _size(folder: Path) -> int:
    total = 0
    try:
        for file in folder.iterdir():
            total += file.stat().st_size
    except OSError:  # another process is just removing it
        return total
    return total
