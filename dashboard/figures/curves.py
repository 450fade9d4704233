"""Memory of the ranks and use of the links over time, below a timeline."""

import numpy as np

from dashboard.figures.spec import Figure, add
from dashboard.links import LinkUse
from dashboard.theme import Look, axis
from simulator.timeline import Timeline
from traces.colors import ranks
from traces.labels import Unit, byte_unit
from traces.memory import MOST_LINES, band, steps

__all__ = ["add_links", "add_memory"]

BAND = "rgba(127, 140, 155, 0.28)"


def add_memory(fig: Figure, timeline: Timeline, look: Look, time: Unit, unit: str = "s") -> None:
    """A line for each of a few ranks; of many, the first, the last and the band of all."""
    if not len(timeline.memory_rank):
        return
    largest = float(timeline.peak_memory().max())
    size = byte_unit(largest, unit)
    shown = range(timeline.num_ranks)
    if timeline.num_ranks > MOST_LINES:
        shown = range(0, timeline.num_ranks, timeline.num_ranks - 1)
        edges, low, high = band(timeline)
        for values, fill in ((low, None), (high, "tonexty")):
            add(
                fig,
                "scatter",
                x=edges * time.per_si,
                y=(values * size.per_si).astype(np.float32),
                line={"width": 0, "shape": "hv"},
                fill=fill,
                fillcolor=BAND if fill else None,
                hoverinfo="skip",
                yaxis="y2",
                mode="lines",
            )
    colors = ranks(len(shown)) if look.name == "light" else _lighter(len(shown))
    for rank, fill in zip(shown, colors, strict=True):
        x, y = steps(timeline, rank)
        add(
            fig,
            "scatter",
            x=x * time.per_si,
            y=(y * size.per_si).astype(np.float32),
            line={"color": fill, "width": 1.4, "shape": "hv"},
            mode="lines",
            yaxis="y2",
            hovertemplate=f"<b>rank {rank}</b> holds %{{y:.4g}} {size.name}<extra></extra>",
        )
    title = f"memory [{size.name}]" if size.name else "memory"
    top = 1.08 * largest * size.per_si or 1
    fig["layout"]["yaxis2"] |= axis(
        look, title, range=[0, top], showgrid=True, nticks=4, fixedrange=True
    )


def add_links(fig: Figure, links: LinkUse, look: Look, time: Unit) -> None:
    """The mean of all links as an area, and the link that carries most as a line. [%]"""
    if not links.names or links.busiest is None:
        shown, top = [], 100.0
    else:
        mean, most = links.share.mean(axis=0), links.share[links.busiest]
        shown = [
            ("all links, mean", mean, look.muted),
            (links.names[links.busiest], most, look.accent),
        ]
        top = float(max(mean.max(), most.max())) * 100
    for name, share, fill in shown:
        edges = np.arange(len(share)) * links.width
        add(
            fig,
            "scatter",
            x=edges * time.per_si,
            y=(100 * np.minimum(share, 1)).astype(np.float32),
            line={"color": fill, "width": 1.2, "shape": "hv"},
            fill="tozeroy" if fill == look.muted else None,
            fillcolor=BAND,
            mode="lines",
            yaxis="y3",
            hovertemplate=f"{name}: %{{y:.3g}} % in use<extra></extra>",
        )
    high = min(100.0, 1.15 * top) or 1
    fig["layout"]["yaxis3"] |= axis(
        look, "links [%]", range=[0, high], showgrid=True, nticks=3, fixedrange=True
    )


def _lighter(count: int) -> list[str]:
    """A colour per rank's line on a dark ground."""
    places = np.linspace(0, 2, max(count, 2))[:count]
    anchors = np.array([[222, 226, 230], [86, 180, 233], [230, 159, 0]], float)
    columns = [np.interp(places, np.arange(3), anchors[:, i]) for i in range(3)]
    return ["#" + "".join(f"{round(c):02x}" for c in one) for one in np.stack(columns, 1).tolist()]
