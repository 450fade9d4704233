"""A measured step beside a simulated one: the same ops, in the same order, how much longer."""

from dataclasses import dataclass

import numpy as np

from simulator.schedule import Kind, Op
from simulator.timeline import Timeline

__all__ = ["KindTimes", "differs", "kind_times"]


@dataclass(frozen=True, kw_only=True)
class KindTimes:
    """The ops of a kind in both runs."""

    kind: Kind
    num_measured: int  # [1]
    num_simulated: int  # [1]
    measured: float  # median length, NaN without any [s]
    simulated: float  # [s]


def kind_times(measured: Timeline, simulated: Timeline) -> list[KindTimes]:
    """The kinds that either run has; a transfer counts once, where it is received."""
    found = []
    for kind in Kind:
        both = [run.of(kind) for run in (measured, simulated)]
        if kind.is_send or not any(run.num_spans for run in both):
            continue
        lengths = [
            float(np.median(run.end - run.start)) if run.num_spans else np.nan for run in both
        ]
        found.append(
            KindTimes(
                kind=kind,
                num_measured=both[0].num_spans,
                num_simulated=both[1].num_spans,
                measured=lengths[0],
                simulated=lengths[1],
            )
        )
    return found


def differs(measured: Timeline, simulated: Timeline) -> str:
    """Where the order of compute ops differs first; empty if it is the same on every rank."""
    if measured.num_ranks != simulated.num_ranks:
        return f"{measured.num_ranks} ranks were measured, {simulated.num_ranks} simulated"
    ours, theirs = (run.where(run.kind < Kind.OPTIMIZER) for run in (measured, simulated))
    for rank in range(measured.num_ranks):
        rows = [_row(run, rank) for run in (ours, theirs)]
        for place, pair in enumerate(zip(*rows, strict=False)):
            if pair[0] != pair[1]:
                return f"op {place} of rank {rank} was {pair[0]}, in the simulation it is {pair[1]}"
        if len(rows[0]) != len(rows[1]):
            return f"rank {rank} ran {len(rows[0])} ops, in the simulation {len(rows[1])}"
    return ""


def _row(run: Timeline, rank: int) -> list[Op]:
    mine = run.where(run.rank == rank)
    columns = (mine.stage.tolist(), mine.kind.tolist(), mine.microbatch.tolist())
    return [Op(s, Kind(k), m) for s, k, m in zip(*columns, strict=True)]
