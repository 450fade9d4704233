"""One rank's part of a schedule, ready to step: stages, PyTorch's runtime, optimizers."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from simulator.schedule import Kind, Schedule
from validator import pytorch_rows
from validator.recorder import Recorder
from validator.session import Session
from validator.stage import Stage, loss_of, tokens_of
from validator.transfers import (
    buffers,
    fill,
    loop_back,
    stage_through_host,
)

__all__ = ["DTYPES", "Optimizers", "Player"]

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

Optimizers = Mapping[int, torch.optim.Optimizer]  # by stage


class Player:
    """Steps of one schedule on one rank. A class because PyTorch's runtime keeps state."""

    def __init__(
        self,
        session: Session,
        lowered: Schedule,
        modules: Mapping[int, Stage],
        optimizers: Optimizers,
        device: torch.device,
        *,
        looped: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self.lowered, self.modules, self.optimizers = lowered, modules, optimizers
        self.session, self.recorder = session, recorder
        self.num_microbatches = lowered.num_microbatches
        self.num_stages = lowered.num_stages
        self.stages = [self._stage(index, module, device) for index, module in modules.items()]
        self.looped = looped or session.transfers == "looped"
        if self.looped:
            loop_back(self.stages)
        elif session.transfers == "staged":
            stage_through_host(self.stages)
        if recorder is not None:
            recorder.listen(self.stages)
        self.losses: list[torch.Tensor] = []
        self.runtime = pytorch_rows.runtime(lowered, self.stages, self._loss)
        batch = session.micro_batch_size * self.num_microbatches
        self.inputs, self.targets = tokens_of(session.model, batch, device)
        known = inspect.signature(self.runtime.step).parameters
        self.options = {"return_outputs": False} if "return_outputs" in known else {}

    def step(self) -> None:
        """All microbatches forward and backward, then the optimizer of every stage."""
        self.losses = []
        options: dict[str, Any] = dict(self.options)
        if self.num_stages - 1 in self.modules:
            options |= {"target": self.targets, "losses": self.losses}
        self.runtime.step(*([self.inputs] if 0 in self.modules else []), **options)
        for stage, optimizer in self.optimizers.items():
            self._during(stage, _update(optimizer))

    def gradients_only(self) -> None:
        """The step without its optimizers, from gradients of zero."""
        for module in self.modules.values():
            module.zero_grad(set_to_none=False)
        held, self.optimizers = self.optimizers, {}
        try:
            self.step()
        finally:
            self.optimizers = held

    def warm_up(self, steps: int) -> None:
        """Steps that are not looked at.

        A looped rank's buffers get numbers after a first step that makes them: what lay in that
        memory may be no numbers, which the optimizers would spread over the weights.
        """
        if self.looped:
            self.gradients_only()
            fill(self.stages)
            for module in self.modules.values():
                module.zero_grad(set_to_none=False)
        for _ in range(steps):
            self.step()

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that stands between two steps: weights, gradients, optimizer state, buffers."""
        for index, module in self.modules.items():
            for parameter in module.parameters():
                yield parameter
                if parameter.grad is not None:
                    yield parameter.grad
            yield from module.buffers()
            for state in self.optimizers[index].state.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))
        for stage in self.stages:
            for infos in (stage.args_recv_info, stage.grad_recv_info):
                yield from buffers(infos)

    def _stage(self, index: int, module: nn.Module, device: torch.device) -> PipelineStage:
        """A stage whose shapes are known, so that none are asked of its neighbours."""
        model, session = self.session.model, self.session
        shape = (session.micro_batch_size, model.seq_len)
        dtype = DTYPES[session.dtype]

        def hidden(width: int) -> torch.Tensor:
            return torch.empty(*shape, width, dtype=dtype, device=device, requires_grad=True)

        last = index == self.num_stages - 1
        first = torch.empty(shape, dtype=torch.int64, device=device)
        return PipelineStage(
            module,
            index,
            self.num_stages,
            device,
            input_args=(first if index == 0 else hidden(model.hidden_size),),
            output_args=(hidden(model.vocab_size if last else model.hidden_size),),
        )

    def _loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = loss_of(logits, target, 1 / self.num_microbatches)
        if self.recorder is not None:
            self.recorder.extend()
        return loss

    def _during(self, stage: int, work: Callable[[], None]) -> None:
        if self.recorder is None:
            work()
        else:
            self.recorder.during(stage, Kind.OPTIMIZER, work)


def _update(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """The optimizer step of a stage, which also empties its gradients, in place."""

    def work() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return work
