"""What context parallelism and experts communicate in one layer, and what of it shows.

Both are alone on their links: the pipeline's transfers and the reductions over dp that the engine
lets contend meet each other, not these.
"""

from typing import NamedTuple

from simulator.costs.activations import expert_load
from simulator.costs.communication import (
    Collective,
    Group,
    group_of,
    group_seconds,
    p2p_seconds,
    tensor_parallel_seconds,
)
from simulator.costs.compute import core_operators
from simulator.costs.layers import hidden_share
from simulator.costs.rotation import rotated_seconds
from simulator.frameworks import load_framework
from simulator.job import Job, Link

__all__ = ["NO_EXCHANGE", "Exchange", "context_exchange", "expert_exchange"]

BYTES = 2  # of one fp16 or bf16 element


class Exchange(NamedTuple):
    """Communication of one layer and microbatch that compute does not hide. [s]"""

    forward: float
    backward: float


NO_EXCHANGE = Exchange(0.0, 0.0)


def context_exchange(job: Job) -> Exchange:
    """Keys and values between the GPUs that share a sequence.

    In a ring each GPU passes its keys and values on cp - 1 times, each beside the attention over
    the block that it holds; the backward passes their gradients along too. Gathered, they come
    before the attention, once more before its backward, and the gradients are scattered after it.
    Each GPU holds an early and a late piece of the sequence, so that causal work is equal. What
    PyTorch does is `rotated_seconds`.
    Sources: Liu et al., "Ring Attention with Blockwise Transformers", ICLR 2024, section 3;
    NVIDIA/TransformerEngine, context_parallel.py; "The Llama 3 Herd of Models", 2024, section
    3.3.2 (all-gather).
    """
    model, plan, cluster = job.model, job.plan, job.cluster
    tokens = plan.micro_batch_size * model.seq_len / plan.cp
    width = 2 * model.num_key_value_heads * model.head_dim
    if model.is_latent:
        width = model.query_width + model.value_width
    nbytes = BYTES * tokens * width / plan.tp
    group = group_of(plan.cp, plan.tp, cluster)
    if load_framework(plan.framework).block_attention:
        return Exchange(*rotated_seconds(job, group, _neighbour(job, group)))
    if plan.cp_comm == "all_gather":
        gather, scatter = (
            group_seconds(kind, plan.cp * nbytes, group, cluster)
            for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        )
        return Exchange(gather, gather + scatter)
    core = core_operators(job)
    ahead = sum(operator.forward for operator in core) / plan.cp
    back = sum(operator.input_grad for operator in core) / plan.cp
    link = _neighbour(job, group)
    passed, both = p2p_seconds(nbytes, link), p2p_seconds(2 * nbytes, link)
    share, steps = hidden_share(job), plan.cp - 1
    return Exchange(
        steps * (passed - share * min(passed, ahead)), steps * (both - share * min(both, back))
    )


def _neighbour(job: Job, group: Group) -> Link:
    """The link to the next GPU of a ring, the slowest of them."""
    cluster = job.cluster
    if group.num_nodes == 1:
        return cluster.intra_node
    nics = cluster.nics_per_node / cluster.gpus_per_node
    return cluster.inter_node.model_copy(update={"bandwidth": cluster.inter_node.bandwidth * nics})


def expert_exchange(job: Job) -> Exchange:
    """Tokens to their experts and back, in the forward and again in the backward.

    Each GPU sends num_experts_per_tok copies of its part of the tokens over the expert-parallel
    group, whose members are etp apart; GPUs that split an expert gather what came for it, and
    scatter their sums on the way back. Without sequence parallelism the peers gather the tokens
    themselves at last. With experts on at most topk_group nodes a token crosses the network once
    for each. Nothing hides it; pairs of a forward and a backward do (DualPipe).
    Sources: Lepikhin et al., "GShard", ICLR 2021, section 3.2; NVIDIA/Megatron-LM,
    megatron/core/transformer/moe/token_dispatcher.py; DeepSeek-AI, "DeepSeek-V3 Technical
    Report", 2024, section 3.2.2.
    """
    model, plan, cluster = job.model, job.plan, job.cluster
    token = BYTES * plan.micro_batch_size * model.seq_len * model.hidden_size / plan.cp
    copies = model.num_experts_per_tok * expert_load(job)
    sent = token * copies / plan.tp
    group = group_of(plan.ep, plan.expert_tp, cluster)
    exchange = group_seconds(Collective.ALL_TO_ALL, sent, group, cluster)
    if model.topk_group is not None and group.num_nodes > model.topk_group:
        # one copy for each node, which its GPUs hand on: fewer bytes cross the network
        few = sent * min(1.0, model.topk_group / copies)
        node = Group(group.num_gpus // group.num_nodes, 1, group.nics_share)
        exchange = max(
            group_seconds(Collective.ALL_TO_ALL, few, group, cluster),
            group_seconds(Collective.ALL_TO_ALL, sent, node, cluster),
        )
    peers = 0.0
    if plan.expert_tp > 1:
        peers = sum(
            tensor_parallel_seconds(kind, token * copies, plan.expert_tp, cluster)
            for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        )
        if not plan.sequence_parallel:
            peers += tensor_parallel_seconds(Collective.ALL_GATHER, token, plan.tp, cluster)
    return Exchange(2 * exchange + peers, 2 * exchange + peers)
