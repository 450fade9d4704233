"""A place to drop files on; assets/upload.js sends them and sets the store."""

from typing import Any

from dash import dcc, html

from dashboard.layout.plain import attributes
from dashboard.uploads import MOST_FILES, MOST_UPLOAD

__all__ = ["drop", "store_of"]


def store_of(name: str) -> str:
    """The store that holds {"token", "name", "at"} of the last upload, and "all" of this page."""
    return f"{name}-uploaded"


def drop(name: str, words: str) -> Any:  # noqa: ANN401 - a component
    """A drop zone with a button, its limits, and where its errors are told."""
    size = MOST_UPLOAD / 1e6
    return html.Div(
        [
            dcc.Store(id=store_of(name)),
            html.Div(
                id=f"{name}-drop",
                className="drop",
                **attributes(
                    {
                        "data-upload": name,
                        "data-most-bytes": str(MOST_UPLOAD),
                        "data-words": words,
                    }
                ),
            ),
            html.P(
                f".json or .json.gz; at most {MOST_FILES} files, {size:.0f} MB together",
                className="muted small",
            ),
            html.Div(id=f"{name}-upload-problem", role="alert", className="problem"),
        ]
    )
