"""ZeRO that gives each GPU whole weights: updated ones are broadcast, one owner after the other.

Colossal-AI's first ZeRO and InternLM's, which descends from it, deal a layer's weights out whole.
Gradients are summed on every GPU, and each owner sends its weights round the ring of all.
"""

from simulator.costs.communication import Collective, group_of, group_seconds
from simulator.frameworks import load_framework
from simulator.job import Job

__all__ = ["owner_pace", "sums_everywhere"]

WEIGHTS = 9  # of a layer: three of attention with two biases, three of the MLP, less what is small


def sums_everywhere(job: Job) -> bool:
    """Whether every GPU gets the sum of all gradients."""
    return job.plan.zero_stage == 0 or load_framework(job.plan.framework).whole_weights


def owner_pace(parameters: float, job: Job) -> float:
    """Time of the owners' broadcasts over that of one all-gather of all weights. [1]

    A pipelined ring sends each byte once, as an all-gather's does, but each of the broadcasts
    crosses all hops. There are as many as GPUs, or as weights if those are fewer.
    Source: InternLM/InternLM, commit 01e7fd6103, internlm/solver/optimizer/hybrid_zero_optim.py,
    broadcast_params.
    """
    plan, framework = job.plan, load_framework(job.plan.framework)
    if not framework.whole_weights or plan.zero_stage != 1 or parameters == 0:
        return 1.0
    owners = min(plan.shards, WEIGHTS * job.model.num_hidden_layers // plan.num_stages)
    group = group_of(plan.shards, plan.tp, job.cluster)
    nbytes = framework.weight_bytes * parameters
    whole = group_seconds(Collective.ALL_GATHER, nbytes, group, job.cluster)
    return (
        owners * group_seconds(Collective.ALL_GATHER, nbytes / owners, group, job.cluster) / whole
    )
