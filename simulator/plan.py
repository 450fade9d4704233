"""How a job is cut over its GPUs. SI units throughout."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from simulator.checks import AtLeastOne, Count, Positive, Value, Whole

__all__ = ["Plan", "RecomputeModule"]

# in Megatron-Core's words
RecomputeModule = Literal[
    "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"
]

MOST_OPS = 20_000_000  # forwards and backwards of one step; takes minutes and 10 GB
MOST_GPUS = 2_000_000


def _words(value: object) -> object:
    """Words with commas between them, one by one."""
    return tuple(word.strip() for word in value.split(",")) if isinstance(value, str) else value


class Plan(Value):
    """How the model is cut over the GPUs, in the words of Megatron-LM and torchtitan."""

    schedule: str = Field("1f1b", description="pipeline schedule")
    framework: str | None = Field(
        None, description="profile of a framework, for what the other fields leave open"
    )
    pp: Count = Field(1, description="pipeline-parallel size [1]")
    vpp: Count = Field(1, description="model chunks on each pipeline rank [1]")
    tp: Count = Field(1, description="tensor-parallel size [1]")
    cp: Count = Field(1, description="context-parallel size [1]")
    cp_comm: Literal["ring", "all_gather"] = Field(
        "ring",
        description="context parallelism passes keys and values round beside the attention, or "
        "gathers them before it",
    )
    ep: Count = Field(
        1, description="expert-parallel size; etp x ep GPUs lie within tp x cp x dp [1]"
    )
    etp: Count | None = Field(
        None, description="tensor-parallel size of experts, 1 or tp; tp when left out [1]"
    )
    capacity_factor: Positive | None = Field(
        None,
        description="most tokens of an expert over the even share, padded to it; no limit when "
        "left out [1]",
    )
    expert_imbalance: AtLeastOne = Field(
        1.0, description="tokens of the busiest GPU's experts over the even share [1]"
    )
    dp: Count = Field(1, description="data-parallel size [1]")
    num_microbatches: Count = Field(1, description="microbatches of one pipeline in one step [1]")
    micro_batch_size: Count = Field(1, description="sequences in one microbatch [1]")
    dtype: Literal["fp16", "bf16", "fp8", "nvfp4"] = Field(
        "bf16",
        description="of products; with fp8 and nvfp4 all else is bf16, weights and logits too",
    )
    grad_dtype: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="of accumulated gradients"
    )
    attention: Literal["flash", "eager"] = Field("flash", description="attention kernel")
    recompute: Literal["none", "selective", "alternate", "full"] = Field(
        "none",
        description="activations computed again in the backward: selective = attention core or "
        "recompute_modules, alternate = all but flash attention and every second product",
    )
    recompute_modules: Annotated[tuple[RecomputeModule, ...], BeforeValidator(_words)] | None = (
        Field(
            None,
            description="modules of selective recomputation: core_attn, layernorm, mla_up_proj, "
            "mlp, moe, moe_act, shared_experts; core_attn when left out",
        )
    )
    recompute_method: Literal["uniform", "block"] = Field(
        "uniform",
        description="full recomputation keeps the input of every recompute_num_layers layers, or "
        "recomputes only the first recompute_num_layers of a stage",
    )
    recompute_num_layers: Count | None = Field(
        None, description="layers of recompute_method; 1 with uniform, all with block [1]"
    )
    sequence_parallel: bool = Field(
        False, description="norms and dropouts split along the sequence"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0, description="split over dp: 1 = optimizer state, 2 = gradients too, 3 = weights too"
    )
    shard_size: Count | None = Field(
        None,
        description="GPUs that split one copy with zero_stage 1 to 3 (hybrid sharding); all of "
        "cp x dp when left out [1]",
    )
    reshard_after_forward: bool = Field(
        True, description="zero_stage 3 gathers a layer's weights again for its backward"
    )
    offload: Literal["none", "cpu", "nvme"] = Field(
        "none", description="where the optimizer state lives and steps: GPU, host or drives"
    )
    offload_activations: bool = Field(
        False, description="kept activations wait in the host's memory for their backward"
    )
    offload_num_layers: Count | None = Field(
        None, description="layers of a stage that offload_activations moves; all [1]"
    )
    scatter_gather: bool = Field(
        True, description="each tensor-parallel peer sends its share of a boundary tensor"
    )
    p2p: Literal["overlapped", "blocking", "in_turn"] = Field(
        "overlapped",
        description="transfers between stages: a rank works on, stands still, or stands still and "
        "does one at a time",
    )
    overlap_grad_reduce: bool = Field(
        False, description="gradients are reduced bucket by bucket beside the last backward"
    )
    overlap_param_gather: bool = Field(
        False, description="split weights are gathered beside the next step's first forward"
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
    layers_per_stage: tuple[Whole, ...] | None = Field(
        None,
        description="layers on each of the pp x vpp stages, 0 where one holds only the embedding "
        "or the head; even when left out",
    )

    @property
    def wide_dtype(self) -> str:
        """Of weights, attention and all that is no product of a layer: 16 bits."""
        return "bf16" if self.dtype in ("fp8", "nvfp4") else self.dtype

    @property
    def num_stages(self) -> int:
        """Model stages, pp x vpp. [1]"""
        return self.pp * self.vpp

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan uses. [1]"""
        return self.pp * self.tp * self.cp * self.dp

    @property
    def replicas(self) -> int:
        """GPUs that hold the same weights, or parts of one copy of them, cp x dp. [1]"""
        return self.cp * self.dp

    @property
    def expert_tp(self) -> int:
        """GPUs that split each expert. [1]"""
        return self.tp if self.etp is None else self.etp

    @property
    def expert_replicas(self) -> int:
        """GPUs that hold the same experts, edp: experts have a grid of their own. [1]

        etp x ep x edp = tp x cp x dp on each pipeline rank. Source: NVIDIA/Megatron-LM,
        megatron/core/parallel_state.py, initialize_model_parallel (expert_decoder_rank_generator).

        >>> Plan(tp=2, dp=16, ep=32, etp=1).expert_replicas
        1
        """
        return self.tp * self.replicas // (self.expert_tp * self.ep)

    @property
    def splits_experts(self) -> bool:
        """Whether experts lie on the GPUs otherwise than the rest of a layer."""
        return self.ep > 1 or self.expert_tp != self.tp

    @property
    def shards(self) -> int:
        """GPUs that split one copy of what zero_stage splits. [1]"""
        return self.shard_size or self.replicas

    @property
    def global_batch_size(self) -> int:
        """Sequences in one step. [1]"""
        return self.num_microbatches * self.micro_batch_size * self.dp

    @model_validator(mode="after")
    def _check(self) -> Self:
        weights = self.wide_dtype
        if self.grad_dtype not in ("fp32", weights):
            raise ValueError(
                f"plan.grad_dtype is {self.grad_dtype}, but weights are {weights}; "
                f"use fp32 or {weights}"
            )
        if (
            self.attention == "flash"
            and self.recompute == "selective"
            and self.recompute_modules is None
        ):
            raise ValueError(
                "plan.recompute is selective, but flash attention already recomputes the attention "
                'core; use recompute = "none", "alternate" or "full", name recompute_modules, or '
                'use attention = "eager"'
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
        self._check_recompute()
        return self

    def _check_recompute(self) -> None:
        self._check_modules()
        given = self.recompute_num_layers is not None or self.recompute_method == "block"
        if given and self.recompute != "full":
            raise ValueError(
                f"plan.recompute is {self.recompute}, but recompute_method and "
                'recompute_num_layers are ways of full recomputation; use recompute = "full"'
            )

    def _check_modules(self) -> None:
        modules = self.recompute_modules
        if modules is None:
            return
        if self.recompute != "selective":
            raise ValueError(
                f"plan.recompute is {self.recompute}, but recompute_modules are a way of selective "
                'recomputation; use recompute = "selective", or leave them out'
            )
        if not modules:
            raise ValueError("plan.recompute_modules names none; name some, or leave it out")
        for module in modules:
            if modules.count(module) > 1:
                raise ValueError(f"plan.recompute_modules names {module} twice; name it once")
            if "moe" in modules and module in ("moe_act", "shared_experts"):
                raise ValueError(
                    f"plan.recompute_modules names moe and {module}, but {module} is a part of "
                    "moe; leave one of them out"
                )
