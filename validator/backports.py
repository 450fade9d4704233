"""What older torch lacks in its pipelining, added from outside to its stages and its runtime.

The rest of the validator then sees one behaviour from torch 2.6 on. Each part looks for what it
stands in for, not for a version, and does nothing where torch has it.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any

from torch import distributed
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as private

__all__ = [
    "catch_up",
    "has_kind",
    "keep_no_outputs",
    "mean_gradients",
    "options_of",
    "scales_gradients",
]

Altered = Any  # a stage or a schedule of PyTorch, of which a method is replaced

FIRST_WORDS = "_get_init_p2p_neighbors_ops"  # of neighbours, by which they connect; to 2.12


def has_kind(name: str) -> bool:
    """Whether this torch has a kind of op: OVERLAP_F_B came with 2.9, REDUCE_GRAD with 2.10."""
    return hasattr(private._ComputationType, name)


def scales_gradients() -> bool:
    """Whether PyTorch's own schedules divide by the number of microbatches: not in 2.6."""
    return hasattr(PipelineStage, "scale_grads")


def options_of(
    kind: type[private._PipelineSchedule], homes: Mapping[int, int], *, scales: bool
) -> dict[str, Any]:
    """Options of a runtime: whether it scales gradients, and where stages are, by stage.

    Torch 2.6 scales nothing, and does not look in the rows for a stage's rank.
    """
    if not hasattr(kind, "_validate_and_set_stage_mapping"):
        return {"stage_index_to_group_rank": dict(homes)}
    return {} if scales else {"scale_grads": False}


def catch_up(stages: Collection[PipelineStage]) -> None:
    """Let stages connect, send, detach and free as those of later versions do."""
    for stage in stages:
        if hasattr(stage, FIRST_WORDS):  # a neighbour may be on the same rank, which gloo cannot
            setattr(stage, FIRST_WORDS, list)
        if not hasattr(private, "_wait_batch_p2p"):
            _send_by_microbatch(stage)
        if not scales_gradients():
            _keep_views(stage)
        if not _returns_on_request():
            _free_gradients(stage)


def wait_for_all(player: Altered) -> None:
    """Let a schedule wait for all transfers that it posts together, and for none if there is none.

    Up to torch 2.7 it waits for the last one alone, and cannot where a stage sends nothing. The
    step loop is the same function with another `_batch_p2p`, for this schedule alone.
    """
    if hasattr(private, "_wait_batch_p2p"):
        return
    loop = type(player)._step_microbatches
    assert isinstance(loop, FunctionType)
    known = {**loop.__globals__, "_batch_p2p": _Handles}
    ours = FunctionType(loop.__code__, known, loop.__name__, loop.__defaults__, loop.__closure__)
    player._step_microbatches = ours.__get__(player)


def keep_no_outputs(player: Altered) -> None:
    """Let go of a stage's outputs at once where `step` cannot be told to: it returns none then."""
    if _returns_on_request():
        return
    method = player._maybe_compute_loss

    def letting_go(stage: Altered, *args: Any) -> Any:  # noqa: ANN401
        stage.output_chunks.clear()
        return method(stage, *args)

    player._maybe_compute_loss = letting_go
    player._merge_outputs = lambda _: None


def mean_gradients(player: Altered, stages: Collection[PipelineStage]) -> None:
    """Divide these stages' gradients by the number of microbatches when the step is through.

    Later versions do it where REDUCE_GRAD stands. Those between scale in some ops but not in W.
    """
    method, m = player._step_microbatches, player._n_microbatches

    def scaled(*args: Any, **options: Any) -> None:  # noqa: ANN401
        method(*args, **options)
        for stage in stages:
            for parameter in stage.submod.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(m)

    player._step_microbatches = scaled


class _Handles:
    """Transfers that were posted together, to wait for together. A class because of its `wait`."""

    def __init__(self, ops: list[distributed.P2POp], desc: str | None = None) -> None:
        del desc  # PyTorch's word for its log
        self.works = distributed.batch_isend_irecv(ops) if ops else []

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self.works:
            work.wait()


def _returns_on_request() -> bool:
    """Whether `step` can be told to return no outputs, and the backward frees gradients it read."""
    return "return_outputs" in inspect.signature(private.PipelineScheduleMulti.step).parameters


def _send_by_microbatch(stage: Altered) -> None:
    """Send the output of the microbatch asked for, not of the forward with that number."""
    method = stage.get_fwd_send_ops

    def sends(microbatch: int) -> list[distributed.P2POp]:
        held, stage.output_chunks = (
            stage.output_chunks,
            {microbatch: stage.fwd_cache[microbatch][0]},
        )
        try:
            ops: list[distributed.P2POp] = method(microbatch)
            return ops
        finally:
            stage.output_chunks = held

    stage.get_fwd_send_ops = sends


def _keep_views(stage: Altered) -> None:
    """Do not detach outputs in place that are views, which cannot be."""

    def forget_views(microbatch: int) -> None:
        if stage.is_last:
            outputs, inputs = stage.fwd_cache[microbatch]
            kept = tuple(each for each in outputs if not each._is_view())
            stage.fwd_cache[microbatch] = kept, inputs

    _around_backward(stage, before=forget_views)


def _free_gradients(stage: Altered) -> None:
    """Let go of the gradients of what a microbatch received: they are with the ops that send."""

    def free(microbatch: int) -> None:
        for info in stage.args_recv_info[microbatch]:
            if hasattr(info, "buffer"):
                info.buffer.grad = None

    _around_backward(stage, after=free)


def _nothing(microbatch: int) -> None:
    del microbatch


def _around_backward(
    stage: Altered,
    before: Callable[[int], None] = _nothing,
    after: Callable[[int], None] = _nothing,
) -> None:
    method = stage.backward_one_chunk

    def backward(microbatch: int, *args: Any, **options: Any) -> None:  # noqa: ANN401
        before(microbatch)
        method(microbatch, *args, **options)
        after(microbatch)

    stage.backward_one_chunk = backward
