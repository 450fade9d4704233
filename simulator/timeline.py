"""When everything happened: spans and memory samples as NumPy columns, nothing left to decide.

The simulator, the validator and an imported trace all produce this; every figure, metric and
export reads only this.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind

__all__ = ["Timeline"]


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
        held = np.zeros((self.num_ranks, self.num_stages), bool)
        held[self.rank, self.stage] = True
        return (np.cumsum(held, axis=1, dtype=np.int32) - 1)[self.rank, self.stage]

    def of(self, *kinds: Kind) -> Self:
        """The spans of some kinds, in the same order, without memory samples."""
        return self.where(np.isin(self.kind, kinds))

    def where(self, mask: NDArray[np.bool_]) -> Self:
        """The spans where a mask of shape (num_spans,) is true, without memory samples."""
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
        return replace(self, memory_rank=rank, memory_time=time, memory_bytes=nbytes)

    def memory_of(self, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times [s] and bytes of one rank's memory samples, in order of time."""
        mask = self.memory_rank == rank
        return self.memory_time[mask], self.memory_bytes[mask]

    def peak_memory(self) -> NDArray[np.float64]:
        """The largest sample of each rank, shape (num_ranks,). [bytes]"""
        peak = np.zeros(self.num_ranks)
        np.maximum.at(peak, self.memory_rank, self.memory_bytes)
        return peak

    def __eq__(self, other: object) -> bool:
        """The same spans and samples, bit for bit."""
        return isinstance(other, Timeline) and all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]
