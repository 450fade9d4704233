"""Where a stage's messages go: to their peer, through host memory, or nowhere.

PyTorch's runtime asks a stage for its sends and receives; what it gets here decides. Host memory
lets several ranks share one GPU, over gloo, which moves no GPU memory. A looped stage sends
nothing and finds in its receive buffers what lies there, so one rank of a pipeline runs alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage

__all__ = ["buffers", "fill", "loop_back", "stage_through_host"]

Pending = dict[int, list[tuple[torch.Tensor, torch.Tensor]]]  # microbatch: host, device

VOTES = ("_warmup_forward_vote", "_warmup_backward_result")  # by which neighbours connect


def stage_through_host(stages: Iterable[PipelineStage]) -> None:
    """Send copies in host memory, and copy what arrives there before the op that needs it."""
    for stage in stages:
        for name in ("get_fwd_send_ops", "get_bwd_send_ops"):
            _replace(stage, name, _sends_from_host)
        for name, user in (
            ("get_fwd_recv_ops", "forward_one_chunk"),
            ("get_bwd_recv_ops", "backward_one_chunk"),
        ):
            pending: Pending = {}
            _replace(stage, name, _receives_into_host(pending))
            _copy_first(stage, user, pending)
        for name in VOTES:
            _meet_on_host(stage, name)


def loop_back(stages: Iterable[PipelineStage]) -> None:
    """Send nothing, receive nothing, and agree with no peer on shapes, which are known."""
    for stage in stages:
        for name in (
            "get_fwd_send_ops",
            "get_bwd_send_ops",
            "get_fwd_recv_ops",
            "get_bwd_recv_ops",
        ):
            _replace(stage, name, lambda _, __: [])
        static = torch.ones(1, dtype=torch.int32, device=stage.device)
        for name in VOTES:
            if hasattr(stage, name):
                setattr(stage, name, lambda *_, static=static, **__: static)


def fill(stages: Iterable[PipelineStage]) -> None:
    """Put numbers of an activation's and a gradient's size into the receive buffers."""
    generator = torch.Generator().manual_seed(0)
    for stage in stages:
        for infos, scale in ((stage.args_recv_info, 1.0), (stage.grad_recv_info, 1e-3)):
            for buffer in buffers(infos):
                with torch.no_grad():
                    buffer.copy_(scale * torch.randn(buffer.shape, generator=generator))


def buffers(infos: Mapping[int, Iterable[Any]]) -> Iterator[torch.Tensor]:
    """The receive buffers of a stage, of every microbatch; the model's inputs have none."""
    for info in (info for each in infos.values() for info in each):
        buffer = getattr(info, "buffer", None)
        if isinstance(buffer, torch.Tensor):
            yield buffer


def _replace(
    stage: PipelineStage,
    name: str,
    instead: Callable[[list[distributed.P2POp], int], list[distributed.P2POp]],
) -> None:
    """Let a method's transfers pass through `instead`."""
    method = getattr(stage, name)

    def other(microbatch: int) -> list[distributed.P2POp]:
        return instead(method(microbatch), microbatch)

    setattr(stage, name, other)


def _meet_on_host(stage: PipelineStage, name: str) -> None:
    """Let a method's own tensors, with which neighbours connect, lie in host memory."""
    method = getattr(stage, name, None)
    if method is None:
        return

    def meeting(*args: Any, **options: Any) -> Any:  # noqa: ANN401
        device, stage.device = stage.device, torch.device("cpu")
        try:
            return method(*args, **options)
        finally:
            stage.device = device

    setattr(stage, name, meeting)


def _sends_from_host(ops: list[distributed.P2POp], _: int) -> list[distributed.P2POp]:
    return [
        distributed.P2POp(distributed.isend, op.tensor.to("cpu", copy=True), op.peer, op.group)
        for op in ops
    ]


def _receives_into_host(
    pending: Pending,
) -> Callable[[list[distributed.P2POp], int], list[distributed.P2POp]]:
    def receive(ops: list[distributed.P2POp], microbatch: int) -> list[distributed.P2POp]:
        pairs = [(torch.empty_like(op.tensor, device="cpu"), op.tensor) for op in ops]
        pending[microbatch] = pairs
        return [
            distributed.P2POp(distributed.irecv, host, op.peer, op.group)
            for op, (host, _) in zip(ops, pairs, strict=True)
        ]

    return receive


def _copy_first(stage: PipelineStage, name: str, pending: Pending) -> None:
    """Before a method runs, copy what has arrived for its microbatch to the device."""
    method = getattr(stage, name)

    def after_copy(microbatch: int, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        for host, device in pending.pop(microbatch, []):
            with torch.no_grad():
                device.copy_(host)
        return method(microbatch, *args, **options)

    setattr(stage, name, after_copy)
