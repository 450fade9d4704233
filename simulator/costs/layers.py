"""What one layer, the embedding and the head cost, however the layers are spread over stages.

Plans that differ in pipeline stages, data parallelism, optimizer or schedule alone share these.

Megatron-LM overlaps part of a backward's tensor-parallel communication with the product next to it:
the all-reduce (reduce-scatter) of the gradient of a column-parallel product's input with that
product's weight gradient, and with sequence parallelism the all-gather of its input with its input
gradient. What is exposed is `max(0, communication - product)`. Source: Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, section 4.2.2 and the
remark on Table 4; NVIDIA/Megatron-LM, LinearWithGradAccumulationAndAsyncCommunication. A backward
cut into I and W loses that overlap, so `B = I + W - overlapped`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simulator.costs.activations import (
    core_bytes,
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
    embedding_operators,
    head_operators,
    layer_operators,
)
from simulator.costs.kernels import NUM_CHANNELS
from simulator.job import Job

__all__ = ["LayerCosts", "Part", "hidden_share", "host_seconds", "layer_costs"]

BYTES = 2  # of one fp16 or bf16 element
HOST_BACKWARD = 1.5  # host time of a layer's backward over that of its forward


@dataclass(frozen=True)
class Part:
    """Seconds of a layer, of the embedding or of the head. Compute and exposed communication."""

    forward: float = 0.0  # [s]
    forward_tensor: float = 0.0  # [s]
    input_grad: float = 0.0  # [s]
    input_tensor: float = 0.0  # communication of a lone I [s]
    weight_grad: float = 0.0  # [s]
    weight_tensor: float = 0.0  # communication of a lone W [s]
    overlapped: float = 0.0  # communication that a full backward hides behind products [s]


@dataclass(frozen=True)
class LayerCosts:
    """One layer, the embedding and the head on one GPU, for one microbatch.

    It depends on the model, the GPU, the links inside a tensor-parallel group, and of the plan on
    tp, micro_batch_size, sequence_parallel, scatter_gather, recompute, attention and the dtypes.
    """

    layer: Part
    embedding: Part
    head: Part
    again: float  # recomputed operators in one layer's backward [s]
    again_tensor: float  # communication that they repeat [s]
    layer_saved: float  # kept from F to the end of the backward [bytes]
    layer_after_input_grad: float  # kept from I to W [bytes]
    layer_recomputed: float  # live while a backward runs [bytes]
    embedding_saved: float  # [bytes]
    head_saved: float  # [bytes]
    head_after_input_grad: float  # [bytes]
    boundary: float  # sent by one GPU to the next stage's [bytes]
    gather: float  # all-gather at the receiver with scatter/gather [s]


def layer_costs(job: Job) -> LayerCosts:
    """The part of a job's costs that plans of other stages share."""
    model, plan = job.model, job.plan
    layer = _layer(job)
    again, again_tensor = _recompute(job, layer)
    # the head's W needs its input and the gradient of its logits, 2 bytes each
    share = plan.tp if plan.sequence_parallel else 1
    width = model.hidden_size / share + model.vocab_size / plan.tp
    boundary = BYTES * plan.micro_batch_size * model.seq_len * model.hidden_size
    gathers = plan.scatter_gather and not plan.sequence_parallel and plan.tp > 1
    split = plan.tp if plan.sequence_parallel or plan.scatter_gather else 1
    recomputed = {"none": lambda _: 0.0, "selective": core_bytes, "full": layer_bytes}
    return LayerCosts(
        layer=layer,
        embedding=_embedding(job),
        head=_part(job, head_operators(job), 0, ("logits",)),
        again=again,
        again_tensor=again_tensor,
        layer_saved=saved_layer_bytes(job),
        layer_after_input_grad=weight_grad_bytes(job),
        layer_recomputed=recomputed[plan.recompute](job),
        embedding_saved=embedding_bytes(job),
        head_saved=head_bytes(job),
        head_after_input_grad=BYTES * plan.micro_batch_size * model.seq_len * width,
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
    model, plan = job.model, job.plan
    nbytes = BYTES * plan.micro_batch_size * model.seq_len * model.hidden_size
    return tensor_parallel_seconds(collective, nbytes, plan.tp, job.cluster)


def _part(job: Job, operators: tuple[Operator, ...], pairs: int, columns: tuple[str, ...]) -> Part:
    """Operators with the communication of their column-parallel products, named in `columns`.

    `pairs` is how many of them have a row-parallel product behind them, whose output is reduced.
    """
    forward, input_grad, weight_grad = _sum(operators)
    part = Part(forward=forward, input_grad=input_grad, weight_grad=weight_grad)
    if job.plan.tp == 1:
        return part
    products = [operator for operator in operators if operator.name in columns]
    if not job.plan.sequence_parallel:
        reduce = _tensor_parallel(job, Collective.ALL_REDUCE)
        return replace(
            part,
            forward_tensor=pairs * reduce,
            input_tensor=len(products) * reduce,
            overlapped=sum(_hidden(reduce, product.weight_grad, job) for product in products),
        )
    gather = _tensor_parallel(job, Collective.ALL_GATHER)
    scatter = _tensor_parallel(job, Collective.REDUCE_SCATTER)
    return replace(
        part,
        forward_tensor=len(products) * gather + pairs * scatter,
        input_tensor=pairs * gather + len(products) * scatter,
        weight_tensor=len(products) * gather,
        overlapped=sum(
            _hidden(gather, product.input_grad, job) + _hidden(scatter, product.weight_grad, job)
            for product in products
        ),
    )


def host_seconds(job: Job) -> float:
    """Time in which the host issues a layer's forward: no forward is faster. [s]"""
    return len(layer_operators(job)) * job.cluster.gpu.host_overhead


def _layer(job: Job) -> Part:
    """One transformer layer, no faster than the host can issue it.

    Kernels are queued ahead, so the host is hidden unless a whole pass of it takes longer than the
    GPU. Its backward takes 1.5 of its forward.
    Source: GPUs wait for the host in runs of small models; the overhead of an operator is fitted
    once on VIA-Research/vTrain (Bang et al., MICRO 2024), where A100 layers of hidden size 1024 to
    2048 take 3.2 to 4 ms with full recomputation whatever their size: 14 x 70 us x (1 + 1 + 1.5).
    """
    operators = layer_operators(job)
    part = _part(job, operators, 2, ("qkv", "mlp up"))
    host = host_seconds(job)
    back = part.input_grad + part.weight_grad
    busy = back + part.input_tensor + part.weight_tensor - part.overlapped
    idle = max(0.0, HOST_BACKWARD * host - busy)
    return replace(
        part,
        forward=max(part.forward, host - part.forward_tensor),
        input_grad=part.input_grad + idle / 2,
        weight_grad=part.weight_grad + idle / 2,
    )


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


def _recompute(job: Job, layer: Part) -> tuple[float, float]:
    """Seconds of recomputation in one layer's backward, and of the communication it repeats. [s]

    Selective repeats the attention core (nothing for flash attention, whose kernel does it), full
    the whole forward with its communication.
    """
    if job.plan.recompute == "selective":
        return _sum(core_operators(job))[0], 0.0
    if job.plan.recompute == "full":
        return layer.forward, layer.forward_tensor
    return 0.0, 0.0
