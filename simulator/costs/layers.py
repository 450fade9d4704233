"""What one layer, the embedding and the head cost, however the layers are spread over stages.

Plans that differ in pipeline stages, optimizer or schedule alone share these.

Since 2022 Megatron-LM overlaps part of a backward's tensor-parallel communication with the product
next to it: the all-reduce (reduce-scatter) of the gradient of a column-parallel product's input
with that product's weight gradient, and with sequence parallelism the all-gather of its input with
its input gradient. What is exposed is `max(0, communication - product)`. Source: Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, section 4.2.2 and
the remark on Table 4; NVIDIA/Megatron-LM, LinearWithGradAccumulationAndAsyncCommunication. A
backward cut into I and W loses that overlap, so `B = I + W - overlapped`. The framework's profile
says whether it overlaps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simulator.costs.activations import (
    dropped_bytes,
    embedding_bytes,
    head_bytes,
    layer_bytes,
    saved_layer_bytes,
    weight_grad_bytes,
)
from simulator.costs.communication import Collective, tensor_parallel_seconds
from simulator.costs.compute import (
    Operator,
    core_operators,
    dense_layer_operators,
    embedding_operators,
    head_operators,
    layer_operators,
)
from simulator.costs.host import HostTimes, host_times
from simulator.costs.kernels import BYTES, NUM_CHANNELS
from simulator.costs.modules import dense_of, modules_of, repeated_operators
from simulator.costs.multi_token import join_bytes, join_operators, join_weight_grad_bytes
from simulator.costs.operators import framework_of, tokens_of
from simulator.job import Job

__all__ = ["LayerCosts", "Part", "hidden_share", "layer_costs"]

# Products whose weights are split by columns, so that their input is whole, and by rows, so that
# their output is a sum; a layer has a pair of each. Routed experts' tokens are gathered and their
# sums scattered with the exchange.
COLUMNS = ("qkv", "query", "query up", "mlp up", "shared expert up", "logits")
ROWS = ("projection", "mlp down", "shared expert down")


@dataclass(frozen=True)
class Part:
    """Seconds of a layer, of the embedding or of the head. Compute and exposed communication.

    And of a layer what recomputation adds, and leaves to keep.
    """

    forward: float = 0.0  # [s]
    forward_tensor: float = 0.0  # [s]
    input_grad: float = 0.0  # [s]
    input_tensor: float = 0.0  # communication of a lone I [s]
    weight_grad: float = 0.0  # [s]
    weight_tensor: float = 0.0  # communication of a lone W [s]
    overlapped: float = 0.0  # communication that a full backward hides behind products [s]
    again: float = 0.0  # recomputed operators in the backward [s]
    again_tensor: float = 0.0  # communication that they repeat [s]
    saved: float = 0.0  # kept from F to the end of the backward [bytes]
    after_input_grad: float = 0.0  # kept from I to W [bytes]
    recomputed: float = 0.0  # live while a backward runs [bytes]


@dataclass(frozen=True)
class LayerCosts:
    """One layer, the embedding and the head on one GPU, for one microbatch.

    It depends on the model, the GPU, the links inside a tensor-parallel group, and of the plan on
    framework, tp, cp, ep, capacity_factor, expert_imbalance, micro_batch_size, sequence_parallel,
    scatter_gather, recompute and its modules, attention, the dtypes, and whether zero_stage is 3.
    """

    layer: Part
    dense_layer: Part | None  # of the first layers, where the others have experts
    embedding: Part
    head: Part
    join: Part  # what a module of multi-token prediction has besides layer, embedding and head
    host: HostTimes  # what the host takes to issue each
    embedding_saved: float  # [bytes]
    head_saved: float  # [bytes]
    head_after_input_grad: float  # [bytes]
    boundary: float  # sent by one GPU to the next stage's [bytes]
    gather: float  # all-gather at the receiver with scatter/gather [s]


def layer_costs(job: Job) -> LayerCosts:
    """The part of a job's costs that plans of other stages share."""
    model, plan = job.model, job.plan
    dense = model.num_dense_layers > 0
    # the head's W needs its input and the gradient of its logits, 2 bytes each
    share = plan.tp if plan.sequence_parallel else 1
    width = model.hidden_size / share + model.vocab_size / plan.tp
    boundary = BYTES * tokens_of(job) * model.hidden_size
    gathers = plan.scatter_gather and not plan.sequence_parallel and plan.tp > 1
    split = plan.tp if plan.sequence_parallel or plan.scatter_gather else 1
    return LayerCosts(
        layer=_layer(job, layer_operators(job)),
        dense_layer=_layer(dense_of(job), dense_layer_operators(job)) if dense else None,
        embedding=_embedding(job),
        head=_part(job, head_operators(job)),
        join=_join(job) if model.num_nextn_predict_layers else Part(),
        host=host_times(job),
        embedding_saved=embedding_bytes(job),
        head_saved=head_bytes(job),
        head_after_input_grad=BYTES * tokens_of(job) * width,
        boundary=boundary / split,
        gather=_tensor_parallel(job, Collective.ALL_GATHER) if gathers else 0.0,
    )


def hidden_share(job: Job) -> float:
    """What overlapping saves of the time that runs side by side: less the SMs it takes. [1]"""
    return 1 - min(1.0, NUM_CHANNELS / job.cluster.gpu.num_sms)


def _hidden(communication: float, product: float, job: Job) -> float:
    """Time that overlapping a collective with a product saves. [s]"""
    return min(communication, product) * hidden_share(job)


def _sum(operators: Iterable[Operator]) -> tuple[float, float, float]:
    forward, input_grad, weight_grad = 0.0, 0.0, 0.0
    for operator in operators:
        forward += operator.forward
        input_grad += operator.input_grad
        weight_grad += operator.weight_grad
    return forward, input_grad, weight_grad


def _tensor_parallel(job: Job, collective: Collective) -> float:
    """One collective of the residual stream, b s h elements. [s]"""
    nbytes = BYTES * tokens_of(job) * job.model.hidden_size
    return tensor_parallel_seconds(collective, nbytes, job.plan.tp, job.cluster)


def _part(job: Job, operators: tuple[Operator, ...]) -> Part:
    """Operators with the communication of their column- and row-parallel products."""
    forward, input_grad, weight_grad = _sum(operators)
    part = Part(forward=forward, input_grad=input_grad, weight_grad=weight_grad)
    if job.plan.tp == 1:
        return part
    columns = [operator for operator in operators if operator.name in COLUMNS]
    rows = [operator for operator in operators if operator.name in ROWS]
    overlaps = framework_of(job).overlap_tensor_backward
    if not job.plan.sequence_parallel:
        reduce = _tensor_parallel(job, Collective.ALL_REDUCE)
        hidden = sum(_hidden(reduce, product.weight_grad, job) for product in columns)
        return replace(
            part,
            forward_tensor=len(rows) * reduce,
            input_tensor=len(columns) * reduce,
            overlapped=hidden if overlaps else 0.0,
        )
    gather = _tensor_parallel(job, Collective.ALL_GATHER)
    scatter = _tensor_parallel(job, Collective.REDUCE_SCATTER)
    hidden = sum(
        _hidden(gather, product.input_grad, job) + _hidden(scatter, product.weight_grad, job)
        for product in columns
    )
    ahead = back = 0.0
    if framework_of(job).overlap_tensor_forward:
        ahead, back = _pipelined(gather, scatter, columns, rows, job)
    return replace(
        part,
        forward_tensor=len(columns) * gather + len(rows) * scatter - ahead,
        input_tensor=len(rows) * gather + len(columns) * scatter - back,
        weight_tensor=len(columns) * gather,
        overlapped=hidden if overlaps else 0.0,
    )


def _pipelined(
    gather: float, scatter: float, columns: list[Operator], rows: list[Operator], job: Job
) -> tuple[float, float]:
    """Time that cutting a product and its collective in tp pieces hides, forward and backward. [s]

    A gather runs beside the product that reads it and a scatter beside the one that it sums up, all
    but one piece. Source: NVIDIA/TransformerEngine, userbuffers (tp_comm_overlap): ring exchange.
    """
    share = 1 - 1 / job.plan.tp
    ahead = sum(_hidden(gather, product.forward, job) for product in columns)
    ahead += sum(_hidden(scatter, product.forward, job) for product in rows)
    back = sum(_hidden(gather, product.input_grad, job) for product in rows)
    return share * ahead, share * back


def _embedding(job: Job) -> Part:
    """The split table's look-up ends in a reduction; its backward in a gather of the gradient."""
    forward, input_grad, weight_grad = _sum(embedding_operators(job))
    tensor = weight_tensor = 0.0
    if job.plan.sequence_parallel:
        tensor = _tensor_parallel(job, Collective.REDUCE_SCATTER)
        weight_tensor = _tensor_parallel(job, Collective.ALL_GATHER)
    else:
        tensor = _tensor_parallel(job, Collective.ALL_REDUCE)
    return Part(
        forward=forward,
        forward_tensor=tensor,
        input_grad=input_grad,
        weight_grad=weight_grad,
        weight_tensor=weight_tensor,
    )


def _join(job: Job) -> Part:
    """Two states become one: their projection is gathered and, along the sequence, cut again."""
    forward, input_grad, weight_grad = _sum(join_operators(job))
    tensor = weight_tensor = 0.0
    if job.plan.tp > 1:
        tensor = _tensor_parallel(job, Collective.ALL_GATHER)
        if job.plan.sequence_parallel:  # of both states, before the projection
            weight_tensor = 2 * tensor
    return Part(
        forward=forward,
        forward_tensor=tensor + weight_tensor,
        input_grad=input_grad,
        input_tensor=weight_tensor,
        weight_grad=weight_grad,
        weight_tensor=weight_tensor,
        saved=join_bytes(job),
        after_input_grad=join_weight_grad_bytes(job),
    )


def _layer(job: Job, operators: tuple[Operator, ...]) -> Part:
    """A layer of these operators, with what its backward computes again."""
    part = _part(job, operators)
    again, again_tensor = _recompute(job, operators, part)
    recomputed = {"none": lambda _: 0.0, "selective": dropped_bytes}
    return replace(
        part,
        again=again,
        again_tensor=again_tensor,
        saved=saved_layer_bytes(job),
        after_input_grad=weight_grad_bytes(job),
        recomputed=recomputed.get(job.plan.recompute, layer_bytes)(job),
    )


def _recompute(job: Job, operators: tuple[Operator, ...], layer: Part) -> tuple[float, float]:
    """Seconds of recomputation in one layer's backward, and of the communication it repeats. [s]

    Selective repeats its modules, of communication that of the feed-forward layer or the gathering
    of compressed queries, keys and values; full the whole forward with its communication, alternate
    what `_alternate` says and the gathers. Of flash attention, whose kernel repeats its core, the
    named module repeats the kernel: Megatron-Core checkpoints whatever the core is.
    """
    if job.plan.recompute == "selective":
        again = _sum(repeated_operators(job, operators, core_operators(job)))[0]
        tensor = 0.0
        if {"mlp", "moe"} & set(modules_of(job)):
            tensor += layer.forward_tensor / 2
        if "mla_up_proj" in modules_of(job) and job.plan.sequence_parallel:
            tensor += _gather_latent(job)
        return again, tensor
    if job.plan.recompute == "alternate":
        return _alternate(job, operators), layer.forward_tensor / 2
    if job.plan.recompute == "full":
        return layer.forward, layer.forward_tensor
    return 0.0, 0.0


def _gather_latent(job: Job) -> float:
    """All-gather of compressed queries, keys and values, split along the sequence. [s]"""
    model = job.model
    width = (model.q_lora_rank or 0) + (model.kv_lora_rank or 0) + model.qk_rope_head_dim
    nbytes = BYTES * tokens_of(job) * width
    return tensor_parallel_seconds(Collective.ALL_GATHER, nbytes, job.plan.tp, job.cluster)


def _alternate(job: Job, operators: tuple[Operator, ...]) -> float:
    """Time of repeating every second product and all that is no product but attention. [s]

    Of queries, keys, values, projection and a gated layer's two ways up and one down, the keys, the
    projection and one way up; the sum of two streams at the end is not needed again.
    Source: pytorch/torchtitan, parallelize_llama.py, _get_custom_policy.
    """
    model = job.model
    key = model.num_key_value_heads * model.head_dim
    again = {
        "qkv": key / (model.query_width + 2 * key),
        "mlp up": 0.5 if model.gated_mlp else 0.0,
        "mlp down": 0.0,
        "mlp residual": 0.0,
    }
    core = {operator.name for operator in core_operators(job)}
    return sum(
        again.get(operator.name, 1.0) * operator.forward
        for operator in operators
        if operator.name not in core
    )
