"""What a training framework does by default: what it fuses, overlaps and keeps. Data, not code.

A framework is a TOML file in `simulator/specs/frameworks`, every default with its source. A plan
names one; what the plan itself states takes precedence. The cost model reads the switches that no
plan has, as the kernels that are fused.
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import Field, model_validator

from simulator.checks import Count, NotNegative, Positive, Share, Value
from simulator.errors import shown, unknown, validated
from simulator.files import parse_toml

__all__ = ["PLAIN", "Framework", "framework_names", "load_framework", "plan_defaults"]

PLAN_FIELDS = (  # defaults that a plan of the framework starts from, under the plan's own names
    "grad_dtype",
    "attention",
    "sequence_parallel",
    "zero_stage",
    "scatter_gather",
    "p2p",
    "overlap_grad_reduce",
    "overlap_param_gather",
)


FUSED_BY_COMPILER = (  # what is elementwise or a reduction, in the compiled part of the model
    "fused_softmax",
    "fused_norm",
    "fused_activation",
    "fused_residual",
    "fused_rotary",
)


class Framework(Value):
    """The habits of one framework at one time. The defaults here are those of Megatron-Core."""

    name: str = Field(description="name of the framework, with its time where that matters")
    source: str = Field(description="where its defaults are published")

    grad_dtype: Literal["fp32", "weights"] = Field(
        "fp32", description="of accumulated gradients: fp32, or that of the weights"
    )
    attention: Literal["flash", "eager"] = Field("flash", description="attention kernel")
    selective: Literal["selective", "alternate"] = Field(
        "selective",
        description="the plan's word for what the framework calls selective recomputation",
    )
    flash_version: Literal[1, 2, 3] = Field(
        3,
        description="generation of the flash kernel: 1 of 2022, 2 of July 2023, 3 for cuDNN's "
        "and FlashAttention-3, which use Hopper's own instructions",
    )
    sequence_parallel: bool = Field(
        False, description="norms and dropouts split along the sequence when tp > 1"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="what is split over dp when dp > 1")
    scatter_gather: bool = Field(
        True, description="each tensor-parallel peer sends its share of a boundary tensor"
    )
    p2p: Literal["overlapped", "blocking", "in_turn"] = Field(
        "overlapped",
        description="transfers between stages; blocking, an interleaved schedule posts all that is "
        "due together; in_turn does one at a time, without interleaving alone",
    )
    overlap_grad_reduce: bool = Field(
        False, description="gradients are reduced while the backward still runs"
    )
    overlap_param_gather: bool = Field(
        False, description="updated weights are gathered while the next forward runs"
    )
    align_collectives: bool = Field(
        True,
        description="with several chunks a rank, all ranks start a chunk's overlapped reduction or "
        "gathering at the same moment, between its backwards or forwards",
    )
    grad_bucket: Positive | None = Field(
        None, description="parameters in one bucket of the overlapped reduction; one bucket [1]"
    )
    reduce_dtype: Literal["gradients", "weights", "fp32"] = Field(
        "gradients", description="dtype in which gradients cross the network"
    )
    whole_weights: bool = Field(
        False,
        description="zero_stage 1 gives each GPU whole weights: gradients are summed everywhere, "
        "and updated weights are broadcast by one owner after the other",
    )
    reshard_after_forward: bool = Field(
        True, description="zero_stage 3 gathers a layer's weights again for its backward"
    )

    overlap_tensor_backward: bool = Field(
        True,
        description="a column-parallel layer's tensor-parallel communication runs beside its "
        "weight-gradient product",
    )
    overlap_tensor_forward: bool = Field(
        False, description="tensor-parallel communication is cut and runs beside its own product"
    )

    block_attention: bool = Field(
        False,
        description="context parallelism puts blocks of attention together by other kernels, "
        "in fp32, whatever the plan's cp_comm",
    )
    fused_softmax: bool = Field(True, description="scale, mask and softmax are one kernel")
    fused_norm: bool = Field(True, description="a normalisation is one kernel")
    fused_activation: bool = Field(True, description="bias and activation are one kernel")
    weighted_activation: bool = Field(
        False,
        description="the router's weights multiply within the experts' activation, so that the "
        "experts' outputs need not be kept",
    )
    loose_experts: bool = Field(
        False,
        description="kernels of their own clamp what the experts' activation reads, and weight, "
        "add and put together the experts' biases, in fp32",
    )
    fused_residual: bool = Field(True, description="bias, dropout and residual are one kernel")
    fused_rotary: bool = Field(True, description="rotary positions are one kernel")
    fused_accumulation: bool = Field(
        True, description="a weight-gradient product adds into the accumulated gradient itself"
    )
    fused_cross_entropy: bool = Field(False, description="the loss reads its logits once")
    sharded_cross_entropy: bool = Field(
        True,
        description="the loss is made of plain kernels over a vocabulary split over tp, at any "
        "tp; else of PyTorch's log-softmax",
    )
    persistent_norm: bool = Field(
        True, description="a normalisation's backward keeps its rows on the chip"
    )
    product_share: Share = Field(
        1.0, description="speed of matrix products with the libraries of its time, of today's [1]"
    )
    fp8_inputs: bool = Field(
        False, description="products in fp8 or nvfp4 keep their inputs so for the backward"
    )
    fused_optimizer: bool = Field(True, description="Adam is one kernel over many tensors")
    logits_dtype: Literal["fp32", "weights"] = Field(
        "fp32", description="of the logits that the loss keeps; its time is that of fp32"
    )
    autocast: bool = Field(
        False, description="weights are kept in fp32 and cast before each product"
    )
    cuda_graph: bool = Field(False, description="kernels are launched as one graph")
    compiled: bool = Field(
        False,
        description="a compiler fuses each layer's elementwise kernels, whatever the other "
        "switches say of them",
    )
    blocking_launches: bool = Field(
        False,
        description="the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1): its own time adds, "
        "and nothing overlaps",
    )
    host_share: NotNegative = Field(
        1.0, description="host time of an operator over the GPU's host_overhead [1]"
    )
    pipelined_host: NotNegative = Field(
        0.0,
        description="least time of a layer's forward and backward, for each tensor-parallel GPU, "
        "where a pipeline crosses nodes [s]",
    )

    overlapped_host: NotNegative = Field(
        0.0,
        description="host time that a layer of experts takes more where a schedule overlaps its "
        "forward with another's backward [s]",
    )

    transfer_stall: NotNegative = Field(
        0.0,
        description="what a transfer between stages takes besides its latency and bytes, in "
        "pipelines of the next two fields [s]",
    )
    stall_above: Count = Field(32, description="pipelines over more nodes than these stall [1]")
    stall_tensor: Count = Field(
        4, description="pipelines of tensor-parallel groups over so many nodes stall [1]"
    )

    weight_bytes: Positive = Field(2, description="of a parameter's copy that the forward reads")
    optimizer_bytes: Positive = Field(12, description="of a parameter's master weight and moments")
    context_bytes: NotNegative = Field(
        1.0e9, description="CUDA context, libraries and NCCL buffers of one process [bytes]"
    )
    allocator_slack: NotNegative = Field(
        0.0,
        description="memory that the allocator holds over what is allocated, where the source's "
        "figures count it [1]",
    )
    vocab_multiple: Count = Field(
        1, description="the vocabulary is padded to a multiple of this times tp [1]"
    )

    @model_validator(mode="before")
    @classmethod
    def _compile(cls, data: object) -> object:
        """What a compiler fuses is fused.

        Source: Ansel et al., "PyTorch 2", ASPLOS 2024, section 4: TorchInductor fuses
        pointwise operators and reductions.

        >>> Framework(name="x", source="", compiled=True, fused_norm=False).fused_norm
        True
        """
        if not isinstance(data, Mapping) or data.get("compiled") is not True:
            return data
        return {**data, **dict.fromkeys(FUSED_BY_COMPILER, True)}

    def padded_vocab(self, vocab_size: int, tp: int) -> int:
        """The vocabulary with its padding. [1]

        Source: NVIDIA/Megatron-LM, _vocab_size_with_padding.

        >>> Framework(name="x", source="", vocab_multiple=128).padded_vocab(50257, 8)
        51200
        """
        multiple = self.vocab_multiple * (tp if self.vocab_multiple > 1 else 1)
        return -(-vocab_size // multiple) * multiple


PLAIN = Framework(name="plain", source="the defaults of this program, as of Megatron-Core")


def framework_names() -> tuple[str, ...]:
    """Names of the frameworks, in order.

    >>> "megatron-core" in framework_names()
    True
    """
    files = (resources.files("simulator") / "specs" / "frameworks").iterdir()
    stems = (file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems))


@cache
def load_framework(name: str | None) -> Framework:
    """The framework of that name; `PLAIN` for None.

    Raises:
        ValueError: there is none of that name.

    >>> load_framework("megatron-lm-2021").overlap_tensor_backward
    False
    """
    if name is None:
        return PLAIN
    names = framework_names()
    if name not in names:
        raise ValueError(unknown("framework", name, names))
    folder = resources.files("simulator") / "specs" / "frameworks"
    file = folder / f"{name.replace('-', '_')}.toml"
    table = parse_toml(file.read_bytes(), file.name)
    return validated(Framework, table, f"framework {shown(name)}")


def plan_defaults(
    framework: Framework,
    *,
    dtype: str,
    tp: int,
    dp: int,
    pp: int,
    vpp: int = 1,
    recompute: str = "none",
    recompute_modules: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """The plan's fields that the framework decides; options without effect are left out.

    Selective recomputation that names no modules is that of eager attention's core.

    >>> plan_defaults(load_framework("megatron-lm-2021"), dtype="fp16", tp=1, dp=1, pp=2)
    {'grad_dtype': 'fp16', 'attention': 'eager', 'p2p': 'blocking'}
    """
    values: dict[str, Any] = {name: getattr(framework, name) for name in PLAN_FIELDS}
    weights = "bf16" if dtype in ("fp8", "nvfp4") else dtype
    values["grad_dtype"] = "fp32" if framework.grad_dtype == "fp32" else weights
    if recompute == "selective" and recompute_modules is None:
        values["attention"] = "eager"
    if tp == 1:
        values["sequence_parallel"] = False
    if tp == 1 or pp == 1 or values["sequence_parallel"]:
        values["scatter_gather"] = True
    if pp == 1 or (vpp > 1 and values["p2p"] == "in_turn"):
        values["p2p"] = "overlapped"
    if dp == 1:
        values["zero_stage"] = 0
        values["overlap_grad_reduce"] = False
    if values["zero_stage"] not in (1, 2):
        values["overlap_param_gather"] = False
    neutral = {
        "sequence_parallel": False,
        "zero_stage": 0,
        "scatter_gather": True,
        "p2p": "overlapped",
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
    }
    return {key: one for key, one in values.items() if key not in neutral or one != neutral[key]}
