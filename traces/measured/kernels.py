"""Kernels within ranges: how far they extend, which communicate, and what nothing hides."""

import re

import numpy as np
from numpy.typing import NDArray

from traces.measured.recording import Intervals

__all__ = [
    "COLLECTIVE",
    "OTHER",
    "P2P",
    "REPLICAS",
    "class_of",
    "exposed",
    "extent",
    "of_ops",
    "outside",
]

Column = NDArray[np.float64]

OTHER, P2P, COLLECTIVE, REPLICAS = 0, 1, 2, 3
LIBRARIES = ("nccl", "rccl")
REPLICATED = re.compile(r"(?i)(?<![a-z])(h?sdp|fsdp|ddp|dp|data|replicate|shard)(?![a-z])")


def class_of(names: tuple[str, ...]) -> NDArray[np.int8]:
    """What a kernel's name says: P2P, COLLECTIVE, REPLICAS or OTHER; shape (num_names,).

    REPLICAS are collectives of a process group whose description, in brackets after the name,
    says that it is of data parallelism.
    """
    found = np.zeros(len(names), np.int8)
    for at, name in enumerate(names):
        low = name[:200].lower()
        if any(low.startswith(library) or f"{library}dev" in low for library in LIBRARIES):
            group = name.partition(" [")[2].replace("_", " ")
            whose = REPLICAS if REPLICATED.search(group) else COLLECTIVE
            found[at] = P2P if "sendrecv" in low else whose
    return found


def extent(work: Intervals, asked: Column, left: Column) -> tuple[Column, Column]:
    """From the first start to the last end of the kernels launched within [asked, left)."""
    first, stop = np.searchsorted(work.asked, asked), np.searchsorted(work.asked, left)
    start, end = np.full(len(asked), np.nan), np.full(len(asked), np.nan)
    has = np.flatnonzero(stop > first)
    if len(has):
        bounds = np.column_stack([first[has], stop[has]]).ravel()
        low, high = np.append(work.start, np.inf), np.append(work.end, -np.inf)
        start[has] = np.minimum.reduceat(low, bounds)[::2]
        end[has] = np.maximum.reduceat(high, bounds)[::2]
    return start, end


def of_ops(
    kernels: Intervals,
    kinds: NDArray[np.int8],
    asked: Column,
    left: Column,
    compute: NDArray[np.bool_],
) -> tuple[Column, Column]:
    """When each op ran; NaN where it launched no kernel.

    A compute op is what its own kernels take, and the collectives before and after them as far as
    no other op computes: one that runs on beside the next op does not make this one longer.
    """
    start, end = extent(kernels.where(kinds != P2P), asked, left)
    mine = np.flatnonzero(compute)
    whole = extent(kernels.where((kinds == OTHER) | (kinds == COLLECTIVE)), asked[mine], left[mine])
    own = extent(kernels.where(kinds == OTHER), asked[mine], left[mine])
    inner = [np.where(np.isnan(o), w, o) for o, w in zip(own, whole, strict=True)]
    order = np.argsort(inner[0], kind="stable")  # ops without kernels stand last
    first, last = inner[0][order], inner[1][order]
    before = np.concatenate([[-np.inf], np.fmax.accumulate(last)[:-1]])
    after = np.append(first[1:], np.inf)
    after = np.where(np.isnan(after), np.inf, after)
    start[mine[order]] = np.minimum(first, np.maximum(whole[0][order], before))
    end[mine[order]] = np.maximum(last, np.minimum(whole[1][order], after))
    return start, end


def exposed(kernels: Intervals, kinds: NDArray[np.int8], start: Column, end: Column) -> Column:
    """Seconds of collectives within each op while no other kernel of the rank runs."""
    found = np.zeros(len(start))
    group = np.flatnonzero(kinds == COLLECTIVE)
    if len(group) == 0:
        return found
    busy = _union(kernels.start[kinds == OTHER], kernels.end[kinds == OTHER])
    low, high = _union(kernels.start[group], kernels.end[group])
    alone = _covered(busy, high) - _covered(busy, low)
    seconds = high - low - alone
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    ran = np.flatnonzero(np.isfinite(start))
    first = np.searchsorted(low, start[ran])
    found[ran] = total[np.maximum(first, np.searchsorted(low, end[ran]))] - total[first]
    return found


def _union(start: Column, end: Column) -> tuple[Column, Column]:
    """Intervals merged where they touch, in order."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    new = np.concatenate([[True] * (len(start) > 0), start[1:] > reach[:-1]])
    last = np.append(np.flatnonzero(new)[1:] - 1, len(start) - 1)[: len(start)]
    return start[new], reach[last]


def _covered(union: tuple[Column, Column], time: Column) -> Column:
    """How much of a union of intervals lies before each time. [s]"""
    low, high = union
    if len(low) == 0:
        return np.zeros(len(time))
    total = np.concatenate([[0.0], np.cumsum(high - low)])
    at = np.searchsorted(low, time, side="right")
    inside = np.minimum(time, high[np.maximum(at - 1, 0)]) - low[np.maximum(at - 1, 0)]
    result: Column = np.where(at > 0, total[np.maximum(at - 1, 0)] + inside, 0.0)
    return result


def outside(kernels: Intervals, kinds: NDArray[np.int8], asked: Column, left: Column) -> Intervals:
    """Collectives of replicas, and all others that the host launched outside of all ops."""
    mine = kinds == COLLECTIVE
    at = np.searchsorted(asked, kernels.asked, side="right") - 1
    if len(asked):
        mine &= (at < 0) | (kernels.asked >= left[np.maximum(at, 0)])
    return kernels.where(mine | (kinds == REPLICAS))
