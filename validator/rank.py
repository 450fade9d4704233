"""One rank's process: it takes its place, meets the others, is watched, and fails with words."""

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from validator.beacon import RUNNING, Beacon
from validator.session import Session
from validator.worker import Worker

__all__ = ["FAILED", "HUNG", "work"]

FAILED, HUNG = 1, 3  # exit codes


def work(
    session: Session,
    folder: Path,
    rank: int,
    local_rank: int,
    store: str | None,
    at_end: Callable[[], Any] = lambda: None,
) -> Any:  # noqa: ANN401
    """Run one rank in this process; a failure is written down and ends it with `FAILED`.

    `at_end` is called while the ranks can still talk to each other; what it returns is returned.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _place(session, local_rank)
    worker = Worker(session, folder, rank)
    threading.Thread(target=_watch, args=(worker, os.getppid()), daemon=True).start()
    try:
        _meet(session, rank, store)
        worker.run()
        result = at_end()
    except Exception as error:  # whatever it is, it is written down and ends the process
        cause = error.__cause__ or error
        place = Beacon.read(Path(folder, f"rank{rank}.beacon"))
        said = str(cause).strip().splitlines()
        text = f"{type(cause).__name__}: {said[0] if said else 'no message'}"
        _report(worker, place, text)
        os._exit(FAILED)
    distributed.destroy_process_group()
    return result


def _report(worker: Worker, place: Any, text: str) -> None:  # noqa: ANN401
    """Write down what failed, where."""
    session = worker.session
    at = "its start"
    if place is not None:
        lowered = session.plays[place.play].lowered if place.play >= 0 else None
        at = place.told(lowered, worker.rank)
    worker.write("error", op=at, text=text, when=time.monotonic())
    sys.stderr.write(f"rank {worker.rank} failed at {at}: {text}\n")  # torchrun shows it
    sys.stderr.flush()


def _watch(worker: Worker, parent: int) -> None:
    """End this process when nothing ends for too long, or when who started it is gone."""
    path = worker.path.with_suffix(".beacon")
    while True:
        time.sleep(min(1.0, worker.session.timeout / 4))
        if os.getppid() != parent:
            os._exit(FAILED)
        place = Beacon.read(path)
        if place is not None and time.monotonic() - place.when > worker.session.timeout:
            stuck = worker.recorder.unfinished()
            if stuck is not None:
                place = place._replace(running=RUNNING, op=stuck)
            _report(worker, place, f"nothing ended for {worker.session.timeout:g} s")
            os._exit(HUNG)


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
    distributed.init_process_group(
        "nccl" if direct else "gloo", timeout=timedelta(seconds=session.timeout), **where
    )
