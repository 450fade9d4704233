"""What a stage's collectives put on host links and drives when the optimizer is offloaded."""

from typing import NamedTuple

import numpy as np

from simulator.costs.offload import STATE_BYTES, copied_bytes
from simulator.costs.parameters import stage_experts, stage_parameters
from simulator.costs.sharding import whole_buffers
from simulator.job import Job

__all__ = ["HostLoad", "host_loads"]

BYTES = 2


class HostLoad(NamedTuple):
    """Bytes of one GPU on its host's links for each byte of a stage's buffer. [1]"""

    down: float  # gradients to the host, of the buffer to reduce
    up: float  # new weights from the host, of the buffer to gather
    states: float  # optimizer states from and to the drives, of the buffer to gather
    reduces: bool  # the GPUs also reduce that buffer at the end of a step
    gathers: bool  # the GPUs also gather that buffer from each other


def host_loads(job: Job) -> tuple[HostLoad, ...]:
    """The load of each stage; none where nothing is offloaded.

    Gradients go down as they are reduced, a bucket behind; weights go up as they are gathered. With
    drives the states are read and written back in the time of the gathering, not before: the step
    on the host begins when the gradients are complete, and then reads, updates, writes and the
    copies to the GPU run beside each other, chunk by chunk. zero_stage 2 and 3 reduce in every
    backward and 3 gathers in every forward, in the ops' own times: at the end of a step only the
    copies of each GPU's share are left.
    Sources: Ren et al., "ZeRO-Offload", USENIX ATC 2021, section 4; Rajbhandari et al.,
    "ZeRO-Infinity", SC'21, section 5.2.
    """
    plan = job.plan
    if plan.offload == "none":
        return ()
    parameters = np.array(stage_parameters(job))
    experts = np.array(stage_experts(job)) if plan.splits_experts else None
    copied = copied_bytes(parameters, job, experts)
    states = 2 * STATE_BYTES / BYTES * copied if plan.offload == "nvme" else np.zeros_like(copied)
    reduce, gather = whole_buffers(parameters, experts, job)
    downs, ups, drives = (
        np.divide(one, of, out=np.zeros_like(one), where=of > 0).tolist()
        for one, of in ((copied, reduce), (copied, gather), (states, gather))
    )
    reduces, gathers = plan.zero_stage < 2, plan.zero_stage in (1, 2)
    return tuple(
        HostLoad(down, up, both, reduces, gathers)
        for down, up, both in zip(downs, ups, drives, strict=True)
    )
