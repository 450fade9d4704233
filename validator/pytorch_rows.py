"""Our rows in PyTorch's own types.

PyTorch's runtime reads the same text that a Schedule prints, lowers it and runs it; what it cannot
run, `why_not` says. What only later versions of it can run, `backports` adds to the others.
"""

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as private

from simulator.dialects import is_lowered
from simulator.lower import lower
from simulator.schedule import Kind, Op, Pair, Schedule
from validator.backports import (
    catch_up,
    has_kind,
    keep_no_outputs,
    mean_gradients,
    options_of,
    scales_gradients,
    wait_for_all,
)

__all__ = ["SEEN", "generator", "lowered_by_pytorch", "record", "runtime", "why_not"]

SEEN = ("2.6", "2.13")  # first and last torch version that has these private names

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def lowered_by_pytorch(schedule: Schedule) -> Schedule:
    """Compute-only rows with the sends and receives that PyTorch's runtime would add.

    Raises:
        ValueError: this torch has no `_add_send_recv` or no pairs, or the rows cannot finish.
    """
    add_send_recv = _private("_add_send_recv")
    if schedule.paired.any() and not has_kind("OVERLAP_F_B"):
        raise ValueError(f"torch {torch.__version__} lowers no overlapped pairs; use 2.9 or later")
    home = dict(zip(schedule.stage.tolist(), schedule.rank.tolist(), strict=True))
    actions = {rank: list(map(_action, schedule.items(rank))) for rank in range(schedule.num_ranks)}
    try:
        lowered = add_send_recv(actions, lambda stage: home[stage], schedule.num_stages)
    except AssertionError as error:
        raise ValueError(f"PyTorch cannot lower these rows: {error}") from None
    return Schedule.of(map(_item, lowered[rank]) for rank in range(schedule.num_ranks))


def why_not(schedule: Schedule, *, num_slices: int | None = None) -> str | None:
    """Why PyTorch's runtime cannot run these rows; None if it can.

    Args:
        schedule: compute-only or lowered rows.
        num_slices: token slices of a microbatch, if that is what the rows count. [1]

    >>> print(why_not(Schedule.parse("0F0,0B0")))
    None
    >>> why_not(Schedule.parse("0F0,0B0,0OPTIMIZER"))
    "0OPTIMIZER stands in the rows; PyTorch's runtime has no weight updates within a schedule"
    """
    spoken = {*map(_word, private._ComputationType), Kind.REDUCE_GRAD.name}
    for op in map(schedule.op, np.unique(schedule.kind, return_index=True)[1].tolist()):
        if op.kind is Kind.OPTIMIZER:
            return (
                f"{op} stands in the rows; PyTorch's runtime has no weight updates within a "
                "schedule"
            )
        if op.kind.name not in spoken:
            return f"{op} stands in the rows; torch {torch.__version__} has no {op.kind.name}"
    if num_slices is not None and num_slices > 1:
        return (
            f"the rows count {num_slices} token slices of each microbatch; PyTorch's runtime hands "
            "no keys and values from slice to slice"
        )
    held: dict[int, set[int]] = {}
    for stage, rank in set(zip(schedule.stage.tolist(), schedule.rank.tolist(), strict=True)):
        held.setdefault(stage, set()).add(rank)
    for stage, ranks in sorted(held.items()):
        if len(ranks) > 1:
            where = " and ".join(map(str, sorted(ranks)))
            return f"stage {stage} is on ranks {where}; PyTorch's runtime has each stage on one"
    if len(held) % schedule.num_ranks:
        return (
            f"{len(held)} stages on {schedule.num_ranks} ranks; PyTorch's runtime wants as many "
            "stages on every rank"
        )
    last = (schedule.kind == Kind.F) & (schedule.stage == schedule.num_stages - 1)
    order = schedule.microbatch[last].tolist()
    for place, microbatch in enumerate(order):
        if place != microbatch:
            return (
                f"the last stage's forward number {place} is of microbatch {microbatch}; PyTorch's "
                "runtime counts losses in the order of microbatches"
            )
    return None


def runtime(
    schedule: Schedule, stages: Sequence[PipelineStage], loss: Loss
) -> private.PipelineScheduleMulti:
    """PyTorch's runtime with these rows loaded, on the rank that holds these stages.

    Compute-only rows are lowered by PyTorch; lowered ones run as they are.

    Call its `step` with the whole batch; what it returns may be None. It accumulates gradients of
    the mean loss, or, by lowered rows without REDUCE_GRAD, of the sum of the losses.

    Raises:
        ValueError: PyTorch cannot run the rows, or this torch has no such runtime.
    """
    reason = why_not(schedule)
    if reason is not None:
        raise ValueError(f"PyTorch cannot run these rows: {reason}")
    kind = _private("_PipelineScheduleRuntime")
    catch_up(stages)
    mean = schedule.stage[schedule.kind == Kind.REDUCE_GRAD] if is_lowered(schedule) else None
    scales = has_kind("REDUCE_GRAD") and (mean is None or mean.size > 0)
    homes = dict(zip(schedule.stage.tolist(), schedule.rank.tolist(), strict=True))
    player: private.PipelineScheduleMulti = kind(
        list(stages),
        schedule.num_microbatches,
        loss_fn=loss,
        **options_of(kind, homes, scales=scales),
    )
    wait_for_all(player)
    keep_no_outputs(player)
    if not has_kind("REDUCE_GRAD"):
        mean_gradients(
            player, [stage for stage in stages if mean is None or stage.stage_index in mean]
        )
    rows = _in_its_words(schedule)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.csv")
        path.write_text(f"{rows}\n")
        player._load_csv(str(path), format="compute_comms" if is_lowered(rows) else "compute_only")
    return player


def generator(
    name: str, stages: Sequence[PipelineStage], num_microbatches: int, loss: Loss
) -> private._PipelineSchedule:
    """PyTorch's own schedule class of this name, such as ScheduleGPipe, on these stages."""
    kind = _private(name)
    catch_up(stages)
    single = issubclass(kind, private.PipelineScheduleSingle)
    player: private._PipelineSchedule = kind(
        stages[0] if single else list(stages), num_microbatches, loss_fn=loss
    )
    wait_for_all(player)
    if not scales_gradients():
        mean_gradients(player, stages)
    return player


def record(stages: Sequence[PipelineStage]) -> list[Op]:
    """A list that grows by an op for each that these stages really run."""
    done: list[Op] = []
    for stage in stages:
        _listen(stage, "forward_one_chunk", done, lambda _: Kind.F)
        _listen(
            stage,
            "backward_one_chunk",
            done,
            lambda options: Kind.B if options.get("full_backward", True) else Kind.I,
        )
        _listen(stage, "backward_weight_one_chunk", done, lambda _: Kind.W)
    return done


def _listen(
    stage: PipelineStage, name: str, done: list[Op], kind: Callable[[dict[str, Any]], Kind]
) -> None:
    """Note each call of a method of one stage."""
    method = getattr(stage, name)

    def noting(microbatch: int, *args: object, **options: Any) -> object:  # noqa: ANN401
        done.append(Op(stage.stage_index, kind(options), microbatch))
        return method(microbatch, *args, **options)

    setattr(stage, name, noting)


def _private(name: str) -> Any:  # noqa: ANN401
    """A name of PyTorch's schedules module."""
    if not hasattr(private, name):
        found = re.sub(r"\+.*", "", torch.__version__)
        raise ValueError(
            f"torch {found} has no {name}; it was last seen in torch {SEEN[1]}, first in {SEEN[0]}"
        )
    return getattr(private, name)


def _in_its_words(schedule: Schedule) -> Schedule:
    """The rows, without what this torch has no word for.

    A pair is its two ops, which the runtime of later versions runs one after the other, too;
    instead of REDUCE_GRAD stands `mean_gradients`.
    """
    if schedule.paired.any() and not has_kind("OVERLAP_F_B"):
        rows = schedule if is_lowered(schedule) else lower(schedule)
        schedule = Schedule.of(rows.rows)
    if not has_kind("REDUCE_GRAD") and (schedule.kind == Kind.REDUCE_GRAD).any():
        schedule = Schedule.of(
            [op for op in row if op.kind is not Kind.REDUCE_GRAD] for row in schedule.rows
        )
    return schedule


def _word(kind: private._ComputationType) -> str:
    """What rows call a kind of op; torch 2.6 numbers its kinds, and prints their words."""
    return kind.value if isinstance(kind.value, str) else str(kind)


def _action(item: Op | Pair) -> private._Action:
    action: private._Action = private._Action.from_str(str(item))
    return action


def _item(action: private._Action) -> Op | Pair:
    text = str(action)
    return Pair.parse(text) if ";" in text else Op.parse(text)
