"""The IR: what each rank does, in which order, and nothing about time.

An `Op` is one piece of work and prints as PyTorch's own text, `2F0` = stage 2, forward,
microbatch 0. A `Schedule` is one row of ops per pipeline rank, kept as NumPy columns because
262,144 ops are an everyday size. Where a stage lives and what an op waits for are derived from
the rows, so interleaved and bidirectional schedules need no extra field.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_MICROBATCH", "Columns", "Deadlock", "Kind", "Op", "Pair", "Schedule", "awaited"]

NO_MICROBATCH = -1  # ops that concern a stage as a whole, as REDUCE_GRAD and OPTIMIZER


class Deadlock(ValueError):
    """A schedule that cannot finish: names each stuck rank and what it waits for.

    `grid` draws the rows with the spots marked; `spots` names each stuck rank's op.
    """

    def __init__(
        self, message: str, grid: str = "", spots: tuple[tuple[int, "Op"], ...] = ()
    ) -> None:
        super().__init__(message)
        self.grid, self.spots = grid, spots


class Kind(IntEnum):
    """What an op does, in PyTorch's letters: `B` is the full backward, `I` + `W` its two halves."""

    F = 0
    B = 1
    I = 2  # backward for the input gradient
    W = 3  # backward for the weight gradient
    OPTIMIZER = 4
    SEND_F = 5
    RECV_F = 6
    SEND_B = 7
    RECV_B = 8
    UNSHARD = 9
    RESHARD = 10
    REDUCE_GRAD = 11
    WAIT = 12  # the rank stands still until every transfer that it has posted is complete

    @property
    def is_compute(self) -> bool:
        """Whether the op occupies the rank's serial compute stream."""
        return self <= Kind.OPTIMIZER

    @property
    def is_send(self) -> bool:
        """Whether the op sends an activation or a gradient to another rank."""
        return self in (Kind.SEND_F, Kind.SEND_B)

    @property
    def is_receive(self) -> bool:
        """Whether the op receives an activation or a gradient from another rank."""
        return self in (Kind.RECV_F, Kind.RECV_B)


_OP = re.compile(
    r"(\d{1,9})("
    + "|".join(k.name for k in sorted(Kind, key=lambda k: -len(k.name)))
    + r")(\d{0,9})"
)


class Op(NamedTuple):
    """One piece of work of one stage for one microbatch.

    >>> Op(2, Kind.F, 0)
    2F0
    >>> Op.parse("3SEND_B7")
    3SEND_B7
    """

    stage: int
    kind: Kind
    microbatch: int = NO_MICROBATCH

    def __repr__(self) -> str:
        """PyTorch's text."""
        number = "" if self.microbatch == NO_MICROBATCH else str(self.microbatch)
        return f"{self.stage}{self.kind.name}{number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PyTorch's text.

        Raises:
            ValueError: the text is no op.

        """
        match = _OP.fullmatch(text.strip())
        if match is None:
            kinds = " ".join(kind.name for kind in Kind)
            raise ValueError(
                f"{text[:40]!r} is no op; write stage, kind and microbatch as in 2F0; kinds are "
                f"{kinds}"
            )
        stage, kind, microbatch = match.groups()
        return cls(int(stage), Kind[kind], int(microbatch) if microbatch else NO_MICROBATCH)


class Pair(NamedTuple):
    """Two ops of one rank that run at the same time, as DualPipe overlaps a forward and a backward.

    >>> Pair(Op(0, Kind.F, 1), Op(1, Kind.B, 0))
    (0F1;1B0)OVERLAP_F_B
    >>> Pair.parse("(0F1;1B0)OVERLAP_F_B").second
    1B0
    """

    first: Op
    second: Op

    def __repr__(self) -> str:
        """PyTorch's text."""
        return f"({self.first};{self.second}){OVERLAP}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PyTorch's text.

        Raises:
            ValueError: the text is no pair of two ops.
        """
        first, found, second = (
            text.strip().removeprefix("(").removesuffix(")" + OVERLAP).partition(";")
        )
        if not found:
            raise ValueError(f"{text!r} is no pair; write two ops as in (0F1;1B0){OVERLAP}")
        return cls(Op.parse(first), Op.parse(second))


OVERLAP = "OVERLAP_F_B"
Item = Op | Pair


@dataclass(frozen=True, eq=False)
class Schedule:
    """One row of ops per pipeline rank, as columns: row `r` is `offsets[r]:offsets[r + 1]`.

    Build one with `Schedule.of(rows)` or `Schedule.parse(text)`.
    """

    offsets: NDArray[np.int64]  # shape (num_ranks + 1,)
    stage: NDArray[np.int32]  # shape (num_ops,)
    kind: NDArray[np.int8]  # shape (num_ops,)
    microbatch: NDArray[np.int32]  # shape (num_ops,)
    paired: NDArray[np.bool_]  # shape (num_ops,): runs at the same time as the next op of its row

    @classmethod
    def of(cls, rows: Iterable[Iterable[Item] | NDArray[np.integer]]) -> Self:
        """Take rows of ops and pairs, or of integers: stage, kind, microbatch, shape (num_ops, 3).

        A fourth column, if there is one, says that the op runs together with the next. Rows of one
        length may come as one array, shape (num_ranks, num_ops, 3).

        >>> print(Schedule.of([[Op(0, Kind.F, 0), Op(0, Kind.B, 0)]]))
        0F0,0B0
        """
        if isinstance(rows, np.ndarray) and len(rows):
            return cls._of_equal(rows)
        arrays = [row if isinstance(row, np.ndarray) else _numbers(row) for row in rows]
        if not arrays:
            raise ValueError(
                "a schedule has at least one row, one per pipeline rank; this one is empty"
            )
        lengths = np.fromiter((len(array) for array in arrays), np.int64, len(arrays))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        columns = [np.concatenate([array[:, i] for array in arrays]) for i in range(3)]
        paired = [a[:, 3] > 0 if a.shape[1] > 3 else np.zeros(len(a), bool) for a in arrays]
        types = (np.int32, np.int8, np.int32)
        stage, kind, microbatch = (c.astype(t) for c, t in zip(columns, types, strict=True))
        return cls(offsets, stage, kind, microbatch, np.concatenate(paired))

    @classmethod
    def _of_equal(cls, rows: NDArray[np.integer]) -> Self:
        num_ranks, length, _ = rows.shape
        flat = rows.reshape(num_ranks * length, -1)
        return cls(
            np.arange(0, len(flat) + 1, length, dtype=np.int64),
            flat[:, 0].astype(np.int32),
            flat[:, 1].astype(np.int8),
            flat[:, 2].astype(np.int32),
            flat[:, 3] > 0 if flat.shape[1] > 3 else np.zeros(len(flat), bool),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read comma-separated rows, one line a rank: PyTorch's CSV of actions.

        >>> Schedule.parse("0F0,0B0").num_ops
        2
        """
        lines = [line for line in text.splitlines() if line.strip()]
        rows = []
        for rank, line in enumerate(lines):
            row: list[Item] = []
            for column, cell in enumerate(line.split(",")):
                if not cell.strip():
                    continue
                try:
                    row.append(Pair.parse(cell) if ";" in cell else Op.parse(cell))
                except ValueError as error:
                    raise ValueError(f"row of rank {rank}, column {column}: {error}") from None
            rows.append(row)
        return cls.of(rows)

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks. [1]"""
        return len(self.offsets) - 1

    @property
    def num_ops(self) -> int:
        """Ops in all rows. [1]"""
        return len(self.stage)

    @cached_property
    def num_stages(self) -> int:
        """Model stages, one more than the deepest index. [1]"""
        return int(self.stage.max(initial=-1)) + 1

    @cached_property
    def num_microbatches(self) -> int:
        """Microbatches, one more than the largest index. [1]"""
        return int(self.microbatch.max(initial=-1)) + 1

    @cached_property
    def rank(self) -> NDArray[np.int32]:
        """The rank of every op, shape (num_ops,)."""
        return np.repeat(np.arange(self.num_ranks, dtype=np.int32), np.diff(self.offsets))

    def op(self, index: int) -> Op:
        """The op at an index of the columns."""
        return Op(int(self.stage[index]), Kind(self.kind[index]), int(self.microbatch[index]))

    def row(self, rank: int) -> tuple[Op, ...]:
        """The ops of one rank, in order; the two of a pair stand one after the other."""
        part = slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))
        columns = (self.stage[part], self.kind[part], self.microbatch[part])
        return tuple(
            Op(s, Kind(k), m) for s, k, m in zip(*(c.tolist() for c in columns), strict=True)
        )

    def items(self, rank: int) -> tuple[Item, ...]:
        """The ops and pairs of one rank, in order."""
        paired = self.paired[int(self.offsets[rank]) : int(self.offsets[rank + 1])].tolist()
        row = self.row(rank)
        return tuple(
            Pair(op, row[at + 1]) if paired[at] else op
            for at, op in enumerate(row)
            if at == 0 or not paired[at - 1]
        )

    @property
    def rows(self) -> Iterator[tuple[Op, ...]]:
        """The rows of all ranks, in order."""
        return (self.row(rank) for rank in range(self.num_ranks))

    def __eq__(self, other: object) -> bool:
        """The same rows."""
        return isinstance(other, Schedule) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("offsets", "stage", "kind", "microbatch", "paired")
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Comma-separated rows, as `parse` reads them."""
        rows = (self.items(rank) for rank in range(self.num_ranks))
        return "\n".join(",".join(map(str, row)) for row in rows)


def _numbers(row: Iterable[Item]) -> NDArray[np.int32]:
    """Ops and pairs as integers, shape (num_ops, 4)."""
    numbers: list[tuple[int, int, int, int]] = []
    for item in row:
        if isinstance(item, Pair):
            numbers += [(*item.first, 1), (*item.second, 0)]
        else:
            numbers.append((*item, 0))
    return np.array(numbers, np.int32).reshape(-1, 4)


class Columns(Protocol):
    """Ops as columns of one length: a Schedule's or a Timeline's."""

    @property
    def rank(self) -> NDArray[np.int32]: ...  # noqa: D102
    @property
    def stage(self) -> NDArray[np.int32]: ...  # noqa: D102
    @property
    def kind(self) -> NDArray[np.int8]: ...  # noqa: D102
    @property
    def microbatch(self) -> NDArray[np.int32]: ...  # noqa: D102


def awaited(ops: Columns) -> NDArray[np.int64]:
    """Index of the RECV or REDUCE_GRAD that each compute op waits for, or -1; shape (num_ops,)."""
    cause = np.full(len(ops.kind), -1, np.int64)
    stage, microbatch = ops.stage.astype(np.int64), ops.microbatch.astype(np.int64)
    message = stage * (int(microbatch.max(initial=-1)) + 1) + microbatch  # each received once
    held = ops.rank.astype(np.int64) * (int(stage.max(initial=-1)) + 1) + stage
    for source, consumers, key in (
        (Kind.RECV_F, (Kind.F,), message),
        (Kind.RECV_B, (Kind.B, Kind.I), message),
        (Kind.REDUCE_GRAD, (Kind.OPTIMIZER,), held),
    ):
        index = np.flatnonzero(ops.kind == source)
        users = np.flatnonzero(np.isin(ops.kind, consumers))
        if len(index):
            table = np.full(int(key.max()) + 1, -1, np.int64)
            table[key[index]] = index
            cause[users] = table[key[users]]
    return cause
