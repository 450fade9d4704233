"""Layers spread over stages so that the busiest rank has the least to do.

In steady state every microbatch costs a pipeline the time of its busiest rank, so a split is judged
by that: forward and backward of the rank's layers, with the embedding on the first stage and the
logits and the loss on the last. Layers that are all alike are handed out one by one, each to the
rank that would be least busy with it, which no other split beats; unlike layers take a dynamic
programme.
"""

import heapq
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from simulator.costs.layers import LayerCosts
from simulator.job import Job, Plan
from simulator.planners.layerwise import layerwise
from simulator.schedule import Kind, Schedule
from simulator.schedules import build, recipe_of

__all__ = [
    "Parts",
    "balanced_layers",
    "balanced_split",
    "both_parts",
    "is_halved",
    "part_seconds",
    "spread",
]

Shape = tuple[tuple[tuple[int, ...], ...], bool]  # stages that share a rank; whether B is I and W
HALVED = [Kind.F, Kind.I, Kind.W]
ROUNDING = 1e-9  # relative: sums that are equal but for the last digits count as equal


class Parts(NamedTuple):
    """Forward and backward of what a model is made of, for one microbatch on one GPU."""

    layer: float  # [s]
    embedding: float  # [s]
    head: float  # final norm, logits and loss [s]


def balanced_layers(
    job: Job, parts: Parts | None = None, limit: float | None = None
) -> tuple[int, ...]:
    """Layers on each of a job's pp x vpp stages, at least one, for the least busy busiest rank.

    Of the splits that share it, the next busiest rank has the least to do, and so on; then a rank's
    own stages are evened out in the same way; then deeper stages hold more, because 1F1B keeps
    fewer microbatches there. What the job's plan says about its layers is not read.

    Args:
        job: the job; its schedule says which stages share a rank.
        parts: `part_seconds(job)`, for callers that ask for many plans of the same parts.
        limit: the most that any stage may hold at its peak: weights, gradients, optimizer state and
            the activations of all microbatches in flight. [bytes]

    Raises:
        ValueError: fewer layers than stages, no split keeps the limit, or the schedule does not do
            what the plan asks.
    """
    groups, _ = _shape_of_job(job)
    if parts is None:
        parts = part_seconds(job)
    most = None if limit is None else _most_layers(job, limit)
    return spread(job.model.num_hidden_layers, groups, parts, most)


def spread(
    num_layers: int,
    groups: Sequence[Sequence[int]],
    parts: Parts,
    most: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Layers on each stage, where `groups` are the stages that share a rank.

    `most` caps the layers of each stage. [1]

    A head worth two layers, on four ranks that hold one stage each: 14 layers' worth of work, so no
    rank can have less than four.

    >>> spread(12, [[0], [1], [2], [3]], Parts(layer=1.0, embedding=0.0, head=2.0))
    (3, 3, 4, 2)
    >>> spread(12, [[0, 3], [1, 2]], Parts(layer=1.0, embedding=0.0, head=2.0))
    (3, 3, 4, 2)
    """
    num_stages = sum(map(len, groups))
    if num_layers < num_stages:
        raise ValueError(
            f"there are {num_layers} layers for {num_stages} stages: a stage would hold no layer; "
            f"use at most {num_layers} stages"
        )
    if most is not None and min(most) < 1:
        raise ValueError(_no_room(num_layers, most))
    fixed = [0.0] * num_stages  # besides layers [s]
    fixed[0] += parts.embedding
    fixed[-1] += parts.head
    number, room = num_layers - num_stages, None
    if most is not None:
        room = [sum(most[s] - 1 for s in group) for group in groups]
        if sum(room) < number:
            raise ValueError(_no_room(num_layers, most))
    levels = [(sum(fixed[s] for s in group), len(group)) for group in groups]
    layers = [1] * num_stages
    for group, count in zip(groups, _handed(number, levels, parts.layer, room), strict=True):
        stages = sorted(group)
        room = None if most is None else [most[s] - 1 for s in stages]
        each = _handed(count, [(fixed[s], 0) for s in stages], parts.layer, room)
        for stage, more in zip(stages, each, strict=True):
            layers[stage] += more
    return tuple(layers)


def _handed(
    number: int, levels: Sequence[tuple[float, int]], piece: float, room: Sequence[int] | None
) -> list[int]:
    """How many of some equal pieces each gets, one after the other to who has least with it. [1]

    `levels` are what each has, besides pieces [s] and in pieces [1]; of equals the last comes
    first. `room` caps what each gets. [1]
    """
    counts = [0] * len(levels)
    if room is None:
        counts = _surely(number, [rest + held * piece for rest, held in levels], piece)
    heap = [
        (rest + (held + counts[at] + 1) * piece, -at)
        for at, (rest, held) in enumerate(levels)
        if room is None or room[at]
    ]
    heapq.heapify(heap)
    for _ in range(number - sum(counts)):
        at = -heap[0][1]
        counts[at] += 1
        if room is not None and counts[at] == room[at]:
            heapq.heappop(heap)
            continue
        rest, held = levels[at]
        heapq.heapreplace(heap, (rest + (held + counts[at] + 1) * piece, -at))
    return counts


def _surely(number: int, levels: Sequence[float], piece: float) -> list[int]:
    """Pieces that each gets in any case: all but the last two under the common level. [1]"""
    total, common = number * piece, inf
    for many, level in enumerate(sorted(levels)):
        if common <= level:
            break
        total += level
        common = total / (many + 1)
    return [max(0, int((common - level) / piece) - 1) for level in levels]


def balanced_split(seconds: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """How many of some unlike layers in a row go on each stage, for the least largest stage.

    Of the splits that share it, the one with the fewest layers on the first stage, then on the
    second, and so on. Exact, by a dynamic programme over (layers, stages): the last stage's sum
    falls and the rest's largest rises with the cut, so the best cut only moves right, and the whole
    takes O(layers x stages).

    Args:
        seconds: forward and backward of each layer; ends are counted by adding the embedding to the
            first layer and the head to the last. [s]
        num_stages: stages, at least one layer each. [1]

    >>> balanced_split([1, 1, 1, 1, 1, 1, 3], 3)  # 9 in all, at least 3 each
    (3, 3, 1)
    >>> balanced_split([5, 1, 1, 1], 2)
    (1, 3)
    """
    count = len(seconds)
    if not 1 <= num_stages <= count:
        raise ValueError(
            f"num_stages is {num_stages}, but there are {count} layers and every stage holds at "
            f"least one; use 1 to {count}"
        )
    before = [0.0]  # sums of the layers before each [s]
    for one in seconds:
        before.append(before[-1] + one)
    largest = _least_largest(before, num_stages) * (1 + ROUNDING)
    # from the back, each stage takes what fits and leaves a layer to each stage before it
    counts, stop = [], count
    for stage in range(num_stages - 1, -1, -1):
        start = stop - 1
        while start > stage and before[stop] - before[start - 1] <= largest:
            start -= 1
        start = start if stage else 0
        counts.append(stop - start)
        stop = start
    return tuple(reversed(counts))


def part_seconds(job: Job) -> Parts:
    """Forward and backward of one layer, the embedding and the head of a job.

    They depend on the model, the GPU, tp, the microbatch and how a layer is computed; neither on
    pp, vpp, dp nor on the number of microbatches.
    """
    return both_parts(job)[_shape_of_job(job)[1]]


def both_parts(job: Job, known: LayerCosts | None = None) -> tuple[Parts, Parts]:
    """The same with the backward in one op, and in its two halves, which hide less communication.

    `known` are the job's `layer_costs`, if one has them.
    """
    seconds = layerwise(job, known).seconds
    sums = (seconds[kinds].sum(axis=0).tolist() for kinds in ([Kind.F, Kind.B], HALVED))
    whole, halves = (Parts(one[-2], one[0], one[-1]) for one in sums)
    return whole, halves


def is_halved(schedule: str, pp: int, vpp: int) -> bool:
    """Whether a schedule runs backwards in two halves."""
    return _shape(schedule, pp, vpp)[1]


def _least_largest(before: list[float], num_stages: int) -> float:
    """The least possible largest stage, from the sums of the layers before each. [s]"""
    count = len(before) - 1
    best = before.copy()  # of the layers up to each, on the stages so far
    for stages in range(2, num_stages + 1):
        after, cut = [inf] * (count + 1), stages - 1
        for stop in range(stages, count + 1):
            total = before[stop]
            while cut + 1 < stop and best[cut] < total - before[cut]:
                cut += 1
            after[stop] = max(best[cut], total - before[cut])
            if cut >= stages:
                after[stop] = min(after[stop], max(best[cut - 1], total - before[cut - 1]))
        best = after
    return best[count]


def _shape_of_job(job: Job) -> Shape:
    """What a job's own rows say, or its schedule's."""
    plan = job.plan
    if plan.rows is not None:
        return _shape_of(build(plan))
    return _shape(plan.schedule, plan.pp, plan.vpp)


@lru_cache(maxsize=4096)
def _shape(schedule: str, pp: int, vpp: int) -> Shape:
    """Of a schedule that places stages by its sizes alone."""
    if "costs" in recipe_of(schedule).takes and vpp == 1:  # made for given times: slow to make
        return tuple((rank,) for rank in range(pp)), True
    plan = Plan(schedule=schedule, pp=pp, vpp=vpp, num_microbatches=2 * pp)
    return _shape_of(build(plan))


def _shape_of(schedule: Schedule) -> Shape:
    """Of rows."""
    key = np.unique(schedule.rank.astype(np.int64) * schedule.num_stages + schedule.stage)
    rank, stage = np.divmod(key, schedule.num_stages)
    parts = np.split(stage, np.flatnonzero(np.diff(rank)) + 1)
    groups = tuple(dict.fromkeys(tuple(part.tolist()) for part in parts))
    if sum(map(len, groups)) != schedule.num_stages:
        raise ValueError(
            "the rows put a stage on two ranks that do not hold the same stages, so that no rank's "
            "layers can be balanced alone; give plan.layers_per_stage"
        )
    return groups, bool((schedule.kind == Kind.W).any())


def _most_layers(job: Job, limit: float) -> list[int]:
    """The most layers that each stage can hold within a limit. [1]

    A stage's peak is its weights, gradients and optimizer state, its activations times the most
    microbatches that the schedule's rows keep in flight there, and what one backward recomputes. A
    microbatch counts in full until its W ends.
    """
    costs = layerwise(job)
    static = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    flights = _in_flight(build(job.plan))
    most = []
    for stage, flight in enumerate(flights):
        held = static + flight * costs.activation_bytes
        ends = held[0] * (stage == 0) + held[-1] * (stage == len(flights) - 1)
        room = limit - float(costs.transient_bytes[-2]) - float(ends)
        most.append(max(0, int(room * (1 + ROUNDING) // float(held[-2]))))
    return most


def _in_flight(schedule: Schedule) -> list[int]:
    """The most microbatches between F and the end of the backward, by stage. [1]"""
    change = np.zeros(schedule.num_ops, np.int64)
    change[schedule.kind == Kind.F] = 1
    change[np.isin(schedule.kind, (Kind.B, Kind.W))] = -1
    peaks = []
    for stage in range(schedule.num_stages):
        here = np.flatnonzero(schedule.stage == stage)
        rank = schedule.rank[here]
        levels = [np.cumsum(change[here[rank == r]]).max(initial=0) for r in np.unique(rank)]
        peaks.append(int(max(levels)))
    return peaks


def _no_room(num_layers: int, most: Sequence[int]) -> str:
    room = ", ".join(map(str, most[:8])) + (", ..." if len(most) > 8 else "")
    return (
        f"the stages have room for {room} layers, but each must hold at least one and all of them "
        f"{num_layers}; raise the limit, or use more stages or recomputation"
    )
