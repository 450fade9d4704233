"""Costs with one stage for each layer, and contiguous layers merged into the stages of a pipeline.

Planners cut a model between layers, on GPUs that may differ. They hold a model as `Costs` whose
stages are its layers, one value for each kind of GPU, and merge what each rank takes.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np

from simulator.costs import Costs, uniform
from simulator.costs.estimate import stage_costs
from simulator.costs.layers import LayerCosts, layer_costs
from simulator.job import Cluster, Job, Link

__all__ = ["layerwise", "merged", "single_precision"]

ADDED = (  # columns in which a stage is the sum of its layers
    "seconds",
    "tensor_seconds",
    "recompute_seconds",
    "reduce_bytes",
    "unshard_bytes",
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "input_grad_bytes",
)


def layerwise(job: Job, known: LayerCosts | None = None) -> Costs:
    """Costs of the embedding, of each layer and of the head: num_hidden_layers + 2 stages.

    They are those of one microbatch of the job, whatever its pp, vpp and layers_per_stage, and with
    reductions that hide behind nothing. `known` are the job's `layer_costs`, for callers that have
    them.
    """
    model, layers = job.model, job.model.num_hidden_layers
    dense = model.num_dense_layers if model.is_sparse else 0
    inner = [1] * layers if not dense else [1] * dense + [2] * (layers - dense)  # one of each kind
    stages = inner[-1] + 2
    size: dict[str, object] = {"pp": stages, "vpp": 1, "layers_per_stage": (1,) * stages}
    # what a reduction hides depends on all layers of a stage
    size |= {"overlap_grad_reduce": False, "overlap_param_gather": False}
    few = {"num_hidden_layers": stages, "num_dense_layers": 2 if dense else 0}
    plan = job.plan.model_copy(update=size)
    short = job.model_copy(update={"model": model.model_copy(update=few), "plan": plan})
    one = stage_costs(layer_costs(job) if known is None else known, short)
    at = np.array([0, *inner, stages - 1])
    columns = {}
    for name in ADDED:
        column = getattr(one, name)[..., at].copy()
        for end, like in ((0, 1), (-1, -2)):  # the ends of the few stages hold a layer each
            column[..., end] -= column[..., like]
        columns[name] = column
    kept = ("boundary_bytes", "boundary_gather", "transient_bytes", "pair_time")
    columns |= {name: getattr(one, name)[at] for name in kept}
    columns["transient_bytes"][0] = 0.0  # the head's is the loss's
    return replace(one, **columns)


def merged(pieces: Sequence[Costs], bounds: Sequence[int]) -> Costs:
    """Costs of a pipeline whose rank r runs the layers from bounds[r] to bounds[r + 1].

    Args:
        pieces: layerwise costs on each rank's GPU, all of the same layers.
        bounds: where each rank begins, and where the last one ends; shape (num_ranks + 1,). [1]

    Two layers of 1 s on the first GPU, one on a GPU that is twice as slow:

    >>> from simulator.schedule import Kind
    >>> fast, slow = uniform(3, 1.0, 2.0), uniform(3, 2.0, 4.0)
    >>> merged([fast, slow], [0, 2, 3]).seconds[Kind.F]
    array([2., 2.])
    """
    if len(bounds) != len(pieces) + 1 or any(b <= a for a, b in pairwise(bounds)):
        raise ValueError(
            f"bounds are {list(bounds)} for {len(pieces)} ranks; give one more than ranks, each "
            "larger than the one before"
        )
    cuts = [slice(a, b) for a, b in pairwise(bounds)]
    ranks = list(zip(pieces, cuts, strict=True))
    columns = {
        name: np.stack([getattr(p, name)[..., cut].sum(axis=-1) for p, cut in ranks], axis=-1)
        for name in ADDED
    }
    for name in ("boundary_bytes", "boundary_gather"):
        columns[name] = np.array([getattr(p, name)[cut][-1] for p, cut in ranks])
    columns["transient_bytes"] = np.array([p.transient_bytes[cut].max() for p, cut in ranks])
    columns["pair_time"] = np.ones(len(pieces))
    columns["fixed_bytes"] = np.max([piece.fixed_bytes for piece in pieces], axis=0)
    blank = uniform(len(pieces), 1.0, 2.0)
    assert {f.name for f in fields(Costs)} == set(columns) | {"slice_time", "slice_tokens"}
    return replace(blank, **columns)


def single_precision(cluster: Cluster) -> Cluster:
    """The cluster on which 16-bit costs are those of an fp32 run on the given one.

    Elements of four bytes instead of two are the same as memory, memory bandwidth and links of half
    the size; products run at the fp32 peak, which takes the place of the 16-bit ones. Exact for
    weights, activations, messages and gradients (with plan.grad_dtype = plan.dtype); the
    optimizer's state is then counted as 24 bytes a parameter.

    Raises:
        ValueError: the GPU has no fp32 peak.
    """
    gpu = cluster.gpu
    if "fp32" not in gpu.peak_flops:
        raise ValueError(
            f"{gpu.name} has no fp32 peak; add fp32 to its peak_flops, or use another GPU"
        )
    peak = gpu.peak_flops["fp32"]
    slower = {
        "peak_flops": {"fp16": peak, "bf16": peak, "fp32": peak},
        "memory": gpu.memory / 2,
        "memory_bandwidth": gpu.memory_bandwidth / 2,
    }
    return cluster.model_copy(
        update={
            "gpu": gpu.model_copy(update=slower),
            "intra_node": _half(cluster.intra_node),
            "inter_node": _half(cluster.inter_node),
        }
    )


def _half(link: Link) -> Link:
    return link.model_copy(update={"bandwidth": link.bandwidth / 2})
