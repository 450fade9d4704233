"""Modules of a layer that selective recomputation names, in Megatron-Core's words.

Of moe_act, layernorm and mla_up_proj the output is dropped, and made again when the backward comes
to it; of the others all that lies between their input and output. A layer without experts has no
moe, moe_act and shared_experts, one with experts no mlp.
Source: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py, recompute_modules;
transformer_layer.py, moe/moe_layer.py, moe/experts.py, multi_latent_attention.py.
"""

from collections.abc import Iterable

from simulator.costs.operators import Operator
from simulator.job import Job

__all__ = ["DROPPED", "dense_of", "modules_of", "repeated_operators"]

EXPERTS = ("sent", "returned", "ups", "clamped", "inner")
SHARED = ("shared ups", "shared inner")
POSITIONS = ("before their norm", "before their turn")

DROPPED: dict[str, tuple[str, ...]] = {  # of the parts that a layer keeps
    "core_attn": ("core",),
    "layernorm": ("norm outputs",),
    "mla_up_proj": ("queries, keys, values", *POSITIONS),
    "mlp": ("ups", "inner"),
    "moe": (*EXPERTS, *SHARED),
    "moe_act": ("clamped", "inner"),
    "shared_experts": SHARED,
}

UP = ("query", "query norm", "query up", "key and value norm", "key and value up")
REPEATED: dict[str, tuple[str, ...]] = {  # of the operators of a layer, but for shared experts
    "layernorm": ("attention norm", "mlp norm"),
    "mla_up_proj": (*UP, "rotary positions"),
    "mlp": ("mlp up", "activation", "mlp down"),
    "moe": (
        *("router", "permute", "experts up", "clamps", "activation", "experts down"),
        *("expert biases", "unpermute"),
    ),
    "moe_act": ("clamps", "activation"),
}


def dense_of(job: Job) -> Job:
    """The job, of whose layers none has experts: for costs of its first, dense layers."""
    return job.model_copy(update={"model": job.model.model_copy(update={"num_experts": 1})})


def modules_of(job: Job) -> tuple[str, ...]:
    """Modules that a layer's backward computes again; the attention core if none is named."""
    if job.plan.recompute != "selective":
        return ()
    named = job.plan.recompute_modules or ("core_attn",)
    other = ("mlp",) if job.model.is_sparse else ("moe", "moe_act", "shared_experts")
    return tuple(module for module in named if module not in other)


def repeated_operators(
    job: Job, operators: tuple[Operator, ...], core: Iterable[Operator]
) -> tuple[Operator, ...]:
    """Operators of a layer that its modules compute again; `core` are those of attention's core."""
    names = [operator.name for operator in operators]
    # shared experts come last, and have an activation of their own
    shared = names.index("shared expert up") if "shared expert up" in names else len(names)
    found: dict[int, Operator] = {}
    cores = {operator.name for operator in core}
    for module in modules_of(job):
        for at, operator in enumerate(operators):
            ours = shared <= at < shared + 3
            if module == "core_attn":
                hit = operator.name in cores
            elif ours:
                hit = module in ("moe", "shared_experts")
            else:
                hit = operator.name in REPEATED.get(module, ())
            if hit:
                found[at] = operator
    return tuple(found.values())
