"""What a step of the story is: a schedule, a formula and a question; the steps are in `scenes`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from dashboard.comparison import textbook
from dashboard.state import State
from simulator.checks import NotNegative, Positive
from simulator.report import Report
from simulator.simulate import Run

__all__ = ["Formula", "LearnState", "Numbers", "Scene", "idle_share", "run_of"]

MOST_RANKS, MOST_MICROBATCHES = 64, 512
Scope = Literal["step", "span"]


class LearnState(State):
    """Which step of the story, with which numbers, and where the cursor stands."""

    step: str = Field("naive", max_length=20, description="step of the story")
    pp: int = Field(4, ge=2, le=MOST_RANKS, description="pipeline ranks p [1]")
    m: int = Field(8, ge=1, le=MOST_MICROBATCHES, description="microbatches m [1]")
    f: Positive = Field(1.0, le=1000, description="forward F of a microbatch on a rank [t]")
    i: Positive = Field(1.0, le=1000, description="its backward for the input, I [t]")
    w: Positive = Field(1.0, le=1000, description="its backward for the weights, W [t]")
    at: NotNegative | None = Field(None, description="time at which the player stands [t]")


@dataclass(frozen=True)
class Numbers:
    """The letters of the formulas."""

    p: int
    m: int
    f: float
    i: float
    w: float

    @property
    def b(self) -> float:
        """The full backward. [t]"""
        return self.i + self.w

    @property
    def is_even(self) -> bool:
        """Whether F, I and W take equally long."""
        return max(self.f, self.i, self.w) - min(self.f, self.i, self.w) < 1e-12


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A share of idle time, as a fraction in letters and in numbers."""

    over: str
    under: str
    over_numbers: Callable[[Numbers], str]
    under_numbers: Callable[[Numbers], str]
    value: Callable[[Numbers], float]  # [1]
    holds: Callable[[Numbers], bool]
    where: str  # where it holds
    of: Scope = "step"  # idle of the whole step, or of the largest single-rank span


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A step of the story."""

    name: str  # in the address
    title: str
    schedule: str
    chunks: int = 1
    story: tuple[str, ...]  # paragraphs
    formula: Formula
    memory: str  # forwards held on the fullest rank, in words and letters
    question: str
    answer: str
    source: str


def run_of(scene: Scene, state: LearnState) -> Run:
    """The schedule of a step with the reader's numbers.

    Raises:
        ValueError: the schedule does not exist for these numbers; says the rule.
    """
    plan = {"schedule": scene.schedule, "pp": state.pp, "num_microbatches": state.m}
    return textbook(plan | {"vpp": scene.chunks}, (state.f, state.i, state.w))


def idle_share(report: Report, of: Scope) -> float:
    """What the simulation says about the formula's figure. [1]"""
    return report.bubble_fraction if of == "step" else report.span_bubble
