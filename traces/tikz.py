"""LaTeX: a standalone TikZ picture of the rows, to compile alone or to include in a paper.

It holds the bars with their microbatch numbers, the ranks and the time axis, set in the paper's
own fonts. Memory and large timelines are better served by `.pdf`.
"""

import numpy as np

from simulator.schedule import NO_MICROBATCH, Kind
from simulator.timeline import Timeline
from traces.colors import HATCH, IDLE, color, text_color
from traces.labels import WORDS, Labels, time_unit
from traces.layout import lanes
from traces.raster import COLLECTIVES, chunks_of

__all__ = ["MOST_SPANS", "SUFFIXES", "encode"]

SUFFIXES = (".tex",)
MOST_SPANS = 2000  # of compute; TeX's memory and the reader's patience end soon after
WIDTH, ROW, BAR = 16.0, 0.5, 0.42  # [cm]
DIGIT, PADDING = 0.125, 0.06  # [cm] of a digit in \\scriptsize, with room for wider fonts
TINY = 0.72  # width of a \tiny digit over that of a \scriptsize one [1]
_NUM_TICKS = 8
_ESCAPES = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "µ": "$\\mu$",
}

_DOCUMENT = """\
% {about}
\\documentclass[tikz,border=4pt]{{standalone}}
\\usepackage[utf8]{{inputenc}}
\\usetikzlibrary{{patterns}}
{colors}
\\begin{{document}}
\\begin{{tikzpicture}}[x=1cm, y=1cm, font=\\sffamily\\footnotesize]
{body}
\\end{{tikzpicture}}
\\end{{document}}
"""


def encode(timeline: Timeline, labels: Labels, _suffix: str) -> bytes:
    """The picture.

    Raises:
        ValueError: there is nothing to draw, or more than TeX can.

    """
    compute = timeline.compute
    if timeline.makespan <= 0:
        raise ValueError("the timeline has no span that lasts, so there is nothing to draw")
    if compute.num_spans > MOST_SPANS:
        raise ValueError(
            f"a .tex picture holds at most {MOST_SPANS} spans of compute, this timeline has"
            f" {compute.num_spans}; write a .pdf instead"
        )
    drawn = timeline.where(np.isin(timeline.kind, [*_compute_kinds(), *COLLECTIVES]))
    fills = _fills(drawn, timeline)
    colors = [f"\\definecolor{{{name}}}{{HTML}}{{{fill[1:]}}}" for name, fill in fills.items()]
    body = [
        *_head(labels, fills),
        *_rows(timeline),
        *_bars(drawn, timeline),
        *_axis(timeline, labels),
    ]
    about = labels.title.replace("\n", " ") or "Gantt chart of a pipeline schedule"
    text = _DOCUMENT.format(about=about, colors="\n".join(colors), body="\n".join(body))
    return text.encode()


def _compute_kinds() -> list[Kind]:
    return [kind for kind in Kind if kind.is_compute]


def _name(kind: Kind, chunk: int) -> str:
    """A colour's name, letters only: xcolor reads F!1 as a mix."""
    return f"op{kind.name.replace('_', '')}{chr(ord('a') + chunk % 26)}{'z' * (chunk // 26)}"


def _fills(drawn: Timeline, timeline: Timeline) -> dict[str, str]:
    chunk, num_chunks = chunks_of(drawn, timeline)
    pairs = np.unique(np.stack([drawn.kind, chunk], axis=1), axis=0).tolist()
    fills = {_name(Kind(k), c): color(Kind(k), c, num_chunks) for k, c in pairs}
    return {"idle": IDLE, "hatch": HATCH, **fills}


def _head(labels: Labels, fills: dict[str, str]) -> list[str]:
    """Title, subtitle and legend, from the top down."""
    lines, y = [], ROW * 0.5
    entries = [(WORDS[kind], _name(kind, 0)) for kind in Kind if _name(kind, 0) in fills]
    x = 0.0
    for word, fill in [*entries, ("idle", "idle")]:
        lines.append(f"\\fill[{fill}] ({x:.3f},{y - 0.1:.3f}) rectangle +(0.35,0.2);")
        lines.append(f"\\node[anchor=mid west] at ({x + 0.4:.3f},{y:.3f}) {{{_tex(word)}}};")
        x += 1.0 + 0.19 * len(word)
    y += 0.5
    for text, style in ((labels.subtitle, ""), (labels.title, "\\normalsize\\bfseries ")):
        if text:
            lines.append(
                f"\\node[anchor=mid west, inner xsep=0pt] at (0,{y:.3f}) {{{style}{_tex(text)}}};"
            )
            y += 0.5
    return lines


def _rows(timeline: Timeline) -> list[str]:
    lines = []
    for rank in range(timeline.num_ranks):
        y = -ROW * rank
        corners = f"(0,{y - BAR:.3f}) rectangle ({WIDTH},{y:.3f})"
        lines.append(f"\\fill[idle] {corners};")
        lines.append(f"\\fill[pattern=north east lines, pattern color=hatch] {corners};")
        lines.append(f"\\node[anchor=mid east] at (0,{y - BAR / 2:.3f}) {{rank {rank}}};")
    return lines


def _bars(drawn: Timeline, timeline: Timeline) -> list[str]:
    """A filled rectangle a span, its number on it where it fits; collectives are thin."""
    chunk, num_chunks = chunks_of(drawn, timeline)
    per_second = WIDTH / timeline.makespan
    left, right = drawn.start * per_second, drawn.end * per_second
    lines = []
    top, bottom = lanes(drawn, (0.0, BAR))
    columns = (drawn.rank, drawn.kind, chunk, drawn.microbatch, left, right, top, bottom)
    for rank, kind_, c, microbatch, x0, x1, above, below in zip(
        *(a.tolist() for a in columns), strict=True
    ):
        kind, low = Kind(kind_), -ROW * rank - below
        high = -ROW * rank - (above if kind.is_compute else BAR * 0.8)
        lines.append(
            f"\\filldraw[fill={_name(kind, c)}, draw=white, line width=0.3pt]"
            f" ({x0:.4f},{low:.3f}) rectangle ({x1:.4f},{high:.3f});"
        )
        text = str(microbatch)
        room = x1 - x0 - PADDING
        if microbatch != NO_MICROBATCH and room >= TINY * DIGIT * len(text):
            small = below - above < BAR or room < DIGIT * len(text)
            size = "\\tiny" if small else "\\scriptsize"
            ink = "white" if text_color(color(kind, c, num_chunks)) == "#ffffff" else "black"
            lines.append(
                f"\\node[text={ink}, font=\\sffamily{size}, inner sep=0pt]"
                f" at ({(x0 + x1) / 2:.4f},{(low + high) / 2:.3f}) {{{text}}};"
            )
    return lines


def _axis(timeline: Timeline, labels: Labels) -> list[str]:
    unit = time_unit(timeline.makespan, labels.unit)
    end = timeline.makespan * unit.per_si
    y = -ROW * timeline.num_ranks - 0.05
    lines = [f"\\draw (0,{y:.3f}) -- ({WIDTH},{y:.3f});"]
    for tick in _ticks(end):
        x = WIDTH * tick / end
        lines.append(f"\\draw ({x:.4f},{y:.3f}) -- +(0,-0.08) node[below] {{{tick:.6g}}};")
    name = f"time [{_tex(unit.name)}]" if unit.name else "time"
    lines.append(f"\\node at ({WIDTH / 2},{y - 0.75:.3f}) {{{name}}};")
    return lines


def _ticks(end: float) -> list[float]:
    """Round numbers from 0 to `end`, about `_NUM_TICKS` of them."""
    power = 10.0 ** np.floor(np.log10(end / _NUM_TICKS))
    step = next(s * power for s in (1, 2, 5, 10) if s * power * _NUM_TICKS >= end)
    ticks: list[float] = (np.arange(int(end / step + 1e-9) + 1) * step).tolist()
    return ticks


def _tex(text: str) -> str:
    r"""Text that prints as it stands.

    >>> print(_tex("27 % of_it"))
    27 \% of\_it
    """
    return "".join(_ESCAPES.get(c, c) for c in text)
