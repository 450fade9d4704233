"""Flows that share links: the only place where bandwidth is divided.

A link has a capacity in one direction. Concurrent flows share it max-min fairly: every flow gets
the same rate until a link of its path is full, the model that SimGrid made standard for TCP- and
InfiniBand-like fabrics (Velho et al., "On the validity of flow-level TCP network models for grid
and cloud simulations", ACM TOMACS 23(4), 2013).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import simpy
from simpy.events import EventPriority

__all__ = ["Network", "Path", "Route", "fair_rates"]

Done = Callable[[], None]

LAST = EventPriority(
    2
)  # priority of an event that comes after all others of its instant: simpy's are 0 and 1


@dataclass(frozen=True, slots=True)
class Route:
    """The links that a message crosses.

    A tensor- or data-parallel group sends alike at the same moment, so one flow stands for all of
    its copies: `copies[i]` of them cross `links[i]`, and each gets the flow's rate.
    """

    links: tuple[int, ...]
    copies: tuple[float, ...]
    latency: float  # [s]

    def alone(self, nbytes: float, capacity: Sequence[float]) -> float:
        """Time from start to arrival when no other message uses the links, not even a copy. [s]

        >>> Route((0, 1), (1.0, 2.0), 0.5).alone(100.0, [100.0, 200.0])
        1.5
        """
        return self.latency + nbytes * self.pace_alone(capacity)

    def together(self, nbytes: float, capacity: Sequence[float]) -> float:
        """Time from start to arrival when all copies, and nothing else, use the links. [s]

        >>> Route((0, 1), (1.0, 2.0), 0.5).together(100.0, [100.0, 100.0])
        2.5
        """
        return self.latency + nbytes * self.pace(capacity)

    def pace_alone(self, capacity: Sequence[float]) -> float:
        """Time of each byte of one copy on free links. [s/byte]"""
        return max((1 / capacity[link] for link in self.links), default=0.0)

    def pace(self, capacity: Sequence[float]) -> float:
        """Time of each byte when all copies, and nothing else, use the links. [s/byte]"""
        pairs = zip(self.links, self.copies, strict=True)
        return max((n / capacity[link] for link, n in pairs), default=0.0)


class Path(NamedTuple):
    """A route, and what it takes on free links."""

    route: Route
    pace: float  # [s/byte]


class _Flow:
    """One message on its way. Mutable: its rate changes when a neighbour comes or goes."""

    __slots__ = ("after", "done", "due", "rate", "remaining", "route", "since")

    def __init__(self, route: Route, nbytes: float, after: float, done: Done, now: float) -> None:
        self.route = route
        self.remaining = nbytes  # [bytes]
        self.after = after  # from the last byte's leaving to `done` [s]
        self.done = done
        self.since = now  # when `remaining` was true [s]
        self.rate = 0.0  # [bytes/s]
        self.due: simpy.Event | None = None  # when it ends; earlier wake-ups are void


def fair_rates(routes: Sequence[Route], capacity: Sequence[float]) -> list[float]:
    """Max-min fair rate of each of these concurrent flows. [bytes/s]

    Progressive filling: all rates rise together; the flows of the link that fills first are fixed.

    Source: Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2.

    >>> fair_rates([Route((0,), (1,), 0), Route((0, 1), (1, 1), 0)], [10.0, 2.0])
    [8.0, 2.0]
    """
    rates = [0.0] * len(routes)
    users: dict[int, dict[int, float]] = {}
    for index, route in enumerate(routes):
        for link, copies in zip(route.links, route.copies, strict=True):
            users.setdefault(link, {})[index] = copies
    left = {link: capacity[link] for link in users}
    load = {link: sum(flows.values()) for link, flows in users.items()}
    heap = [(left[link] / load[link], link) for link in users]
    heapify(heap)
    while heap:
        level, full = heappop(heap)
        if full not in users or level != left[full] / load[full]:
            continue  # its flows were fixed since, or its share has grown
        touched: dict[int, None] = {}
        for index in list(users[full]):
            rates[index] = level
            for link in routes[index].links:
                copies = users[link].pop(index)
                left[link] = max(0.0, left[link] - copies * level)
                load[link] -= copies
                touched[link] = None
        for link in touched:
            if users[link]:
                load[link] = max(load[link], min(users[link].values()))
                left[link] = max(left[link], level * load[link])  # rates only rise, rounding or not
                heappush(heap, (left[link] / load[link], link))
            else:
                del users[link]
    return rates


class Network:
    """The flows under way. A class because SimPy's clock moves it: state is the point.

    A flow's bytes leave at its rate from the start; the last one arrives a latency later.
    """

    def __init__(self, env: simpy.Environment, capacity: Sequence[float]) -> None:
        self._env = env
        self._capacity = capacity  # by link [bytes/s]
        self._users: list[dict[_Flow, None]] = [{} for _ in capacity]
        self._changed: dict[int, None] = {}  # links whose flows came or went at this instant

    def path(self, route: Route) -> Path:
        """A route, made ready to send over."""
        return Path(route, route.pace(self._capacity))

    def send(self, path: Path, nbytes: float, done: Done, then: float = 0.0) -> None:
        """Start a message; `done` is called `then` seconds after its last byte has arrived."""
        route, pace = path
        after = route.latency + then
        if nbytes <= 0 or not route.links:
            self._after(after, done)
            return
        flow = _Flow(route, nbytes, after, done, self._env.now)
        shared = False
        for link in route.links:
            users = self._users[link]
            if users:
                shared = True
            users[flow] = None
        if shared:
            self._mark(route)
        else:
            self._set_rate(flow, 1.0 / pace)

    def _after(self, delay: float, done: Done) -> None:
        if delay > 0:
            simpy.Timeout(self._env, delay, done).callbacks.append(_call)
        else:
            done()

    def _set_rate(self, flow: _Flow, rate: float) -> None:
        flow.rate = rate
        flow.due = due = simpy.Timeout(self._env, flow.remaining / rate, flow)
        due.callbacks.append(self._wake)

    def _wake(self, event: simpy.Event) -> None:
        flow: _Flow = event.value  # type: ignore[assignment]
        if flow.due is event:
            self._finish(flow)

    def _finish(self, flow: _Flow) -> None:
        crowded = False
        for link in flow.route.links:
            users = self._users[link]
            del users[flow]
            if users:
                crowded = True
        self._after(flow.after, flow.done)
        if crowded:
            self._mark(flow.route)

    def _mark(self, route: Route) -> None:
        """Share these links anew when all else that happens at this instant has happened."""
        if not self._changed:
            event = simpy.Event(self._env)
            event._ok, event._value = True, None  # as Timeout does
            event.callbacks = [self._settle]
            self._env.schedule(event, LAST)
        self._changed.update(dict.fromkeys(route.links))

    def _settle(self, _: simpy.Event) -> None:
        """Share once among each group of flows that the changed links touch."""
        changed, self._changed = self._changed, {}
        seen: set[_Flow] = set()
        for link in changed:
            for flow in self._users[link]:
                if flow not in seen:
                    group = self._group(flow)
                    seen.update(group)
                    self._share(list(group))

    def _group(self, flow: _Flow) -> dict[_Flow, None]:
        """The flows whose rates depend on this one's: those that share a link, and so on."""
        group: dict[_Flow, None] = {flow: None}
        frontier = [flow]
        links: set[int] = set()
        while frontier:
            for link in frontier.pop().route.links:
                if link not in links:
                    links.add(link)
                    fresh = [other for other in self._users[link] if other not in group]
                    group.update(dict.fromkeys(fresh))
                    frontier.extend(fresh)
        return group

    def _share(self, group: list[_Flow]) -> None:
        """Give flows that affect no others their fair rates from now on."""
        now = self._env.now
        rates = fair_rates([member.route for member in group], self._capacity)
        for member, rate in zip(group, rates, strict=True):
            if rate != member.rate:
                member.remaining = max(0.0, member.remaining - member.rate * (now - member.since))
                member.since = now
                self._set_rate(member, rate)


def _call(event: simpy.Event) -> None:
    """Do what the event carries."""
    event.value()  # type: ignore[misc]
