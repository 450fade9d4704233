"""Whether the intervals keep their promise: each row against an interval that never saw it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from simulator.accuracy.experience import Experience
from simulator.accuracy.interval import interval_of_kind
from simulator.accuracy.rows import load_table

__all__ = ["Coverage", "coverage_held_out", "coverage_of_rows", "coverage_of_tables"]


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Share of rows inside their interval."""

    rows: int  # [1]
    inside: float  # share of rows [1]
    by_table: dict[str, float]  # [1]
    width: float  # median of an interval's high over its low [1]


def coverage_of_rows(known: Sequence[Experience]) -> Coverage:
    """Each row left out alone: the job is like others that were measured."""
    return _coverage([(one, [two for two in known if two is not one]) for one in known])


def coverage_of_tables(known: Sequence[Experience]) -> Coverage:
    """Each row without its whole table: the job's source was never seen."""
    rest = {name: [two for two in known if two.table != name] for name in _names(known)}
    return _coverage([(one, rest[one.table]) for one in known if rest[one.table]])


def coverage_held_out(known: Sequence[Experience]) -> Coverage:
    """Each row of the held-out tables against the others: machines and frameworks to come."""
    held = {name for name in _names(known) if load_table(name).held_out}
    rest = [one for one in known if one.table not in held]
    return _coverage([(one, rest) for one in known if one.table in held])


def _names(known: Sequence[Experience]) -> list[str]:
    return list(dict.fromkeys(one.table for one in known))


def _coverage(pairs: Sequence[tuple[Experience, Sequence[Experience]]]) -> Coverage:
    found: dict[str, list[bool]] = defaultdict(list)
    widths = []
    for one, rest in pairs:
        made = interval_of_kind(one.kind, 1.0, rest)
        found[one.table].append(log(made.low) <= one.log_error <= log(made.high))
        widths.append(made.high / made.low)
    every = [inside for table in found.values() for inside in table]
    return Coverage(
        rows=len(every),
        inside=sum(every) / len(every),
        by_table={name: sum(table) / len(table) for name, table in found.items()},
        width=sorted(widths)[len(widths) // 2],
    )
