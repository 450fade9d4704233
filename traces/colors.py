"""One palette for every picture: a colour per kind of op, a shade per model chunk.

The hues are those of Okabe and Ito, "Color Universal Design", 2008, which people with any common
colour vision tell apart; forward, weight gradient, backward and input gradient also climb in
lightness, so that a greyscale print keeps them apart.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind

__all__ = [
    "HATCH",
    "IDLE",
    "INK",
    "MUTED",
    "SHADED",
    "color",
    "hexadecimal",
    "lightness",
    "ranks",
    "rgb",
    "text_color",
]

INK = "#222222"  # titles, axes, numbers
MUTED = "#666666"  # captions, ticks
IDLE = "#f3f3f3"  # a row where nothing runs
HATCH = "#d9d9d9"  # the lines on it

_BASE = {
    Kind.F: "#0072b2",
    Kind.B: "#e69f00",
    Kind.I: "#f0e442",
    Kind.W: "#009e73",
    Kind.OPTIMIZER: "#cc79a7",
    Kind.SEND_F: "#56b4e9",
    Kind.RECV_F: "#56b4e9",
    Kind.SEND_B: "#d55e00",
    Kind.RECV_B: "#d55e00",
    Kind.UNSHARD: "#7f7f7f",
    Kind.RESHARD: "#b0b0b0",
    Kind.REDUCE_GRAD: "#7b3f76",
    Kind.WAIT: "#f3f3f3",
}
SHADED = (Kind.F, Kind.B, Kind.I, Kind.W)  # the kinds with a shade per chunk
_LIGHTEST = 0.55  # how far the last chunk's shade goes towards white


def color(kind: Kind, chunk: int = 0, num_chunks: int = 1) -> str:
    """The fill of a kind; `F B I W` of later model chunks are lighter, as in Megatron's figures.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, Fig. 4.

    >>> color(Kind.F), color(Kind.F, 1, 2)
    ('#0072b2', '#8cc0dc')
    """
    base = rgb(_BASE[kind])
    is_shaded = kind in SHADED and num_chunks > 1
    share = _LIGHTEST * chunk / (num_chunks - 1) if is_shaded else 0.0
    return hexadecimal(base + share * (255 - base))


def text_color(fill: str) -> str:
    """Black or white, whichever reads better on a fill.

    >>> text_color("#0072b2"), text_color("#e69f00")
    ('#ffffff', '#000000')
    """
    luminance = _luminance(fill)
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"


def ranks(num_ranks: int) -> list[str]:
    """A colour per rank's line, from dark (rank 0) to light."""
    anchors = np.stack([rgb(c) for c in ("#1b2a49", "#0072b2", "#009e73", "#e69f00")])
    places = np.linspace(0, len(anchors) - 1, max(num_ranks, 2))[:num_ranks]
    columns = [np.interp(places, np.arange(len(anchors)), anchors[:, i]) for i in range(3)]
    return [hexadecimal(c) for c in np.stack(columns, axis=1)]


def lightness(fill: str) -> float:
    """CIE L*, what a greyscale print keeps of a colour: 0 black, 100 white. [1]

    >>> round(lightness("#ffffff"))
    100
    """
    y = _luminance(fill)
    return float(116 * np.cbrt(y) - 16 if y > 216 / 24389 else y * 24389 / 27)


def rgb(fill: str) -> NDArray[np.float64]:
    """Red, green and blue of "#rrggbb", 0..255, shape (3,)."""
    return np.array([int(fill[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.float64)


def hexadecimal(components: NDArray[np.float64]) -> str:
    """Red, green and blue, 0..255, as "#rrggbb"."""
    return "#" + "".join(f"{round(c):02x}" for c in components.tolist())


def _luminance(fill: str) -> float:
    """Relative luminance; source: W3C, WCAG 2.1, "relative luminance". [1]"""
    c = rgb(fill) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))
