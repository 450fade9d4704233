"""Operators of a layer of experts: router, permutation of tokens, grouped products."""

from simulator.costs.activations import expert_load
from simulator.costs.kernels import BYTES, gemm_seconds, stream_seconds
from simulator.costs.operators import (
    FP32,
    Operator,
    activation,
    elementwise,
    framework_of,
    hidden_elements,
    linear,
    tokens_of,
)
from simulator.job import Job

__all__ = ["expert_operators", "routed_tokens"]

ROUTER_PASSES = 6  # softmax, top-k, its mask and the load-balancing loss read the fp32 scores [1]
ROUTER_LAUNCHES = 8  # their operators

# Of an element behind the experts: product 4, sum 6 + 4, put together 4 + 4, cast 4 + 2; and back,
# cast 2 + 4, cast 4 + 2, cut 2 + 2, and twice product 4 + 4 and sum 4. [bytes]
BIAS_BYTES = (4 + 10 + 8 + 6, 6 + 6 + 4 + 2 * 12)


def routed_tokens(job: Job) -> float:
    """Rows that the experts of one GPU take of a microbatch, on the busiest GPU. [1]

    Every token goes to num_experts_per_tok experts; over an expert-parallel group as many come as
    go. GPUs that split an expert take the tokens of all of them, a GPU with whole experts those of
    its own part of the sequence.
    """
    split = job.plan.expert_tp / job.plan.tp
    return tokens_of(job) * job.model.num_experts_per_tok * expert_load(job) * split


def _router(job: Job) -> Operator:
    """Scores of all experts in fp32, and the choice, for this GPU's part of the sequence."""
    model, gpu = job.model, job.cluster.gpu
    tokens, experts = hidden_elements(job) / model.hidden_size, model.num_experts
    dtype = job.plan.wide_dtype
    product = gemm_seconds(tokens, experts, model.hidden_size, gpu, dtype=dtype)
    choice = stream_seconds(ROUTER_PASSES * FP32 * tokens * experts, gpu)
    choice += ROUTER_LAUNCHES * gpu.launch_overhead
    return Operator("router", product + choice, product + choice, product, ROUTER_LAUNCHES)


def _loose(job: Job, rows: float, wide: float, experts: float) -> list[Operator]:
    """Clamps of what the activation of `wide` elements reads, and biases behind the experts.

    Two halves are clamped and put together again, and their gradients masked and put together. An
    expert's bias times the router's weights is fp32, and so is its sum with 16 bits; the experts'
    sums are put together and cast. Its gradient is cast and cut, and multiplied and summed twice,
    over tokens for the bias and over columns for the weights.
    Source: NVIDIA/Megatron-LM, megatron/core/fusions/fused_bias_geglu.py,
    weighted_bias_quick_geglu_impl; megatron/core/transformer/moe/experts.py, _apply_bias.
    """
    model, found = job.model, []
    if model.swiglu_limit is not None:
        found.append(elementwise(job, "clamps", 8 * BYTES * wide, 10 * BYTES * wide, launches=3))
    if model.bias:
        nbytes = [each * rows * model.hidden_size for each in BIAS_BYTES]
        found.append(elementwise(job, "expert biases", *nbytes, launches=round(2 * experts) + 2))
    return found


def expert_operators(job: Job) -> tuple[Operator, ...]:
    """Router, permutation, the experts of this GPU and those that all tokens take.

    Tokens are laid in order of their experts before the all-to-all, and of the GPU's own experts
    after it; back they are put in order and summed. Gradients go the same ways.
    Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py.
    """
    model, plan = job.model, job.plan
    rows = routed_tokens(job)
    width = model.expert_width / plan.expert_tp
    local = model.num_experts / plan.ep
    gates = 2 if model.gated_mlp else 1
    # rows as they leave, put in order, and as they come, put in order of several experts
    parts = hidden_elements(job) * model.num_experts_per_tok * expert_load(job)
    again = rows * model.hidden_size if plan.ep > 1 and local > 1 else 0.0
    moved = 2 * BYTES * (parts + again)
    operators = [
        _router(job),
        elementwise(job, "permute", moved, moved, launches=3),
        linear(
            job, "experts up", gates * width, model.hidden_size, tokens=rows / local, experts=local
        ),
        activation(job, rows * width),
        linear(job, "experts down", model.hidden_size, width, tokens=rows / local, experts=local),
        elementwise(job, "unpermute", moved, moved, launches=3),
    ]
    if framework_of(job).loose_experts:
        operators += _loose(job, rows, rows * width, local)
    if model.num_shared_experts:
        shared = model.num_shared_experts * model.expert_width / plan.tp
        operators += [
            linear(job, "shared expert up", gates * shared, model.hidden_size),
            activation(job, tokens_of(job) * shared),
            linear(job, "shared expert down", model.hidden_size, shared),
        ]
    return tuple(operators)
