"""A page's picture as a file: `/export/learn.svg?v=1&...`, the page's own query behind it.

A download is a plain link, so that it needs no callback, works with the keyboard, and is as long as
it has to be. What it holds follows from the address alone.
"""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flask import Flask, Response, request

from dashboard.figures.gantt import write_html
from dashboard.state import State, decode
from simulator.timeline import Timeline
from traces import writable_suffixes, write

__all__ = ["PICTURES", "Picture", "add_export", "answer"]

PICTURES = (".html", ".svg", ".png", ".pdf", ".gif", ".tex")
TYPES = {
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".pdf": "application/pdf",
    ".gif": "image/gif",
    ".tex": "application/x-tex",
    ".json": "application/json",
    ".csv": "text/csv",
}
MOST_TIKZ, MOST_PICTURE = 20_000, 1_000_000  # spans of LaTeX, of any other picture [1]

S = TypeVar("S", bound=State)


@dataclass(frozen=True, eq=False, kw_only=True)
class Picture:
    """What is drawn into a file."""

    timeline: Timeline
    title: str
    subtitle: str
    unit: str  # "s", or "t" for times without a unit
    name: str  # of the file, without suffix


def add_export(server: Flask, page: str, kind: type[S], picture: Callable[[S], Picture]) -> None:
    """Serve a page's picture under `/export/<page>.<suffix>`."""

    def view(suffix: str) -> Response:
        def make() -> tuple[bytes, str]:
            found = picture(decode(kind, request.query_string.decode("ascii", "replace")))
            return _bytes(found, f".{suffix}"), f"{found.name}.{suffix}"

        return answer(make, f".{suffix}")

    server.add_url_rule(f"/export/{page}.<suffix>", f"export-{page}", view)


def answer(make: Callable[[], tuple[bytes, str]], suffix: str) -> Response:
    """The file that `make` gives with its name, or one sentence why there is none."""
    try:
        data, name = make()
    except ValueError as error:
        return Response(f"{error}\n", 400, content_type="text/plain; charset=utf-8")
    response = Response(data, content_type=TYPES.get(suffix, "application/octet-stream"))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:120]
    response.headers["Content-Disposition"] = f'attachment; filename="{plain}"'
    return response


def _bytes(picture: Picture, suffix: str) -> bytes:
    known = {*writable_suffixes(), ".html"}
    if suffix not in known:
        raise ValueError(
            f"{suffix} is no format of a picture; use one of {' '.join(sorted(known))}"
        )
    spans, most = picture.timeline.num_spans, MOST_TIKZ if suffix == ".tex" else MOST_PICTURE
    if spans > most:
        raise ValueError(
            f"the timeline has {spans:,} spans; a page writes at most {most:,} as {suffix}: use "
            "fewer microbatches, or `bubblescope export`"
        )
    draw = write_html if suffix == ".html" else write
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"picture{suffix}"
        draw(
            picture.timeline,
            path,
            title=picture.title,
            subtitle=picture.subtitle,
            unit=picture.unit,
        )
        return path.read_bytes()
