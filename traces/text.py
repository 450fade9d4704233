"""A Gantt chart in a terminal: fits the width, reads without colour.

A cell starts with its op and goes on in the line of its kind: `F3──` forward, `B3══` backward, or
just `3──` and `3══`; `·` is idle. When the cells are too narrow for that, columns show letters in
proportion to the time that they stand for. The two ops of an overlapped pair share its cell.
"""

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from simulator.schedule import Kind, Op
from simulator.timeline import Timeline
from traces.colors import color, text_color
from traces.labels import time_unit
from traces.pairs import side_by_side
from traces.raster import raster

__all__ = ["text_gantt"]

MOST_RANKS = 32  # rows before ranks are left out
IDLE = "·"
FILL = {Kind.F: "─", Kind.B: "═", Kind.I: "━", Kind.W: "~", Kind.OPTIMIZER: "▒"}


def text_gantt(timeline: Timeline, *, width: int, unit: str = "s") -> Text:
    """A row a rank, `width` characters wide, and a time axis above; `unit` as in `Labels`.

    Raises:
        ValueError: the width leaves no room for a row.
    """
    margin = len(f"rank {timeline.num_ranks - 1}") + 1
    columns = width - margin
    if columns < 20:
        raise ValueError(f"a text Gantt of width {width} is too narrow; use at least {margin + 20}")
    timeline = side_by_side(timeline)
    compute = timeline.compute
    if compute.num_spans == 0 or timeline.makespan <= 0:
        raise ValueError("a timeline in which no time passes cannot be drawn")
    lengths = (compute.end - compute.start)[compute.kind != Kind.OPTIMIZER]
    narrowest = columns * float(np.quantile(lengths, 0.1)) / timeline.makespan
    ranks = _shown(timeline.num_ranks)
    text = _axis(timeline, margin, columns, unit)
    style = _style(timeline, narrowest)
    rows = _cells(timeline, ranks, columns, style) if style else _letters(timeline, ranks, columns)
    for rank, row in zip(ranks, rows, strict=True):
        text.append("\n" + f"rank {rank}".ljust(margin))
        text.append_text(row)
    if len(ranks) < timeline.num_ranks:
        text.append(f"\n{len(ranks)} of {timeline.num_ranks} ranks are shown")
    text.append("\n" + _legend(timeline, labelled=bool(style)))
    return text


def _style(timeline: Timeline, narrowest: float) -> str:
    """The longest label that even narrow cells hold; empty where none fits."""
    stage, microbatch = timeline.num_stages - 1, int(timeline.microbatch.max(initial=0))
    styles = ["{kind}{microbatch}", "{microbatch}"]
    if timeline.num_stages > timeline.num_ranks:
        styles.insert(0, "{stage}{kind}{microbatch}")
    for style in styles:
        longest = len(style.format(stage=stage, kind="F", microbatch=microbatch))
        if narrowest >= longest + 0.5:
            return style
    return ""


def _shown(num_ranks: int) -> list[int]:
    if num_ranks <= MOST_RANKS:
        return list(range(num_ranks))
    places = np.linspace(0, num_ranks - 1, MOST_RANKS).round().astype(int)
    return sorted(set(places.tolist()))


def _axis(timeline: Timeline, margin: int, columns: int, unit: str) -> Text:
    """Ticks at round times, at most one in ten characters."""
    scale = time_unit(timeline.makespan, unit)
    span = timeline.makespan * scale.per_si
    rough = span * 12 / columns
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    line = [" "] * (margin + columns + 12)
    for tick in np.arange(0, span * (1 + 1e-9), step):
        at = margin + round(tick / span * (columns - 1))
        label = f"{tick:g}"
        line[at : at + len(label)] = label
    name = f" {scale.name}" if scale.name else ""
    return Text("".join(line).rstrip() + name, style="dim")


def _cells(timeline: Timeline, ranks: list[int], columns: int, style: str) -> list[Text]:
    """One cell an op, with its label where it fits."""
    compute, chunk = timeline.compute, timeline.compute.chunk
    num_chunks = int(chunk.max(initial=0)) + 1
    rows = []
    for rank in ranks:
        mine = np.flatnonzero(compute.rank == rank)
        left = _column(compute.start[mine], timeline.makespan, columns)
        right = _column(compute.end[mine], timeline.makespan, columns)
        row, at = Text(), 0
        for i, a, b in zip(mine.tolist(), left.tolist(), right.tolist(), strict=True):
            if b <= a:
                continue
            kind = Kind(compute.kind[i])
            op = Op(int(compute.stage[i]), kind, int(compute.microbatch[i]))
            row.append(IDLE * (a - at), style="dim")
            fill = color(kind, int(chunk[i]), num_chunks)
            row.append(
                _label(op, b - a, style),
                style=f"{text_color(fill)} on {fill}",
            )
            at = b
        row.append(IDLE * (columns - at), style="dim")
        rows.append(row)
    return rows


def _label(op: Op, width: int, style: str) -> str:
    """The op's label if it fits, then the line of its kind."""
    text = op.kind.name[0]
    if op.microbatch >= 0:
        text = style.format(stage=op.stage, kind=op.kind.name, microbatch=op.microbatch)
    if len(text) > width:
        text = ""
    return text + FILL[op.kind] * (width - len(text))


def _column(time: NDArray[np.float64], makespan: float, columns: int) -> NDArray[np.int64]:
    return np.rint(time / makespan * columns).astype(np.int64)


def _letters(timeline: Timeline, ranks: list[int], columns: int) -> list[Text]:
    """One letter a column. Letters stand for the time they fill, exact over a row to one column.

    Each column shows what is most behind its share so far, so that nothing aliases with the width.
    """
    image = raster(timeline, columns)
    letters = [*(kind.name[0] for kind in image.kinds), IDLE]
    rows = []
    for rank in ranks:
        row = Text()
        owed = np.zeros(len(letters))
        codes = []
        for shares in image.shares[rank].astype(float):
            owed += shares
            present = np.where(shares > 1e-6, owed, -np.inf)
            codes.append(int(present.argmax()))
            owed[codes[-1]] -= 1.0
        edges = np.flatnonzero(np.diff(codes, prepend=-1, append=-1))
        for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            code = codes[a]
            if letters[code] == IDLE:
                row.append(IDLE * (b - a), style="dim")
            else:
                fill = image.colors[code]
                row.append(letters[code] * (b - a), style=f"{text_color(fill)} on {fill}")
        rows.append(row)
    return rows


def _legend(timeline: Timeline, *, labelled: bool) -> str:
    names = {
        Kind.F: "forward",
        Kind.B: "backward",
        Kind.I: "backward for input",
        Kind.W: "backward for weights",
        Kind.OPTIMIZER: "optimizer",
        Kind.REDUCE_GRAD: "gradient reduction",
        Kind.UNSHARD: "weight gathering",
    }
    present = [kind for kind in names if (timeline.kind == kind).any()]
    if labelled:
        present = [kind for kind in present if kind.is_compute]
    shown = [f"{k.name[0]}{FILL[k] if labelled else ''} {names[k]}" for k in present]
    return "  ".join([*shown, f"{IDLE} idle"])
