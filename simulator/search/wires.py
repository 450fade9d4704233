"""Messages and collectives between the homes of the stages, on idle links.

Looking a cluster's routes up takes longer than bounding a plan, and plans of one cut share most of
them, whatever their chunks: so they are kept by pair and by group of pipeline ranks.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.host_loads import HostLoad, host_loads
from simulator.fabric import connect
from simulator.job import Job
from simulator.search.shape import Shape

__all__ = ["Lines", "Wires", "wires_of"]

Column = NDArray[np.float64]
Pair = tuple[int, int]
Ranks = tuple[int, ...]
Group = tuple[Ranks, HostLoad | None]  # what holds a stage, and its copies if it is offloaded


class Line(NamedTuple):
    """A message of n bytes takes latency + n x pace on it."""

    latency: float  # [s]
    pace: float  # [s/byte]


@dataclass(frozen=True)
class Lines:
    """The lines of one cut of a cluster that were looked up so far. Mutable inside."""

    sends: dict[Pair, Line] = field(default_factory=dict)
    rings: dict[Group, tuple[Line, Line]] = field(default_factory=dict)  # reducing, gathering


class Wires(NamedTuple):
    """Messages and collectives of one cut of a cluster, on idle links, by boundary or stage.

    A message of n bytes takes latency + n x pace.
    """

    crosses: Column  # 1 where a boundary's message leaves its rank, shape (num_stages - 1,)
    latency: Column  # of both ways [s], shape (2, num_stages - 1)
    pace: Column  # [s/byte], same shape
    sync_latency: Column  # of reducing and of gathering [s], shape (2, num_stages)
    sync_pace: Column  # [s/byte of the buffer], same shape


def wires_of(job: Job, shape: Shape, lines: Lines | None = None) -> Wires:
    """The wires between the homes of the stages; `lines` are those known of the job's cut."""
    homes = [shape.homes[stage] for stage in sorted(shape.homes)]
    ways = [
        [{(a, b) for a in low for b in high} for low, high in pairwise(homes)],
        [{(b, a) for a in low for b in high} for low, high in pairwise(homes)],
    ]
    lines = Lines() if lines is None else lines
    loads = host_loads(job) or (None,) * len(homes)
    groups: list[Group] = list(zip(homes, loads, strict=True))
    pairs = {pair for way in ways for each in way for pair in each if pair[0] != pair[1]}
    _look_up(job, pairs, groups, lines)
    latency, pace = np.zeros((2, 2, len(homes) - 1))
    for way, boundaries in enumerate(ways):
        for at, each in enumerate(boundaries):
            if any(a == b for a, b in each):
                continue  # some microbatches stay on their rank
            latency[way, at] = min(lines.sends[pair].latency for pair in each)
            pace[way, at] = min(lines.sends[pair].pace for pair in each)
    rings = [lines.rings[group] for group in groups]
    return Wires(
        np.array([float(not any(a == b for a, b in each)) for each in ways[0]]),
        latency,
        pace,
        np.array([[ring[way].latency for ring in rings] for way in (0, 1)]),
        np.array([[ring[way].pace for ring in rings] for way in (0, 1)]),
    )


def _look_up(job: Job, pairs: set[Pair], groups: list[Group], lines: Lines) -> None:
    """Add the lines that are not known yet; `groups` are those of the stages."""
    pairs = pairs - lines.sends.keys()
    stages = {group: stage for stage, group in enumerate(groups) if group not in lines.rings}
    if not pairs and not stages:
        return
    fabric = connect(job, pairs, {stage: group[0] for group, stage in stages.items()})
    for pair, route in fabric.sends.items():
        lines.sends[pair] = Line(route.latency, route.pace(fabric.capacity))
    for group, stage in stages.items():
        first, second = (
            Line(ring.route.latency, ring.share * ring.route.pace(fabric.capacity))
            for ring in (fabric.reduces[stage], fabric.gathers[stage])
        )
        lines.rings[group] = first, second
