"""Time of every operator of a stage, forward and backward, on one GPU of a tensor group."""

from simulator.costs.attention import attention_operators, core_operators
from simulator.costs.experts import expert_operators
from simulator.costs.kernels import BYTES, ELEMENT_BYTES, stream_seconds
from simulator.costs.operators import (
    FP32,
    MASK,
    Operator,
    activation,
    elementwise,
    framework_of,
    hidden_elements,
    linear,
    norm,
    residual,
    soft_cap,
    tokens_of,
)
from simulator.job import Job

__all__ = [
    "Operator",
    "core_operators",
    "dense_layer_operators",
    "embedding_operators",
    "head_operators",
    "layer_operators",
    "optimizer_seconds",
]

# Bytes that Megatron's mixed-precision optimizer moves for one parameter: unscale the fp32 gradient
# and look for infinities 8, norm 4, clip 8; Adam reads gradient, weight and two moments 16 and
# writes three 12; copy the weight to 16 bits 6. Source: NVIDIA/Megatron-LM, megatron/optimizer.
OPTIMIZER_BYTES = 54
# Adam operator by operator: each moment scaled and added to, root, quotient, step, decay: 10 passes
# of two reads and a write instead of one of 28. Source: PyTorch, torch/optim/adam.py.
PLAIN_ADAM_BYTES = 10 * 3 * FP32 - 28
ZERO_GRADIENT_BYTES = 4
# A weight in nvfp4 has a scale for each block of 16 x 16: read for the largest, read again, and
# written both ways. Source: NVIDIA/TransformerEngine, NVFP4BlockScaling (fp4_quant_fwd_weight).
WEIGHT_CAST_BYTES = {"nvfp4": 2 * BYTES + 2 * ELEMENT_BYTES["nvfp4"]}

# Cross-entropy on fp32 logits in plain kernels: convert 6 bytes an element, maximum 4, subtract 8,
# exponentiate 8, sum 4, divide 8; backward 8 and convert 6. A100 and GH200 need, conversions aside,
# 29 and 27 of these 32 bytes at streaming speed, and 10 and 9 of 8 (estimate-train-time, arXiv
# 2509.22832; benchmarks/fit_kernels.py). Source: NVIDIA/Megatron-LM,
# megatron/core/tensor_parallel/cross_entropy.py. PyTorch's own: convert 6, log-softmax 8; backward
# zero and fill 4, log-softmax 12, convert 6. Fused, logits are read once and written once.
SHARDED_LOSS_BYTES = (38, 14)
PYTORCH_LOSS_BYTES = (14, 22)
FUSED_LOSS_BYTES = (4, 4)


def _mlp(job: Job) -> tuple[Operator, ...]:
    """Up, activation, down."""
    model, plan = job.model, job.plan
    width = model.intermediate_size / plan.tp
    gates = 2 if model.gated_mlp else 1
    return (
        linear(job, "mlp up", gates * width, model.hidden_size, bias=model.bias),
        activation(job, tokens_of(job) * width),
        linear(job, "mlp down", model.hidden_size, width, bias=model.bias),
    )


def _layer(job: Job, feed_forward: tuple[Operator, ...]) -> tuple[Operator, ...]:
    elements = hidden_elements(job)
    after = job.model.post_norm
    return (
        norm(job, "attention norm", elements),
        *attention_operators(job),
        *((norm(job, "attention output norm", elements),) if after else ()),
        residual(job, "attention residual", elements),
        norm(job, "mlp norm", elements),
        *feed_forward,
        *((norm(job, "mlp output norm", elements),) if after else ()),
        residual(job, "mlp residual", elements),
    )


def layer_operators(job: Job) -> tuple[Operator, ...]:
    """One transformer layer, in order of the forward, without its communication."""
    return _layer(job, expert_operators(job) if job.model.is_sparse else _mlp(job))


def dense_layer_operators(job: Job) -> tuple[Operator, ...]:
    """The same of a layer without experts, as the first of some models are."""
    return _layer(job, _mlp(job))


def embedding_operators(job: Job) -> tuple[Operator, ...]:
    """Look-up, positions and dropout on the first stage; no gradient of the input.

    The weight's gradient is dense: zeroed, scattered into, and added to the fp32 gradient.
    """
    model, plan, gpu = job.model, job.plan, job.cluster.gpu
    elements = tokens_of(job) * model.hidden_size
    forward = 2 * BYTES * elements
    if model.learned_positions:
        forward += 3 * BYTES * elements
    if model.dropout:
        forward += (2 * BYTES + MASK) * hidden_elements(job)
    table = model.vocab_size * model.hidden_size / plan.tp
    backward = 3 * BYTES * elements + (2 * BYTES + 2 * FP32) * table
    launches = 1 + 2 * model.learned_positions + model.dropout
    ahead, back = stream_seconds(forward, gpu), stream_seconds(backward, gpu)
    return (Operator("embedding", ahead, 0.0, back, launches),)


def head_operators(job: Job) -> tuple[Operator, ...]:
    """Final norm, logits and cross-entropy over the split vocabulary, on the last stage.

    Logits stay in 16 bits where other products are fp8 or nvfp4.
    """
    model, plan = job.model, job.plan
    columns = model.vocab_size / plan.tp
    logits = tokens_of(job) * columns
    wide = job
    if plan.dtype != plan.wide_dtype:
        wide = job.model_copy(update={"plan": plan.model_copy(update={"dtype": plan.wide_dtype})})
    ahead, back, launches = _loss(job)
    cap = model.final_logit_softcapping is not None
    return (
        norm(job, "final norm", hidden_elements(job)),
        linear(wide, "logits", columns, model.hidden_size),
        *((soft_cap(job, logits),) if cap else ()),
        elementwise(job, "cross-entropy", ahead * logits, back * logits, launches=launches),
    )


def _loss(job: Job) -> tuple[int, int, int]:
    """Bytes that the loss moves for a logit, forward and backward, and its kernels. [bytes, 1]"""
    framework = framework_of(job)
    if framework.fused_cross_entropy:
        return *FUSED_LOSS_BYTES, 1
    if framework.sharded_cross_entropy or job.plan.tp > 1:
        return *SHARDED_LOSS_BYTES, 8
    return *PYTORCH_LOSS_BYTES, 3


def optimizer_seconds(parameters: float, job: Job) -> float:
    """Adam's step, gradient clipping and zeroing for the parameters of one GPU. [s]

    54 bytes a parameter, over the GPUs that split the optimizer's state with a zero_stage; 4 more
    to zero its gradient, whole or split from stage 2 on; 16-bit gradients are first copied to fp32,
    6 bytes; weights in nvfp4 are cast once for all microbatches. At 58e12 bytes/s, 1e12 parameters
    take a second.
    """
    plan = job.plan
    nbytes: float = OPTIMIZER_BYTES + (0 if plan.grad_dtype == "fp32" else BYTES + FP32)
    if not framework_of(job).fused_optimizer:
        nbytes += PLAIN_ADAM_BYTES
    cast = parameters * WEIGHT_CAST_BYTES.get(plan.dtype, 0.0)
    nbytes /= plan.shards if plan.zero_stage >= 1 else 1
    zeroing = ZERO_GRADIENT_BYTES / (plan.shards if plan.zero_stage >= 2 else 1)
    return stream_seconds(parameters * (nbytes + zeroing) + cast, job.cluster.gpu)
