"""Where rows stand that cannot finish: each rank's spot, for the grid that is clicked into."""

from simulator.dialects import is_lowered
from simulator.schedule import Kind, Op, Pair, Schedule

__all__ = ["stuck"]

Done = set[tuple[Kind, int, int]]  # kind, stage, microbatch


def stuck(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """Each rank that comes to no end, and the place in its row at which it waits for ever.

    Rows with sends and receives have none here.

    >>> stuck(Schedule.parse("0F0,0B0,0F1,0B1" + chr(10) + "1F0,1B1,1F1,1B0"))
    ((0, 1), (1, 1))
    """
    if is_lowered(schedule):
        return ()
    rows = [[_ops(item) for item in schedule.items(rank)] for rank in range(schedule.num_ranks)]
    at, done, last = [0] * len(rows), Done(), schedule.num_stages - 1
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and all(_is_ready(op, done, last) for op in row[at[rank]]):
                done.update((op.kind, op.stage, op.microbatch) for op in row[at[rank]])
                at[rank] += 1
                moved = True
    return tuple((rank, place) for rank, place in enumerate(at) if place < len(rows[rank]))


def _ops(item: Op | Pair) -> tuple[Op, ...]:
    return (item,) if isinstance(item, Op) else (item.first, item.second)


def _is_ready(op: Op, done: Done, last: int) -> bool:
    stage, microbatch = op.stage, op.microbatch
    if op.kind == Kind.F:
        return stage == 0 or (Kind.F, stage - 1, microbatch) in done
    if op.kind == Kind.W:
        return _is_back(stage, microbatch, done)
    if op.kind not in (Kind.B, Kind.I):
        return True
    forward = (Kind.F, stage, microbatch) in done
    return forward and (stage == last or _is_back(stage + 1, microbatch, done))


def _is_back(stage: int, microbatch: int, done: Done) -> bool:
    return any((kind, stage, microbatch) in done for kind in (Kind.B, Kind.I))
