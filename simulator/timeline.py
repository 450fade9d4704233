"""When everything happened: spans and memory samples as NumPy columns, nothing left to decide.

The simulator, the validator and an imported trace all produce this; every figure, metric and
export reads only this.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind

__all__ = ["Timeline"]

_OPTIMIZER = int(Kind.OPTIMIZER)  # the last kind that occupies a compute stream


class _Streams(NamedTuple):
    """Which spans the compute streams run."""

    by_start: NDArray[np.int32]  # compute spans by rank, then start
    by_end: NDArray[np.int32]  # the same by rank, then end
    first: NDArray[np.int64]  # where each rank begins in both, shape (num_ranks + 1,)
    sorted: bool  # whether all spans stand by rank, then start


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """Spans of ops, and samples of each rank's memory.

    A span of a compute kind occupies its rank's compute stream; a span of `SEND_*` or `RECV_*` is
    a transfer, from the moment both ends are posted to the arrival of the last byte, once for
    each end. Spans stand sorted by rank, then start, then the order in the row. A memory sample
    holds from its time on, until the rank's next one.
    """

    rank: NDArray[np.int32]  # shape (num_spans,)
    stage: NDArray[np.int32]  # shape (num_spans,)
    kind: NDArray[np.int8]  # shape (num_spans,), values of Kind
    microbatch: NDArray[np.int32]  # shape (num_spans,), -1 = the stage as a whole
    start: NDArray[np.float64]  # shape (num_spans,) [s]
    end: NDArray[np.float64]  # shape (num_spans,) [s]
    memory_rank: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    memory_time: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # [s]
    memory_bytes: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # [bytes]

    @property
    def num_spans(self) -> int:
        """Spans of all kinds. [1]"""
        return len(self.rank)

    @cached_property
    def num_ranks(self) -> int:
        """Pipeline ranks. [1]"""
        return int(self.rank.max(initial=-1)) + 1

    @cached_property
    def num_stages(self) -> int:
        """Model stages. [1]"""
        return int(self.stage.max(initial=-1)) + 1

    @cached_property
    def makespan(self) -> float:
        """From time zero to the end of the last span. [s]"""
        return float(self.end.max(initial=0.0))

    @cached_property
    def chunk(self) -> NDArray[np.int32]:
        """How many of its rank's stages lie before a span's stage, shape (num_spans,): 0, 1, ..."""
        return (np.cumsum(self.held, axis=1, dtype=np.int32) - 1)[self.rank, self.stage]

    @cached_property
    def held(self) -> NDArray[np.bool_]:
        """Whether a rank runs anything of a stage, shape (num_ranks, num_stages)."""
        held = np.zeros((self.num_ranks, self.num_stages), np.bool_)
        assert self._streams is not None  # no rank or stage is negative
        _hold(self.rank, self.stage, held)
        return held

    @property
    def is_sorted(self) -> bool:
        """Whether the spans stand by rank, then start, as an imported file's may not."""
        return self._streams.sorted

    @property
    def on_stream(self) -> NDArray[np.int32]:
        """Indices of the compute spans by rank, then start, shape (num_compute,).

        Raises:
            ValueError: a span has a negative rank or stage, or a kind that is none.
        """
        return self._streams.by_start

    @property
    def by_end(self) -> NDArray[np.int32]:
        """The same indices by rank, then end, shape (num_compute,)."""
        return self._streams.by_end

    def stream_of(self, rank: int) -> NDArray[np.int32]:
        """Indices of one rank's compute spans, in order of start."""
        first = self._streams.first
        return self._streams.by_start[first[rank] : first[rank + 1]]

    @cached_property
    def _streams(self) -> _Streams:
        index = np.empty(self.num_spans, np.int32)
        count = np.zeros(self.num_ranks + 1, np.int64)
        columns = (self.rank, self.stage, self.kind, self.microbatch, self.start, self.end)
        bad, size, all_sorted, starts_sorted, ends_sorted = _find(*columns, len(Kind), index, count)
        if bad >= 0:
            raise ValueError(
                f"span {bad} has rank {self.rank[bad]}, stage {self.stage[bad]}, kind "
                f"{self.kind[bad]} and microbatch {self.microbatch[bad]}; none may be negative, "
                f"but microbatch -1, and kind is less than {len(Kind)}"
            )
        index.resize(size, refcheck=False)  # in place: a copy would double the peak
        if not starts_sorted:
            index = index[np.lexsort((self.start[index], self.rank[index]))]
        by_end = index
        if not ends_sorted:
            by_end = index[np.lexsort((self.end[index], self.rank[index]))]
        return _Streams(index, by_end, np.cumsum(count), all_sorted)

    def of(self, *kinds: Kind) -> Self:
        """The spans of some kinds, in the same order, without memory samples."""
        return self.where(np.isin(self.kind, kinds))

    def where(self, mask: NDArray[np.bool_ | np.integer]) -> Self:
        """The spans where a mask is true, or those at some indices, without memory samples."""
        columns = ("rank", "stage", "kind", "microbatch", "start", "end")
        return type(self)(**{name: getattr(self, name)[mask] for name in columns})

    @property
    def compute(self) -> Self:
        """The spans on the ranks' compute streams."""
        return self.where(self.kind <= Kind.OPTIMIZER)

    def pairs(self) -> NDArray[np.intp]:
        """Index of the first op of each overlapped pair; the second stands right behind it."""
        compute = self.kind <= Kind.OPTIMIZER
        same = (self.rank[1:] == self.rank[:-1]) & compute[1:] & compute[:-1]
        same &= (self.start[1:] == self.start[:-1]) & (self.end[1:] == self.end[:-1])
        return np.flatnonzero(same & (self.end[1:] > self.start[1:]))

    def with_memory(
        self, rank: NDArray[np.int32], time: NDArray[np.float64], nbytes: NDArray[np.float64]
    ) -> Self:
        """The same spans with these memory samples, three columns of one length."""
        made = replace(self, memory_rank=rank, memory_time=time, memory_bytes=nbytes)
        names = {f.name for f in fields(self)}
        known = {name: value for name, value in vars(self).items() if name not in names}
        vars(made).update(known)  # what is derived from the spans stays derived
        return made

    def memory_of(self, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times [s] and bytes of one rank's memory samples, in order of time."""
        mask = self.memory_rank == rank
        return self.memory_time[mask], self.memory_bytes[mask]

    def peak_memory(self) -> NDArray[np.float64]:
        """The largest sample of each rank, shape (num_ranks,). [bytes]"""
        peak = np.zeros(self.num_ranks)
        if len(self.memory_rank):
            other = np.flatnonzero(self.memory_rank[1:] != self.memory_rank[:-1]) + 1
            first = np.concatenate([[0], other])  # of each run of one rank
            runs = np.maximum.reduceat(self.memory_bytes, first)
            np.maximum.at(peak, self.memory_rank[first], runs)
        return peak

    def __eq__(self, other: object) -> bool:
        """The same spans and samples, bit for bit."""
        return isinstance(other, Timeline) and all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]


@kernel
def _find(
    rank: NDArray[np.int32],
    stage: NDArray[np.int32],
    kind: NDArray[np.int8],
    microbatch: NDArray[np.int32],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    num_kinds: int,
    index: NDArray[np.int32],
    count: NDArray[np.int64],
) -> tuple[int, int, bool, bool, bool]:
    """Write the compute spans to `index` and their number on rank r to `count[r + 1]`.

    Returns the first span that is none, or -1; the number of compute spans; whether all spans,
    the compute spans' starts and their ends are sorted.
    """
    size, before = 0, -1
    all_sorted = starts_sorted = ends_sorted = True
    for i in range(len(kind)):
        if rank[i] < 0 or stage[i] < 0 or microbatch[i] < -1:
            return i, size, all_sorted, starts_sorted, ends_sorted
        if kind[i] < 0 or kind[i] >= num_kinds:
            return i, size, all_sorted, starts_sorted, ends_sorted
        if i > 0 and (
            rank[i] < rank[i - 1] or (rank[i] == rank[i - 1] and start[i] < start[i - 1])
        ):
            all_sorted = False
        if kind[i] > _OPTIMIZER:
            continue
        if before >= 0 and rank[i] < rank[before]:
            starts_sorted = ends_sorted = False
        elif before >= 0 and rank[i] == rank[before]:
            if start[i] < start[before]:
                starts_sorted = False
            if end[i] < end[before]:
                ends_sorted = False
        index[size] = i
        count[rank[i] + 1] += 1
        size += 1
        before = i
    return -1, size, all_sorted, starts_sorted, ends_sorted


@kernel
def _hold(rank: NDArray[np.int32], stage: NDArray[np.int32], held: NDArray[np.bool_]) -> None:
    """Mark the stages of every rank."""
    for i in range(len(rank)):
        held[rank[i], stage[i]] = True
