"""Rows drawn as a grid, with the spot marked at which each rank is stuck."""

from collections.abc import Sequence

from simulator.schedule import Kind, Op, Schedule

__all__ = ["grid", "spots"]

BEFORE, AFTER = 3, 4  # ops shown on each side of the spot
MOST_RANKS = 16


def grid(schedule: Schedule, at: Sequence[int]) -> str:
    """A line a rank: the ops around index `at[rank]` of the columns, which stands in brackets.

    A rank whose index is the end of its row has finished.

    >>> print(grid(Schedule.parse("0B0,0F0" + chr(10) + "1F0,1B0"), [0, 4]))
    rank 0  [0B0] 0F0
    rank 1  1F0 1B0 [done]
    """
    cells = []
    for rank, spot in enumerate(at[:MOST_RANKS]):
        first, stop = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
        low, high = max(first, spot - BEFORE), min(stop, spot + AFTER + 1)
        row = [str(schedule.op(index)) for index in range(low, high)]
        if spot < stop:
            row[spot - low] = f"[{row[spot - low]}]"
        else:
            row.append("[done]")
        head = ["..."] * (low > first)
        tail = ["..."] * (high < stop)
        cells.append(" ".join([*head, *row, *tail]))
    width = len(f"rank {len(cells) - 1}")
    lines = [f"{f'rank {rank}':<{width}}  {row}" for rank, row in enumerate(cells)]
    if len(at) > MOST_RANKS:
        lines.append(f"and {len(at) - MOST_RANKS} more ranks")
    return "\n".join(lines)


def spots(schedule: Schedule, at: Sequence[int]) -> tuple[tuple[int, Op], ...]:
    """Each rank that has not finished, and its op at index `at[rank]` of the columns.

    A rank that stands still for its transfers is shown at the op that follows.

    >>> spots(Schedule.parse("0B0,0F0" + chr(10) + "1F0,1B0"), [0, 4])
    ((0, 0B0),)
    """
    found = []
    for rank, first in enumerate(at):
        stop = int(schedule.offsets[rank + 1])
        after = (i for i in range(first, stop) if schedule.kind[i] != Kind.WAIT)
        index = next(after, stop - 1)
        if first < stop:
            found.append((rank, schedule.op(index)))
    return tuple(found)
