"""Where each rank's time goes, second by second, in one sweep over its compute stream.

A gap is explained by what the op after it waited for:

- its message was on the way: pipeline communication, up to the time it takes alone; beyond that
  the link was busy;
- its stage's gradients were being reduced, or its new weights gathered: data communication;
- else the producer was late: idle, as warm-up before the rank's first backward, as drain after its
  last forward, as dependency between.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.causes import causes
from simulator.kernel import kernel
from simulator.schedule import Kind
from simulator.timeline import Timeline

if TYPE_CHECKING:  # a chart's import does not wait for all that estimates costs
    from simulator.costs.costs import Costs

__all__ = [
    "IDLE",
    "SPLIT",
    "Split",
    "by_kind_and_stage",
    "shortest",
    "split",
    "split_by_costs",
]

Index = NDArray[np.int32]
Column = NDArray[np.float64]

WORK = ("compute", "recompute", "tensor", "optimizer")
COMMUNICATION = ("pipeline", "data")
IDLE = ("warm_up", "drain", "dependency", "link")
SPLIT = (*WORK, *COMMUNICATION, *IDLE)

ROUNDING = 1e-12  # part of a message's arrival below which a longer way is rounding [1]

_F, _B, _I, _OPTIMIZER = (int(kind) for kind in (Kind.F, Kind.B, Kind.I, Kind.OPTIMIZER))
_RECV_F, _RECV_B, _UNSHARD = int(Kind.RECV_F), int(Kind.RECV_B), int(Kind.UNSHARD)
_COMPUTE, _RECOMPUTE, _TENSOR, _STEP, _PIPELINE, _DATA, _WARM_UP, _DRAIN, _DEPENDENCY, _LINK = (
    range(len(SPLIT))
)


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


def _sum(parts: Split, names: Iterable[str]) -> Column:
    total: Column = np.sum([getattr(parts, name) for name in names], axis=0)
    return total


def split(
    timeline: Timeline,
    *,
    recompute: Column,
    tensor: Column,
    lone: Column | None = None,
    cause: Index | None = None,
) -> Split:
    """Explain every second of every rank.

    Args:
        timeline: the run.
        recompute: recomputation within each span, shape (num_spans,). [s]
        tensor: exposed tensor-parallel communication within each span, shape (num_spans,). [s]
        lone: time of each span's transfer on free links, shape (num_spans,), one for all spans of
            a kind and stage; left out, the shortest of them stands for it. [s]
        cause: what `causes` says of the timeline, if it is known already.
    """
    for name, column in (("recompute", recompute), ("tensor", tensor)):
        if column.shape != (timeline.num_spans,):
            raise ValueError(
                f"{name} has shape {column.shape}; it must be ({timeline.num_spans},), one a span"
            )
    one, nothing = np.ones(1), np.zeros(1)
    factor = np.ones(timeline.num_ranks)
    steps = (0, 0, 1)  # of the index into recompute and tensor: a kind's, a stage's, a span's
    known = (recompute, tensor, nothing, one, one, factor)
    alone = None if lone is None else by_kind_and_stage(timeline, lone)
    return _split(timeline, steps, known, alone, cause)


def split_by_costs(
    timeline: Timeline,
    costs: "Costs",
    *,
    lone: Column | None = None,
    stragglers: Mapping[int, float] | None = None,
    cause: Index | None = None,
) -> Split:
    """Explain every second of every rank, with what the costs know of each span.

    An overlapped pair hides the communication of both ops behind their compute as far as it goes.

    Args:
        timeline: the run.
        costs: what it ran with.
        lone: time of a transfer on free links by the kind and stage of either end, shape
            (num_kinds, num_stages); left out, the shortest span of that kind and stage. [s]
        stragglers: slow-down of a rank's compute. [1]
        cause: what `causes` or `implied_causes` says of the timeline, if it is known already.

    Raises:
        ValueError: the costs have fewer stages than the timeline.
    """
    if timeline.num_stages > costs.num_stages:
        raise ValueError(
            f"the timeline has {timeline.num_stages} stages, but the costs have "
            f"{costs.num_stages}; estimate them for the same plan"
        )
    recompute = np.zeros_like(costs.seconds)
    recompute[_B] = recompute[_I] = costs.recompute_seconds
    factor = np.ones(timeline.num_ranks)
    for rank, slow in (stragglers or {}).items():
        factor[rank] = slow
    steps = (costs.num_stages, 1, 0)
    tables = [t.ravel() for t in (recompute, costs.tensor_seconds, costs.seconds)]
    known = (tables[0], tables[1], tables[2], costs.pair_time, costs.slice_time, factor)
    return _split(timeline, steps, known, lone, cause)


def shortest(timeline: Timeline) -> Column:
    """The shortest span of each kind and stage, shape (num_kinds, num_stages). [s]"""
    least = np.full((len(Kind), timeline.num_stages), np.inf)
    np.minimum.at(least, (timeline.kind, timeline.stage), timeline.end - timeline.start)
    return least


def by_kind_and_stage(timeline: Timeline, column: Column) -> Column:
    """What all spans of a kind and stage share, shape (num_kinds, num_stages); else zero."""
    table = np.zeros((len(Kind), timeline.num_stages))
    table[timeline.kind, timeline.stage] = column
    return table


def _split(
    timeline: Timeline,
    steps: tuple[int, int, int],
    known: tuple[Column, Column, Column, Column, Column, Column],
    lone: Column | None,
    cause: Index | None,
) -> Split:
    parts = np.zeros((len(SPLIT), timeline.num_ranks))
    finished = np.zeros(timeline.num_ranks)
    alone = shortest(timeline) if lone is None else lone
    because = causes(timeline) if cause is None else cause
    assert alone.shape[0] == len(Kind)
    assert alone.shape[1] >= timeline.num_stages
    assert len(because) == timeline.num_spans
    ids = (timeline.rank, timeline.stage, timeline.kind, timeline.microbatch)
    spans = (*ids, timeline.start, timeline.end, timeline.on_stream, because)
    _spend(*spans, *steps, *known, alone, parts, finished)
    gathered = finished.copy()
    unshard = np.flatnonzero(timeline.kind == Kind.UNSHARD)
    np.maximum.at(gathered, timeline.rank[unshard], timeline.end[unshard])
    parts[_DATA] += gathered - finished
    parts[_DRAIN] += timeline.makespan - gathered
    return Split(**dict(zip(SPLIT, parts, strict=True)))


@kernel
def _spend(
    rank: Index,
    stage: Index,
    kind: NDArray[np.int8],
    microbatch: Index,
    start: Column,
    end: Column,
    on_stream: Index,
    cause: Index,
    kind_step: int,
    stage_step: int,
    span_step: int,
    recompute: Column,
    tensor: Column,
    alone: Column,
    pair_time: Column,
    slice_time: Column,
    factor: Column,
    lone: Column,
    parts: Column,
    finished: Column,
) -> None:
    """Add every rank's seconds to `parts`, in the order of SPLIT, and the end of its last op.

    `again`, `exposed` and `busy` are those of the op before: what the second op of an overlapped
    pair holds is all on its first, which alone is busy.
    """
    before, first_backward = -1, -1.0
    busy = again = exposed = whole = tail = 0.0
    joined = False  # the op before ran together with the one before it
    for at in range(len(on_stream) + 1):
        i = on_stream[at] if at < len(on_stream) else -1
        fresh = at == len(on_stream) or before < 0 or rank[i] != rank[before]
        done = end[before] if not fresh else 0.0  # when the op before ended
        more = redone = communicated = seconds = 0.0
        second = False
        if i >= 0:
            place = int(kind[i]) * kind_step + stage[i] * stage_step + i * span_step
            share = 1.0
            if microbatch[i] >= 0:
                share = slice_time[microbatch[i] % len(slice_time)]
            redone = recompute[place] * factor[rank[i]] * share
            communicated = tensor[place] * share
            if kind_step > 0:
                seconds = alone[place] * share
            more = end[i] - max(start[i], done)
            second = more <= 0.0 and not fresh and start[i] < done
        if second:
            hidden = 0.0
            if start[i] == start[before] and end[i] == end[before] and kind_step > 0:
                hidden = (whole + seconds) * max(0.0, 1 - pair_time[stage[before]])
            if not joined:
                again += redone
                exposed = max(0.0, exposed + communicated - hidden)
            redone = communicated = 0.0
        if before >= 0:
            again = min(again, busy)
            exposed = min(exposed, busy - again)
            on = rank[before]
            parts[_TENSOR, on] += exposed
            parts[_RECOMPUTE, on] += again
            to = _STEP if kind[before] == _OPTIMIZER else _COMPUTE
            parts[to, on] += busy - again - exposed
            finished[on] = max(finished[on], end[before])
            if fresh:  # no forward came after: it was drain
                parts[_DRAIN, on] += tail
        busy, again, exposed, whole, joined = more, redone, communicated, seconds, second
        if i < 0:
            break

        here, step = rank[i], kind[i] == _OPTIMIZER
        if fresh:
            tail, first_backward = 0.0, np.inf
        if (kind[i] == _B or kind[i] == _I) and first_backward == np.inf:
            first_backward = start[i]
        gap, way = max(0.0, start[i] - done), 0.0
        source = cause[i]
        implied = source < -1  # a message without a span
        if implied or (source >= 0 and kind[source] > _OPTIMIZER):
            if implied:
                left, arrived, carrier = end[-2 - source], start[i], stage[i]
                carried = _RECV_F if kind[i] == _F else _RECV_B
            else:
                left, arrived, carrier = start[source], end[source], stage[source]
                carried = kind[source]
            way = min(max(arrived - max(done, left), 0.0), gap)
            excess = max(0.0, arrived - left - lone[carried, carrier])
            if step or carried == _UNSHARD:
                parts[_DATA, here] += way
            else:
                if excess <= ROUNDING * max(arrived, 1e-300):
                    excess = 0.0
                parts[_LINK, here] += min(way, excess)
                parts[_PIPELINE, here] += way - min(way, excess)
        late = gap - way
        if start[i] <= first_backward:
            parts[_WARM_UP, here] += late
            late = 0.0
        if kind[i] == _F:
            parts[_DEPENDENCY, here] += tail + late
            tail = 0.0
        else:
            tail += late
        before = i
