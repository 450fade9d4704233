"""The words around a picture: its title, and units that suit its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.schedule import Kind

__all__ = ["TRANSFERS", "WORDS", "Labels", "Unit", "byte_unit", "time_unit"]

WORDS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
    Kind.OPTIMIZER: "optimizer",
    Kind.SEND_F: "send activation",
    Kind.RECV_F: "receive activation",
    Kind.SEND_B: "send gradient",
    Kind.RECV_B: "receive gradient",
    Kind.UNSHARD: "unshard",
    Kind.RESHARD: "reshard",
    Kind.REDUCE_GRAD: "reduce gradients",
    Kind.WAIT: "wait",
}
"""What each kind is called."""

TRANSFERS = {
    Kind.SEND_F: "activation transfer",
    Kind.RECV_F: "activation transfer",
    Kind.SEND_B: "gradient transfer",
    Kind.RECV_B: "gradient transfer",
}
"""What a legend calls both ends of a transfer, which have one colour."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What a file says beside its timeline; `unit` is "s" for s, ms, µs and bytes, "t" for none."""

    title: str = ""
    subtitle: str = ""
    unit: str = "s"
    critical_path: bool = False  # draw what the step's length hangs on
    about: Mapping[str, Any] = field(default_factory=dict)  # JSON types, kept by `.json`

    def __post_init__(self) -> None:
        if self.unit not in ("s", "t"):
            raise ValueError(f"unit is {self.unit!r}; use 's' for seconds or 't' for no unit")


class Unit(NamedTuple):
    """A unit to show numbers in: shown number = SI number x `per_si`."""

    name: str
    per_si: float

    def text(self, value: float) -> str:
        """Three significant digits and the unit's name.

        >>> byte_unit(80e9).text(12.345e9)
        '12.3 GB'
        """
        shown = value * self.per_si
        if not self.name:
            return f"{shown:.4g}"
        digits = 0 if abs(shown) >= 100 else 1 if abs(shown) >= 10 else 2
        return f"{shown:.{digits}f} {self.name}"


def time_unit(seconds: float, unit: str = "s") -> Unit:
    """The unit for a picture that lasts this long.

    >>> time_unit(0.034).name
    'ms'
    """
    if unit == "t":
        return Unit("", 1.0)
    for name, per_si in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * per_si >= 1:
            return Unit(name, per_si)
    return Unit("ns", 1e9)


def byte_unit(nbytes: float, unit: str = "s") -> Unit:
    """The unit for a picture whose largest number of bytes is this; decimal, as GPUs are sold.

    Without a unit of time, as with uniform costs, memory has none either.

    >>> byte_unit(80e9).name
    'GB'
    """
    if unit == "t":
        return Unit("", 1.0)
    for name, per_si in (("TB", 1e-12), ("GB", 1e-9), ("MB", 1e-6), ("kB", 1e-3)):
        if nbytes * per_si >= 1:
            return Unit(name, per_si)
    return Unit("B", 1.0)
