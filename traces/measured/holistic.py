"""A timeline as PyTorch's profiler would have written it: a `.json.gz` for each rank in a folder.

Holistic Trace Analysis and TensorBoard read these, and so do we: kernels on a compute stream and on
one for each kind of communication, their launches, and the names of ops as ranges.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simulator.schedule import NO_MICROBATCH, Kind
from simulator.timeline import Timeline
from traces.replacing import replace_bytes

__all__ = ["write_ranks"]

FIRST = 100_000  # of the correlation ids; readers shrink their columns to the smallest type
LAUNCH = 0.5  # length of a launch, and of a range without work [us]
STREAMS = {True: 7, False: 20}  # of compute; the first of communication
KERNELS = {
    Kind.SEND_F: "ncclDevKernel_SendRecv",
    Kind.RECV_F: "ncclDevKernel_SendRecv",
    Kind.SEND_B: "ncclDevKernel_SendRecv",
    Kind.RECV_B: "ncclDevKernel_SendRecv",
    Kind.UNSHARD: "ncclDevKernel_AllGather",
    Kind.REDUCE_GRAD: "ncclDevKernel_ReduceScatter",
}
NOTHING = (Kind.RESHARD, Kind.WAIT)  # no kernel


def write_ranks(timeline: Timeline, folder: Path) -> list[Path]:
    """Write `rank_0.json.gz` and so on into a folder, which is made; gives their paths.

    Raises:
        ValueError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {folder}: {error.strerror}") from None
    paths = [folder / f"rank_{rank}.json.gz" for rank in range(timeline.num_ranks)]
    for rank, path in enumerate(paths):
        events = list(_events(timeline, rank))
        head = {
            "schemaVersion": 1,
            "host_name": "simulated",
            "deviceProperties": [{"id": rank, "name": "simulated", "numSms": 1}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": timeline.num_ranks,
                "pg_config": [
                    {
                        "pg_name": "0",
                        "pg_desc": "pipeline",
                        "ranks": list(range(timeline.num_ranks)),
                    }
                ],
            },
            "traceEvents": events,
            "traceName": path.name,
        }
        replace_bytes(path, gzip.compress(json.dumps(head).encode(), mtime=0))
    return paths


def _events(timeline: Timeline, rank: int) -> Iterator[dict[str, Any]]:
    """The step, then of every span its range, launch and kernel."""
    t = timeline.where((timeline.rank == rank) & ~np.isin(timeline.kind, NOTHING))
    busy = [kind for kind in Kind if (t.kind == kind).any() and not kind.is_compute]
    stream = {kind: STREAMS[False] + busy.index(kind) for kind in busy}
    host = {"pid": rank + 1000, "tid": rank + 1000}
    slots = _launches(t)
    last = max(timeline.makespan * 1e6, float(slots.max(initial=0.0)) + 3 * LAUNCH)
    yield {
        "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": -10.0,
        "dur": last + 11.0, **host, "args": {"External id": 0},
    }  # fmt: skip
    columns = (t.stage, t.kind, t.microbatch, t.start * 1e6, t.end * 1e6, slots)
    for number, (stage, code, microbatch, start, end, slot) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True), FIRST
    ):
        kind = Kind(code)
        name = f"PP:{stage}{kind.name}{'' if microbatch == NO_MICROBATCH else microbatch}"
        on = stream.get(kind, STREAMS[True])
        joined = {"External id": number, "correlation": number}
        yield {
            "ph": "X", "cat": "user_annotation", "name": name, "ts": slot, "dur": 2 * LAUNCH,
            **host, "args": {"External id": number},
        }  # fmt: skip
        yield {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": slot + LAUNCH / 2,
            "dur": LAUNCH, **host, "args": {**joined, "cbid": 211},
        }  # fmt: skip
        yield {
            "ph": "X", "cat": "kernel", "name": KERNELS.get(kind, f"{kind.name}_kernel"),
            "ts": start, "dur": end - start, "pid": rank, "tid": on,
            "args": {**joined, "device": rank, "stream": on, "context": 1},
        }  # fmt: skip


def _launches(t: Timeline) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Host times at which each span is launched: distinct, in order, none after its start. [us]

    The host runs ahead of the device, so before the first span where there is no room between.
    """
    order = np.argsort(t.start, kind="stable")
    latest = t.start[order] * 1e6 - 2 * LAUNCH
    room = 2 * LAUNCH * np.arange(len(order) - 1, -1, -1)
    slots = np.empty(len(order))
    slots[order] = np.minimum.accumulate((latest + room)[::-1])[::-1] - room
    return slots
