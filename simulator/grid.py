"""Rows drawn as a grid, with the spot marked at which each rank is stuck."""

from collections.abc import Sequence

from simulator.schedule import Schedule

__all__ = ["grid"]

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
