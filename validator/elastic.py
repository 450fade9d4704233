"""A rank that torchrun has started: the same work; the first gathers the records of all."""

import json
import os
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

from torch import distributed

from validator.events import Measured, collect
from validator.rank import work
from validator.session import Session

__all__ = ["run_as_rank"]


def run_as_rank(session: Session) -> Measured | None:
    """Run this process's rank; the first one gets what all have measured, the others None.

    A rank that fails says so and ends; torchrun then ends the others.

    Raises:
        ValueError: torchrun started another number of processes.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != session.num_ranks:
        raise ValueError(
            f"torchrun started {size} processes, but --gpus or --cpus asks for "
            f"{session.num_ranks}; let them agree"
        )
    with TemporaryDirectory(prefix="bubblescope-") as name:
        folder = Path(name)
        records = work(
            session,
            folder,
            rank,
            int(os.environ.get("LOCAL_RANK", rank)),
            None,
            at_end=lambda: _gathered(session, folder, rank),
            at_failure=lambda: rmtree(folder, ignore_errors=True),
        )
        return None if records is None else Measured(session, tuple(records))


def _gathered(session: Session, folder: Path, rank: int) -> list[dict[str, Any]] | None:
    """All ranks' records on the first; also across hosts, which share no folder."""
    mine = json.dumps(collect(session, folder).records)
    control = distributed.new_group(backend="gloo")
    found: list[Any] | None = [None] * session.num_ranks if rank == 0 else None
    distributed.gather_object(mine, found, dst=0, group=control)
    if found is None:
        return None
    return [record for text in found for record in json.loads(text)]
