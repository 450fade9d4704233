"""A rank that torchrun has started: the same work; the first gathers the records of all.

Ranks of a host write into one folder, so that whoever is left when one fails can keep what all of
them have measured. Torchrun then ends the others, by a signal that each hears beside its work.
"""

import fcntl
import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

from torch import distributed

from validator.beacon import Beacon
from validator.events import Measured, collect, save
from validator.rank import FAILED, work
from validator.session import Session
from validator.verdict import Verdict, ended

__all__ = ["run_as_rank"]

PREFIX = "bubblescope-torchrun-"


def run_as_rank(session: Session, paths: Sequence[Path] = ()) -> Measured | None:
    """Run this process's rank; the first one gets what all have measured, the others None.

    A rank that fails says so and ends; torchrun then ends the others. Each keeps in `paths` what
    its host's ranks have measured by then: the first host under these names, others beside them.

    Raises:
        ValueError: torchrun started another number of processes.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != session.num_ranks:
        raise ValueError(
            f"torchrun started {size} processes, but --gpus or --cpus asks for "
            f"{session.num_ranks}; let them agree"
        )
    folder = _shared_folder(rank)
    records = work(
        session,
        folder,
        rank,
        int(os.environ.get("LOCAL_RANK", rank)),
        None,
        at_end=lambda: _gathered(session, folder, rank),
        at_failure=lambda: _keep(session, folder, rank, paths),
        told_to_end=_ears(),
    )
    _leave(folder, rank)
    return None if records is None else Measured(session, tuple(records))


def _shared_folder(rank: int) -> Path:
    """A folder of this user, this torchrun and this try; those of torchruns that are gone go."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getuid()}-*"):
        if not _is_alive(int(old.name.split("-")[3])):
            rmtree(old, ignore_errors=True)
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    name = f"{PREFIX}{os.getuid()}-{os.getppid()}-{again}"
    folder = Path(tempfile.gettempdir(), name)
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in folder.glob(f"rank{rank}.*"):
        path.unlink()
    return folder


def _ears() -> Callable[[float], bool]:
    """What waits for some seconds, and says whether a signal to end has come.

    The signal's handler must not wait for this thread, which may stand in a transfer for good.
    """
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return lambda seconds: bool(select.select([ours], [], [], seconds)[0])


def _gathered(session: Session, folder: Path, rank: int) -> list[dict[str, Any]] | None:
    """All ranks' records on the first; also across hosts, which share no folder."""
    mine = json.dumps([r for r in collect(session, folder).records if r["rank"] == rank])
    control = distributed.new_group(backend="gloo")
    found: list[Any] | None = [None] * session.num_ranks if rank == 0 else None
    distributed.gather_object(mine, found, dst=0, group=control)
    if found is None:
        return None
    return [record for text in found for record in json.loads(text)]


def _keep(session: Session, folder: Path, rank: int, paths: Sequence[Path]) -> None:
    """Save what the ranks of this host have measured; the last of them removes the folder.

    Two threads may come here, when a rank fails while it is told to end: the second finds nothing.
    """
    with _alone(folder) as is_there:
        if not is_there:
            return
        records = collect(session, folder).records
        verdict = _verdict(session, folder, rank, records)
        if verdict is not None:
            told = {"part": "verdict", "rank": verdict.rank, "text": verdict.text}
            records = (*records, told)
            _say(folder, verdict.text)
        for path in map(_of_host, paths):
            save(Measured(session, records), path)
            _say(folder, f"wrote {path}")
        if not paths:
            _say(folder, "with -o EVENTS.json.gz what was measured is kept")
    _leave(folder, rank)


def _verdict(
    session: Session, folder: Path, rank: int, records: Sequence[Mapping[str, Any]]
) -> Verdict | None:
    """Who failed, of this host's ranks; None if none did, as when all were told to end."""
    failed = [int(record["rank"]) for record in records if record["part"] == "error"]
    for lost in _others(folder, rank, alive=False):
        if lost not in failed:  # others only say that its connections are closed
            place = Beacon.read(folder / f"rank{lost}.beacon")
            assert place is not None
            lowered = session.plays[place.play].lowered if place.play >= 0 else None
            at = place.told(lowered, lost)
            return Verdict(lost, f"rank {lost} was ended at {at}; is the host out of memory?")
    here = [rank, *_others(folder, rank, alive=True)]
    codes = dict.fromkeys(here) | dict.fromkeys(failed, FAILED)
    return ended(session, folder, codes) if failed else None


def _say(folder: Path, text: str) -> None:
    """Tell, unless another rank of this host has told the same."""
    told = folder / "told"
    before = told.read_text() if told.exists() else ""
    if f"{text}\n" not in before:
        told.write_text(f"{before}{text}\n")
        sys.stderr.write(f"bubblescope: {text}\n")
        sys.stderr.flush()


def _of_host(path: Path) -> Path:
    """A path of the first host, or one beside it."""
    host = int(os.environ.get("GROUP_RANK", "0"))
    name = path.name.removesuffix(".json.gz")
    return path.with_name(f"{name}.host{host}.json.gz") if host else path


def _leave(folder: Path, rank: int) -> None:
    """This rank is through; the last one of the host removes the folder."""
    with _alone(folder) as is_there:
        (folder / f"rank{rank}.beacon").unlink(missing_ok=True)
        if is_there and not _others(folder, rank, alive=True):
            rmtree(folder, ignore_errors=True)


def _others(folder: Path, rank: int, *, alive: bool) -> list[int]:
    """The other ranks of this host whose processes live, or do not."""
    found = []
    for path in sorted(folder.glob("rank*.beacon")):
        other, place = int(path.stem.removeprefix("rank")), Beacon.read(path)
        if other != rank and place is not None and _is_alive(place.pid) == alive:
            found.append(other)
    return found


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is still listed does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # another user's, or a system without /proc
        return True
    return state != "Z"


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Within, no other rank of this host is within; whether the folder is still there."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder.exists()
    finally:
        os.close(lock)
