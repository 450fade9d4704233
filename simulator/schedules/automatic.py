"""Schedules a split-backward pipeline by its times and memory. Registers nothing.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 3.1, the heuristic. It
has a few yes-or-no habits; all of them are tried and the shortest result is kept.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs import Costs
from simulator.schedule import Kind, Schedule
from simulator.schedules.zb_h1 import zb_h1
from simulator.schedules.zb_h2 import zb_h2

__all__ = ["shortest"]

ROUNDING = 1e-9  # relative: limits and gaps that are equal but for the last digits count as equal


def shortest(
    num_microbatches: int, costs: Costs, transfer: float, limit: NDArray[np.float64]
) -> Schedule:
    """The schedule whose largest single-rank span is the shortest that the heuristic finds.

    ZB-H1 and ZB-H2 are tried as well, where they keep the limit.

    Args:
        num_microbatches: microbatches. [1]
        costs: of as many stages as ranks.
        transfer: time of one message between neighbours. [s]
        limit: most activations on each rank, shape (pp,); at least one microbatch's. [bytes]
    """
    pp = costs.num_stages
    given = _Given(
        num_microbatches,
        forward=costs.seconds[Kind.F].tolist(),
        input_grad=costs.seconds[Kind.I].tolist(),
        weight_grad=costs.seconds[Kind.W].tolist(),
        transfer=transfer,
        takes=costs.activation_bytes.tolist(),
        frees=costs.input_grad_bytes.tolist(),
        limit=(limit * (1 + ROUNDING)).tolist(),
    )
    habits = itertools.product((False, True), repeat=3)
    choices = [_greedy(given, _Habits(*habit)) for habit in habits]
    choices += [_follow(by_hand(pp, num_microbatches)) for by_hand in (zb_h1, zb_h2)]
    best: _Play | None = None
    for choose in choices:
        play = _Play(given, choose, best.span if best else inf)
        if play.span < (best.span if best else inf):
            best = play
    assert best is not None
    return Schedule.of(_numbered(rank, one.row) for rank, one in enumerate(best.ranks))


class _Given(NamedTuple):
    """What the order is made for; lists are by rank."""

    num_microbatches: int
    forward: list[float]  # [s]
    input_grad: list[float]  # [s]
    weight_grad: list[float]  # [s]
    transfer: float  # [s]
    takes: list[float]  # activations of one microbatch [bytes]
    frees: list[float]  # the part that I frees [bytes]
    limit: list[float]  # [bytes]


class _Habits(NamedTuple):
    """The heuristic's yes-or-no choices."""

    delay_first: bool  # a warm-up forward may delay the first I
    in_turn: bool  # F and I strictly in turn, even if only the other one is ready
    i_before_last_f: bool  # an I that is ready goes before the rank's last forward


@dataclass(slots=True)
class _Rank:
    """How far one rank has come."""

    f_arrives: list[float]  # when the input of each forward is there, or inf if unknown [s]
    i_arrives: list[float]
    row: list[Kind] = field(default_factory=list)
    num_f: int = 0
    num_i: int = 0
    num_w: int = 0
    i_is_next: bool = False  # of F and I in turn
    held: float = 0.0  # [bytes]
    free: float = 0.0  # when the last op ends [s]
    first: float = inf  # when the first op starts [s]
    idle: float = 0.0  # between first and free [s]


Choose = Callable[["_Play", int, float], Kind | None]


class _Play:
    """One simulation. A class because the choices read what all ranks have done so far."""

    def __init__(self, given: _Given, choose: Choose, stop_at: float) -> None:
        self.given, self.stop_at = given, stop_at  # a span that is no use [s]
        m, pp = given.num_microbatches, len(given.forward)
        self.ranks = [_Rank([inf] * m, [inf] * m) for _ in range(pp)]
        self.ranks[0].f_arrives = [0.0] * m
        self.idle = 0.0  # of the rank that has idled the longest [s]
        work = zip(given.forward, given.input_grad, given.weight_grad, strict=True)
        self.work = [m * sum(seconds) for seconds in work]  # [s]
        self.is_of_use = True  # keeps the limit, and its span may be short enough
        self.events = [(0.0, 0)]  # when a rank may have something new to do
        while self.events and self.is_of_use:
            now, rank = heapq.heappop(self.events)
            if now < self.ranks[rank].free:
                continue
            kind = choose(self, rank, now)
            if kind is not None:
                self._start(rank, kind, now)

    @property
    def span(self) -> float:
        """The largest single-rank span, or inf if the order is of no use. [s]"""
        count = self.given.num_microbatches
        if not self.is_of_use or any(one.num_w < count for one in self.ranks):
            return inf
        return max(rank.free - rank.first for rank in self.ranks)

    def _start(self, rank: int, kind: Kind, now: float) -> None:
        """Run one op, and tell the neighbour when its result arrives."""
        given, one = self.given, self.ranks[rank]
        if not one.row:
            one.first = one.free = now
        one.idle += now - one.free
        self.idle = max(self.idle, one.idle)
        self.is_of_use &= self.work[rank] + one.idle < self.stop_at
        one.row.append(kind)
        if kind is Kind.F:
            end = now + given.forward[rank]
            self._forward(rank, end)
        elif kind is Kind.I:
            end = now + given.input_grad[rank]
            one.held -= given.frees[rank]
            one.i_is_next = False
            if rank:
                self.ranks[rank - 1].i_arrives[one.num_i] = end + given.transfer
                heapq.heappush(self.events, (end + given.transfer, rank - 1))
            one.num_i += 1
        else:
            end = now + given.weight_grad[rank]
            one.held -= given.takes[rank] - given.frees[rank]
            one.num_w += 1
        one.free = end
        heapq.heappush(self.events, (end, rank))

    def _forward(self, rank: int, end: float) -> None:
        given, one = self.given, self.ranks[rank]
        one.held += given.takes[rank]
        self.is_of_use &= one.held <= given.limit[rank]
        one.i_is_next = True
        if rank + 1 < len(self.ranks):
            self.ranks[rank + 1].f_arrives[one.num_f] = end + given.transfer
            heapq.heappush(self.events, (end + given.transfer, rank + 1))
        else:
            one.i_arrives[one.num_f] = end
        one.num_f += 1


def _greedy(given: _Given, habits: _Habits) -> Choose:
    """Warm-up forwards up to the limit, then F and I in turn, and W in the gaps.

    W runs in a gap that is long enough for it, in a shorter one if this rank would otherwise idle
    longer than all others, and to free memory for the next F.
    """
    count = given.num_microbatches

    def choose(play: _Play, rank: int, now: float) -> Kind | None:
        one = play.ranks[rank]
        next_f = one.f_arrives[one.num_f] if one.num_f < count else inf
        next_i = one.i_arrives[one.num_i] if one.num_i < one.num_f else inf
        has_room = one.held + given.takes[rank] <= given.limit[rank]
        if one.num_i == 0 and next_i > now:
            in_time = habits.delay_first or next_i >= now + given.forward[rank]
            return Kind.F if has_room and next_f <= now and in_time else None
        has_w = one.num_w < one.num_i
        wants_f = one.num_f < count and not one.i_is_next
        if habits.i_before_last_f and one.num_f == count - 1 and next_i <= now:
            return Kind.I
        if wants_f and not has_room:
            if has_w:
                return Kind.W
            wants_f = False
        awaited, other = (next_f, next_i) if wants_f else (next_i, next_f if has_room else inf)
        if awaited <= now:
            return Kind.F if wants_f else Kind.I
        if not habits.in_turn:
            if other <= now:
                return Kind.I if wants_f else Kind.F
            awaited = min(awaited, other)
        gap = awaited - now
        fills = gap >= given.weight_grad[rank] * (1 - ROUNDING) or one.idle + gap > play.idle
        return Kind.W if has_w and fills else None

    return choose


def _follow(schedule: Schedule) -> Choose:
    """Run these rows."""
    rows = [[op.kind for op in row] for row in schedule.rows]

    def choose(play: _Play, rank: int, now: float) -> Kind | None:
        one = play.ranks[rank]
        if len(one.row) == len(rows[rank]):
            return None
        kind = rows[rank][len(one.row)]
        if kind is Kind.F and one.f_arrives[one.num_f] > now:
            return None
        if kind is Kind.I and one.i_arrives[one.num_i] > now:
            return None
        return kind

    return choose


def _numbered(rank: int, row: Sequence[Kind]) -> NDArray[np.int64]:
    """A row of kinds as stage, kind and microbatch; each kind takes the microbatches in order."""
    kind = np.array(row, np.int64)
    microbatch = np.zeros_like(kind)
    for one in (Kind.F, Kind.I, Kind.W):
        same = kind == one
        microbatch[same] = np.arange(np.count_nonzero(same))
    return np.column_stack([np.full_like(kind, rank), kind, microbatch])
