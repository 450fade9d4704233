"""Chrome trace JSON, for ui.perfetto.dev and chrome://tracing.

A rank is a process; its compute stream is a thread, and so are its sends, its receives and its
collectives, each on as many threads as overlap. Arrows lead from a send to its receive; memory is
a counter. Timestamps are in µs there, so the exact seconds stand beside them for `decode`.

Source: N. Duca and D. Sinclair, "Trace Event Format", Google, 2016.
"""

import heapq
import json
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import NO_MICROBATCH, Kind
from simulator.timeline import Timeline
from traces.columns import timeline_of
from traces.labels import WORDS, Labels

__all__ = ["SUFFIXES", "about", "decode", "encode", "is_foreign"]

SUFFIXES = (".json",)
_FORMAT = "bubblescope timeline 1"
_THREADS = ("compute", "send", "receive", "collective")
_LONGEST_HEAD = 1 << 28  # of our own words [bytes]
_LANES = 1000  # thread ids of one stream: 0.., 1000.., 2000.., 3000..


def encode(timeline: Timeline, labels: Labels, _suffix: str) -> bytes:
    """One event a line, so that the file can be searched with line tools."""
    times = (timeline.start, timeline.end, timeline.memory_time, timeline.memory_bytes)
    if not all(np.isfinite(column).all() for column in times):
        raise ValueError("the timeline holds a time or size that is not finite; JSON has none")
    thread = _threads(timeline)
    words = {"title": labels.title, "subtitle": labels.subtitle, "unit": labels.unit}
    about = {**labels.about, **words, "format": _FORMAT}
    events = [
        *_names(timeline, thread),
        *_spans(timeline, thread),
        *_arrows(timeline, thread),
        *_counters(timeline),
    ]
    head = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'
    return (head + ",\n".join(events) + "\n]}\n").encode()


def _stream() -> NDArray[np.int64]:
    """Which of `_THREADS` shows a kind, shape (num_kinds,)."""
    return np.array(
        [0 if k.is_compute else 1 if k.is_send else 2 if k.is_receive else 3 for k in Kind]
    )


def _threads(timeline: Timeline) -> NDArray[np.int64]:
    """A thread id per span: spans of one thread never overlap, which viewers rely on."""
    thread = _stream()[timeline.kind] * _LANES
    start, end = _nanoseconds(timeline.start), _nanoseconds(timeline.end)
    order = np.lexsort((end, start, thread, timeline.rank))
    place = timeline.rank[order] * (_LANES * len(_THREADS)) + thread[order]
    cuts = np.flatnonzero(np.diff(place)) + 1
    for group in np.split(order, cuts):
        if len(group) and (np.maximum.accumulate(end[group])[:-1] > start[group][1:]).any():
            thread[group] += _lanes(start[group].tolist(), end[group].tolist())
    return thread


def _lanes(start: list[int], end: list[int]) -> list[int]:
    """The lowest free lane of each interval; intervals stand in order of their start."""
    lanes: list[int] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for begin, finish in zip(start, end, strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (finish, lane))
        lanes.append(lane)
    return lanes


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(seconds * 1e9).astype(np.int64)


def _microseconds(nanoseconds: NDArray[np.int64]) -> list[float]:
    """As µs that do not fall below their nanosecond: Perfetto cuts `ts * 1000` to an integer."""
    us = nanoseconds / 1e3
    below = (us * 1e3).astype(np.int64) < nanoseconds
    exact: list[float] = np.where(below, np.nextafter(us, np.inf), us).tolist()
    return exact


def _names(timeline: Timeline, thread: NDArray[np.int64]) -> Iterator[str]:
    for rank in range(timeline.num_ranks):
        for name, args in (
            ("process_name", {"name": f"rank {rank}"}),
            ("process_sort_index", {"sort_index": rank}),
        ):
            yield json.dumps({"ph": "M", "pid": rank, "tid": 0, "name": name, "args": args})
    for place in np.unique(timeline.rank.astype(np.int64) << 32 | thread).tolist():
        rank, tid = place >> 32, place & 0xFFFFFFFF
        lane = tid % _LANES
        text = _THREADS[tid // _LANES] + (f" {lane + 1}" if lane else "")
        for name, args in (
            ("thread_name", {"name": text}),
            ("thread_sort_index", {"sort_index": tid}),
        ):
            yield json.dumps({"ph": "M", "pid": rank, "tid": tid, "name": name, "args": args})


def _spans(timeline: Timeline, thread: NDArray[np.int64]) -> Iterator[str]:
    t = timeline
    start, end = _nanoseconds(t.start), _nanoseconds(t.end)
    names = [kind.name for kind in Kind]
    words = [WORDS[kind] for kind in Kind]
    integers = (t.rank, t.stage, t.kind, t.microbatch, thread)
    times = (_microseconds(start), _microseconds(end - start), t.start.tolist(), t.end.tolist())
    for rank, stage, kind, microbatch, tid, ts, duration, begin, finish in zip(
        *(column.tolist() for column in integers), *times, strict=True
    ):
        number = "" if microbatch == NO_MICROBATCH else microbatch
        yield (
            f'{{"ph":"X","pid":{rank},"tid":{tid},"ts":{ts!r},"dur":{duration!r}'
            f',"name":"{stage}{names[kind]}{number}","cat":"{words[kind]}"'
            f',"args":{{"stage":{stage},"kind":"{names[kind]}","microbatch":{microbatch}'
            f',"start":{begin!r},"end":{finish!r}}}}}'
        )


def _arrows(timeline: Timeline, thread: NDArray[np.int64]) -> Iterator[str]:
    """From each send to the receive of the same tensor, one stage deeper (F) or back (B)."""
    number = 0
    for send, receive, step in ((Kind.SEND_F, Kind.RECV_F, 1), (Kind.SEND_B, Kind.RECV_B, -1)):
        source, target = _pairs(timeline, send, receive, step)
        start, middle = timeline.start[source], (timeline.start[target] + timeline.end[target]) / 2
        ends = (
            timeline.rank[source].tolist(),
            thread[source].tolist(),
            _microseconds(_nanoseconds(start)),
            timeline.rank[target].tolist(),
            thread[target].tolist(),
            _microseconds(_nanoseconds(middle)),  # inside the receive, so that it binds to it
        )
        name = "activation" if send is Kind.SEND_F else "gradient"
        for rank, tid, ts, to_rank, to_tid, to_ts in zip(*ends, strict=True):
            what = f'"id":{number},"cat":"transfer","name":"{name}"'
            yield f'{{"ph":"s","pid":{rank},"tid":{tid},"ts":{ts!r},{what}}}'
            yield f'{{"ph":"f","bp":"e","pid":{to_rank},"tid":{to_tid},"ts":{to_ts!r},{what}}}'
            number += 1


def _pairs(
    timeline: Timeline, send: Kind, receive: Kind, step: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of sends and of their receives; the same tensor's k-th send is its k-th receive."""

    def keyed(kind: Kind, shift: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        spans = np.flatnonzero(timeline.kind == kind)
        tensor = (timeline.stage[spans] + shift).astype(np.int64) << 32
        tensor += timeline.microbatch[spans]
        spans = spans[np.lexsort((timeline.start[spans], tensor))]
        tensor.sort()
        first = np.searchsorted(tensor, tensor)
        return spans, np.stack([tensor, np.arange(len(tensor)) - first], axis=1)

    sends, tensors = keyed(send, step)
    receives, wanted = keyed(receive, 0)
    where = {pair: i for i, pair in enumerate(map(tuple, wanted.tolist()))}
    match = np.array([where.get((t, k), -1) for t, k in tensors.tolist()], dtype=np.int64)
    return sends[match >= 0], receives[match[match >= 0]]


def _counters(timeline: Timeline) -> Iterator[str]:
    samples = (timeline.memory_rank.tolist(), timeline.memory_time.tolist())
    ts = _microseconds(_nanoseconds(timeline.memory_time))
    for rank, time, us, nbytes in zip(*samples, ts, timeline.memory_bytes.tolist(), strict=True):
        yield (
            f'{{"ph":"C","pid":{rank},"ts":{us!r},"name":"memory","args":{{"bytes":{nbytes!r}}}'
            f',"time":{time!r}}}'
        )


def decode(data: bytes) -> Timeline:
    """The timeline of `encode`.

    Raises:
        ValueError: the data is cut off, holds no events, or is some other JSON; says what is
            missing.

    """
    document = _document(data)
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise ValueError("the list traceEvents is missing")
    kinds = {kind.name: int(kind) for kind in Kind}
    spans, samples = [], []
    for number, event in enumerate(events):
        try:
            phase = event["ph"]
            if phase == "X":
                spans.append(_span(event, kinds))
            elif phase == "C":
                time, nbytes = float(event["time"]), float(event["args"]["bytes"])
                samples.append((int(event["pid"]), time, nbytes))
        except KeyError as error:
            raise ValueError(f"event {number} of traceEvents lacks {error}") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"event {number} of traceEvents is malformed: {error}") from None
    return timeline_of(spans, samples)


def is_foreign(file: IO[bytes]) -> bool:
    """Whether a file is trace-event JSON with events, and not of `encode`.

    What is no JSON at all, or holds no event, is left to `decode`, which says so.
    """
    head = b""
    while b'"traceEvents"' not in head and (part := file.read(1 << 20)):
        head += part  # our words stand before the events
        if len(head) > _LONGEST_HEAD:
            break
    if f'"format": "{_FORMAT}"'.encode() in head.partition(b'"traceEvents"')[0]:
        return False
    start = head.lstrip()[:1]
    return b'"ph"' in head + file.read(1 << 20) and start in (b"{", b"[")


def about(data: bytes) -> dict[str, Any]:
    """What `encode` was told beside the timeline: title, subtitle, unit and `Labels.about`.

    Raises:
        ValueError: the data is cut off, or is some other JSON.

    """
    words: dict[str, Any] = _document(data)["otherData"]
    return words


def _document(data: bytes) -> dict[str, Any]:
    """The JSON of one of our own files."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON, or is cut off ({error})") from None
    if not isinstance(document, dict | list) or not document:
        raise ValueError("it holds no events")
    other = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(other, dict) or other.get("format") != _FORMAT:
        if isinstance(document, dict) and document.get("traceEvents", NotImplemented) == []:
            raise ValueError("it holds no events")
        raise ValueError(f'otherData.format = "{_FORMAT}" is missing, so it is from elsewhere')
    return dict(document)


def _span(event: dict[str, Any], kinds: dict[str, int]) -> tuple[int, int, int, int, float, float]:
    args = event["args"]
    kind = args["kind"]
    if kind not in kinds:
        raise ValueError(f"args.kind is {kind!r}; kinds are {' '.join(kinds)}")
    return (
        int(event["pid"]),
        int(args["stage"]),
        kinds[kind],
        int(args["microbatch"]),
        float(args["start"]),
        float(args["end"]),
    )
