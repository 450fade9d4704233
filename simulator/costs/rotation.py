"""Context parallelism as PyTorch runs it: blocks of attention, put together by other kernels.

Its operators know one block of keys. So each GPU runs one for every block and adds up what comes
out, and the gradients of keys and values pass from GPU to GPU, a block a step, all of it in fp32.
torchtitan's Llama repeats keys and values for all heads before attention, which so cross the
network as wide as queries. A collective in a compiled graph is waited for where it is issued.
Sources: pytorch/pytorch, torch/distributed/tensor/experimental/_attention.py
(_templated_ring_attention, its backward, _SDPAMerger) and
torch/distributed/_functional_collectives.py (_maybe_wrap_tensor); pytorch/torchtitan,
torchtitan/models/llama/model.py (repeat_kv).
"""

from typing import NamedTuple

from simulator.costs.communication import Collective, Group, group_seconds, p2p_seconds
from simulator.costs.compute import core_operators
from simulator.costs.kernels import BYTES, stream_seconds
from simulator.costs.layers import hidden_share
from simulator.frameworks import load_framework
from simulator.job import Job, Link

__all__ = ["rotated_seconds"]

FP32 = 4


class Moved(NamedTuple):
    """Bytes that kernels read and write for each element of a GPU's queries."""

    block: float  # a block's result, added to the others' in the forward
    whole: float  # once in the forward: casts to fp32 and back
    grads: float  # a block's gradients of queries, keys and values, added and put side by side
    grads_whole: float  # once in the backward: zeros, and casts back
    side: float  # keys and values, put side by side to be sent


# Of a block: 16 bits read, the fp32 sum read and written; of three gradients likewise. Kernel by
# kernel, out - sigmoid(lse) (out - block) takes a cast and three more of 12, 8 and 12 bytes, and
# gradients are put side by side by one more.
COMPILED = Moved(10.0, 12.0, 30.0, 30.0, 8.0)
EAGER = Moved(38.0, 12.0, 46.0, 30.0, 8.0)


def rotated_seconds(job: Job, group: Group, link: Link) -> tuple[float, float]:
    """What this adds to a layer's forward and backward of one microbatch. [s]

    `link` is the slowest to the next GPU of `group`. All keys and values are gathered beside the
    attention over the block at hand, in the backward again; n blocks' gradients are passed on,
    each beside the next block's backward.
    """
    model, plan, gpu = job.model, job.plan, job.cluster.gpu
    compiled = load_framework(plan.framework).compiled
    moved, blocks = COMPILED if compiled else EAGER, plan.cp
    elements = plan.micro_batch_size * model.seq_len / blocks * model.query_width / plan.tp
    gather = group_seconds(Collective.ALL_GATHER, 2 * BYTES * elements * blocks, group, job.cluster)
    passed = p2p_seconds(2 * FP32 * elements, link)
    sides = moved.side * (1 if compiled else blocks - 1)  # those that nobody reads are left out
    ahead = stream_seconds((moved.whole + (blocks - 1) * moved.block + sides) * elements, gpu)
    back = stream_seconds((moved.grads_whole + blocks * moved.grads + sides) * elements, gpu)
    if compiled:
        return gather + ahead, gather + blocks * passed + back
    core, share = core_operators(job), hidden_share(job)
    forward, backward = (
        sum(times) / blocks
        for times in zip(*((one.forward, one.input_grad) for one in core), strict=True)
    )
    shown = [gather - share * min(gather, one) for one in (forward, backward)]
    passing = passed + (blocks - 1) * (passed - share * min(passed, backward))
    return shown[0] + ahead, shown[1] + passing + back
