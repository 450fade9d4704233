"""Where the forwards and backwards of compute-only rows stand, and whether that is right."""

import numpy as np
from numpy.typing import NDArray

from simulator.kernel import kernel
from simulator.schedule import Kind, Schedule

__all__ = ["checked_homes", "stages_held"]

Homes = tuple[NDArray[np.int32], NDArray[np.int32]]


def checked_homes(schedule: Schedule) -> Homes:
    """Each stage runs each microbatch forward once, and backward once: as B, or as I and W.

    Returns the rank of each forward and of each backward, by stage x num_microbatches + microbatch.
    """
    columns = (schedule.offsets, schedule.stage, schedule.kind, schedule.microbatch)
    *homes, right = _homes(*columns, schedule.num_stages, schedule.num_microbatches)
    if not right:
        _refuse(schedule)
    return homes[0], homes[1]


def stages_held(rows: Schedule) -> NDArray[np.bool_]:
    """Whether a rank runs anything of a stage, shape (num_ranks, num_stages)."""
    held = np.zeros((rows.num_ranks, rows.num_stages), np.bool_)
    _hold(rows.offsets, rows.stage, held)
    return held


@kernel
def _hold(offsets: NDArray[np.int64], stage: NDArray[np.int32], held: NDArray[np.bool_]) -> None:
    """Mark the stages of every rank."""
    for rank in range(len(offsets) - 1):
        for at in range(offsets[rank], offsets[rank + 1]):
            held[rank, stage[at]] = True


@kernel
def _homes(
    offsets: NDArray[np.int64],
    stage: NDArray[np.int32],
    kind: NDArray[np.int8],
    microbatch: NDArray[np.int32],
    num_stages: int,
    width: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], bool]:
    """The rank of each forward and backward, and whether each stands there as it must."""
    size = num_stages * width
    home_f, home_b = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    home_w, whole = np.full(size, -1, np.int32), np.zeros(size, np.bool_)
    right = size > 0
    for rank in range(len(offsets) - 1):
        right = right and offsets[rank] < offsets[rank + 1]
        for at in range(offsets[rank], offsets[rank + 1]):
            what = kind[at]
            if what == 4:
                continue
            cell = stage[at] * width + microbatch[at]
            if what > 4 or microbatch[at] < 0 or stage[at] < 0:
                right = False
            elif what == 0:
                right = right and home_f[cell] < 0
                home_f[cell] = rank
            elif what == 3:
                right = right and home_w[cell] < 0
                home_w[cell] = rank
            else:
                right = right and home_b[cell] < 0
                home_b[cell] = rank
                whole[cell] = what == 1
    for cell in range(size):
        here = home_f[cell]
        split = home_w[cell] == (-1 if whole[cell] else here)
        right = right and here >= 0 and home_b[cell] == here and split
    return home_f, home_b, right


def _refuse(schedule: Schedule) -> None:
    """Raise a ValueError that says what is wrong with the rows, and where."""
    empty = np.flatnonzero(np.diff(schedule.offsets) == 0)
    if len(empty):
        raise ValueError(f"row of rank {empty[0]} is empty; every rank holds at least one stage")
    if schedule.num_microbatches == 0:
        raise ValueError("the rows have no forward; a step has at least one, as 0F0")
    if (schedule.kind > Kind.OPTIMIZER).any():
        at = int(np.flatnonzero(schedule.kind > Kind.OPTIMIZER)[0])
        raise ValueError(
            f"{_where(schedule, at)} is {schedule.op(at)}, but rows to lower hold only F, B, I, W "
            "and OPTIMIZER"
        )
    missing = np.setdiff1d(np.arange(schedule.num_stages), schedule.stage)
    if len(missing):
        raise ValueError(
            f"no rank holds stage {missing[0]}, but the rows go up to stage "
            f"{schedule.num_stages - 1}; number the stages without gaps"
        )
    work = schedule.kind <= Kind.W
    if (work & (schedule.microbatch < 0)).any():
        at = int(np.flatnonzero(work & (schedule.microbatch < 0))[0])
        raise ValueError(f"{_where(schedule, at)} is {schedule.op(at)} without a microbatch")
    shape = (Kind.W + 1, schedule.num_stages, schedule.num_microbatches)
    count = np.zeros(shape, np.int64)
    np.add.at(count, (schedule.kind[work], schedule.stage[work], schedule.microbatch[work]), 1)
    if (count > 1).any():
        kind, stage, microbatch = (int(x[0]) for x in np.nonzero(count > 1))
        same = (
            (schedule.kind == kind)
            & (schedule.stage == stage)
            & (schedule.microbatch == microbatch)
        )
        at = int(np.flatnonzero(same)[1])
        raise ValueError(
            f"{_where(schedule, at)} is {schedule.op(at)} for the second time; each op runs once"
        )
    forward, whole, halves = count[Kind.F], count[Kind.B], count[Kind.I] + count[Kind.W]
    for wrong, text in (
        (forward == 0, "has no forward; add {stage}F{microbatch}"),
        ((whole == 0) & (halves == 0), "has no backward; add {stage}B{microbatch}"),
        ((whole == 0) & (halves == 1), "has half a backward; it needs both I and W"),
        ((whole == 1) & (halves > 0), "has a full and a split backward; use B, or I and W"),
    ):
        if wrong.any():
            stage, microbatch = (int(x[0]) for x in np.nonzero(wrong))
            same = (schedule.stage == stage) & (schedule.microbatch == microbatch)
            places = np.flatnonzero(same | ((schedule.stage == stage) & ~same.any()))
            raise ValueError(
                f"{_where(schedule, int(places[-1]))} is {schedule.op(int(places[-1]))}, but stage "
                f"{stage}, microbatch {microbatch} "
                + text.format(stage=stage, microbatch=microbatch)
            )
    width = schedule.num_microbatches
    forwards = np.full(schedule.num_stages * width, -1, np.int32)
    is_forward = schedule.kind == Kind.F
    cell = schedule.stage * width + schedule.microbatch
    forwards[cell[is_forward]] = schedule.rank[is_forward]
    backward = np.flatnonzero(np.isin(schedule.kind, (Kind.B, Kind.I, Kind.W)))
    astray = backward[forwards[cell[backward]] != schedule.rank[backward]]
    if len(astray):
        at = int(astray[0])
        made = int(forwards[cell[at]])
        raise ValueError(
            f"{_where(schedule, at)} is {schedule.op(at)}, but rank {made} ran its forward and "
            "holds its activations; put it there"
        )


def _where(schedule: Schedule, at: int) -> str:
    rank = int(schedule.rank[at])
    return f"row of rank {rank}, column {at - int(schedule.offsets[rank])}"
