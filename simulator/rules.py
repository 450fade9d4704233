"""What a job's model, cluster and plan must have in common, each rule with its one error."""

from typing import TYPE_CHECKING

from simulator.checks import require_divides
from simulator.frameworks import load_framework

if TYPE_CHECKING:
    from simulator.job import Job

__all__ = ["check_job"]


def check_job(job: "Job") -> None:
    """Raise the error of the first rule that a job breaks."""
    load_framework(job.plan.framework)
    for check in (
        _check_layers,
        _check_sizes,
        _check_context,
        _check_experts,
        _check_modules,
        _check_sharding,
        _check_offload,
        _check_cluster,
        _check_effect,
    ):
        check(job)


def _check_effect(job: "Job") -> None:
    """An option that could have no effect is refused."""
    plan = job.plan
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
            plan.replicas > 1,
            f"zero_stage is {plan.zero_stage}, but plan.dp is 1",
        ),
        (
            plan.overlap_grad_reduce,
            plan.replicas > 1 or plan.offload != "none",
            "overlap_grad_reduce is true, but plan.dp is 1",
        ),
        (
            plan.overlap_param_gather,
            plan.zero_stage in (1, 2),
            f"overlap_param_gather is true, but plan.zero_stage is {plan.zero_stage}",
        ),
        (
            not plan.reshard_after_forward,
            plan.zero_stage == 3,
            f"reshard_after_forward is false, but plan.zero_stage is {plan.zero_stage}",
        ),
        (
            plan.shard_size is not None,
            plan.zero_stage > 0,
            f"shard_size is {plan.shard_size}, but plan.zero_stage is 0",
        ),
        (
            plan.offload_num_layers is not None,
            plan.offload_activations,
            f"offload_num_layers is {plan.offload_num_layers}, but plan.offload_activations is "
            "false",
        ),
        (plan.cp_comm != "ring", plan.cp > 1, f"cp_comm is {plan.cp_comm}, but plan.cp is 1"),
    ):
        if given and not needed:
            raise ValueError(f"plan.{text}: it would have no effect; leave it out")


def _check_layers(job: "Job") -> None:
    layers, stages = job.model.num_hidden_layers, job.plan.num_stages
    split = job.plan.layers_per_stage
    if split is None:
        if stages > layers:
            raise ValueError(
                f"plan.pp x plan.vpp is {stages} stages, but model.num_hidden_layers is "
                f"{layers}: a stage would hold no layer; use at most {layers} stages"
            )
        least, more = divmod(layers, stages)
        counts = ",".join(f"{least + (stage < more)}" for stage in range(stages))
        otherwise = f", or say what each stage holds, as in plan.layers_per_stage = [{counts}]"
        require_divides("model.num_hidden_layers", layers, "plan.pp x plan.vpp", stages, otherwise)
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


def _check_sizes(job: "Job") -> None:
    model, tp = job.model, job.plan.tp
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        require_divides(f"model.{name}", getattr(model, name), "plan.tp", tp)
    if job.model.is_sparse:
        etp = job.plan.expert_tp
        of = "plan.tp" if etp == tp else "plan.etp"
        require_divides("the experts' width", model.expert_width, of, etp)
    if job.plan.sequence_parallel:
        by = "plan.tp" if job.plan.cp == 1 else "plan.tp x plan.cp"
        require_divides("model.seq_len", model.seq_len, by, tp * job.plan.cp)
    if job.plan.dtype not in job.cluster.gpu.peak_flops:
        known = ", ".join(sorted(job.cluster.gpu.peak_flops))
        raise ValueError(
            f"plan.dtype is {job.plan.dtype}, but {job.cluster.gpu.name} has no such peak; "
            f"use one of {known}"
        )


def _check_context(job: "Job") -> None:
    """Each context-parallel GPU takes two pieces, an early and a late one, of equal work.

    Attention in a window needs gathered keys. Source: NVIDIA/TransformerEngine,
    context_parallel.py, attn_forward_func_with_cp.
    """
    if job.plan.cp > 1:
        twice = 2 * job.plan.cp
        require_divides("model.seq_len", job.model.seq_len, "2 x plan.cp", twice)
        if job.plan.num_slices is not None:
            raise ValueError(
                f"plan.num_slices is {job.plan.num_slices} and plan.cp is {job.plan.cp}: "
                "both cut the sequence; use one of them"
            )
        if job.plan.cp_comm == "ring" and job.model.attention_reach < 1:
            raise ValueError(
                f"model.sliding_window is {job.model.sliding_window} and plan.cp is "
                f"{job.plan.cp}: a ring passes all keys on, and kernels in it know no window; "
                'use cp_comm = "all_gather", or cp = 1'
            )


def _check_experts(job: "Job") -> None:
    plan, experts = job.plan, job.model.num_experts
    if plan.ep > 1:
        if not job.model.is_sparse:
            raise ValueError(
                f"plan.ep is {plan.ep}, but {job.model.name} has no experts "
                "(model.num_experts is 1); use ep = 1"
            )
        require_divides("model.num_experts", experts, "plan.ep", plan.ep)
    _check_expert_grid(job)
    if plan.splits_experts and plan.shard_size is not None:
        name = "ep" if plan.ep > 1 else "etp"
        raise ValueError(
            f"plan.shard_size is {plan.shard_size} and plan.{name} is {getattr(plan, name)}; "
            "hybrid sharding of experts is not costed yet: leave one of them out"
        )
    for name in ("capacity_factor", "expert_imbalance"):
        if not job.model.is_sparse and getattr(plan, name) not in (None, 1.0):
            raise ValueError(
                f"plan.{name} is {getattr(plan, name):g}, but {job.model.name} has no experts "
                "(model.num_experts is 1): it would have no effect; leave it out"
            )


def _check_expert_grid(job: "Job") -> None:
    """Experts are cut over etp x ep GPUs of the tp x cp x dp of a pipeline rank.

    Whole experts in a tensor-parallel group need its members to hold different tokens.
    Source: NVIDIA/Megatron-LM, megatron/core/parallel_state.py (expert_model_parallel_size) and
    megatron/core/transformer/moe/moe_layer.py (tensor parallelism needs sequence parallelism).
    """
    plan = job.plan
    if plan.etp is not None and not job.model.is_sparse:
        raise ValueError(
            f"plan.etp is {plan.etp}, but {job.model.name} has no experts "
            "(model.num_experts is 1): it would have no effect; leave it out"
        )
    if plan.expert_tp not in (1, plan.tp):
        split = f", or split as the rest is, etp = {plan.tp}" if plan.tp > 1 else ""
        raise ValueError(
            f"plan.etp is {plan.etp}, but plan.tp is {plan.tp}; experts are whole, etp = 1{split}"
        )
    if plan.expert_tp == plan.tp:
        require_divides("plan.cp x plan.dp", plan.replicas, "plan.ep", plan.ep)
        return
    size = plan.tp * plan.replicas
    require_divides("plan.tp x plan.cp x plan.dp", size, "plan.ep", plan.ep)
    if not plan.sequence_parallel:
        raise ValueError(
            f"plan.etp is 1 and plan.tp is {plan.tp} without plan.sequence_parallel: all of its "
            "GPUs would send the same tokens; use sequence_parallel = true, or leave etp out"
        )


def _check_modules(job: "Job") -> None:
    model = job.model
    absent = {
        "mla_up_proj": (not model.is_latent, "has no latent attention"),
        "mlp": (model.is_sparse and not model.num_dense_layers, "has no layer without experts"),
        "moe": (not model.is_sparse, "has no experts"),
        "moe_act": (not model.is_sparse, "has no experts"),
        "shared_experts": (not model.num_shared_experts, "has no shared experts"),
    }
    for module in job.plan.recompute_modules or ():
        lacks, why = absent.get(module, (False, ""))
        if lacks:
            raise ValueError(
                f"plan.recompute_modules names {module}, but {model.name} {why}: it would have no "
                "effect; leave it out"
            )


def _check_sharding(job: "Job") -> None:
    plan = job.plan
    if plan.shard_size is not None:
        require_divides("plan.cp x plan.dp", plan.replicas, "plan.shard_size", plan.shard_size)
    if plan.zero_stage == 2 and plan.pp > 1:
        raise ValueError(
            f"plan.zero_stage is 2 and plan.pp is {plan.pp}: gradients that a pipeline "
            "accumulates would be split after every microbatch; use zero_stage 1, or 3"
        )


def _check_offload(job: "Job") -> None:
    plan, cluster = job.plan, job.cluster
    uses_host = plan.offload != "none" or plan.offload_activations
    if uses_host and cluster.host_link is None:
        what = "offload_activations" if plan.offload == "none" else "offload"
        raise ValueError(
            f"plan.{what} is {getattr(plan, what)}, but {cluster.name} states no "
            "cluster.host_link; state the bandwidth and latency of one GPU's link to its host"
        )
    most = max(job.layers_per_stage) + job.model.num_nextn_predict_layers
    if plan.offload_num_layers is not None and plan.offload_num_layers > most:
        raise ValueError(
            f"plan.offload_num_layers is {plan.offload_num_layers}, but no stage has more than "
            f"{most} layers; use at most {most}, or leave it out for all"
        )
    if plan.offload == "nvme" and cluster.nvme is None:
        raise ValueError(
            f"plan.offload is nvme, but {cluster.name} states no cluster.nvme; state the "
            "bandwidth and latency of one node's drives, or use cpu"
        )


def _check_cluster(job: "Job") -> None:
    plan, cluster = job.plan, job.cluster
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
