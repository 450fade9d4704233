"""Pictures for papers and slides: SVG, PDF and PNG."""

import io

from simulator.timeline import Timeline
from traces.labels import Labels

__all__ = ["SUFFIXES", "encode"]

SUFFIXES = (".svg", ".pdf", ".png")
_NO_DATE = {
    ".svg": {"Date": None, "Creator": "Bubblescope"},
    ".pdf": {"CreationDate": None, "Creator": "Bubblescope"},
    ".png": {"Software": "Bubblescope"},
}
_DPI = 160  # of PNG, and of what the others hold as an image


def encode(timeline: Timeline, labels: Labels, suffix: str) -> bytes:
    """The Gantt chart; the same timeline gives the same bytes."""
    from traces import gantt

    buffer = io.BytesIO()
    with gantt.drawing():
        figure = gantt.figure(timeline, labels)
        figure.savefig(buffer, format=suffix[1:], dpi=_DPI, metadata=_NO_DATE[suffix])
    return buffer.getvalue()
