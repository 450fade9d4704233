"""Optimizer state and activations that live outside the GPU: ZeRO-Offload and ZeRO-Infinity.

Gradients cross the GPU's link to its host with the reduction at the end of a step, new weights with
the gathering after it, and optimizer states the node's drives beside that: bytes of those flows,
which share these links with all others. Here is what each GPU moves, and the step on the host.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.costs.communication import p2p_seconds
from simulator.costs.parameters import computed_layers, equal_split
from simulator.job import Job, Plan
from simulator.schedule import Kind

__all__ = [
    "STATE_BYTES",
    "copied_bytes",
    "copy_seconds",
    "offload_activations",
    "offloaded_optimizer",
]

Column = NDArray[np.float64]
Size = TypeVar("Size", float, NDArray[np.float64])

BYTES, FP32 = 2, 4

# Adam on the host reads gradient, master weight and two moments and writes three, 4 bytes each, and
# the 16-bit weight. Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021, section 4.
ADAM_BYTES = 7 * FP32 + BYTES
STATE_BYTES = 3 * FP32  # master weight and two moments, read from the drives and written back
LIVE_LAYERS = 2  # whose activations are on the GPU: one at work, one on its way


def copied_bytes(parameters: Size, job: Job, experts: Size | None = None) -> Size:
    """Gradients, and as many of weights, that one GPU and its host exchange in a step. [bytes]

    Two for each parameter whose state the GPU keeps: all of them, or a share of what zero_stage
    splits. `experts` are split over the GPUs that hold the same ones. Source: Ren et al.,
    "ZeRO-Offload", USENIX ATC 2021, section 3.
    """
    plan = job.plan
    if plan.zero_stage == 0:
        return BYTES * parameters
    return BYTES * equal_split(parameters, experts, plan) / plan.shards


def copy_seconds(parameters: float, job: Job) -> float:
    """Time of the gradients of some parameters to the host, alone on the link. [s]"""
    assert job.cluster.host_link is not None
    return p2p_seconds(copied_bytes(parameters, job), job.cluster.host_link)


def offloaded_optimizer(parameters: float, job: Job) -> float:
    """Adam on the host for one GPU's parameters, as far as the drives do not hide it. [s]

    The host's memory bounds it, shared by the GPUs of the node. Drives stream the states beside
    it, chunk by chunk: what they need for all GPUs at once, which the gathering's flow takes, is
    not counted twice. A schedule that updates weights within its rows has no flows at the end of
    the step: there alone the copies, on free links, are part of this.
    Sources: Ren et al., "ZeRO-Offload", USENIX ATC 2021, section 4; Rajbhandari et al.,
    "ZeRO-Infinity", SC'21, section 5.2.
    """
    plan, cluster = job.plan, job.cluster
    share = copied_bytes(parameters, job) / BYTES
    share *= min(cluster.gpus_per_node, plan.num_gpus)  # of all GPUs of a node
    step, drives = ADAM_BYTES * share / cluster.host_memory_bandwidth, 0.0
    if plan.offload == "nvme":
        assert cluster.nvme is not None
        drives = 2 * STATE_BYTES * share / (cluster.nvme.bandwidth * cluster.nvme.efficiency)
    if not _updates_in_rows(plan):
        return max(0.0, step - drives)
    if drives:
        assert cluster.nvme is not None
        drives += cluster.nvme.latency
    return 2 * copy_seconds(parameters, job) + max(step, drives)


def _updates_in_rows(plan: Plan) -> bool:
    """Whether weight updates stand between the microbatches, as in asynchronous schedules."""
    from simulator.schedules import recipe_of  # some schedules are made for given costs

    if plan.rows is not None:
        return Kind.OPTIMIZER.name in plan.rows
    return recipe_of(plan.schedule).weights is not None


def offload_activations(
    seconds: Column, tensor: Column, activations: dict[str, Column], job: Job
) -> None:
    """Let kept activations leave the GPU beside the forward and return beside the backward.

    All layers' but those live, or the first offload_num_layers': their copies are spread evenly
    over the stage's forward, and again over its backward. What its compute does not hide lengthens
    the op. Source: NVIDIA/TransformerEngine, cpu_offload.py: one layer ahead of its use, and
    AsyncDoubleBufferGroupOffloadHandler, layer_window_map.
    """
    link = job.cluster.host_link
    assert link is not None
    layers = np.maximum(1.0, computed_layers(job))
    kept = activations["activation_bytes"]
    moved = np.minimum(layers, job.plan.offload_num_layers or layers)
    gone = kept * np.maximum(0.0, np.minimum(moved, layers - LIVE_LAYERS) / layers)
    copy = np.array([p2p_seconds(nbytes, link) if nbytes else 0.0 for nbytes in gone.tolist()])
    for kind in (Kind.F, Kind.B, Kind.I):
        shown = np.maximum(0.0, copy - seconds[kind])
        seconds[kind] += shown
        tensor[kind] += shown
    # the engine keeps what F allocates until its backward: what is gone is not counted
    activations["activation_bytes"] = kept - gone
    left = np.divide(kept - gone, kept, out=np.ones_like(kept), where=kept > 0)
    activations["input_grad_bytes"] = activations["input_grad_bytes"] * left
