"""The pages: one file each, found by being here.

A page is a `Page` named `PAGE`: its state (what the address holds), its layout (a pure function,
in `dashboard/layout/<page>.py`) and its callbacks (`dashboard/callbacks/<page>.py`), kept apart.
The shell, the links and the tests pick it up.
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from dash import Dash

from dashboard.state import State
from dashboard.theme import Look

__all__ = ["Page", "pages"]

S = TypeVar("S", bound=State)


@dataclass(frozen=True, kw_only=True)
class Page(Generic[S]):
    """One page of the dashboard."""

    name: str  # as the link says it
    path: str  # "/" or "/word"
    order: int  # of the links
    about: str  # one line, the link's tooltip
    state: type[S]
    layout: Callable[[S, Look], Any]  # what to show for a state
    register: Callable[[Dash], None]  # adds the page's callbacks to the app


@cache
def pages() -> dict[str, Page[Any]]:
    """Every page in this folder by its path, in the order of the links."""
    files = [module.name for module in pkgutil.iter_modules(__path__)]
    found: list[Page[Any]] = [import_module(f"{__name__}.{name}").PAGE for name in files]
    return {page.path: page for page in sorted(found, key=lambda page: page.order)}
