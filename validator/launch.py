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

from validator.beacon import Beacon, Place
from validator.events import Measured, collect
from validator.interruption import Interrupted, interruptible
from validator.session import Session
from validator.verdict import Verdict, ended, hung

__all__ = ["START", "Failed", "run_ranks"]

POLL = 0.05  # [s]
LAST_WORDS = 0.5  # for the other ranks, once one has failed [s]
GRACE = 1.0  # a rank ends itself after the timeout; a stopped one cannot, and is ended then [s]
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

    def __init__(self, message: str, measured: Measured, exit_code: int = 2) -> None:
        super().__init__(message)
        self.measured = measured
        self.exit_code = exit_code


def run_ranks(
    session: Session,
    ranks: range | None = None,
    progress: Callable[[Sequence[Place | None]], None] = lambda _: None,
) -> Measured:
    """Run a session in processes of its own, all ranks at once unless some are named.

    `progress` is told where every rank stands, again and again. No process is left behind,
    whatever happens.

    Raises:
        Failed: a rank died, hung, or ran out of memory, or a signal interrupted the run.
    """
    chosen = range(session.num_ranks) if ranks is None else ranks
    try:
        with interruptible(), TemporaryDirectory(prefix="bubblescope-") as name:
            return _run_in(Path(name), session, chosen, progress)
    except Interrupted as stop:  # before any process, or after all of them
        raise Failed(str(stop), Measured(session, ()), stop.exit_code) from None


def _run_in(
    folder: Path,
    session: Session,
    ranks: range,
    progress: Callable[[Sequence[Place | None]], None],
) -> Measured:
    """Run the ranks, which write into the folder."""
    (folder / "session.json").write_text(session.model_dump_json())
    exit_code = 2
    try:
        with _processes(session, folder, ranks) as processes:
            verdict = _watched(session, folder, ranks, processes, progress)
    except Interrupted as stop:
        verdict, exit_code = Verdict(None, str(stop)), stop.exit_code
    measured = collect(session, folder)
    if verdict is None:
        return measured
    said = {"part": "verdict", "rank": verdict.rank, "text": verdict.text}
    raise Failed(verdict.text, Measured(session, (*measured.records, said)), exit_code)


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
) -> Verdict | None:
    """Wait for the end; what went wrong, or None."""
    begin = time.monotonic()
    while True:
        codes = _codes(ranks, processes)
        places = [Beacon.read(folder / f"rank{rank}.beacon") for rank in ranks]
        progress(places)
        if all(code == 0 for code in codes.values()):
            return None
        if any(codes.values()):
            time.sleep(LAST_WORDS)
            return ended(session, folder, _codes(ranks, processes))
        not_begun = time.monotonic() - begin - START - session.timeout
        late = [
            not_begun if place is None else place.overdue(session.timeout)
            for rank, place in zip(ranks, places, strict=True)
            if codes[rank] is None
        ]
        if max(late) > GRACE:
            return hung(session, folder, codes)
        time.sleep(POLL)


def _codes(ranks: range, processes: Processes) -> dict[int, int | None]:
    """The exit code of each rank that has ended."""
    return {rank: process.poll() for rank, process in zip(ranks, processes, strict=True)}
