"""What a user writes: `Job = Model + Cluster + Plan`, frozen and checked. SI units throughout.

Every field's description is also the command's help and the dashboard's label, so it states the
unit in brackets. Files, presets and `config.json` are read in `simulator/load.py`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simulator.checks import Count, NotNegative, Positive, Share, Value, require_divides
from simulator.model import Model

__all__ = ["GPU", "Cluster", "Job", "Link", "Model", "Plan"]

MOST_OPS = 20_000_000  # forwards and backwards of one step; takes minutes and 10 GB
MOST_GPUS = 2_000_000
LEAST_BANDWIDTH = 1e-3  # [bytes/s]


class GPU(Value):
    """One accelerator, from its datasheet, with the efficiency that its kernels reach."""

    name: str = Field(description="name of the GPU")
    peak_flops: dict[str, Positive] = Field(description="dense peak by dtype [FLOP/s]")
    memory: Positive = Field(description="capacity [bytes]")
    memory_bandwidth: Positive = Field(description="peak bandwidth [bytes/s]")
    num_sms: Count = Field(description="streaming multiprocessors [1]")
    gemm_efficiency: Share = Field(
        description="share of the peak that a very large GEMM reaches [1]"
    )
    gemm_half_k: NotNegative = Field(
        description="inner size at which a GEMM reaches half of that [1]"
    )
    memory_efficiency: Share = Field(
        description="share of the bandwidth that a streaming kernel reaches [1]"
    )
    launch_overhead: NotNegative = Field(description="least time of one kernel [s]")
    host_overhead: NotNegative = Field(
        70e-6, description="time of the host to issue one operator of an eager forward [s]"
    )
    batched_gemm_share: Share = Field(
        0.9,
        description="speed of the batched products of eager attention, of a single product's [1]",
    )
    flash_efficiency: Share = Field(
        0.5, description="share of the peak that flash attention reaches on long sequences [1]"
    )
    flash_half_seq: NotNegative = Field(
        1000.0, description="sequence length at which flash attention reaches half of that [1]"
    )
    source: str = Field(description="where the figures are published")

    __hash__ = None  # type: ignore[assignment]


class Link(Value):
    """One direction of a channel between two GPUs or of a NIC."""

    bandwidth: Positive = Field(description="line rate of one direction [bytes/s]")
    latency: NotNegative = Field(description="time before the first byte arrives [s]")
    efficiency: Share = Field(
        1.0, description="share of the line rate that large messages reach [1]"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bandwidth < LEAST_BANDWIDTH:
            raise ValueError(
                f"bandwidth is {self.bandwidth:g} bytes/s, too little to end a step; use at least "
                f"{LEAST_BANDWIDTH:g}"
            )
        return self


class Cluster(Value):
    """Nodes of equal GPUs. A node's NICs and its uplink into the fabric are shared by its GPUs."""

    name: str = Field(description="name of the cluster")
    gpu: GPU = Field(description="the GPU: a preset's name or a table")
    num_nodes: Count = Field(1, description="nodes [1]")
    gpus_per_node: Count = Field(description="GPUs in one node [1]")
    intra_node: Link = Field(description="one GPU's port to the others of its node")
    inter_node: Link = Field(description="one NIC")
    nics_per_node: Count = Field(description="NICs in one node, shared evenly by its GPUs [1]")
    oversubscription: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        1.0, description="a node's NIC bandwidth over that of its uplink into the fabric [1]"
    )
    stragglers: dict[int, Positive] = Field(
        default_factory=dict, description="slow-down of the compute of a pipeline rank [1]"
    )
    source: str = Field("", description="where the figures are published")

    @property
    def num_gpus(self) -> int:
        """GPUs in all nodes. [1]"""
        return self.num_nodes * self.gpus_per_node


class Plan(Value):
    """How the model is cut over the GPUs, in the words of Megatron-LM and torchtitan."""

    schedule: str = Field("1f1b", description="pipeline schedule")
    pp: Count = Field(1, description="pipeline-parallel size [1]")
    vpp: Count = Field(1, description="model chunks on each pipeline rank [1]")
    tp: Count = Field(1, description="tensor-parallel size [1]")
    cp: Count = Field(1, description="context-parallel size [1]")
    ep: Count = Field(1, description="expert-parallel size [1]")
    dp: Count = Field(1, description="data-parallel size [1]")
    num_microbatches: Count = Field(1, description="microbatches of one pipeline in one step [1]")
    micro_batch_size: Count = Field(1, description="sequences in one microbatch [1]")
    dtype: Literal["fp16", "bf16"] = Field("bf16", description="of weights and activations")
    grad_dtype: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="of accumulated gradients"
    )
    attention: Literal["flash", "eager"] = Field("flash", description="attention kernel")
    recompute: Literal["none", "selective", "full"] = Field(
        "none", description="activations computed again in the backward: selective = attention core"
    )
    sequence_parallel: bool = Field(
        False, description="norms and dropouts split along the sequence"
    )
    zero_stage: Literal[0, 1] = Field(0, description="1 = optimizer state split over dp")
    scatter_gather: bool = Field(
        True, description="each tensor-parallel peer sends its share of a boundary tensor"
    )
    p2p: Literal["overlapped", "blocking"] = Field(
        "overlapped", description="transfers between stages: a rank works on, or stands still"
    )
    overlap_grad_reduce: bool = Field(
        False, description="a stage's gradients are reduced as soon as its last backward ends"
    )
    microbatch_group_size: Count | None = Field(
        None, description="microbatches that an interleaved chunk takes in a row; pp [1]"
    )
    num_slices: Count | None = Field(
        None, description="slices of tokens that TeraPipe cuts each microbatch into; 1 [1]"
    )
    activation_limit: Positive | None = Field(
        None,
        description="most activation memory of a rank, for schedules that take one [bytes]; "
        "with uniform costs in microbatches",
    )
    rows: str | None = Field(
        None, description="the rows of a schedule of one's own, one line a rank: 0F0,0F1,0B0,..."
    )
    layers_per_stage: tuple[Count, ...] | None = Field(
        None, description="layers on each of the pp x vpp stages; even when left out"
    )

    @property
    def num_stages(self) -> int:
        """Model stages, pp x vpp. [1]"""
        return self.pp * self.vpp

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan uses. [1]"""
        return self.pp * self.tp * self.cp * self.dp

    @property
    def global_batch_size(self) -> int:
        """Sequences in one step. [1]"""
        return self.num_microbatches * self.micro_batch_size * self.dp

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.grad_dtype not in ("fp32", self.dtype):
            raise ValueError(
                f"plan.grad_dtype is {self.grad_dtype}, but weights are {self.dtype}; "
                f"use fp32 or {self.dtype}"
            )
        if self.attention == "flash" and self.recompute == "selective":
            raise ValueError(
                "plan.recompute is selective, but flash attention already recomputes the attention "
                'core; use recompute = "none" or "full", or attention = "eager"'
            )
        ops = 2 * self.num_stages * self.num_microbatches
        if ops > MOST_OPS:
            raise ValueError(
                f"the plan has {self.num_stages:,} stages x {self.num_microbatches:,} "
                f"microbatches, {ops:,} ops; at most {MOST_OPS:,} are simulated: use fewer "
                "microbatches or stages"
            )
        if self.num_gpus > MOST_GPUS:
            raise ValueError(
                f"the plan uses {self.num_gpus:,} GPUs; at most {MOST_GPUS:,} are simulated"
            )
        if (self.schedule == "custom") != (self.rows is not None):
            raise ValueError(
                f"plan.schedule is {self.schedule} and plan.rows is "
                f"{'left out' if self.rows is None else 'given'}; rows of your own go with "
                'schedule = "custom", and only with that'
            )
        for name in ("cp", "ep"):
            if getattr(self, name) > 1:
                raise ValueError(
                    f"plan.{name} is {getattr(self, name)}, but its communication is not costed "
                    "yet; use 1"
                )
        return self


class Job(Value):
    """One training job: a model, a cluster and the plan that cuts the one over the other."""

    name: str = Field("job", description="name of the job")
    model: Model = Field(description="the model: a preset's name, a config.json or a table")
    cluster: Cluster = Field(description="the cluster: a preset's name or a table")
    plan: Plan = Field(default_factory=Plan, description="the plan")

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers on each stage. [1]"""
        if self.plan.layers_per_stage is not None:
            return self.plan.layers_per_stage
        return (self.model.num_hidden_layers // self.plan.num_stages,) * self.plan.num_stages

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_layers()
        self._check_sizes()
        self._check_cluster()
        self._check_effect()
        return self

    def _check_effect(self) -> None:
        """An option that could have no effect is refused."""
        plan = self.plan
        for given, needed, text in (
            (plan.sequence_parallel, plan.tp > 1, "sequence_parallel is true, but plan.tp is 1"),
            (not plan.scatter_gather, plan.tp > 1, "scatter_gather is false, but plan.tp is 1"),
            (
                not plan.scatter_gather,
                not plan.sequence_parallel,
                "scatter_gather is false, but sequence_parallel sends shares anyway",
            ),
            (
                plan.zero_stage > 0,
                plan.dp > 1,
                f"zero_stage is {plan.zero_stage}, but plan.dp is 1",
            ),
            (
                plan.overlap_grad_reduce,
                plan.dp > 1,
                "overlap_grad_reduce is true, but plan.dp is 1",
            ),
        ):
            if given and not needed:
                raise ValueError(f"plan.{text}: it would have no effect; leave it out")

    def _check_layers(self) -> None:
        layers, stages = self.model.num_hidden_layers, self.plan.num_stages
        split = self.plan.layers_per_stage
        if split is None:
            if stages > layers:
                raise ValueError(
                    f"plan.pp x plan.vpp is {stages} stages, but model.num_hidden_layers is "
                    f"{layers}: a stage would hold no layer; use at most {layers} stages"
                )
            require_divides("model.num_hidden_layers", layers, "plan.pp x plan.vpp", stages)
        elif len(split) != stages:
            raise ValueError(
                f"plan.layers_per_stage has {len(split)} entries, but there are {stages} stages "
                f"(pp x vpp); give one number for each"
            )
        elif sum(split) != layers:
            raise ValueError(
                f"plan.layers_per_stage adds up to {sum(split)}, but model.num_hidden_layers is "
                f"{layers}; the two must be equal"
            )

    def _check_sizes(self) -> None:
        model, tp = self.model, self.plan.tp
        for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
            require_divides(f"model.{name}", getattr(model, name), "plan.tp", tp)
        if self.plan.sequence_parallel:
            require_divides("model.seq_len", model.seq_len, "plan.tp", tp)
        if self.plan.dtype not in self.cluster.gpu.peak_flops:
            known = ", ".join(sorted(self.cluster.gpu.peak_flops))
            raise ValueError(
                f"plan.dtype is {self.plan.dtype}, but {self.cluster.gpu.name} has no such peak; "
                f"use one of {known}"
            )

    def _check_cluster(self) -> None:
        plan, cluster = self.plan, self.cluster
        if plan.num_gpus > cluster.num_gpus:
            nodes = -(-plan.num_gpus // cluster.gpus_per_node)
            raise ValueError(
                f"the plan uses pp x tp x cp x dp = {plan.num_gpus} GPUs, but {cluster.name} has "
                f"{cluster.num_gpus}; use at least num_nodes = {nodes}"
            )
        node = cluster.gpus_per_node
        if node % plan.tp and plan.tp % node:
            fits = [str(tp) for tp in range(1, node + 1) if node % tp == 0]
            raise ValueError(
                f"plan.tp is {plan.tp}, but a node of {cluster.name} has {node} GPUs, so that some "
                f"groups would lie across nodes; use {', '.join(fits)} or a multiple of {node}"
            )
        for rank in cluster.stragglers:
            if not 0 <= rank < plan.pp:
                raise ValueError(
                    f"cluster.stragglers names rank {rank}, but the pipeline has ranks "
                    f"0 to {plan.pp - 1}; name one of them"
                )
