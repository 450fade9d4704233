"""Chunks of points judged on a Dask cluster.

What travels is plain data: the space as JSON, a range, the front's columns; back come the verdict's
columns. Workers need bubblescope installed, of the same version; one that joins later is checked
with the first chunk that it gets. Source of the protocol: docs.dask.org, "Futures".
"""

import queue
import re
import socket
import threading
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.search.front import Front
from simulator.search.judge import Judged
from simulator.search.known import Known
from simulator.search.local import Answer, Chunk, Task, work
from simulator.search.space import Space
from simulator.search.store import COLUMNS, model_version

__all__ = ["Cluster", "checked_address", "judge_chunk"]

CONNECT = 5.0  # for a scheduler, or its first worker, to answer [s]
DESERTED = 600.0  # without one worker, before a search ends instead of waiting on [s]
MOST_GREETING = 1 << 20  # of a scheduler, on connecting [bytes]
AHEAD = 2  # chunks that a worker holds, so that it never waits for the next [1]
ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx)://(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):(\d{1,5})/?")

Plain = dict[str, Any]


def checked_address(text: str) -> str:
    """A scheduler's address.

    >>> checked_address("tcp://10.0.0.1:8786")
    'tcp://10.0.0.1:8786'

    Raises:
        ValueError: it is none.
    """
    match = ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ValueError(
            f"--scheduler is {text!r}, which is no address; write it as in tcp://host:8786"
        )
    return text


def judge_chunk(parcel: Plain) -> Plain:
    """What a worker of the cluster does. A version that differs is told, not judged with."""
    version = model_version()
    if version != parcel["version"]:
        from distributed import get_worker

        return {"version": version, "worker": str(get_worker().address)}
    space, known = _space(parcel["space"])
    task = Task(space, parcel["margin"], parcel["judge"], parcel["seconds"])
    answer = work(task, Chunk(**parcel["chunk"]), Front(**parcel["front"]), known)
    judged = answer.judged
    assert judged is not None
    columns: dict[str, NDArray[np.generic]] = {name: getattr(judged, name) for name in COLUMNS}
    return {
        "judged": {
            "first": judged.first,
            "stop": judged.stop,
            "dropped": judged.dropped,
            "index": judged.index,
            **columns,
        },
        "size": answer.size,
        "seconds": answer.seconds,
    }


class Cluster:
    """A team of a cluster's workers. A class because it holds the connection."""

    def __init__(self, task: Task, address: str) -> None:
        self._client = _connected(checked_address(address))
        self._task = task
        self._space = task.space.model_dump_json()
        self._address = address
        self._came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._chunks: dict[Any, Chunk] = {}
        self._sent = 0
        self._manned = monotonic()  # when a worker was there last

    @property
    def num_workers(self) -> int:
        """Worker threads of the cluster at the moment. [1]"""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return sum(worker["nthreads"] for worker in workers.values())

    @property
    def free(self) -> int:
        """Chunks that keep every worker busy; one when none is there, for those to come. [1]"""
        return max(1, AHEAD * self.num_workers) - len(self._chunks)

    def send(self, chunk: Chunk, front: Front) -> None:
        """Give it to the scheduler."""
        parcel = {
            "version": model_version(),
            "space": self._space,
            "margin": self._task.margin,
            "judge": self._task.judge,
            "seconds": self._task.seconds,
            "chunk": vars(chunk),
            "front": front.arrays(),
        }
        self._sent += 1
        key = f"bubblescope-{id(self):x}-{self._sent}"
        future = self._client.submit(judge_chunk, parcel, key=key, pure=False)
        self._chunks[future] = chunk
        future.add_done_callback(self._came.put)

    def answers(self, timeout: float) -> list[Answer]:
        """What has come back.

        Raises:
            ValueError: the scheduler is gone, all workers are and none comes back, or a worker
                lacks our version.
        """
        found: list[Answer] = []
        try:
            future = self._came.get(timeout=timeout)
            while True:
                if future.status in ("lost", "pending"):  # its worker died with the verdict
                    future.add_done_callback(self._came.put)  # the scheduler judges it again
                else:
                    found.append(self._answer(future))
                future = self._came.get_nowait()
        except queue.Empty:
            pass
        if not found and self._client.status != "running":
            raise ValueError(self._gone)
        if found or self.num_workers:
            self._manned = monotonic()
        elif monotonic() - self._manned > DESERTED:
            raise ValueError(
                f"the scheduler at {self._address} has had no workers for {DESERTED:g} s; what was "
                f"judged is kept if -o names a file: start some with `dask worker {self._address}` "
                "and run the same command again"
            )
        return found

    def close(self) -> None:
        """Cancel what is under way and let go of the cluster."""
        for future in list(self._chunks):
            future.release()
        self._client.close(timeout=CONNECT)

    @property
    def _gone(self) -> str:
        return (
            f"the scheduler at {self._address} went away; what was judged is kept if -o names a "
            "file: start it anew and run the same command again"
        )

    def _answer(self, future: Any) -> Answer:  # noqa: ANN401 - of an optional library
        """What one future holds."""
        chunk = self._chunks.pop(future)
        if future.status != "finished":
            return _lost(future, chunk, self._gone)
        parcel = future.result()
        future.release()
        if "version" in parcel:
            raise ValueError(
                f"the worker at {parcel['worker']} has bubblescope {parcel['version']}, this is "
                f"{model_version()}: install the same on both"
            )
        return Answer(chunk, Judged(**parcel["judged"]), parcel["size"], parcel["seconds"])


def _lost(future: Any, chunk: Chunk, gone: str) -> Answer:  # noqa: ANN401 - of an optional library
    """A chunk whose workers died; what else went wrong is raised."""
    from distributed.scheduler import KilledWorker

    if future.status == "cancelled":
        raise ValueError(gone)
    error = future.exception()
    if isinstance(error, KilledWorker):
        return Answer(chunk, None)
    if isinstance(error, ModuleNotFoundError) or "simulator" in str(error):
        raise ValueError(
            f"a worker cannot load bubblescope ({error}): install {model_version()} there"
        ) from error
    raise error


def _connected(address: str) -> Any:  # noqa: ANN401 - of an optional library
    """A client of a scheduler that has workers."""
    import logging

    from distributed import Client

    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # we say it in one line
    _check_greeting(address)
    make: Any = Client
    try:
        client = make(address, timeout=CONNECT, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise ValueError(
            f"no scheduler answers at {address} within {CONNECT:g} s; start one with `dask "
            "scheduler` and workers with `dask worker ADDRESS`, or leave --scheduler out"
        ) from error
    except Exception as error:  # a stranger's words break the protocol anywhere
        raise ValueError(
            f"what answers at {address} is no Dask scheduler ({type(error).__name__}); give the "
            "address that `dask scheduler` prints, or leave --scheduler out"
        ) from error
    try:
        client.wait_for_workers(1, timeout=CONNECT)
    except TimeoutError as error:
        client.close(timeout=CONNECT)
        raise ValueError(
            f"the scheduler at {address} has no workers; start some with `dask worker {address}`"
        ) from error
    return client


def _check_greeting(address: str) -> None:
    """Refuse what answers in another protocol: over TCP a scheduler greets first, in frames."""
    match = ADDRESS.fullmatch(address)
    if match is None or match[1] != "tcp":
        return
    place = (match[2].strip("[]"), int(match[3]))
    try:
        with socket.create_connection(place, CONNECT) as stream:
            size = int.from_bytes(stream.recv(8), "little")
    except TimeoutError:
        size = 0
    except OSError:
        return  # nobody is there: the client says so
    if not 0 < size < MOST_GREETING:
        raise ValueError(
            f"what answers at {address} is no Dask scheduler; give the address that `dask "
            "scheduler` prints, or leave --scheduler out"
        )


class _Kept(threading.local):
    """What a thread of a worker knows: its space, and what it worked out. No other may see it."""

    text = ""
    space: Space
    known: Known


_KEPT = _Kept()


def _space(text: str) -> tuple[Space, Known]:
    """The space of its JSON, parsed once in a thread, and what the thread knows of it."""
    if _KEPT.text != text:
        _KEPT.space, _KEPT.known = Space.model_validate_json(text), Known()
        _KEPT.text = text
    return _KEPT.space, _KEPT.known
