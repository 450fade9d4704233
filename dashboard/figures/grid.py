"""Which GPU is in which tensor-, data- and pipeline-parallel group, and on which node."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.figures.spec import Figure, add, started
from dashboard.theme import Look, axis, frame
from simulator.fabric import gpus_of_plan
from simulator.job import Job

__all__ = ["MOST_NODES", "figure", "key_of", "places"]

MOST_NODES = 128  # that are drawn; the next ones follow the same order
NAMED = 256  # GPUs whose numbers are drawn
HEIGHT = 260  # [pixel]
CONTRAST = ("#0072b2", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#8a8f98")


def places(job: Job) -> dict[str, NDArray[np.int64]]:
    """Of each global rank its node, its place there, and its pp, dp, cp, tp; shape (num_gpus,)."""
    plan = job.plan
    order = gpus_of_plan(plan.pp, plan.dp, plan.cp, plan.tp)
    pp, dp, cp, tp = np.unravel_index(np.arange(order.size), order.shape)
    node, local = np.divmod(np.arange(order.size), job.cluster.gpus_per_node)
    return {"node": node, "local": local, "pp": pp, "dp": dp, "cp": cp, "tp": tp}


def figure(job: Job, look: Look, by: str = "pp") -> Figure:
    """A column a node, a row a GPU in it, coloured by the rank along `by`: pp, dp, cp or tp."""
    at = places(job)
    nodes = min(int(at["node"].max()) + 1, MOST_NODES)
    rows = job.cluster.gpus_per_node
    shown = np.flatnonzero(at["node"] < nodes)
    color, data = np.full((rows, nodes), np.nan, np.float32), np.zeros((rows, nodes, 5), np.int32)
    cell = (at["local"][shown], at["node"][shown])
    color[cell] = at[by][shown] % len(CONTRAST)
    data[cell] = np.stack([shown, *(at[name][shown] for name in ("pp", "dp", "cp", "tp"))], axis=1)
    fig = started(_layout(look, nodes))
    many = len(CONTRAST)
    scale = [[(i + j) / many, fill] for i, fill in enumerate(CONTRAST) for j in (0, 1)]
    named = len(shown) <= NAMED
    texts = np.full((rows, nodes), "", object)
    texts[cell] = [str(rank) for rank in at[by][shown].tolist()]
    add(
        fig,
        "heatmap",
        z=color,
        zmin=-0.5,
        zmax=many - 0.5,
        colorscale=scale,
        showscale=False,
        xgap=2 if nodes <= 64 else 0.5,
        ygap=2,
        text=texts.tolist() if named else None,
        texttemplate="%{text}" if named else None,
        textfont={"size": 11, "color": "#111111"},
        customdata=data,
        hovertemplate="<b>GPU %{customdata[0]}</b> on node %{x}<br>pipeline rank %{customdata[1]}"
        "<br>data-parallel rank %{customdata[2]}<br>context-parallel rank %{customdata[3]}"
        "<br>tensor-parallel rank %{customdata[4]}"
        "<extra></extra>",
    )
    fig["layout"]["meta"] = {"key": key_of(job, look, by)}
    return fig


def key_of(job: Job, look: Look, by: str) -> str:
    """What the figure depends on: the same key, the same figure."""
    plan = job.plan
    sizes = (plan.pp, plan.dp, plan.cp, plan.tp, job.cluster.gpus_per_node)
    return f"{'x'.join(map(str, sizes))} {by} {look.name}"


def _layout(look: Look, nodes: int) -> dict[str, Any]:
    return frame(look) | {
        "margin": {"l": 50, "r": 12, "t": 6, "b": 40},
        "height": HEIGHT,
        "xaxis": axis(look, "node", nticks=min(nodes + 1, 17)),
        "yaxis": axis(look, "GPU in the node", autorange="reversed", nticks=9),
    }
