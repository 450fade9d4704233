"""Train a small transformer under a schedule in PyTorch's runtime: CPU processes over gloo.

Each process is a pipeline rank. The same batch without a pipeline gives the gradients to expect.
"""

import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.pipelining import PipelineStage

from simulator.schedule import Op, Schedule
from validator import pytorch_rows

__all__ = ["Trained", "Workers", "unpipelined"]

HIDDEN, HEADS, TOKENS, SAMPLES = 8, 2, 3, 2  # SAMPLES in a microbatch
DTYPE = torch.float64

START = 180.0  # a process imports torch, which may take long on a busy machine [s]

Gradients = dict[str, NDArray[np.float64]]
Answer = tuple[list[Op], NDArray[np.float64], Gradients]  # ran, losses, gradients


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """One training step: what ran, the losses and the gradients."""

    ran: Schedule | None  # the compute ops in the order in which each rank ran them
    losses: NDArray[np.float64]  # of each microbatch, shape (num_microbatches,)
    gradients: Gradients  # by stage and parameter, of the mean loss

    def furthest(self, other: "Trained") -> float:
        """The largest difference between two runs' losses or gradients. [1]"""
        assert self.gradients.keys() == other.gradients.keys()
        ours, theirs = ([run.losses, *run.gradients.values()] for run in (self, other))
        return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


@dataclass(frozen=True, kw_only=True)
class Task:
    """What each process is asked to run."""

    rows: str | None  # compute-only or lowered rows, or
    generator: str | None  # the name of PyTorch's own schedule class
    held: tuple[tuple[int, ...], ...]  # stages of each rank
    num_microbatches: int  # [1]
    store: str  # a path where the processes meet


class Workers:
    """Processes that stay, because starting one takes seconds. Use it in a `with`.

    After an error or a timeout all of them are stopped, and none is left behind.
    """

    def __init__(self, num_ranks: int, timeout: float = 60.0) -> None:
        """Start a process for each rank; a step may take `timeout`. [s]"""
        # One clean process imports torch and the ranks are its forks, or else each imports it.
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        context = (
            multiprocessing.get_context("forkserver")
            if forks
            else multiprocessing.get_context("spawn")
        )
        context.set_forkserver_preload([__name__])
        self.timeout = timeout
        self.folder = tempfile.TemporaryDirectory()
        self.tasks = 0
        self.ends: list[Connection] = []
        self.processes = []
        for rank in range(num_ranks):
            end, other = context.Pipe()
            process = context.Process(target=_serve, args=(rank, other, timeout), daemon=True)
            process.start()
            other.close()
            self.ends.append(end)
            self.processes.append(process)
        self._answers(num_ranks, START)

    @property
    def alive(self) -> bool:
        """Whether another step can be run."""
        return bool(self.processes)

    def train(self, schedule: Schedule) -> Trained:
        """One training step under compute-only or lowered rows, in PyTorch's runtime.

        Raises:
            ValueError: PyTorch cannot run the rows, or there are too few processes.
            RuntimeError: a process failed, or the step took too long.
        """
        reason = pytorch_rows.why_not(schedule)
        if reason is not None:
            raise ValueError(f"PyTorch cannot run these rows: {reason}")
        held = tuple(tuple(sorted({op.stage for op in row})) for row in schedule.rows)
        return self._run(str(schedule), None, held, schedule.num_microbatches)

    def generate(self, name: str, held: Sequence[Sequence[int]], num_microbatches: int) -> Trained:
        """One training step under PyTorch's own schedule class, with these stages on each rank.

        Raises:
            RuntimeError: a process failed, or the step took too long.
        """
        return self._run(None, name, tuple(map(tuple, held)), num_microbatches)

    def _run(
        self, rows: str | None, name: str | None, held: tuple[tuple[int, ...], ...], m: int
    ) -> Trained:
        num_ranks = len(held)
        if num_ranks > len(self.processes):
            raise ValueError(
                f"the schedule has {num_ranks} ranks, but there are {len(self.processes)} "
                "processes; start as many"
            )
        self.tasks += 1
        task = Task(
            rows=rows,
            generator=name,
            held=held,
            num_microbatches=m,
            store=str(Path(self.folder.name, str(self.tasks))),
        )
        for end in self.ends[:num_ranks]:
            end.send(task)
        answers = self._answers(num_ranks, self.timeout)
        return Trained(
            ran=Schedule.of(answer[0] for answer in answers),
            losses=next(answer[1] for answer in answers if len(answer[1])),
            gradients=dict(sorted(pair for answer in answers for pair in answer[2].items())),
        )

    def _answers(self, num_ranks: int, timeout: float) -> list[Answer]:
        """What each process sends back; stop them all if one fails."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        while len(found) < num_ranks:
            open_ends = {self.ends[rank]: rank for rank in range(num_ranks) if rank not in found}
            ready = multiprocessing.connection.wait(
                list(open_ends), max(0.0, deadline - time.monotonic())
            )
            problem = "" if ready else f"took more than {timeout:g} s"
            rank = min(open_ends.values())
            for end in ready:
                assert isinstance(end, Connection)
                rank = open_ends[end]
                try:
                    found[rank] = end.recv()
                except EOFError:
                    problem = "ended"
                else:
                    problem = found[rank] if isinstance(found[rank], str) else ""
                if problem:
                    break
            if problem:
                self.stop()
                raise RuntimeError(f"the process of rank {rank}: {problem}")
        return [found[rank] for rank in range(num_ranks)]

    def stop(self) -> None:
        """End every process."""
        for end in self.ends:
            end.close()
        for process in self.processes:
            process.join(0.1)
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        self.ends, self.processes = [], []
        self.folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def unpipelined(num_stages: int, num_microbatches: int) -> Trained:
    """The same step of the same model in this process, without a pipeline."""
    modules = [_module(stage, num_stages) for stage in range(num_stages)]
    inputs, targets = _batch(num_microbatches)
    losses = []
    for x, y in zip(inputs.chunk(num_microbatches), targets.chunk(num_microbatches), strict=True):
        for module in modules:
            x = module(x)
        losses.append(_loss(x, y))
        torch.autograd.backward(losses[-1] / num_microbatches)
    return Trained(
        ran=None,
        losses=np.array([loss.item() for loss in losses]),
        gradients=dict(sorted(p for s, m in enumerate(modules) for p in _gradients(s, m).items())),
    )


class Layer(nn.Module):
    """A pre-norm transformer layer, from plain parts that split their backward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = (nn.LayerNorm(HIDDEN, dtype=DTYPE) for _ in range(2))
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, dtype=DTYPE)
        self.out = nn.Linear(HIDDEN, HIDDEN, dtype=DTYPE)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, dtype=DTYPE)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, dtype=DTYPE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention, then the feed-forward network."""
        samples, tokens, _ = x.shape
        heads = self.qkv(self.norm_1(x)).view(samples, tokens, 3, HEADS, HIDDEN // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(samples, tokens, HIDDEN))
        result: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm_2(x))))
        return result


def _module(stage: int, num_stages: int) -> nn.Module:
    """One stage: a layer, and on the last the output layer. Seeded by its index."""
    torch.manual_seed(1 + stage)
    layers: list[nn.Module] = [Layer()]
    if stage == num_stages - 1:
        layers.append(nn.Linear(HIDDEN, HIDDEN, dtype=DTYPE))
    return nn.Sequential(*layers)


def _batch(num_microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all microbatches."""
    torch.manual_seed(0)
    shape = (SAMPLES * num_microbatches, TOKENS, HIDDEN)
    return torch.randn(shape, dtype=DTYPE), torch.randn(shape, dtype=DTYPE)


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def _gradients(stage: int, module: nn.Module) -> Gradients:
    found = {}
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, f"stage {stage} has no gradient of {name}"
        found[f"{stage:04d}.{name}"] = parameter.grad.numpy().copy()
    return found


def _serve(rank: int, end: Connection, timeout: float) -> None:
    """A process: run what is asked until the other end is gone."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.simplefilter("ignore")
    end.send(([], np.empty(0), {}))
    while True:
        try:
            task = end.recv()
        except EOFError:
            return
        try:
            end.send(_step(rank, task, timeout))
        except Exception:  # the caller raises it
            end.send(traceback.format_exc())


def _step(rank: int, task: Task, timeout: float) -> Answer:
    """One training step on one rank."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{task.store}",
        rank=rank,
        world_size=len(task.held),
        timeout=timedelta(seconds=timeout),
    )
    try:
        num_stages, m = sum(map(len, task.held)), task.num_microbatches
        device = torch.device("cpu")
        inputs, targets = _batch(m)
        example = torch.empty(SAMPLES, TOKENS, HIDDEN, dtype=DTYPE)
        modules = {stage: _module(stage, num_stages) for stage in task.held[rank]}
        stages = [
            PipelineStage(module, stage, num_stages, device, input_args=(example,))
            for stage, module in modules.items()
        ]
        ran = pytorch_rows.record(stages)
        if task.rows is not None:
            player: Any = pytorch_rows.runtime(Schedule.parse(task.rows), stages, _loss)
        else:
            assert task.generator is not None
            player = pytorch_rows.generator(task.generator, stages, m, _loss)
        losses: list[torch.Tensor] = []
        player.step(
            *([inputs] if 0 in modules else []),
            **({"target": targets, "losses": losses} if num_stages - 1 in modules else {}),
        )
        gradients: Gradients = {}
        for stage, module in modules.items():
            gradients |= _gradients(stage, module)
        return ran, np.array([loss.item() for loss in losses]), gradients
    finally:
        torch.distributed.destroy_process_group()
