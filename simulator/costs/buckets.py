"""Buckets in which gradients are reduced and weights gathered, as a framework closes them."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from simulator.costs.expert_rings import expert_weights
from simulator.frameworks import load_framework
from simulator.job import Job

__all__ = ["Held", "in_buckets"]

Seconds = Callable[[float], float]  # of some parameters

MANY = 48  # buckets over which their mean is taken [1]


class Held(NamedTuple):
    """Parameters of a stage, in the ring of all and in those of its experts. [1]"""

    rest: float
    experts: float


def _num_buckets(parameters: float, weights: tuple[float, ...], job: Job) -> float:
    """Buckets of some parameters that are such weights. [1]

    The framework's size, or Megatron's of 40e6 parameters or 1e6 x dp; a bucket closes with the
    weight that fills it, so that a large weight is a bucket of its own. Source: PyTorch,
    torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size; NVIDIA/Megatron-LM,
    megatron/core/distributed/param_and_grad_buffer.py.
    """
    full = load_framework(job.plan.framework).grad_bucket or max(40e6, 1e6 * job.plan.replicas)
    return max(1.0, parameters / _mean_bucket(weights, full))


def in_buckets(held: Held, job: Job, rest: Seconds, own: Seconds) -> tuple[float, float, float]:
    """Buckets of a stage, and the time of all of them and of those without experts. [1, s, s]"""
    count = _num_buckets(held.rest, _weights(job), job)
    seconds = count * rest(held.rest / count)
    if held.experts == 0:
        return count, seconds, seconds
    more = _num_buckets(held.experts, expert_weights(job), job)
    return count + more, seconds + more * own(held.experts / more), seconds


def _weights(job: Job) -> tuple[float, ...]:
    """Parameters of a layer's weights, as their gradients come: down, up, projection, qkv. [1]

    Gate and up are one weight, and so are query, key and value.
    """
    model, tp = job.model, job.plan.tp
    width, wide = model.hidden_size / tp, model.intermediate_size
    query = model.num_attention_heads * model.head_dim
    both = 2 * model.num_key_value_heads * model.head_dim
    gates = 2 if model.gated_mlp else 1
    return width * wide, gates * width * wide, width * query, width * (query + both)


@cache
def _mean_bucket(weights: tuple[float, ...], full: float) -> float:
    """Parameters of a bucket, on average over many layers of these weights. [1]

    >>> _mean_bucket((3.0, 6.0, 1.0, 2.0), 3.0)  # 3, 6 and 1 + 2
    4.0
    """
    closed, held, taken = 0, 0.0, 0.0
    while closed < MANY:
        for weight in weights:
            held += weight
            if held >= full:
                closed, taken, held = closed + 1, taken + held, 0.0
    return taken / closed
