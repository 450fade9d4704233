"""The best way to cut a graph of operators into stages, by a dynamic programme over its ideals.

An ideal is a set of operators that holds everything its members need. A pipeline's first k devices
hold an ideal, so a partition is a chain of ideals, and the best load of the first k devices needs
only the best of the first k - 1. Exact; the number of ideals is small where a graph is nearly a
chain, as a transformer's is, and grows exponentially with its width.

Source: Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Graph", "Partition", "ideals", "load", "tarnawski"]

MOST_IDEALS = 5000
ROUNDING = 1e-12  # relative: a later choice must be better by this


@dataclass(frozen=True)
class Graph:
    """Operators of one microbatch; an edge (a, b) says that b takes what a puts out."""

    seconds: tuple[float, ...]  # forward and backward of each operator [s]
    transfer: tuple[float, ...]  # of its output between devices, and its gradient back [s]
    nbytes: tuple[float, ...]  # what it keeps on its device [bytes]
    edges: tuple[tuple[int, int], ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        number = len(self.seconds)
        if not len(self.transfer) == len(self.nbytes) == number:
            raise ValueError(
                f"a graph has {number} seconds, {len(self.transfer)} transfers and "
                f"{len(self.nbytes)} nbytes; give one of each for every operator"
            )
        for a, b in self.edges:
            if not 0 <= a < b < number:
                raise ValueError(
                    f"the graph has an edge from {a} to {b}, but its operators are 0 to "
                    f"{number - 1} and each takes only what earlier ones put out; number them in "
                    "the order of a forward"
                )


class Partition(NamedTuple):
    """Operators of each device, in the order of the pipeline, and the largest load."""

    devices: tuple[tuple[int, ...], ...]
    seconds: float  # from one microbatch to the next [s]


def load(graph: Graph, operators: Sequence[int]) -> float:
    """Time of a device for each microbatch: its operators, and each tensor that comes or goes. [s]

    A tensor that several operators take is sent to a device once.

    >>> around = ((0, 1), (0, 2), (1, 3), (2, 3))
    >>> diamond = Graph((1, 2, 3, 4), (0.5, 0.1, 0.2, 0.0), (0,) * 4, around)
    >>> load(diamond, [1, 2])  # 2 + 3, 0.5 in, 0.1 + 0.2 out
    5.8
    """
    held = set(operators)
    comes = {a for a, b in graph.edges if a not in held and b in held}
    goes = {a for a, b in graph.edges if a in held and b not in held}
    moved = sum(graph.transfer[one] for one in sorted(comes | goes))
    return sum(graph.seconds[one] for one in sorted(held)) + moved


def ideals(graph: Graph) -> list[int]:
    """Every set of operators that holds all it needs, as bits, smaller sets first.

    Raises:
        ValueError: there are more than 5,000; the graph is too wide.

    >>> [f"{bits:03b}" for bits in ideals(Graph((1,) * 3, (0,) * 3, (0,) * 3, ((0, 2),)))]
    ['000', '001', '010', '011', '101', '111']
    """
    number = len(graph.seconds)
    needs = [0] * number
    for a, b in graph.edges:
        needs[b] |= 1 << a
    level, found = {0}, [0]
    while level:
        grown = set()
        for bits in level:
            for one in range(number):
                if not bits >> one & 1 and needs[one] & ~bits == 0:
                    grown.add(bits | 1 << one)
        found += sorted(grown)
        if len(found) > MOST_IDEALS:
            raise ValueError(
                f"the graph of {number} operators has more than {MOST_IDEALS:,} ideals; merge "
                "operators that run side by side"
            )
        level = grown
    return found


def tarnawski(graph: Graph, num_devices: int, memory: float = inf) -> Partition:
    """The partition of a graph over a pipeline of devices with the least largest load.

    Each device's operators are contiguous: what leaves a device never comes back. A device may stay
    empty, and then comes last. Of equals, earlier devices hold the smaller ideals.

    Args:
        graph: the operators; forward and backward of each are on one device.
        num_devices: devices in the pipeline. [1]
        memory: the most that the operators of one device may keep. [bytes]

    Raises:
        ValueError: no partition fits, or the graph has too many ideals.

    >>> around = ((0, 1), (0, 2), (1, 3), (2, 3))
    >>> diamond = Graph((1, 2, 3, 4), (0.5, 0.1, 0.2, 0.0), (0,) * 4, around)
    >>> tarnawski(diamond, 2)  # 6 + 0.3 and 4 + 0.3
    Partition(devices=((0, 1, 2), (3,)), seconds=6.3)
    """
    if num_devices < 1:
        raise ValueError(f"num_devices is {num_devices}; use at least 1")
    sets = ideals(graph)
    between = _loads(graph, sets, memory)
    last = len(sets) - 1
    best = between[0].copy()  # of one device, by ideal
    cuts = []
    for _ in range(num_devices - 1):
        worst = np.maximum(best[:, None], between)
        before = worst.argmin(axis=0)
        after = worst[before, np.arange(len(sets))]
        keep = best <= after * (1 + ROUNDING)  # this device stays empty
        cuts.append(np.where(keep, np.arange(len(sets)), before))
        best = np.where(keep, best, after)
    if not np.isfinite(best[last]):
        raise ValueError(
            f"the operators keep {sum(graph.nbytes):g} bytes, and no partition over {num_devices} "
            f"devices fits into {memory:g} bytes each; use more devices"
        )
    ends = [last]
    for cut in reversed(cuts):
        ends.append(int(cut[ends[-1]]))
    chain = [0, *(sets[at] for at in dict.fromkeys(reversed(ends)))]
    pieces = [new & ~old for old, new in pairwise(chain)]
    devices = [tuple(_members(bits)) for bits in pieces]
    return Partition(tuple(devices + [()] * (num_devices - len(devices))), float(best[last]))


def _loads(graph: Graph, sets: list[int], memory: float) -> NDArray[np.float64]:
    """Load of what one ideal has more than another, shape (ideals, ideals); inf if it is no more.

    By rows the smaller ideal, by columns the larger.
    """
    number = len(graph.seconds)
    held = np.array([[bits >> one & 1 for one in range(number)] for bits in sets], bool)
    takers = [0] * number
    for a, b in graph.edges:
        takers[a] |= 1 << b
    transfer = np.array(graph.transfer, float)
    open_ends = np.array(
        [[bool(bits >> one & 1 and takers[one] & ~bits) for one in range(number)] for bits in sets]
    )
    work = held @ np.array(graph.seconds, float)
    kept = held @ np.array(graph.nbytes, float)
    goes = (open_ends * transfer) @ ~held.T  # [larger, smaller]
    loads = work[None, :] - work[:, None] + goes.T
    for row, bits in enumerate(sets):
        for one in np.flatnonzero(open_ends[row]).tolist():
            users = list(_members(takers[one] & ~bits))
            loads[row] += transfer[one] * held[:, users].any(axis=1)
    sizes = held.sum(axis=1)
    is_more = (held.astype(np.float64) @ held.T.astype(np.float64)) == sizes[:, None]
    fits = kept[None, :] - kept[:, None] <= memory * (1 + ROUNDING)
    is_larger = sizes[None, :] > sizes[:, None]
    return np.where(is_more & is_larger & fits, loads, inf)


def _members(bits: int) -> list[int]:
    return [one for one in range(bits.bit_length()) if bits >> one & 1]
