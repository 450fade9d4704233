"""One rank's ops, from its recording: which name, which step, when on the device.

An op took place from the first to the last kernel that the host launched within its range, on any
thread, as autograd launches from its own. Without a device the host's time counts, from the first
operator of the range to its end or to the send that ends it: a range may begin with the wait for
its input, and may end with sending what it made. Operators that communicate are no work.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind
from traces.measured.kernels import P2P, class_of, exposed, of_ops, outside
from traces.measured.mapping import Mapping, Named
from traces.measured.recording import Intervals, Recording

__all__ = ["NO_STEP", "Carriers", "Ops", "RankOps", "ops_of"]

NO_STEP = -1
TRANSFERS = (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)

Column = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Carriers:
    """What moved messages: NCCL's send/receive kernels, gloo's sends and receives."""

    asked: Column  # sorted, shape (n,) [s]
    start: Column  # when it was ready to send or receive [s]
    end: Column  # [s]
    step: NDArray[np.int64]  # NO_STEP outside of all steps
    message: NDArray[np.int64]  # which of them carried a message, shape (num_messages,), sorted
    peer: NDArray[np.int32]  # the message's other end in the whole job
    send: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, kw_only=True)
class Ops:
    """The ops of one rank, in the order in which the host ran them."""

    kind: NDArray[np.int8]
    stage: NDArray[np.int32]  # UNKNOWN where it is to be counted
    microbatch: NDArray[np.int32]  # UNKNOWN where it is to be counted
    chunk: NDArray[np.int32]
    step: NDArray[np.int64]  # NO_STEP outside of all steps
    asked: Column  # begin of the host's range [s]
    left: Column  # end of the host's range [s]
    start: Column  # NaN where nothing ran [s]
    end: Column  # [s]
    exposed: Column  # collectives within it behind which nothing computed [s]
    paired: NDArray[np.bool_]  # ran together with the next

    def where(self, mask: NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Some of them."""
        return type(self)(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})


@dataclass(frozen=True, eq=False, kw_only=True)
class RankOps:
    """What is kept of a recording."""

    recording: Recording  # without its kernels and ranges
    ops: Ops
    carriers: Carriers
    reductions: Intervals  # collectives outside of all ops
    on_device: bool
    marked: bool  # the trace marks steps

    def later(self, seconds: float) -> Self:
        """The same with times after an origin so much earlier. [s]"""
        ops, carriers, recording = self.ops, self.carriers, self.recording
        return replace(
            self,
            ops=_shifted(ops, seconds, "asked", "left", "start", "end"),
            carriers=_shifted(carriers, seconds, "asked", "start", "end"),
            recording=_shifted(recording, seconds, "message_time", "memory_time"),
            reductions=Intervals(self.reductions.name, *(c + seconds for c in self.reductions[1:])),
        )


T = TypeVar("T", Ops, Carriers, Recording)


def _shifted(value: T, seconds: float, *names: str) -> T:
    return replace(value, **{name: getattr(value, name) + seconds for name in names})


def ops_of(recording: Recording, mapping: Mapping) -> RankOps:
    """Read a recording.

    Raises:
        ValueError: no range has a name that the mapping knows.
    """
    told = [mapping.read(name) for name in recording.names]
    steps = [mapping.step_of(name) for name in recording.names]
    ranges = recording.ranges
    if not _computes(told, ranges.name).any() and len(recording.device_ranges.name):
        ranges = recording.device_ranges
    if not _computes(told, ranges.name).any():
        raise ValueError(_unknown(recording))
    known = np.flatnonzero(_known(told, ranges.name))
    known = known[_outermost(ranges.asked[known], ranges.end[known], _kinds(told, ranges, known))]
    rows, source = [], []
    for at, name in zip(known.tolist(), ranges.name[known].tolist(), strict=True):
        rows += [(*one, place < len(told[name]) - 1) for place, one in enumerate(told[name])]
        source += [at] * len(told[name])
    table = np.array(rows, np.int64).reshape(-1, 5)
    place = np.array(source, np.int64)
    is_kernel = class_of(recording.names)
    kernels = recording.kernels
    on_device = ranges is recording.ranges and bool(len(kernels.name))
    asked, left = ranges.asked[place], ranges.end[place]
    kinds = is_kernel[kernels.name] if len(kernels.name) else np.zeros(0, np.int8)
    if on_device:
        start, end = of_ops(kernels, kinds, asked, left, table[:, 0] <= Kind.OPTIMIZER)
    elif len(recording.work) and ranges is recording.ranges:
        start, end = _of_host(recording, asked, left)
    else:
        start, end = asked.copy(), left.copy()
    ops = Ops(
        kind=table[:, 0].astype(np.int8),
        stage=table[:, 1].astype(np.int32),
        microbatch=table[:, 2].astype(np.int32),
        chunk=table[:, 3].astype(np.int32),
        step=_steps(ranges, steps, asked),
        asked=asked,
        left=left,
        start=start,
        end=end,
        exposed=exposed(kernels, kinds, start, end),
        paired=table[:, 4].astype(np.bool_),
    )
    compute = ops.kind <= Kind.OPTIMIZER
    return RankOps(
        recording=replace(recording, ranges=NOTHING, device_ranges=NOTHING, kernels=NOTHING),
        ops=ops,
        carriers=_carriers(recording, ranges, steps, kinds),
        reductions=outside(kernels, kinds, asked[compute], left[compute]),
        on_device=on_device,
        marked=bool((ops.step != NO_STEP).any()),
    )


NOTHING = Intervals(np.empty(0, np.int32), np.empty(0), np.empty(0), np.empty(0))


def _of_host(recording: Recording, asked: Column, left: Column) -> tuple[Column, Column]:
    """From the first operator within each range to its end, or to the send that ends it."""
    work = recording.work
    first, stop = np.searchsorted(work, asked), np.searchsorted(work, left)
    worked = stop > first
    start = np.where(worked, np.append(work, np.inf)[first], asked)
    last = np.where(worked, np.append(work, np.inf)[np.maximum(stop - 1, 0)], np.inf)
    sends = np.append(recording.sends[:, 0], np.inf)
    return start, np.minimum(left, sends[np.searchsorted(sends[:-1], last)])


def _computes(told: Sequence[tuple[Named, ...]], name: NDArray[np.int32]) -> NDArray[np.bool_]:
    return _known([tuple(op for op in one if op.kind <= Kind.W) for one in told], name)


def _known(told: Sequence[tuple[Named, ...]], name: NDArray[np.int32]) -> NDArray[np.bool_]:
    table = np.array([bool(one) for one in told], np.bool_)
    return table[name] if len(table) else np.zeros(len(name), np.bool_)


def _kinds(
    told: Sequence[tuple[Named, ...]], ranges: Intervals, known: NDArray[np.intp]
) -> NDArray[np.int64]:
    return np.array([int(told[name][0].kind) for name in ranges.name[known].tolist()], np.int64)


def _outermost(start: Column, end: Column, kind: NDArray[np.int64]) -> NDArray[np.intp]:
    """Of ranges within ranges of compute, only the outer one is an op; transfers all are."""
    compute = kind <= Kind.OPTIMIZER
    order = np.lexsort((-end, start))
    reach = np.maximum.accumulate(np.where(compute, end, -np.inf)[order])
    before = np.concatenate([[-np.inf], reach[:-1]])
    inner = np.zeros(len(start), np.bool_)
    inner[order] = (end[order] <= before) & compute[order]
    return np.flatnonzero(~inner)


def _steps(ranges: Intervals, steps: list[int | None], asked: Column) -> NDArray[np.int64]:
    """The step of each op: the range of a step within which it begins."""
    number = np.array([NO_STEP if step is None else step for step in steps], np.int64)
    mine = np.flatnonzero(number[ranges.name] != NO_STEP)
    if len(mine) == 0:
        return np.full(len(asked), NO_STEP)
    at = np.searchsorted(ranges.asked[mine], asked, side="right") - 1
    inside = (at >= 0) & (asked < ranges.end[mine[np.maximum(at, 0)]])
    return np.where(inside, number[ranges.name[mine[np.maximum(at, 0)]]], NO_STEP)


def _carriers(
    recording: Recording, ranges: Intervals, steps: list[int | None], kinds: NDArray[np.int8]
) -> Carriers:
    """What moved messages, with the peers that the library was asked for.

    A batch is one kernel for several messages: those asked for since the kernel before it.
    """
    if len(kinds):
        moved = recording.kernels.where(kinds == P2P)
    else:
        word = np.array([name in SENT for name in recording.names], np.bool_)
        mine = word[recording.ranges.name]
        moved = recording.ranges.where(mine)
        moved = moved._replace(start=_called(recording, moved))
    at = np.searchsorted(moved.asked, recording.message_time, side="left")
    inside = (at < len(moved.asked)) & bool(len(kinds))
    return Carriers(
        asked=moved.asked,
        start=moved.start,
        end=moved.end,
        step=_steps(ranges, steps, moved.asked),
        message=at[inside].astype(np.int64),
        peer=recording.message_peer[inside],
        send=recording.message_send[inside],
    )


def _called(recording: Recording, moved: Intervals) -> Column:
    """When sends were called, receives as they are.

    A library of the host marks a send only after the call that made the bytes leave.
    """
    at = np.searchsorted(recording.sends[:, 0], moved.start, side="right") - 1
    padded = np.append(recording.sends, [[np.inf, -np.inf]], axis=0)
    send = np.array([name.endswith(":send") for name in recording.names], np.bool_)[moved.name]
    found: Column = np.where(
        send & (at >= 0) & (moved.start <= padded[at, 1]), padded[at, 0], moved.start
    )
    return found


SENT = tuple(f"{library}:{word}" for library in ("gloo", "mpi", "ucc") for word in ("send", "recv"))


def _unknown(recording: Recording) -> str:
    """Which names there are, and how to tell what they mean."""
    counts = np.bincount(recording.ranges.name, minlength=len(recording.names))
    order = np.argsort(-counts, kind="stable")[:6]
    names = [f"{recording.names[at][:40]!r} ({counts[at]}x)" for at in order.tolist() if counts[at]]
    there = f"its most frequent names are {', '.join(names)}" if names else "it has no named range"
    return (
        f"no range is the name of a pipeline op; {there}; say what they mean with --mapping FILE, "
        f"as [[op]] name = 'my_forward' kind = \"F\"; PyTorch's Schedule1F1B names no op, so wrap "
        "its stage's forward_one_chunk and backward_one_chunk in record_function (docs/traces.md)"
    )
