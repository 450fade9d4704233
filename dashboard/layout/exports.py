"""Links that download a page's picture."""

from collections.abc import Sequence
from typing import Any

from dash import html

__all__ = ["links"]


def links(page: str, query: str, suffixes: Sequence[str], what: str = "") -> list[Any]:
    """A link for each suffix; the query says what is drawn, `what` stands before the suffix."""
    return [
        html.A(
            f"{what} {suffix}" if what else suffix,
            href=f"/export/{page}{suffix}{query}",
            download="",
            className="export",
            title=f"download as {suffix}",
        )
        for suffix in suffixes
    ]
