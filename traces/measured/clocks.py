"""The clocks of ranks, aligned by messages: none can arrive before it was sent.

A message from a to b bounds how far b's clock can lag behind a's; one from b to a bounds the other
side. The middle of what is left is the estimate, as NTP makes it; over all pairs it is a least
squares fit moved to where no bound is broken. Where no constant offset satisfies all messages, or a
slope leaves clearly more room, the clocks drift: a line is fitted between the bounds.

Sources: F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989;
D. L. Mills, "Internet time synchronization", IEEE Trans. Communications 39(10), 1991.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Clocks", "Messages", "align", "unaligned"]

Column = NDArray[np.float64]

FASTEST = 500e-6  # drift between two crystals is far below this [1]
GAIN = 0.25  # a slope must widen the room by this share of it, or else there is none
SWEEPS = 2000  # of moving offsets into their bounds


@dataclass(frozen=True, eq=False, kw_only=True)
class Messages:
    """When messages left and arrived, each by the clock of its own rank; shape (n,)."""

    sender: NDArray[np.int64]
    receiver: NDArray[np.int64]
    sent: Column  # [s]
    arrived: Column  # [s]


@dataclass(frozen=True, eq=False, kw_only=True)
class Clocks:
    """What to add to each rank's clock to read the first rank's. Shape (num_ranks,)."""

    offset: Column  # when the rank's own clock shows `at` [s]
    drift: Column  # [1]
    at: Column  # [s]
    residual: float  # most that a message still arrives before it was sent [s]
    margin: Column  # half of the room that messages leave for each offset; inf for no bound [s]

    def common(self, rank: NDArray[np.integer] | int, time: Column) -> Column:
        """Times of ranks by the common clock. [s]"""
        seconds: Column = time + self.offset[rank] + self.drift[rank] * (time - self.at[rank])
        return seconds


def align(messages: Messages, hosts: Sequence[int]) -> Clocks:
    """Offsets, and drifts where there are any; `hosts[rank]` tells which ranks share a clock.

    >>> there_and_back = Messages(
    ...     sender=np.array([0, 1]), receiver=np.array([1, 0]),
    ...     sent=np.array([1.0, 12.0]), arrived=np.array([11.5, 2.5]))
    >>> align(there_and_back, [0, 1]).offset.tolist()
    [0.0, -10.0]
    """
    _, host = np.unique(np.array(hosts), return_inverse=True)
    host = (host - host[0]) % (int(host.max()) + 1)  # the first rank's is host 0
    sender, receiver = host[messages.sender], host[messages.receiver]
    apart = sender != receiver
    between = Messages(
        sender=sender[apart],
        receiver=receiver[apart],
        sent=messages.sent[apart],
        arrived=messages.arrived[apart],
    )
    found = _align(between, int(host.max()) + 1)
    clocks = Clocks(
        offset=found.offset[host],
        drift=found.drift[host],
        at=found.at[host],
        residual=0.0,
        margin=found.margin[host],
    )
    late = -_slack(clocks, messages).min(initial=0.0)
    return replace(clocks, residual=float(late) if late > 0 else 0.0)


def _align(messages: Messages, num_hosts: int) -> Clocks:
    """The clocks of hosts from the messages between them: first offsets, then from there drifts."""
    if len(messages.sent) == 0:
        return unaligned(num_hosts)
    rough, _ = _potentials([(e.a, e.b, e.middle, e.margin) for e in _pairs(messages)], num_hosts)
    near = replace(
        messages,
        sent=messages.sent + rough[messages.sender],
        arrived=messages.arrived + rough[messages.receiver],
    )
    at = float((near.sent.min() + near.sent.max()) / 2)
    near = replace(near, sent=near.sent - at, arrived=near.arrived - at)
    pairs = _pairs(near)
    offset, margin = _potentials([(e.a, e.b, e.middle, e.margin) for e in pairs], num_hosts)
    drift = np.zeros(num_hosts)
    if any(e.slope for e in pairs):
        drift, _ = _potentials([(e.a, e.b, e.slope, e.margin) for e in pairs], num_hosts)
    offset = _within(offset, drift, near)
    return Clocks(offset=rough + offset, drift=drift, at=at - rough, residual=0.0, margin=margin)


def unaligned(num_ranks: int) -> Clocks:
    """Clocks as they are."""
    same = np.zeros(num_ranks)
    return Clocks(offset=same, drift=same, at=same, residual=0.0, margin=_unbounded(num_ranks))


def _unbounded(num_ranks: int) -> Column:
    margin = np.full(num_ranks, np.inf)
    margin[:1] = 0.0
    return margin


def _slack(clocks: Clocks, messages: Messages) -> Column:
    """From sending to arrival by the common clock; negative where that is impossible. [s]"""
    slack: Column = clocks.common(messages.receiver, messages.arrived) - clocks.common(
        messages.sender, messages.sent
    )
    return slack


@dataclass(frozen=True)
class Pair:
    """Two ranks that exchange messages: b's offset minus a's."""

    a: int
    b: int
    middle: float  # at time zero [s]
    slope: float  # [1]
    margin: float  # half of the room; negative if there is none; inf with messages one way only [s]


def _pairs(messages: Messages) -> list[Pair]:
    """The room that messages leave between each two ranks that exchange any."""
    a, b = (
        np.minimum(messages.sender, messages.receiver),
        np.maximum(messages.sender, messages.receiver),
    )
    gap = messages.sent - messages.arrived
    onward = messages.sender == a
    bound = np.where(onward, gap, -gap)  # below b's offset where onward, else above it
    time = np.where(onward, messages.sent, messages.arrived)  # by a's clock
    found = []
    for first, second in np.unique(np.column_stack([a, b]), axis=0).tolist():
        mine = (a == first) & (b == second)
        low, high = mine & onward, mine & ~onward
        middle, slope, margin = _room(time[low], bound[low], time[high], bound[high])
        found.append(Pair(first, second, middle, slope, margin))
    return found


def _room(t_low: Column, low: Column, t_high: Column, high: Column) -> tuple[float, float, float]:
    """The line with most room between lower and upper bounds: its value at 0, slope, half room."""
    if len(low) == 0 or len(high) == 0:
        return float(low.max() if len(low) else high.min()), 0.0, np.inf

    def half(slope: float) -> float:
        return float((high - slope * t_high).min() - (low - slope * t_low).max()) / 2

    best = 0.0
    if min(len(low), len(high)) >= 3:
        left, right = -FASTEST, FASTEST
        for _ in range(80):  # the room is concave in the slope
            third = (right - left) / 3
            if half(left + third) < half(right - third):
                left += third
            else:
                right -= third
        best = (left + right) / 2
        if half(0.0) >= 0 and half(best) - half(0.0) <= GAIN * half(best):
            best = 0.0
    middle = ((high - best * t_high).min() + (low - best * t_low).max()) / 2
    return float(middle), best, half(best)


def _potentials(
    edges: list[tuple[int, int, float, float]], num_ranks: int
) -> tuple[Column, Column]:
    """One value a rank whose differences fit the edges (a, b, b minus a, margin) best; rank 0 is 0.

    Also the sum of margins on the way from rank 0, infinite where no edges lead to a rank.
    """
    rows = np.zeros((len(edges) + 1, num_ranks))
    values = np.zeros(len(edges) + 1)
    rows[-1, 0] = 1.0
    reach = _unbounded(num_ranks)
    for at, (a, b, value, margin) in enumerate(edges):
        weight = 1.0 / max(abs(margin), 1e-9) if np.isfinite(margin) else 1e-3
        rows[at, [a, b]] = -weight, weight
        values[at] = weight * value
    for _ in range(num_ranks):
        for a, b, _, margin in edges:
            reach[b] = min(reach[b], reach[a] + abs(margin))
            reach[a] = min(reach[a], reach[b] + abs(margin))
    fitted = np.linalg.lstsq(rows, values, rcond=None)[0].astype(np.float64)
    return fitted - fitted[0], reach


def _within(offset: Column, drift: Column, messages: Messages) -> Column:
    """Offsets moved, both ends by half, until no bound is broken or nothing gets better."""
    offset = offset.copy()
    rate = drift[messages.receiver] * messages.arrived - drift[messages.sender] * messages.sent
    needs = messages.sent - messages.arrived - rate  # of receiver's offset minus sender's
    edges: dict[tuple[int, int], float] = {}
    for a, b, need in zip(
        messages.sender.tolist(), messages.receiver.tolist(), needs.tolist(), strict=True
    ):
        edges[a, b] = max(need, edges.get((a, b), -np.inf))
    best, least = offset.copy(), np.inf
    for _ in range(SWEEPS):
        worst = max(need - (offset[b] - offset[a]) for (a, b), need in edges.items())
        if worst < least:
            best, least = offset - offset[0], worst
        if worst <= 0:
            break
        for (a, b), need in edges.items():
            short = max(0.0, need - (offset[b] - offset[a]))
            offset[a] -= short / 2
            offset[b] += short / 2
    return best
