"""Which files make up the pipeline, and in which order."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simulator.schedule import Kind
from traces.measured.mapping import MOST, UNKNOWN
from traces.measured.ops import RankOps

__all__ = ["in_order"]

RANK = re.compile(r"(?i)rank[_\-. ]?(\d{1,7})")
NUMBER = re.compile(r"(\d{1,7})(?!.*\d)")  # the last one of a name


def in_order(
    found: Sequence[RankOps], ranks: Sequence[int] | None
) -> tuple[list[RankOps], list[int]]:
    """The pipeline's recordings in its order, and their ranks in the whole job.

    Raises:
        ValueError: a rank is there twice or missing, or several ranks hold the same stages.
    """
    numbers = _numbers(found)
    by_rank: dict[int, RankOps] = {}
    for one, number in zip(found, numbers, strict=True):
        if number in by_rank:
            raise ValueError(
                f"rank {number} is there twice: {by_rank[number].recording.source} and "
                f"{one.recording.source}; give each rank's trace once"
            )
        by_rank[number] = one
    group = _group(found)
    if ranks is not None:
        order = list(ranks)
        if len(set(order)) < len(order):
            raise ValueError(f"--ranks names a rank twice: {','.join(map(str, order))}")
    else:
        order = [rank for rank in group if rank in by_rank] or sorted(by_rank)
        order = order if len(order) == len(by_rank) else sorted(by_rank)
    missing = [rank for rank in order if rank not in by_rank]
    if missing:
        raise ValueError(
            f"rank {missing[0]} is in no file; the files are of ranks "
            f"{', '.join(map(str, sorted(by_rank)[:16]))}"
        )
    _check_group(order, group, ranks is not None)
    _check_peers(order, by_rank)
    return [by_rank[rank] for rank in order], order


def _numbers(found: Sequence[RankOps]) -> list[int]:
    """Ranks as files say, else as their names do, else by their order, in one file by stages."""
    told = [one.recording.rank for one in found]
    if all(number is not None for number in told):
        return [number for number in told if number is not None]
    stems = [Path(one.recording.source).name for one in found]
    for pattern in (RANK, NUMBER):
        matches = [pattern.search(stem) for stem in stems]
        numbers = [int(match[1]) for match in matches if match]
        if len(set(numbers)) == len(found):
            return numbers
    return _by_depth(found) if len(set(stems)) == 1 else list(range(len(found)))


def _by_depth(found: Sequence[RankOps]) -> list[int]:
    """Places of one file's processes by their first stage, where names tell one of each."""
    first = [int(one.ops.stage.min(initial=MOST, where=one.ops.kind <= Kind.W)) for one in found]
    if UNKNOWN in first or len(set(first)) < len(found):
        return list(range(len(found)))
    return [sorted(first).index(stage) for stage in first]


def _group(found: Sequence[RankOps]) -> tuple[int, ...]:
    """The pipeline's group of ranks, where all files name the same."""
    groups = {one.recording.pipeline for one in found}
    return next(iter(groups)) if len(groups) == 1 else ()


def _check_group(order: Sequence[int], group: Sequence[int], chosen: bool) -> None:
    missing = sorted(set(group) - set(order))
    if missing and not chosen:
        raise ValueError(
            f"the pipeline is of ranks {', '.join(map(str, group[:16]))}, but rank {missing[0]} is "
            "in no file; give the traces of all of them"
        )


def _check_peers(order: Sequence[int], by_rank: dict[int, RankOps]) -> None:
    """Named stages stand on one rank each, or else the files are of several pipelines."""
    held: dict[bytes, int] = {}
    for rank in order:
        ops = by_rank[rank].ops
        forward = ops.stage[(ops.kind == Kind.F) & (ops.stage != UNKNOWN)]
        if len(forward) == 0:
            continue
        first = int(ops.microbatch[(ops.kind == Kind.F) & (ops.stage == forward[0])].min())
        key = np.append(np.unique(forward), first).tobytes()
        if key in held:
            raise ValueError(
                f"ranks {held[key]} and {rank} both run stage {forward[0]}, so the files are of "
                "several pipelines; choose the ranks of one with --ranks"
            )
        held[key] = rank
