"""A measured run as a Timeline, with how long each end of a message waited for the other.

A transfer lasts from when both ends were ready to when the receiver had it: what an NCCL kernel
shows before the other end was ready is waiting, not moving.
"""

from collections.abc import Callable, Sequence
from collections.abc import Mapping as Table
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.measured.alignment import AlignedBy, aligned, on_one_zero
from traces.measured.clocks import Clocks, unaligned
from traces.measured.kineto import read_kineto
from traces.measured.mapping import BUILT_IN, Mapping
from traces.measured.nsys import SUFFIXES, read_nsys
from traces.measured.numbering import numbered, with_steps
from traces.measured.ops import RankOps, ops_of
from traces.measured.ranks import in_order
from traces.measured.spans import timeline_of_step
from traces.measured.transfers import Transfers, transfers

__all__ = ["Imported", "bring_in", "bring_in_steps", "from_saved"]

Column = NDArray[np.float64]
Progress = Callable[[Path, int], None]  # a file, and bytes of it, before it is read


@dataclass(frozen=True, eq=False, kw_only=True)
class Imported:
    """One step of a measured run."""

    timeline: Timeline
    posted: Column  # when a transfer's end was ready, else the span's start, shape (num_spans,) [s]
    exposed: Column  # collectives within a span that nothing hides, shape (num_spans,) [s]
    ranks: tuple[int, ...]  # of the whole job, shape (num_ranks,)
    step: int | None  # None where the trace marks no steps
    steps: tuple[int, ...]  # the complete ones
    clocks: Clocks
    aligned_by: AlignedBy  # "record": files count from one zero; "nothing": each from its own
    on_device: bool | None  # times are kernels', not the host's; None for a run that we saved
    notes: tuple[str, ...]  # what could not be told

    @property
    def wait(self) -> Column:
        """How long each end of a transfer was ready before the other, shape (num_spans,). [s]"""
        seconds: Column = self.timeline.start - self.posted
        return seconds


def bring_in(
    paths: Sequence[Path],
    *,
    mapping: Mapping = BUILT_IN,
    step: int | None = None,
    ranks: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Read one pipeline's traces, align the clocks and take one step.

    Args:
        paths: one file a rank, or Nsight Systems' files of one or more.
        mapping: what names mean.
        step: its number; the complete step of median length when left out.
        ranks: which ranks of the job make up the pipeline, in its order; all when left out.
        progress: told of each file before it is read.

    Raises:
        ValueError: a file cannot be read, or the files do not make up one pipeline.
    """
    run = _measured(paths, mapping, ranks, progress)
    return _imported(run, _chosen(run.ranks, run.clocks, run.steps, step))


def bring_in_steps(paths: Sequence[Path], *, mapping: Mapping = BUILT_IN) -> list[Imported]:
    """The same, of every complete step; those in which nothing ran are left out.

    Raises:
        ValueError: as `bring_in`.
    """
    run = _measured(paths, mapping, None, None)
    ran = _lengths(run.ranks, run.clocks, run.steps)
    return [_imported(run, step) for _, step in sorted(ran, key=lambda each: each[1])]


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """All of a run."""

    ranks: list[RankOps]
    order: list[int]  # of the whole job
    messages: Transfers
    clocks: Clocks
    aligned_by: AlignedBy
    steps: list[int]
    notes: tuple[str, ...]


def _measured(
    paths: Sequence[Path],
    mapping: Mapping,
    ranks: Sequence[int] | None,
    progress: Progress | None,
) -> Measured:
    """Read the files, number the ops, pair the messages, align the clocks."""
    found = [with_steps(one) for path in paths for one in _read(path, mapping, progress)]
    found, order = in_order(found, ranks)
    made = [
        replace(one, ops=numbered(one.ops, rank, len(found), mapping.num_chunks))
        for rank, one in enumerate(found)
    ]
    _check_stages(made, order)
    steps = _complete(made, order)
    made, one_zero = on_one_zero(made)
    messages, notes = transfers(made, order)
    clocks, aligned_by = aligned(made, messages, one_zero)
    lost = sum(int(np.isnan(one.ops.start[one.ops.kind <= Kind.OPTIMIZER]).sum()) for one in made)
    if lost:
        notes += (f"{lost} ops launched no kernel and are left out",)
    return Measured(
        ranks=made,
        order=order,
        messages=messages,
        clocks=clocks,
        aligned_by=aligned_by,
        steps=steps,
        notes=notes,
    )


def _imported(run: Measured, step: int) -> Imported:
    timeline, posted, exposed = timeline_of_step(run.ranks, run.messages, run.clocks, step)
    marked = any(len(np.unique(one.ops.step)) > 1 or one.marked for one in run.ranks)
    return Imported(
        timeline=timeline,
        posted=posted,
        exposed=exposed,
        ranks=tuple(run.order),
        step=step if marked else None,
        steps=tuple(run.steps) if marked else (),
        clocks=run.clocks,
        aligned_by=run.aligned_by,
        on_device=any(one.on_device for one in run.ranks),
        notes=run.notes,
    )


def from_saved(timeline: Timeline, about: Table[str, Any]) -> Imported:
    """A run that we saved, with what its file says beside the timeline.

    Raises:
        ValueError: its waits do not belong to its spans.
    """
    posted = np.array(about.get("posted", timeline.start), np.float64)
    if posted.shape != timeline.start.shape or not (posted <= timeline.start).all():
        raise ValueError("the saved waits do not belong to the saved spans; save the run again")
    ranks = timeline.num_ranks
    return Imported(
        timeline=timeline,
        posted=posted,
        exposed=np.zeros(timeline.num_spans),
        ranks=tuple(range(ranks)),
        step=None,
        steps=(),
        clocks=unaligned(ranks),
        aligned_by="one clock",
        on_device=None,
        notes=(),
    )


def _read(path: Path, mapping: Mapping, progress: Progress | None) -> list[RankOps]:
    """The ranks in one file; what is not needed any more is let go before the next."""
    try:
        if progress is not None:
            progress(path, path.stat().st_size)
        if path.suffix.lower() in SUFFIXES:
            path.stat()
            return [ops_of(one, mapping) for one in read_nsys(path)]
        return [ops_of(one, mapping) for one in read_kineto(path, mapping.computes)]
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} holds no timeline: {error}") from None


def _check_stages(ranks: list[RankOps], order: list[int]) -> None:
    """All stages are there; each op of a step stands on one rank, once."""
    held: dict[int, set[int]] = {}
    for one, rank in zip(ranks, order, strict=True):
        compute = one.ops.where(one.ops.kind < Kind.OPTIMIZER)
        for stage in np.unique(compute.stage).tolist():
            held.setdefault(stage, set()).add(rank)
        key = np.column_stack([compute.step, compute.kind, compute.stage, compute.microbatch])
        unique, count = np.unique(key, axis=0, return_counts=True)
        if len(count) and count.max() > 1:
            step, kind, stage, microbatch = unique[count.argmax()].tolist()
            raise ValueError(
                f"rank {rank} runs {stage}{Kind(kind).name}{microbatch} {count.max()} times in "
                f"step {step}; record with a step mark after each step, as profiler.step(), or "
                "name one with step = '...' in --mapping"
            )
    deepest = max([*held, *(_deepest(one) for one in ranks)], default=-1)
    missing = sorted(set(range(deepest + 1)) - set(held))
    if missing:
        raise ValueError(
            f"no file holds stage {missing[0]}, but there are stages up to {deepest}; give the "
            "traces of all pipeline ranks"
        )


def _deepest(one: RankOps) -> int:
    """The deepest stage that a rank's ops speak of: the one that it sends to, too."""
    beyond = np.isin(one.ops.kind, (Kind.SEND_F, Kind.RECV_B))
    return int((one.ops.stage + beyond).max(initial=-1))


def _complete(ranks: list[RankOps], order: list[int]) -> list[int]:
    """Steps that every rank recorded, with as many ops as any."""
    counts = [
        dict(zip(*(c.tolist() for c in np.unique(one.ops.step, return_counts=True)), strict=True))
        for one in ranks
    ]
    both = set.intersection(*(set(count) for count in counts))
    if not both:
        texts = [
            f"rank {rank} has {', '.join(map(str, sorted(count)[:4]))}"
            for rank, count in zip(order, counts, strict=True)
        ]
        raise ValueError(f"no step is in all files: {'; '.join(texts[:4])}; record the same steps")
    most = [max(count[s] for s in both) for count in counts]
    return sorted(
        s for s in both if all(c[s] == full for c, full in zip(counts, most, strict=True))
    ) or sorted(both)


def _chosen(ranks: list[RankOps], clocks: Clocks, steps: list[int], step: int | None) -> int:
    """The step that is asked for, or the one of median length."""
    if step is not None:
        if step not in steps:
            known = ", ".join(map(str, steps[:20]))
            raise ValueError(f"step {step} is not complete in all files; complete are {known}")
        return step
    lengths = sorted(_lengths(ranks, clocks, steps))
    return lengths[(len(lengths) - 1) // 2][1]


def _lengths(ranks: list[RankOps], clocks: Clocks, steps: list[int]) -> list[tuple[float, int]]:
    """Length and number of each step in which an op ran. [s]"""
    lengths = []
    for number in steps:
        mine = [(r, one.ops.where(one.ops.step == number)) for r, one in enumerate(ranks)]
        start = np.concatenate([clocks.common(r, ops.start) for r, ops in mine])
        end = np.concatenate([clocks.common(r, ops.end) for r, ops in mine])
        if np.isfinite(start).any():
            lengths.append((round(float(np.nanmax(end) - np.nanmin(start)), 9), number))
    if not lengths:
        raise ValueError("no op launched a kernel; record the CUDA activity too")
    return lengths
