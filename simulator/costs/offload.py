"""Optimizer state and activations that live outside the GPU: ZeRO-Offload and ZeRO-Infinity.

Copies cross the GPU's own link to its host, and the node's drives, which its GPUs share evenly.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.costs.communication import p2p_seconds
from simulator.job import Job
from simulator.schedule import Kind

__all__ = ["offload_activations", "offloaded_optimizer"]

Column = NDArray[np.float64]

BYTES, FP32 = 2, 4

# Adam on the host reads gradient, master weight and two moments and writes three, 4 bytes each, and
# the 16-bit weight. Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021, section 4.
ADAM_BYTES = 7 * FP32 + BYTES
STATE_BYTES = 3 * FP32  # master weight and two moments, read from the drives and written back
LIVE_LAYERS = 2  # whose activations are on the GPU: one at work, one on its way


def offloaded_optimizer(parameters: float, job: Job) -> float:
    """A step of the optimizer on the host for one GPU's parameters. [s]

    Gradients go down and weights come back over the host link, 2 bytes each; the host's memory
    bounds the step between; drives stream their state beside it. Nothing overlaps with the
    backward. Sources: Ren et al., "ZeRO-Offload", USENIX ATC 2021; Rajbhandari et al.,
    "ZeRO-Infinity", SC'21, section 5.2.
    """
    plan, cluster = job.plan, job.cluster
    assert cluster.host_link is not None
    share = parameters / (plan.shards if plan.zero_stage >= 1 else 1)
    copies = 2 * p2p_seconds(BYTES * share, cluster.host_link)
    step = ADAM_BYTES * share * cluster.gpus_per_node / cluster.host_memory_bandwidth
    if plan.offload == "nvme":
        assert cluster.nvme is not None
        both = 2 * STATE_BYTES * share * cluster.gpus_per_node
        step = max(step, p2p_seconds(both, cluster.nvme))
    return copies + step


def offload_activations(
    seconds: Column, tensor: Column, activations: dict[str, Column], job: Job
) -> None:
    """Let kept activations leave the GPU beside the forward and return beside the backward.

    What a layer's compute does not hide lengthens the op. Source: NVIDIA/TransformerEngine,
    cpu_offload.py: one layer ahead of its use.
    """
    link = job.cluster.host_link
    assert link is not None
    layers = np.maximum(1.0, job.layers_per_stage)
    kept = activations["activation_bytes"]
    gone = kept * np.maximum(0.0, 1 - LIVE_LAYERS / layers)
    copy = np.array([p2p_seconds(nbytes, link) if nbytes else 0.0 for nbytes in gone.tolist()])
    for kind in (Kind.F, Kind.B, Kind.I):
        shown = np.maximum(0.0, copy - seconds[kind])
        seconds[kind] += shown
        tensor[kind] += shown
    # the engine keeps what F allocates until its backward: what is gone is not counted
    activations["activation_bytes"] = kept - gone
    left = np.divide(kept - gone, kept, out=np.ones_like(kept), where=kept > 0)
    activations["input_grad_bytes"] = activations["input_grad_bytes"] * left
