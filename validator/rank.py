"""One rank's process: it takes its place, meets the others, is watched, and fails with words."""

import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import distributed

from validator.beacon import RUNNING, Beacon, Place
from validator.launch import START
from validator.session import Session
from validator.worker import Worker

__all__ = ["FAILED", "HUNG", "told", "work"]

FAILED, HUNG = 1, 3  # exit codes
BEAT = 0.25  # how often a rank looks whether it still moves [s]
GROUP = 3  # timeouts that a process group waits: the watch, which names the op, comes first [1]
LONGEST = 160  # of an error's text, which libraries begin with a place in their source [characters]


def work(
    session: Session,
    folder: Path,
    rank: int,
    local_rank: int,
    store: str | None,
    at_end: Callable[[], Any] = lambda: None,
    at_failure: Callable[[], None] = lambda: None,
    told_to_end: Callable[[float], bool] | None = None,
) -> Any:  # noqa: ANN401
    """Run one rank in this process; a failure is written down and ends it with `FAILED`.

    `at_end` is called while the ranks can still talk to each other; what it returns is returned.
    `at_failure` is called before a failure ends this process, and before it ends because
    `told_to_end`, which waits for some seconds, says so.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _place(session, local_rank)
    worker = Worker(session, folder, rank)
    gpu = torch.cuda.current_device() if session.device == "cuda" else None
    watch = (worker, os.getppid(), gpu, at_failure, told_to_end or _never_told)
    threading.Thread(target=_watch, args=watch, daemon=True).start()
    try:
        with worker.beacon.patient(START):
            _meet(session, rank, store)
        worker.run()
        result = at_end()
    except Exception as error:  # whatever it is, it is written down and ends the process
        cause = error.__cause__ or error
        place = Beacon.read(Path(folder, f"rank{rank}.beacon"))
        _report(worker, place, told(cause), hung=False)
        at_failure()
        os._exit(FAILED)
    distributed.destroy_process_group()
    return result


def told(error: BaseException) -> str:
    """An error in one line, without the place in a library's source that it begins with.

    >>> told(RuntimeError("[/gloo/tcp/pair.cc:547] Connection closed by peer"))
    'RuntimeError: Connection closed by peer'
    """
    line = next(iter(str(error).strip().splitlines()), "")
    line = re.sub(r"^\[[^\]]*\][ .]*", "", line)
    return f"{type(error).__name__}: {shorten(line, LONGEST, placeholder=' ...') or 'no message'}"


def _report(
    worker: Worker, place: Place | None, text: str, *, hung: bool, waits: bool = False
) -> None:
    """Write down what failed, where; `waits` says that its GPU has not begun that op."""
    session = worker.session
    at = "its start"
    if place is not None:
        lowered = session.plays[place.play].lowered if place.play >= 0 else None
        at = place.told(lowered, worker.rank)
    inside = place is not None and place.running == RUNNING and not waits
    worker.write("error", op=at, text=text, when=time.monotonic(), hung=hung, inside=inside)
    sys.stderr.write(f"rank {worker.rank} failed at {at}: {text}\n")  # torchrun shows it
    sys.stderr.flush()


def _watch(
    worker: Worker,
    parent: int,
    gpu: int | None,
    at_failure: Callable[[], None],
    told_to_end: Callable[[float], bool],
) -> None:
    """End this process when nothing ends for too long, or when who started it is gone."""
    path, timeout = worker.path.with_suffix(".beacon"), worker.session.timeout
    if gpu is not None:
        torch.cuda.set_device(gpu)  # each thread has a current one of its own
    while True:
        over = told_to_end(min(BEAT, timeout / 8))
        worker.beacon.beat()
        if over or os.getppid() != parent:
            at_failure()
            os._exit(FAILED)
        place = Beacon.read(path)
        if place is None or place.overdue(timeout) <= 0:
            continue
        stuck, begun = worker.recorder.unfinished()
        if stuck is not None:
            place = place._replace(running=RUNNING, op=stuck)
        text = f"nothing ended for {timeout:g} s"
        _report(worker, place, text, hung=True, waits=not begun)
        at_failure()
        os._exit(HUNG)


def _never_told(seconds: float) -> bool:
    """Who started this process ends it."""
    time.sleep(seconds)
    return False


def _place(session: Session, local_rank: int) -> None:
    """A core or a GPU of its own; ranks that share a GPU, or play alone, have the first."""
    if session.device == "cuda":
        torch.cuda.set_device(local_rank if session.transfers == "direct" else 0)
        return
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})


def _meet(session: Session, rank: int, store: str | None) -> None:
    """Join the other processes. A looped rank is alone: PyTorch's fake group moves nothing."""
    if session.transfers == "looped":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        distributed.init_process_group(
            "fake", rank=rank, world_size=session.num_ranks, store=FakeStore()
        )
        return
    if sys.platform == "linux" and store is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    direct = session.device == "cuda" and session.transfers == "direct"
    where: dict[str, Any] = {}  # else torchrun's environment says
    if store is not None:
        where = {
            "init_method": f"file://{store}",
            "rank": rank,
            "world_size": session.num_ranks,
        }
    patience = max(GROUP * session.timeout, START)
    distributed.init_process_group(
        "nccl" if direct else "gloo", timeout=timedelta(seconds=patience), **where
    )
