"""What a Timeline says: the step's split by cause, both bubbles, memory, throughput.

Everything is computed from the Timeline's columns. A gap on a rank's compute stream is explained by
what the op after it waited for:

- its message was on the way: pipeline communication, up to the time it takes alone; beyond that
  the link was busy;
- its stage's gradients were being reduced, or its new weights gathered: data communication;
- else the producer was late: idle, as warm-up before the rank's first backward, as drain after its
  last forward, as dependency between.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simulator.explain import causes, shortest
from simulator.schedule import Kind
from simulator.timeline import Timeline

__all__ = ["IDLE", "SPLIT", "Report", "Split", "fraction", "in_flight", "spans_of_ranks", "split"]

Column = NDArray[np.float64]

WORK = ("compute", "recompute", "tensor", "optimizer")
COMMUNICATION = ("pipeline", "data")
IDLE = ("warm_up", "drain", "dependency", "link")
SPLIT = (*WORK, *COMMUNICATION, *IDLE)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where each pipeline rank's time goes; the fields add up to the makespan.

    Arrays of shape (num_ranks,) in [s].
    """

    compute: Column  # forward and backward without what follows
    recompute: Column  # activations computed again
    tensor: Column  # exposed tensor-parallel communication
    optimizer: Column
    pipeline: Column  # exposed point-to-point communication
    data: Column  # exposed data-parallel communication
    warm_up: Column  # idle before the first backward
    drain: Column  # idle after the last forward
    dependency: Column  # idle between: the producer was late
    link: Column  # idle because the link was busy with other traffic

    @property
    def idle(self) -> Column:
        """The bubble: idle of all causes. [s]"""
        return _sum(self, IDLE)

    @property
    def total(self) -> Column:
        """The step, on every rank. [s]"""
        return _sum(self, SPLIT)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of one run. `None` where the run has no such figure, as MFU without a model."""

    name: str
    schedule: str
    executor: str  # which executor made the timeline
    num_ranks: int  # pipeline ranks [1]
    num_microbatches: int  # [1]
    num_gpus: int | None  # [1]
    step_time: float  # of an asynchronous schedule, an iteration's once it is steady [s]
    makespan: float  # of all that was simulated: the step, or several iterations [s]
    bubble_fraction: float  # idle share of the step, mean over ranks [1]
    bubble_to_ideal: float  # idle over everything else, as Megatron's paper counts [1]
    span_bubble: (
        float  # idle share inside the largest single-rank span, the zero-bubble papers' [1]
    )
    internal_bubble: float  # idle share between each rank's first and last op, over all ranks [1]
    split: Split
    peak_in_flight: NDArray[np.int64]  # chunk-forwards held at once, shape (num_ranks,) [1]
    longest_gaps: tuple[str, ...] = ()  # the longest idle gaps, each explained
    weight_versions: NDArray[np.int64] | None = None  # most held at once, shape (num_ranks,) [1]
    staleness: NDArray[np.int64] | None = None  # most updates missed, shape (num_ranks,) [1]
    peak_memory: Column | None = None  # shape (num_ranks,) [bytes]
    memory_capacity: float | None = None  # [bytes]
    memory_parts: dict[str, Column] | None = None  # at each rank's peak, shape (num_ranks,) [bytes]
    samples_per_second: float | None = None  # sequences [1/s]
    tokens_per_second: float | None = None  # [1/s]
    tflops_per_gpu: float | None = None  # model FLOPs, no recompute [TFLOP/s]
    hardware_tflops_per_gpu: float | None = None  # with recompute [TFLOP/s]
    mfu: float | None = None  # model FLOPs over dense peak [1]
    hfu: float | None = None  # with recompute [1]

    @property
    def fits(self) -> bool | None:
        """Whether every rank's peak is within the GPU's memory."""
        if self.peak_memory is None or self.memory_capacity is None:
            return None
        return bool((self.peak_memory <= self.memory_capacity).all())

    @property
    def verdict(self) -> str | None:
        """Whether it fits, and if not, which part is too large where."""
        if self.peak_memory is None or self.memory_capacity is None or self.memory_parts is None:
            return None
        worst = int(self.peak_memory.argmax())
        peak, room = self.peak_memory[worst] / 1e9, self.memory_capacity / 1e9
        parts = {name: float(part[worst]) for name, part in self.memory_parts.items()}
        largest = max(parts, key=lambda name: parts[name])
        detail = f"rank {worst} peaks at {peak:.1f} of {room:.0f} GB"
        if peak <= room:
            return f"fits: {detail}"
        over = [r for r, nbytes in enumerate(self.peak_memory) if nbytes > self.memory_capacity]
        ranks = f"{len(over)} of {self.num_ranks} ranks are over; " if len(over) > 1 else ""
        return (
            f"does not fit: {detail}; {ranks}{largest} are the largest part, "
            f"{parts[largest] / 1e9:.1f} GB"
        )

    def days(self, tokens: float) -> float:
        """Time to train on this many tokens. [days]

        Raises:
            ValueError: tokens is not positive, or the run has no tokens.
        """
        if not 0 < tokens < float("inf"):
            raise ValueError(f"tokens is {tokens:g}; it must be positive")
        if self.tokens_per_second is None:
            raise ValueError("days of training need a model; uniform costs have no tokens")
        return tokens / self.tokens_per_second / 86400

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON types; arrays become lists, one entry a rank."""
        values: dict[str, Any] = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name != "split"
        }
        values["split"] = asdict(self.split)
        values |= {"fits": self.fits, "verdict": self.verdict}
        plain: dict[str, Any] = _plain(values)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The report that `to_dict` wrote.

        Raises:
            ValueError: a field is missing or unknown, as from another version.
        """
        try:
            table = {k: v for k, v in values.items() if k not in ("fits", "verdict")}
            table["split"] = Split(**{k: np.array(v, float) for k, v in table["split"].items()})
            table["longest_gaps"] = tuple(map(str, table["longest_gaps"]))
            table["peak_in_flight"] = np.array(table["peak_in_flight"], np.int64)
            for name in ("weight_versions", "staleness"):
                if table[name] is not None:
                    table[name] = np.array(table[name], np.int64)
            if table["peak_memory"] is not None:
                table["peak_memory"] = np.array(table["peak_memory"], float)
                parts = table["memory_parts"].items()
                table["memory_parts"] = {k: np.array(v, float) for k, v in parts}
            missing = {f.name for f in fields(cls)} - set(table)
            if missing:
                raise KeyError(*missing)
            report = cls(**table)
            _check(report)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"the saved report is damaged or of another version: {error}"
            ) from None
        return report


def _check(report: Report) -> None:
    """A saved report's numbers are numbers, one for each rank where they are columns."""
    for f in fields(report):
        value = getattr(report, f.name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        text = f.name in ("name", "schedule", "executor")
        if text != isinstance(value, str) or (number and not 0 <= value < float("inf")):
            raise ValueError(f"{f.name} is {value!r}")
    columns = [*_columns(report.split), report.peak_in_flight]
    columns += [] if report.peak_memory is None else [report.peak_memory]
    columns += list((report.memory_parts or {}).values())
    for column in columns:
        if column.shape != (report.num_ranks,) or not np.isfinite(column).all():
            raise ValueError(f"a column is not one number for each of {report.num_ranks} ranks")


def _columns(parts: Split) -> list[Column]:
    """The columns of a split, in order."""
    return [getattr(parts, name) for name in SPLIT]


def _sum(parts: Split, names: Iterable[str]) -> Column:
    total: Column = np.sum([getattr(parts, name) for name in names], axis=0)
    return total


def _plain(value: Any) -> Any:  # noqa: ANN401
    """JSON types of a value."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def fraction(value: float) -> str:
    """The small fraction that a float stands for, or nothing.

    >>> fraction(9 / 33)
    '3/11'
    >>> fraction(0.123456789)
    ''
    """
    near = Fraction(value).limit_denominator(9999)
    return f"{near}" if abs(float(near) - value) < 1e-12 and near.denominator > 1 else ""


def in_flight(timeline: Timeline) -> NDArray[np.int64]:
    """Most chunk-forwards whose backward has not ended, by rank, shape (num_ranks,). [1]"""
    split_backward = {Kind.W} if (timeline.kind == Kind.W).any() else set()
    starts = timeline.of(Kind.F)
    ends = timeline.of(Kind.B, *split_backward)
    rank = np.concatenate([starts.rank, ends.rank])
    time = np.concatenate([starts.start, ends.end])
    change = np.repeat([1, -1], [starts.num_spans, ends.num_spans])
    order = np.lexsort((change, time, rank))
    level = np.cumsum(change[order])  # every rank ends at zero
    peak = np.zeros(timeline.num_ranks, np.int64)
    np.maximum.at(peak, rank[order], level)
    return peak


def split(
    timeline: Timeline,
    *,
    recompute: Column,
    tensor: Column,
    lone: Column | None = None,
    cause: NDArray[np.int64] | None = None,
) -> Split:
    """Explain every second of every rank.

    Args:
        timeline: the run.
        recompute: recomputation within each span, shape (num_spans,). [s]
        tensor: exposed tensor-parallel communication within each span, shape (num_spans,). [s]
        lone: time of each span's transfer on free links, shape (num_spans,), where the span is
            one end of it; left out, the shortest transfer over the same boundary stands for it. [s]
        cause: what `causes` says of the timeline, if it is known already.
    """
    parts = {name: np.zeros(timeline.num_ranks) for name in SPLIT}
    on_stream = np.flatnonzero(timeline.kind <= Kind.OPTIMIZER)
    rank, kind = timeline.rank[on_stream], timeline.kind[on_stream]
    start, end = timeline.start[on_stream], timeline.end[on_stream]
    step = kind == Kind.OPTIMIZER
    first = np.concatenate([[True], rank[1:] != rank[:-1]])
    before = np.where(first, 0.0, np.concatenate([[0.0], end[:-1]]))
    busy = end - np.maximum(start, before)  # nothing for the second op of an overlapped pair
    again, exposed = recompute[on_stream].copy(), tensor[on_stream].copy()
    second = np.flatnonzero(busy <= 0.0)
    second = second[~first[second] & (start[second] < before[second])]
    for column in (again, exposed):  # the pair's time is all on its first op
        column[second - 1] += column[second]
        column[second] = 0.0
    again = np.minimum(again, busy)
    exposed = np.minimum(exposed, busy - again)
    rest = busy - again - exposed
    _add(parts["tensor"], rank, exposed)
    _add(parts["recompute"], rank, again)
    _add(parts["optimizer"], rank[step], rest[step])
    _add(parts["compute"], rank[~step], rest[~step])

    gap = np.maximum(0.0, start - before)
    cause = (causes(timeline) if cause is None else cause)[on_stream]
    has = (cause >= 0) & (timeline.kind[cause] > Kind.OPTIMIZER)  # a message, no op of its own
    left = np.where(has, timeline.start[cause], 0.0)  # when the message left
    arrived = np.where(has, timeline.end[cause], 0.0)
    under_way = np.where(has, np.clip(arrived - np.maximum(before, left), 0.0, gap), 0.0)
    alone = shortest(timeline) if lone is None else lone
    excess = np.where(has, np.maximum(0.0, arrived - left - alone[cause]), 0.0)
    excess[excess <= 1e-12 * np.maximum(arrived, 1e-300)] = 0.0
    busy_link = np.where(step, 0.0, np.minimum(under_way, excess))
    _add(parts["link"], rank, busy_link)
    _add(parts["data"], rank[step], under_way[step])
    _add(parts["pipeline"], rank[~step], (under_way - busy_link)[~step])

    late = gap - under_way
    last_forward = np.zeros(timeline.num_ranks)
    np.maximum.at(last_forward, rank[kind == Kind.F], start[kind == Kind.F])
    first_backward = np.full(timeline.num_ranks, np.inf)
    is_backward = (kind == Kind.B) | (kind == Kind.I)
    np.minimum.at(first_backward, rank[is_backward], start[is_backward])
    warm_up = start <= first_backward[rank]
    drain = ~warm_up & (start > last_forward[rank])
    for name, mask in (("warm_up", warm_up), ("drain", drain), ("dependency", ~warm_up & ~drain)):
        _add(parts[name], rank[mask], late[mask])

    finished = np.zeros(timeline.num_ranks)
    np.maximum.at(finished, rank, end)
    gathered = finished.copy()
    unshard = timeline.of(Kind.UNSHARD)
    np.maximum.at(gathered, unshard.rank, unshard.end)
    parts["data"] += gathered - finished
    parts["drain"] += timeline.makespan - gathered
    return Split(**parts)


def _add(total: Column, rank: NDArray[np.int32], seconds: Column) -> None:
    total += np.bincount(rank, weights=seconds, minlength=len(total))


def spans_of_ranks(timeline: Timeline) -> tuple[Column, Column]:
    """From each rank's first forward or backward to its last, and the idle in it, (num_ranks,). [s]

    Overlapped pairs count once. The optimizer step is left out, as in the zero-bubble papers.
    """
    work = timeline.of(Kind.F, Kind.B, Kind.I, Kind.W)
    begin, finish = np.full(timeline.num_ranks, np.inf), np.zeros(timeline.num_ranks)
    np.minimum.at(begin, work.rank, work.start)
    np.maximum.at(finish, work.rank, work.end)
    same = np.concatenate([[False], work.rank[1:] == work.rank[:-1]])
    before = np.where(same, np.concatenate([[0.0], work.end[:-1]]), -np.inf)
    busy = work.end - np.maximum(work.start, before)
    span = finish - begin
    return span, span - np.bincount(work.rank, weights=busy, minlength=timeline.num_ranks)
