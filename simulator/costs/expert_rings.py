"""Rings of the GPUs that hold the same experts, over which their gradients and weights cross.

Experts have a grid of their own, etp x ep x edp = tp x cp x dp on each pipeline rank. The edp GPUs
that hold the same ones are etp x ep apart: few of them, or none, share a node, so that each of
their rings has few of its NICs, where the one ring of all other weights has them all.
Source: NVIDIA/Megatron-LM, megatron/core/parallel_state.py (expert_data_parallel group).
"""

from simulator.costs.communication import Collective, Group, group_of, group_pace, group_seconds
from simulator.job import Job

__all__ = ["expert_pace", "expert_ring_seconds", "expert_weights"]


def _ring(job: Job) -> Group:
    """The GPUs that hold the same experts."""
    plan = job.plan
    return group_of(plan.expert_replicas, plan.expert_tp * plan.ep, job.cluster)


def expert_ring_seconds(collective: Collective, nbytes: float, job: Job) -> float:
    """Time of a collective of so many bytes of one GPU's experts. [s]"""
    return group_seconds(collective, nbytes, _ring(job), job.cluster)


def expert_pace(job: Job) -> float:
    """Time that experts' bytes take in their rings, over that in the ring of the rest. [1]

    Their bytes can be counted as the bytes that take as long in the ring of the rest. An all-gather
    and a reduce-scatter are as fast, an all-reduce is twice as slow in both.
    """
    plan, cluster = job.plan, job.cluster
    rest = group_of(plan.replicas, plan.tp, cluster)
    kind = Collective.ALL_GATHER
    return group_pace(kind, _ring(job), cluster) / group_pace(kind, rest, cluster)


def expert_weights(job: Job) -> tuple[float, float]:
    """Parameters of an expert's weights on one GPU, as their gradients come: down, up. [1]"""
    model = job.model
    width = model.hidden_size * model.expert_width / job.plan.expert_tp
    return width, (2 if model.gated_mlp else 1) * width
