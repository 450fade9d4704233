"""One showing of a page: its number, and the theme that is on, as the page's own store says.

An answer carries the number of the showing that asked, so that one that comes late, when the reader
has gone back or on, does not write another page's state into the address.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.state import State, encode
from dashboard.theme import Look, look

__all__ = ["Visit", "address", "visit_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """Which showing it is, and how it looks."""

    number: int  # counts up in the browser with every page that is put in [1]
    look: Look
    is_chosen: bool  # the theme, by the reader or by the address; else it is the browser's own


def visit_of(data: object) -> Visit:
    """The visit that a page's store, or a route, says; anything that is none is the first, light.

    >>> visit_of({"visit": 3, "theme": "dark", "chosen": True}).number
    3
    >>> visit_of("nonsense").look.name
    'light'
    """
    table: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    number, theme = table.get("visit"), table.get("theme")
    return Visit(
        number=number if isinstance(number, int) else 0,
        look=look(theme if isinstance(theme, str) else None),
        is_chosen=table.get("chosen") is True,
    )


def address(state: State, visit: Visit) -> dict[str, Any]:
    """What assets/address.js writes into the address: the state, with a theme that was chosen.

    Raises:
        ValueError: the state is too large for an address.

    >>> address(State(), visit_of({"visit": 2, "theme": "dark", "chosen": True}))
    {'visit': 2, 'query': '?v=1&theme=dark'}
    """
    theme = visit.look.name if visit.is_chosen else None
    return {"visit": visit.number, "query": encode(state.model_copy(update={"theme": theme}))}
