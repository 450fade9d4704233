"""What a Timeline says: the step's split by cause, both bubbles, memory, throughput.

Everything is computed from the Timeline's columns, rank by rank.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind
from simulator.split import IDLE, SPLIT, Split, split
from simulator.timeline import Timeline

__all__ = ["IDLE", "SPLIT", "Report", "Split", "fraction", "in_flight", "spans_of_ranks", "split"]

Index = NDArray[np.int32]
Column = NDArray[np.float64]

_F, _B, _W = int(Kind.F), int(Kind.B), int(Kind.W)


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
    step_time_low: float | None = None  # nine runs of ten lie between these two [s]
    step_time_high: float | None = None  # [s]
    interval_from: str | None = None  # the measured runs that the interval is learnt from
    outside: tuple[str, ...] = ()  # what of the job no measured run or kernel covers
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
            for name in ("longest_gaps", "outside"):
                table[name] = tuple(map(str, table[name]))
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
        text = text or (f.name == "interval_from" and value is not None)
        if text != isinstance(value, str) or (number and not 0 <= value < float("inf")):
            raise ValueError(f"{f.name} is {value!r}")
    columns = [*(getattr(report.split, name) for name in SPLIT), report.peak_in_flight]
    columns += [] if report.peak_memory is None else [report.peak_memory]
    columns += list((report.memory_parts or {}).values())
    for column in columns:
        if column.shape != (report.num_ranks,) or not np.isfinite(column).all():
            raise ValueError(f"a column is not one number for each of {report.num_ranks} ranks")


def _columns(parts: Split) -> list[Column]:
    """The columns of a split, in order."""
    return [getattr(parts, name) for name in SPLIT]


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
    peak = np.zeros(timeline.num_ranks, np.int64)
    columns = (timeline.rank, timeline.kind, timeline.start, timeline.end)
    _count(*columns, timeline.on_stream, timeline.by_end, peak)
    return peak


def spans_of_ranks(timeline: Timeline) -> tuple[Column, Column]:
    """From each rank's first forward or backward to its last, and the idle in it, (num_ranks,). [s]

    Overlapped pairs count once. The optimizer step is left out, as in the zero-bubble papers.
    """
    begin, finish = np.full(timeline.num_ranks, np.inf), np.zeros(timeline.num_ranks)
    busy = np.zeros(timeline.num_ranks)
    columns = (timeline.rank, timeline.kind, timeline.start, timeline.end)
    _cover(*columns, timeline.on_stream, begin, finish, busy)
    return finish - begin, finish - begin - busy


@kernel
def _count(
    rank: Index,
    kind: NDArray[np.int8],
    start: Column,
    end: Column,
    on_stream: Index,
    by_end: Index,
    peak: NDArray[np.int64],
) -> None:
    """Write the most forwards in flight of each rank; one that ends makes room for the next."""
    level = ended = 0
    for at in range(len(on_stream)):
        i = on_stream[at]
        if at == 0 or rank[i] != rank[on_stream[at - 1]]:
            level, ended = 0, at
        if kind[i] != _F:
            continue
        while ended < len(by_end):
            other = by_end[ended]
            if rank[other] != rank[i] or end[other] > start[i]:
                break
            if kind[other] == _B or kind[other] == _W:
                level -= 1
            ended += 1
        level += 1
        peak[rank[i]] = max(peak[rank[i]], level)


@kernel
def _cover(
    rank: Index,
    kind: NDArray[np.int8],
    start: Column,
    end: Column,
    on_stream: Index,
    begin: Column,
    finish: Column,
    busy: Column,
) -> None:
    """Write each rank's first start, last end, and the time in which it works between."""
    before = -1
    for at in range(len(on_stream)):
        i = on_stream[at]
        if kind[i] > _W:
            continue
        here, since = rank[i], start[i]
        if before >= 0 and rank[before] == here:
            since = max(since, end[before])
        begin[here] = min(begin[here], start[i])
        finish[here] = max(finish[here], end[i])
        busy[here] += end[i] - since
        before = i
