"""What a validation runs: sizes, rows, repetitions; a value that travels to processes as JSON."""

from typing import Literal, Self

from pydantic import Field, model_validator

from simulator.checks import Count, Positive, Value
from simulator.lower import lower
from simulator.model import Model
from simulator.schedule import Schedule

__all__ = ["TOLERANCE", "WIDTHS", "Play", "Session"]

WIDTHS = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}  # of a number [bytes]

# Largest ||difference|| / ||gradient|| of a parameter. Schedules add up microbatches in different
# orders, which rounds differently: some units in the last place of the type that is added in.
TOLERANCE = {"fp64": 1e-12, "fp32": 1e-5, "fp16": 1e-2, "bf16": 5e-2}


class Play(Value):
    """One schedule to run: its rows and the cut of the model."""

    name: str = Field(description="what reports call it")
    rows: str = Field(description="compute-only rows, one line a pipeline rank")
    layers_per_stage: tuple[Count, ...] = Field(description="layers of each stage [1]")

    @property
    def schedule(self) -> Schedule:
        """Its compute-only rows."""
        return Schedule.parse(self.rows)

    @property
    def lowered(self) -> Schedule:
        """The rows with sends and receives, as PyTorch's runtime plays them."""
        return lower(self.schedule)

    @property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each rank."""
        return tuple(tuple(sorted({op.stage for op in row})) for row in self.schedule.rows)

    @property
    def cut(self) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """What decides which modules a rank holds: plays of equal cut share them."""
        return self.layers_per_stage, self.held

    @property
    def splits_backward(self) -> bool:
        """Whether it runs input and weight gradients apart."""
        return "W" in self.rows


class Session(Value):
    """A validation: what every process does, in which order."""

    model: Model = Field(description="the model, scaled as asked")
    plays: tuple[Play, ...] = Field(description="the first is the one to calibrate on")
    micro_batch_size: Count = Field(description="sequences in one microbatch [1]")
    num_microbatches: Count = Field(description="of one step [1]")
    device: Literal["cpu", "cuda"] = Field(description="where ops run")
    transfers: Literal["direct", "staged", "looped"] = Field(
        "direct",
        description="direct = NCCL or gloo; staged = gloo through host memory, ranks share a GPU; "
        "looped = one rank alone, neighbours looped back",
    )
    dtype: Literal["fp64", "fp32", "bf16", "fp16"] = Field(description="of weights and activations")
    compiled: bool = Field(False, description="layers go through torch.compile")
    rounds: Count = Field(5, description="repetitions, interleaved over the plays [1]")
    warmup: Count = Field(1, description="untimed steps before the timed ones of a round [1]")
    steps: Count = Field(1, description="timed steps of each play and round [1]")
    timeout: Positive = Field(120.0, description="longest time without an op that ends [s]")
    sweep: bool = Field(False, description="also time one layer over sizes and dtypes")
    tracing: bool = Field(True, description="time every op; false times whole steps only")

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks. [1]"""
        return self.plays[0].schedule.num_ranks

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch. [1]"""
        return self.micro_batch_size * self.model.seq_len

    @property
    def boundary_bytes(self) -> int:
        """One microbatch's tensor between two stages. [bytes]"""
        return WIDTHS[self.dtype] * self.tokens * self.model.hidden_size

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({play.name for play in self.plays}) < len(self.plays):
            raise ValueError("two plays have one name; name each once")
        if self.compiled and (split := [p.name for p in self.plays if p.splits_backward]):
            raise ValueError(
                f"compiled layers are one node of the autograd graph, which {split[0]} would cut "
                "into I and W; leave out --compile, or the schedules that split the backward"
            )
        return self
