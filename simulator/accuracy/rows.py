"""The published measurements that predictions are scored against, as they ship with the program.

A table is a CSV file of `rows/` with one measured run a line, and its entry in `tables.toml`.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from simulator.errors import unknown
from simulator.files import parse_toml

__all__ = ["Row", "Table", "load_table", "table_names"]

FOLDER = resources.files("simulator") / "accuracy"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured run; a cell that its source does not print is missing."""

    id: str
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """A cell's text, empty if it is missing."""
        return self.cells.get(name, "")

    def number(self, name: str) -> float | None:
        """A cell's number, None if it is missing."""
        text = self.text(name)
        try:
            return float(text) if text else None
        except ValueError:
            raise ValueError(f"{name} of row {self.id} is {text!r}; it must be a number") from None

    def count(self, name: str) -> int | None:
        """A cell's whole number, None if it is missing."""
        value = self.number(name)
        return None if value is None else round(value)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One published table, and what holds for all of its rows."""

    name: str
    title: str
    citation: str
    rows: tuple[Row, ...]
    framework: str = ""
    family: str = ""  # what its models are, in families.toml
    cluster: Any = None  # a preset's name or a table
    precision: str = ""  # where the rows do not print it
    target: float | None = None  # mean absolute error that the model should reach [1]
    layers: bool = False  # whether its rows are single layers, not steps
    ordering: bool = False  # whether its rows vary the plan of one model
    omitted: str = ""  # why none of its rows can be scored
    held_out: bool = False  # whether no constant was ever fitted on it
    micro_batch_like: str = ""  # a table whose rows of the same hidden size state it
    clusters: Mapping[str, Any] = field(default_factory=dict)  # by the row's GPU
    families: Mapping[str, str] = field(default_factory=dict)  # by the row's model
    frameworks: Mapping[str, str] = field(default_factory=dict)  # by a word of its precision
    models: Mapping[str, str] = field(default_factory=dict)  # presets of the row's model

    def cluster_of(self, row: Row) -> Any:  # noqa: ANN401 - a name or a table, as a job file has
        """The cluster that a row ran on, as a job's file would name it."""
        return self.clusters.get(row.text("gpu"), self.cluster)

    def framework_of(self, row: Row) -> str:
        """The framework that a row ran."""
        words = row.text("precision").replace("(", " ").replace(")", " ").split()
        return next((self.frameworks[w] for w in words if w in self.frameworks), self.framework)

    def family_of(self, row: Row) -> str:
        """The family of a row's model."""
        return self.families.get(row.text("model"), self.family)


@cache
def _entries() -> dict[str, Any]:
    return parse_toml((FOLDER / "tables.toml").read_bytes(), "tables.toml")


def table_names() -> tuple[str, ...]:
    """Names of the tables, in the order in which they are reported.

    >>> table_names()[0]
    'megatron-sc21'
    """
    return tuple(_entries())


@cache
def load_table(name: str) -> Table:
    """A table with its rows.

    Raises:
        ValueError: there is no table of that name.

    >>> load_table("megatron-sc21").rows[0].number("tflops_per_gpu")
    137.0
    """
    if name not in _entries():
        raise ValueError(unknown("table", name, table_names()))
    entry = dict(_entries()[name])
    text = (FOLDER / "rows" / entry.pop("file")).read_text(encoding="utf-8")
    rows = tuple(Row(id=line["row_id"], cells=line) for line in csv.DictReader(io.StringIO(text)))
    return Table(name=name, rows=rows, **entry)
