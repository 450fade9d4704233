"""A lower bound on the step, proven for every synchronous schedule, from times and homes alone.

Write F_s, B_s for the times of stage s's ops and T_s for that of a message across the boundary
above it, there or back. What the proof uses of a timeline: a rank runs one op at a time, each for
its time; F_s waits for the message of F_{s-1}, B_s for that of B_{s+1} and for F_s on its own rank;
the optimizer waits for its rank's row and for its stage's reduced gradients; a message, reduction
or gathering takes at least what it takes on idle links; and of the order of the rows only how many
microbatches a rank ever has in flight. So the bound holds for both kinds of point-to-point, and for
the event engine, in which shared links only add to this.

1. Head. No op of stage a starts before H_a = sum of F_s + T_s over s < a, and what gathering the
   weights of stage 0 takes, where a step begins with that.
2. Work. Take a rank and those of its stages that are a or deeper. The first of their ops starts at
   H_a at the earliest, because a is the shallowest, and they run one at a time, so the last of them
   ends no earlier than X_a = H_a + their whole work.
   Flight. From the start of F_s to the end of its B at least L_s passes: F and B of stage s and of
   all above it, and the messages between. If a stage takes m microbatches there, and never has more
   than k of them in flight, then m L_s <= k x (time from its first F's start to its last B's end),
   which therefore ends no earlier than H_s + m L_s / k. The same holds for all stages of a rank
   together, with the sum of their m L_s and the most that are in flight together.
3. Tail. That last op is a backward, as every forward has its backward on its rank, of a stage s at
   or above a; then B must still run in turn on each stage below s, down to t. So stage t's last
   backward ends at E_t = X_a + sum of B_s + T_s over t <= s < a, at the earliest, for every a >= t.
4. The step ends on some rank that holds t, after E_t, and then that rank's optimizer has still to
   run, its reductions and gatherings as far as nothing can hide them.

With I and W apart, 2 holds for F + I + W without a tail, and for F + I with a tail of I alone, at
whose end the W of that microbatch has still to run. Where a schedule mixes both, the lesser is
taken. A pair, a forward and a backward that overlap, takes `pair_time` of their sum. So in 2 the
work of paired ops is multiplied by q, the least `pair_time`; elsewhere an op of a pair passes its
result on no sooner than after q x (its time + the least time of a partner).

For 1F1B and GPipe on equal stages with free messages, a = p - 1 gives (m + p - 1)(F + B): the
bound is the step. With messages of time T, stage 0 of 1F1B, which has p microbatches in flight,
gives m (F + B) + 2 m T (p - 1) / p: the steady state of Qi et al., "Zero Bubble Pipeline
Parallelism", ICLR 2024, Table 5. Asynchronous schedules update weights in their rows: the proof
says nothing of their iterations, and they are not to be judged by it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.costs.sharding import gathers_ahead
from simulator.job import Job
from simulator.schedule import Kind
from simulator.search.shape import Shape
from simulator.search.wires import Wires

__all__ = ["step_bound", "work_bound"]

Column = NDArray[np.float64]


class Times(NamedTuple):
    """Seconds of a step's ops, by stage, shape (num_stages,)."""

    forward: Column
    back: Column  # the backward that others wait for
    more: Column  # what else a microbatch's backward takes
    after: Column  # what must follow the last backward
    optimizer: Column
    share: float  # of their own time that paired ops take [1]


def step_bound(job: Job, costs: Costs, shape: Shape, wires: Wires) -> float:
    """Time that a step of any synchronous schedule of this shape takes at least. [s]"""
    times = _times(job, costs, shape)
    forward, back = _passing(times)
    there, home = _messages(costs, wires)
    head, tail = _running(forward[:-1] + there), _running(back[:-1] + home)
    stage = shape.stage
    begins = head[stage] + _gathered(job, costs, wires)
    part, whole = _work(times, shape)
    spans = np.maximum(part.cumsum(axis=1), _flight(shape, head, tail, forward + back))
    latest = np.full(len(forward), -np.inf)
    np.maximum.at(latest, stage, begins + spans + tail[stage])
    latest = np.maximum.accumulate(latest[::-1])[::-1] - tail + times.after
    ends = (begins + whole.cumsum(axis=1)).max(axis=1)
    if not shape.has_replicas:
        ends = np.maximum(ends, latest[stage].max(axis=1))
    rest = _rest(job, costs, shape, wires, times.optimizer)
    bound = float((ends + rest).max())
    if shape.has_replicas:  # some rank that holds the stage, not known which
        least = [rest[list(shape.homes[s])].min() for s in range(len(forward))]
        bound = max(bound, float((latest + least).max()))
    return bound


def _gathered(job: Job, costs: Costs, wires: Wires) -> float:
    """Time that passes before the first forward, for the weights of stage 0. [s]"""
    if job.plan.zero_stage not in (1, 2) or not gathers_ahead(job.plan):
        return 0.0
    return float((wires.sync_latency[1] + wires.sync_pace[1] * costs.unshard_bytes)[0])


def work_bound(job: Job, work: float, shape: Shape) -> float:
    """The same from the work alone, far quicker: some rank does no less than the mean. [s]

    `work` is that of one microbatch on all stages together, at least. [s] A pair takes no less than
    half the sum of its two ops.
    """
    share = 0.5 if shape.has_pairs else 1.0
    fastest = min(1.0, *job.cluster.stragglers.values(), 1.0)
    return share * fastest * job.plan.num_microbatches * work / job.plan.pp


def _times(job: Job, costs: Costs, shape: Shape) -> Times:
    """The times of a job's ops on their homes, the lesser where there is a choice."""
    seconds = costs.seconds
    if job.cluster.stragglers:
        slow = [
            min(job.cluster.stragglers.get(rank, 1.0) for rank in shape.homes[stage])
            for stage in sorted(shape.homes)
        ]
        seconds = (seconds - costs.tensor_seconds) * slow + costs.tensor_seconds
    forward, both, first, second = seconds[Kind.F : Kind.W + 1]
    none = np.zeros(len(both))
    share = min(1.0, float(costs.pair_time.min())) if shape.has_pairs else 1.0
    if not shape.has_halves:
        back, more, after = both, none, none
    elif not shape.has_whole:
        back, more, after = first, second, second
    else:
        back = np.minimum(both, first)
        more, after = np.minimum(both, first + second) - back, none
    return Times(forward, back, more, after, seconds[Kind.OPTIMIZER], share)


def _passing(times: Times) -> tuple[Column, Column]:
    """Time from the start of a forward, or of a backward, until it passes its result on. [s]"""
    forward, back, share = times.forward, times.back, times.share
    return (
        np.minimum(forward, share * (forward + back.min())),
        np.minimum(back, share * (back + forward.min())),
    )


def _work(times: Times, shape: Shape) -> tuple[Column, Column]:
    """Each chunk's forwards and backwards; and with all else, shape (pp, num_chunks). [s]"""
    stage, share = shape.stage, times.share
    part = share * shape.count * (times.forward + times.back)[stage]
    if share < 1:
        alone = shape.alone[0] * times.forward[stage] + shape.alone[1] * times.back[stage]
        part = part + (1 - share) * alone
    return part, part + share * shape.count * times.more[stage]


def _messages(costs: Costs, wires: Wires) -> tuple[Column, Column]:
    """Time of a microbatch's message across each boundary, there and back. [s]"""
    seconds = wires.latency + wires.pace * costs.boundary_bytes[:-1]
    seconds += wires.crosses * costs.boundary_gather[:-1]
    return seconds[0], seconds[1]


def _running(values: Column) -> Column:
    """Sums of the values before each place, one more than there are values."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def _flight(shape: Shape, head: Column, tail: Column, turn: Column) -> Column:
    """Time from a chunk's first forward to its last backward, by how many are in flight. [s]

    Shape (pp, num_chunks); the shallowest chunk's is that of all of its rank's chunks, if longer.
    `turn` is a forward and a backward of each stage. [s]
    """
    through = head + tail
    long = (through[-1] + turn[-1] - through)[shape.stage] * shape.count
    spans = long / np.maximum(shape.most, 1)
    spans[:, -1] = np.maximum(spans[:, -1], long.sum(axis=1) / shape.most_of_all)
    return np.asarray(spans)


def _rest(job: Job, costs: Costs, shape: Shape, wires: Wires, optimizer: Column) -> Column:
    """Time that each rank needs at least after its last backward, shape (pp,). [s]

    Reductions at the end of the row start together there; a rank's optimizer steps run one after
    the other, the first when the first reduction ends. A reduction that starts when its stage is
    done can hide behind later backwards of other stages, but that of the last stage cannot.
    """
    stage, plan = shape.stage, job.plan
    steps = np.where(shape.count > 0, optimizer[stage], 0.0).sum(axis=1)
    members = plan.dp * plan.cp * max(map(len, shape.homes.values()))
    offloaded = plan.offload != "none"  # its copies are part of the flows, or all that is of them
    if members == 1 and not offloaded:
        return np.asarray(steps)
    reduce = (wires.sync_latency[0] + wires.sync_pace[0] * costs.reduce_bytes)[stage]
    if plan.zero_stage >= 2 and not offloaded:
        reduce = np.zeros_like(reduce)  # in every backward
    gather = np.zeros_like(reduce)
    if (plan.zero_stage in (1, 2) and not gathers_ahead(plan)) or offloaded:
        gather = (wires.sync_latency[1] + wires.sync_pace[1] * costs.unshard_bytes)[stage]
    alone = reduce + optimizer[stage] + gather
    if plan.overlap_grad_reduce:
        return np.asarray(np.maximum(steps + gather.min(axis=1), alone.min(axis=1)))
    last = reduce.min(axis=1) + steps + gather.min(axis=1)
    return np.asarray(np.maximum(last, alone.max(axis=1)))
