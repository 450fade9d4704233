"""Rows that a rank can play without its neighbours, and which ranks are neighbours."""

from simulator.schedule import Kind, Op, Schedule
from validator.session import Session

__all__ = ["LONE_REPEATS", "lone_rows", "neighbours"]

LONE_REPEATS = 4  # microbatches of a lone play [1]


def neighbours(session: Session) -> set[tuple[int, int]]:
    """Pairs of ranks, lower first, that some play sends between."""
    pairs = set()
    for play in session.plays:
        home = {stage: rank for rank, held in enumerate(play.held) for stage in held}
        for stage in range(len(home) - 1):
            a, b = sorted((home[stage], home[stage + 1]))
            if a != b:
                pairs.add((a, b))
    return pairs


def lone_rows(held: tuple[tuple[int, ...], ...], num_microbatches: int, *, split: bool) -> Schedule:
    """Rows in which each microbatch goes forward and backward through a rank's own stages.

    >>> print(lone_rows(((0,), (1,)), 1, split=False))
    0F0,0SEND_F0,0RECV_B0,0B0
    1RECV_F0,1F0,1B0,1SEND_B0
    """
    home = {stage: rank for rank, stages in enumerate(held) for stage in stages}

    def away(stage: int, rank: int) -> bool:
        return stage in home and home[stage] != rank

    rows = []
    for rank, stages in enumerate(held):
        row: list[Op] = []
        for m in range(num_microbatches):
            for stage in stages:
                row += [Op(stage, Kind.RECV_F, m)] if away(stage - 1, rank) else []
                row += [Op(stage, Kind.F, m)]
                row += [Op(stage, Kind.SEND_F, m)] if away(stage + 1, rank) else []
            for stage in reversed(stages):
                row += [Op(stage, Kind.RECV_B, m)] if away(stage + 1, rank) else []
                row += [Op(stage, Kind.I if split else Kind.B, m)]
                row += [Op(stage, Kind.SEND_B, m)] if away(stage - 1, rank) else []
            row += [Op(stage, Kind.W, m) for stage in reversed(stages)] if split else []
        rows.append(row)
    return Schedule.of(rows)
