"""The process of a job: reads its folder, works, tells how far it is, and ends itself in time.

Started by `dashboard.jobs` as `python -m dashboard.background FOLDER`. A thread watches for the
reasons to end, and ends the work as Ctrl-C would, which keeps the best so far.
"""

import _thread
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dashboard.jobs import ABANDONED, ALIVE, ASKED, BEAT, CANCEL, MOST_SECONDS, TOLD
from traces.replacing import replace_bytes

__all__ = ["main"]

LOOK = 0.2  # between two looks at the reasons to end [s]
GRACE = 10.0  # to come to an end once asked, before the process is left at once [s]
PAUSE = 0.4  # between two tellings [s]

Tell = Callable[[dict[str, Any]], None]


def main(folder: Path) -> None:
    """Do what the folder asks for."""
    task = json.loads((folder / ASKED).read_bytes())
    work = {"search": _search, "optimize": _optimize}[task["what"]]
    telling = _Telling(folder)
    watching = threading.Thread(target=_watch, args=(folder, telling), daemon=True)
    try:
        watching.start()
        work(task["asked"], folder, telling.tell)
        telling.end("done")
    except KeyboardInterrupt:
        telling.end(telling.reason)
    except ValueError as error:
        telling.end("failed", str(error))


class _Telling:
    """What was told last. A class because the watcher gives the reason and the work the result."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.reason, self.ended = folder, "cancelled", False
        self.result: dict[str, Any] = {}
        self.last = 0.0

    def tell(self, result: dict[str, Any]) -> None:
        """Keep a result, and write it if the last one is not of just now."""
        self.result = result
        if time.monotonic() - self.last >= PAUSE:
            self._write("running", "")

    def end(self, state: str, error: str = "") -> None:
        """The last word."""
        self.ended = True
        if self.reason != "cancelled" and state == "done" and not self.result:
            state = self.reason
        self._write(state, error)

    def _write(self, state: str, error: str) -> None:
        table = {"state": state, "result": self.result, "error": error}
        replace_bytes(self.folder / TOLD, json.dumps(table).encode())
        self.last = time.monotonic()


def _watch(folder: Path, telling: _Telling) -> None:
    """Give signs of life, and end the work when there is a reason."""
    begin = time.monotonic()
    while not telling.ended:
        time.sleep(LOOK)
        reason = _reason(folder, begin)
        if reason is None:
            continue
        telling.reason = reason
        _thread.interrupt_main()
        time.sleep(GRACE)
        if not telling.ended:
            telling.end(reason)
            os._exit(1)


def _reason(folder: Path, begin: float) -> str | None:
    """Why a job should end now, if it should; else a sign of life."""
    try:
        os.utime(folder / BEAT)
        if (folder / CANCEL).exists():
            return "cancelled"
        if time.time() - (folder / ALIVE).stat().st_mtime > ABANDONED:
            return "abandoned"
    except OSError:  # the folder was removed from the shelf
        return "abandoned"
    return "out of time" if time.monotonic() - begin > MOST_SECONDS else None


def _search(asked: dict[str, Any], folder: Path, tell: Tell) -> None:
    from dashboard.planning import found
    from simulator.search.local import Here, Task
    from simulator.search.run import Progress, search
    from simulator.search.space import Space
    from simulator.search.store import opened

    space = Space.model_validate_json(asked["space"])
    task = Task(space, asked["margin"])
    about = {"space": space.model_dump_json(), "margin": json.dumps(task.margin)}
    last = 0.0
    with opened(folder / "results.sqlite", about) as store:

        def show(now: Progress) -> None:
            nonlocal last
            if time.monotonic() - last >= PAUSE:
                last = time.monotonic()
                tell(found(space, store, now))

        outcome = search(task, store, Here(task), show)
        total = space.num_points
        rate = outcome.num_judged / max(outcome.seconds, 1e-9)
        tell(found(space, store, Progress(total, store.num_judged, rate, 0.0, 1, outcome.front)))


def _optimize(asked: dict[str, Any], folder: Path, tell: Tell) -> None:  # noqa: ARG001 - as the other
    from dashboard.improvement import asked_of, improved

    improved(asked_of(asked), tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
