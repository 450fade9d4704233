"""Starts the ranks of a session, watches them, and ends them all when one fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from validator.beacon import RUNNING, Beacon, Place
from validator.events import Measured, collect
from validator.session import Session

__all__ = ["Failed", "run_ranks"]

POLL = 0.05  # [s]
GRACE = 0.5  # for the other ranks' last words, once one has failed [s]
LATE = 1.5  # a rank ends itself after the timeout; a stopped one cannot, and is ended then [1]
START = 180.0  # a process imports torch, which may take long on a busy machine [s]

ON_CPU = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc keeps what is freed, as CUDA's caching allocator does, or every forward would be slowed
    # by fresh pages, and the more so the more microbatches are in flight
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**46),
    "MALLOC_TOP_PAD_": str(2**26),
}

Processes = list["subprocess.Popen[bytes]"]


class Failed(ValueError):
    """A rank failed. Says which, where and why; `measured` is what was there by then."""

    def __init__(self, message: str, measured: Measured) -> None:
        super().__init__(message)
        self.measured = measured


def run_ranks(
    session: Session,
    ranks: range | None = None,
    progress: Callable[[Sequence[Place | None]], None] = lambda _: None,
) -> Measured:
    """Run a session in processes of its own, all ranks at once unless some are named.

    `progress` is told where every rank stands, again and again. No process is left behind,
    whatever happens.

    Raises:
        Failed: a rank died, hung, or ran out of memory.
    """
    chosen = range(session.num_ranks) if ranks is None else ranks
    with TemporaryDirectory(prefix="bubblescope-") as name:
        folder = Path(name)
        (folder / "session.json").write_text(session.model_dump_json())
        with _processes(session, folder, chosen) as processes:
            problem = _watched(session, folder, chosen, processes, progress)
        measured = collect(session, folder)
        if problem is not None:
            raise Failed(problem, measured)
        return measured


@contextmanager
def _processes(session: Session, folder: Path, ranks: range) -> Iterator[Processes]:
    """One process a rank, each in a session of its own, so that its children end with it."""
    environment = dict(os.environ)
    if session.device == "cpu":
        environment |= ON_CPU
    processes: Processes = []
    try:
        for rank in ranks:
            with Path(folder, f"rank{rank}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(  # noqa: S603
                        [sys.executable, "-m", "validator", "--rank-of", str(folder), str(rank)],
                        env=environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    process.kill()
        for process in processes:
            process.wait()


def _watched(
    session: Session,
    folder: Path,
    ranks: range,
    processes: Processes,
    progress: Callable[[Sequence[Place | None]], None],
) -> str | None:
    """Wait for the end; what went wrong, or None."""
    begin = time.monotonic()
    while True:
        codes = [process.poll() for process in processes]
        places = [Beacon.read(folder / f"rank{rank}.beacon") for rank in ranks]
        progress(places)
        if all(code == 0 for code in codes):
            return None
        if any(code not in (0, None) for code in codes):
            time.sleep(GRACE)
            codes = [process.poll() for process in processes]
            return _ended(session, folder, ranks, codes)
        latest = max((place.when for place in places if place is not None), default=0.0)
        limit = LATE * session.timeout + (START if any(p is None for p in places) else 0.0)
        if time.monotonic() - max(latest, begin) > limit:
            return _hung(session, ranks, places)
        time.sleep(POLL)


def _ended(session: Session, folder: Path, ranks: range, codes: list[int | None]) -> str:
    """The rank that failed first, and its own words for it."""
    for rank, code in zip(ranks, codes, strict=True):
        if code is not None and code < 0:
            place = Beacon.read(folder / f"rank{rank}.beacon")
            name = signal.Signals(-code).name
            hint = "; is the host out of memory?" if name == "SIGKILL" else ""
            return f"rank {rank} was ended at {_told(session, rank, place)} by {name}{hint}"
    errors = list(collect(session, folder).of("error"))
    if errors:
        first = min(errors, key=lambda record: float(record["when"]))
        others = [rank for rank in ranks if rank != first["rank"]]
        stood = ", ".join(
            f"rank {rank} at {_told(session, rank, Beacon.read(folder / f'rank{rank}.beacon'))}"
            for rank in others
        )
        then = f"; meanwhile {stood}" if stood else ""
        return f"rank {first['rank']} failed at {first['op']}: {first['text']}{then}"
    rank, code = next((r, c) for r, c in zip(ranks, codes, strict=True) if c)
    log = (folder / f"rank{rank}.log").read_text(errors="replace").strip().splitlines()
    return f"rank {rank} ended with code {code}: {log[-1] if log else 'it said nothing'}"


def _hung(session: Session, ranks: range, places: list[Place | None]) -> str:
    """Where every rank stands; those inside an op first, because the others wait for them."""
    order = sorted(
        zip(ranks, places, strict=True),
        key=lambda pair: pair[1] is None or pair[1].running != RUNNING,
    )
    where = ", ".join(f"rank {rank} at {_told(session, rank, place)}" for rank, place in order)
    return f"nothing ended for {session.timeout:g} s: {where}"


def _told(session: Session, rank: int, place: Place | None) -> str:
    if place is None:
        return "its start"
    lowered = session.plays[place.play].lowered if place.play >= 0 else None
    return place.told(lowered, rank)
