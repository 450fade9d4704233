"""Our rows in PyTorch's own types. The one file that touches PyTorch's private pipelining code."""

from collections.abc import Iterable

import torch
from torch.distributed.pipelining import schedules as private

from simulator.schedule import Op, Schedule

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
    actions = {rank: [_action(op) for op in row] for rank, row in enumerate(schedule.rows)}
    try:
        lowered = private._add_send_recv(actions, lambda stage: home[stage], schedule.num_stages)
    except AssertionError as error:
        raise ValueError(f"PyTorch cannot lower these rows: {error}") from None
    return Schedule.of(_ops(lowered[rank]) for rank in range(schedule.num_ranks))


def _action(op: Op) -> private._Action:
    computation = private._ComputationType.from_str(op.kind.name)
    return private._Action(op.stage, computation, op.microbatch)


def _ops(actions: Iterable[private._Action]) -> list[Op]:
    return [Op.parse(str(action)) for action in actions]
