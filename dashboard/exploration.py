"""What the address of Explore holds: a job, and how it is looked at."""

from typing import Literal

from pydantic import Field

from dashboard.choice import Choice
from simulator.checks import NotNegative, Positive

__all__ = ["ExploreState"]


class ExploreState(Choice):
    """What the address of Explore holds."""

    tokens: Positive = Field(300e9, description="tokens to train on [1]")
    price: NotNegative = Field(2.0, description="price of one GPU for an hour [$]")
    critical: bool = Field(False, description="whether the critical path is drawn")
    group: Literal["pp", "dp", "cp", "tp"] = Field(
        "pp", description="what the GPU grid is coloured by"
    )
    window: tuple[NotNegative, NotNegative] | None = Field(None, description="time in view [s]")
    ranks: tuple[float, float] | None = Field(None, description="rows in view, top, bottom [1]")
    bubble: tuple[int, float] | None = Field(None, description="rank and time of a click [1], [s]")

    @property
    def choice(self) -> Choice:
        """The job alone."""
        names = set(Choice.model_fields) - {"theme"}
        return Choice(**{name: getattr(self, name) for name in names})
