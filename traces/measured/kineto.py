"""Reads trace-event JSON of other tools: PyTorch's profiler (Kineto), Chrome, Perfetto; `.gz` too.

The parser keeps the fields named here and skips the rest without building it, so that a large file
costs little more than its own size.

Source: N. Duca and D. Sinclair, "Trace Event Format", Google, 2016; field names of communication
as PyTorch 2.4 and later write them (torch/csrc/profiler/util.h).
"""

import gzip
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from traces.measured.recording import Collector, Recording

__all__ = ["read_kineto"]

Number = int | float | str | None
KERNELS = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel"}
DEVICE_RANGES = {"gpu_user_annotation"}
LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime", "Runtime", "privateuse1_runtime"}
IGNORED = {"python_function", "Trace", "overhead", "ac2g", "fwdbwd", "async_cpu_to_gpu"}
PIPELINE = re.compile(r"(?i)\bpp\b|_pp$|^pp_|pipeline")
CUDA = 1  # PyTorch's device type of memory events
COMMUNICATION, SEND = "c10d::", "c10d::send"  # operators that compute nothing


class Args(msgspec.Struct, gc=False):
    """Of an event, what is read."""

    correlation: Number = None
    collective: Number = msgspec.field(name="Collective name", default=None)
    source: Number = msgspec.field(name="Src Rank", default=None)
    target: Number = msgspec.field(name="Dst Rank", default=None)
    device_type: Number = msgspec.field(name="Device Type", default=None)
    group: Number = msgspec.field(name="Process Group Description", default=None)
    allocated: Number = msgspec.field(name="Total Allocated", default=None)


class Event(msgspec.Struct, gc=False):
    """One event."""

    ph: str = ""
    name: str = ""
    cat: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: Number = None
    tid: Number = None
    args: Args | None = None


class Group(msgspec.Struct):
    """A process group, as PyTorch describes it."""

    pg_name: Number = None
    pg_desc: Number = None
    ranks: list[int] | None = None


class Distributed(msgspec.Struct):
    """Who wrote the file."""

    rank: int | None = None
    pg_config: list[Group] | None = None


class Document(msgspec.Struct):
    """A file."""

    traceEvents: list[Event]  # noqa: N815
    baseTimeNanoseconds: int = 0  # noqa: N815
    distributedInfo: Distributed | None = None  # noqa: N815
    host_name: str = ""


def read_kineto(path: Path, is_op: Callable[[str], bool]) -> list[Recording]:
    """The trace of one process, or of each whose host ran ranges that `is_op` calls an op.

    A file that says which rank wrote it is of one process. Processes stand in order of their id.

    Raises:
        ValueError: the file cannot be read, is cut off, is other JSON, or holds no events.
    """
    document = _document(uncompressed(path))
    events, info = document.traceEvents, document.distributedInfo
    processes = [] if info is not None else _processes(events, is_op)
    parts = _apart(events, processes) if len(processes) > 1 else [events]
    host = document.host_name or (str(path) if len(parts) > 1 else "")  # a file has one clock
    found = []
    for part in parts:
        made = Collector(str(path), 1e-6, origin=document.baseTimeNanoseconds, host=host)
        if info is not None:
            made.rank = info.rank
            made.pipeline = _pipeline(info)
        _collect(part, made)
        found.append(made.recording())
    return found


def uncompressed(path: Path) -> bytes:
    """The bytes of a file, of a `.gz` what is in it.

    Raises:
        ValueError: it cannot be read, or is cut off.
    """
    try:
        if path.suffix.lower() != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return file.read()
    except EOFError:
        raise ValueError("it is cut off: the compressed data ends early") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"it is no gzip, or is damaged ({error})") from None
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}") from None


def _document(data: bytes) -> Document:
    """The file's JSON; Chrome may leave out the end of a bare list of events."""
    bare = data[:64].lstrip()[:1] == b"["
    try:
        if not bare:
            return msgspec.json.decode(data, type=Document, strict=False)
        try:
            events = msgspec.json.decode(data, type=list[Event], strict=False)
        except msgspec.DecodeError:
            closed = data.rstrip().rstrip(b",") + b"]"
            events = msgspec.json.decode(closed, type=list[Event], strict=False)
        return Document(events)
    except msgspec.ValidationError as error:
        raise ValueError(f"it is no trace: {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no UTF-8 text ({error.reason} at byte {error.start})") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no JSON, or is cut off ({error})") from None


def _processes(events: Sequence[Event], is_op: Callable[[str], bool]) -> list[Number]:
    """Ids of the processes whose host ran ops, numbers first."""
    told: dict[str, bool] = {}
    found: set[Number] = set()
    for event in events:
        if event.ph in ("X", "B") and event.pid not in found and event.cat not in NOT_OF_HOST:
            name = event.name
            if name not in told:
                told[name] = is_op(name)
            if told[name]:
                found.add(event.pid)
    return sorted(found, key=lambda pid: (0, pid, "") if isinstance(pid, int) else (1, 0, str(pid)))


NOT_OF_HOST = KERNELS | DEVICE_RANGES | LAUNCHES | IGNORED | {"cpu_op"}


def _apart(events: Sequence[Event], processes: Sequence[Number]) -> list[list[Event]]:
    """The events of each process; a kernel is of the process that launched it."""
    place = {process: at for at, process in enumerate(processes)}
    launched: dict[int, int] = {}
    for event in events:
        if event.cat in LAUNCHES and event.pid in place and (number := _correlation(event)):
            at = place[event.pid]
            launched[number] = at if launched.get(number, at) == at else NOBODY
    parts: list[list[Event]] = [[] for _ in processes]
    for event in events:
        kernel = event.cat in KERNELS
        of = launched.get(_correlation(event)) if kernel else place.get(event.pid)
        if of == NOBODY:
            raise ValueError(
                f"processes {', '.join(map(str, processes[:4]))} number their kernels alike, so it "
                "is not told whose they are; give one file a rank"
            )
        if of is not None:
            parts[of].append(event)
    return parts


NOBODY = -1


def _pipeline(info: Distributed) -> tuple[int, ...]:
    """The ranks of the pipeline's process group, where exactly one is called so."""
    groups = [
        group.ranks
        for group in info.pg_config or ()
        if group.ranks and PIPELINE.search(str(group.pg_desc))
    ]
    same = [tuple(ranks) for ranks in groups if len(ranks) > 1]
    return same[0] if len(set(same)) == 1 else ()


def _collect(events: Sequence[Event], made: Collector) -> None:
    """Sort events by what they are."""
    launches: dict[int, float] = {}
    kernels: list[tuple[int, float, float, int]] = []
    open_: dict[tuple[Number, Number], list[tuple[str, float]]] = {}
    for event in events:
        ts, cat = event.ts, event.cat
        if ts is None:
            continue
        if event.ph == "X":
            end = ts + (event.dur or 0.0)
            if cat == "cpu_op":
                if event.name == "record_param_comms":
                    _message(event, ts, made)
                elif not event.name.startswith(COMMUNICATION):
                    made.work.append(ts)
                elif event.name == SEND:
                    made.sends.append((ts, end))
            elif cat in KERNELS:
                kernels.append((made.name(_kernel(event)), ts, end, _correlation(event)))
            elif cat in LAUNCHES:
                launches[_correlation(event)] = ts
            elif cat in DEVICE_RANGES:
                made.device_ranges.append((made.name(event.name), ts, ts, end))
            elif cat not in IGNORED:
                made.ranges.append((made.name(event.name), ts, ts, end))
        elif event.ph == "B":
            open_.setdefault((event.pid, event.tid), []).append((event.name, ts))
        elif event.ph == "E":
            if stack := open_.get((event.pid, event.tid)):
                name, start = stack.pop()
                made.ranges.append((made.name(name), start, start, ts))
        elif event.name == "[memory]" and event.args is not None:
            _memory(event.args, ts, made)
    launches.pop(0, None)
    made.kernels += [(name, launches.get(c, ts), ts, end) for name, ts, end, c in kernels]


def _kernel(event: Event) -> str:
    """A kernel's name; of a collective with its process group, which tells tensor from data."""
    group = None if event.args is None else event.args.group
    return event.name if group is None else f"{event.name[:200]} [{group}]"


def _correlation(event: Event) -> int:
    """What joins a launch and its kernel; 0 for none."""
    value = None if event.args is None else event.args.correlation
    return value if isinstance(value, int) else 0


def _message(event: Event, ts: float, made: Collector) -> None:
    """A send or a receive that was asked of the communication library."""
    args = event.args
    if args is None or args.collective not in ("send", "recv"):
        return
    send = args.collective == "send"
    peer = args.target if send else args.source
    if isinstance(peer, int) and 0 <= peer < 1 << 31:
        made.messages.append((ts, peer, send))


def _memory(args: Args, ts: float, made: Collector) -> None:
    """What is allocated on the device."""
    if args.device_type == CUDA and isinstance(args.allocated, int | float):
        made.memory.append((ts, float(args.allocated)))
