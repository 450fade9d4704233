"""Two timelines of one schedule, one over the other on one time axis, as SVG.

Measured above, predicted below, rank by rank, so that the eye compares what lies side by side.
"""

from collections.abc import Iterator
from html import escape

import numpy as np

from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.colors import IDLE, INK, MUTED, color, text_color
from traces.labels import TRANSFERS, WORDS, time_unit

__all__ = ["two_gantts"]

WIDTH, LEFT, RIGHT = 1000.0, 150.0, 14.0  # [px], as all lengths here
HEAD, KEY, ROW, GAP, BETWEEN, AXIS = 26.0, 24.0, 19.0, 2.0, 12.0, 40.0
NARROWEST_LABEL = 9.0
FONT = "font-family='DejaVu Sans, Arial, sans-serif'"


def two_gantts(measured: Timeline, predicted: Timeline, title: str) -> str:
    """A standalone SVG: a pair of rows for each rank, the measured one on top.

    Args:
        measured: what ran.
        predicted: what the simulator says.
        title: one line, which states the finding.
    """
    length = max(measured.makespan, predicted.makespan)
    unit = time_unit(length)
    scale = (WIDTH - LEFT - RIGHT) / length
    ranks = max(measured.num_ranks, predicted.num_ranks)
    rows = ranks * (2 * ROW + GAP + BETWEEN)
    height = HEAD + KEY + rows + AXIS
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH:g} {height:g}' "
        f"width='{WIDTH:g}' height='{height:g}' {FONT} font-size='11'>",
        f"<rect width='{WIDTH:g}' height='{height:g}' fill='#ffffff'/>",
        f"<text x='{LEFT:g}' y='17' font-size='14' fill='{INK}'>{escape(title)}</text>",
        *_key(measured, predicted),
    ]
    for rank in range(ranks):
        top = HEAD + KEY + rank * (2 * ROW + GAP + BETWEEN)
        parts.append(
            f"<text x='8' y='{top + ROW + 5:g}' font-size='12' fill='{INK}'>rank {rank}</text>"
        )
        for name, timeline, y in (
            ("measured", measured, top),
            ("predicted", predicted, top + ROW + GAP),
        ):
            parts += _row(timeline, rank, name, y, scale)
    parts += _axis(length, unit.per_si, unit.name, scale, HEAD + KEY + rows)
    return "\n".join([*parts, "</svg>"])


def _row(timeline: Timeline, rank: int, name: str, y: float, scale: float) -> Iterator[str]:
    """One rank's ops, its transfers as a strip below them, and the end of its timeline."""
    end = timeline.makespan * scale
    yield (
        f"<text x='{LEFT - 6:g}' y='{y + 13:g}' text-anchor='end' fill='{MUTED}'>{name}</text>"
        f"<rect x='{LEFT:g}' y='{y:g}' width='{end:.2f}' height='{ROW:g}' fill='{IDLE}'/>"
    )
    mine = timeline.where(timeline.rank == rank)
    chunks = int(mine.chunk.max(initial=0)) + 1 if mine.num_spans else 1
    columns = (mine.kind, mine.stage, mine.microbatch, mine.chunk, mine.start, mine.end)
    for kind_number, stage, microbatch, chunk, start, stop in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        kind = Kind(kind_number)
        x, width = LEFT + start * scale, max(0.4, (stop - start) * scale)
        number = "" if microbatch < 0 else str(microbatch)
        if kind.is_compute:
            fill = color(kind, chunk, chunks)
            yield (
                f"<rect x='{x:.2f}' y='{y:g}' width='{width:.2f}' height='{ROW - 4:g}' "
                f"fill='{fill}' stroke='#ffffff' stroke-width='0.5'>"
                f"<title>{stage}{kind.name}{number}, {1e3 * (stop - start):.3g} ms</title></rect>"
            )
            if number and width >= NARROWEST_LABEL:
                yield (
                    f"<text x='{x + width / 2:.2f}' y='{y + 11.5:g}' text-anchor='middle' "
                    f"font-size='9.5' fill='{text_color(fill)}'>{number}</text>"
                )
        elif kind.is_receive:
            yield (
                f"<rect x='{x:.2f}' y='{y + ROW - 3.4:g}' width='{width:.2f}' height='2.8' "
                f"fill='{color(kind)}'/>"
            )


def _key(*timelines: Timeline) -> Iterator[str]:
    """What each colour means, of the kinds that are there."""
    kinds = np.unique(np.concatenate([timeline.kind for timeline in timelines])).tolist()
    x = LEFT
    for kind in map(Kind, kinds):
        if kind.is_send:
            continue
        text = TRANSFERS.get(kind, WORDS[kind])
        yield (
            f"<rect x='{x:g}' y='{HEAD + 3:g}' width='11' height='11' fill='{color(kind)}'/>"
            f"<text x='{x + 16:g}' y='{HEAD + 12.5:g}' fill='{MUTED}'>{text}</text>"
        )
        x += 30 + 6.6 * len(text)


def _axis(length: float, per_si: float, unit: str, scale: float, y: float) -> Iterator[str]:
    """Ticks at round times."""
    rough = length * per_si / 8
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    for k in range(int(length * per_si / step) + 1):
        x = LEFT + k * step / per_si * scale
        yield (
            f"<line x1='{x:.2f}' x2='{x:.2f}' y1='{y - BETWEEN:g}' y2='{y - BETWEEN + 4:g}' "
            f"stroke='{MUTED}'/><text x='{x:.2f}' y='{y + 6:g}' text-anchor='middle' "
            f"fill='{INK}'>{k * step:g}</text>"
        )
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    yield (
        f"<text x='{middle:g}' y='{y + 24:g}' text-anchor='middle' fill='{INK}'>"
        f"time [{unit}]</text>"
    )
