"""Our rows in PyTorch's own types. The one file that touches PyTorch's private pipelining code."""

import torch
from torch.distributed.pipelining import schedules as private

from simulator.schedule import Op, Pair, Schedule

__all__ = ["TESTED", "lowered_by_pytorch"]

TESTED = ("2.6", "2.13")  # first and last torch version that these private names were seen in


def lowered_by_pytorch(schedule: Schedule) -> Schedule:
    """Compute-only rows with the sends and receives that PyTorch's runtime would add.

    Raises:
        ValueError: this torch has no `_add_send_recv`, or the rows cannot finish.
    """
    if not hasattr(private, "_add_send_recv"):
        raise ValueError(
            f"torch {torch.__version__} has no _add_send_recv; use torch {TESTED[0]} to {TESTED[1]}"
        )
    home = dict(zip(schedule.stage.tolist(), schedule.rank.tolist(), strict=True))
    actions = {rank: list(map(_action, schedule.items(rank))) for rank in range(schedule.num_ranks)}
    try:
        lowered = private._add_send_recv(actions, lambda stage: home[stage], schedule.num_stages)
    except AssertionError as error:
        raise ValueError(f"PyTorch cannot lower these rows: {error}") from None
    return Schedule.of(map(_item, lowered[rank]) for rank in range(schedule.num_ranks))


def _action(item: Op | Pair) -> private._Action:
    action: private._Action = private._Action.from_str(str(item))
    return action


def _item(action: private._Action) -> Op | Pair:
    text = str(action)
    return Pair.parse(text) if ";" in text else Op.parse(text)
