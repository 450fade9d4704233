"""From a job, and how far it is scaled down, to the session that runs it."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.errors import validated
from simulator.job import Job, Plan
from simulator.model import Model
from simulator.schedules import build, recipe_of
from validator.session import Play, Session

__all__ = ["SCHEDULES", "SMALL", "refuse", "refuse_unplayable", "scaled", "session_of"]

SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved", "zb-v")

SMALL = Model(
    name="small GPT",
    num_hidden_layers=8,
    hidden_size=192,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=48,
    intermediate_size=768,
    vocab_size=1024,
    seq_len=128,
    bias=True,
    norm="layernorm",
)
"""What CPU processes train when no job is given: a step takes less than a second."""


def scaled(model: Model, scale: float, sizes: Mapping[str, int]) -> Model:
    """The model with its width times `scale`, then with these sizes.

    Heads keep their width; their number, the feed-forward layer and the vocabulary shrink.

    >>> scaled(SMALL, 0.5, {"num_hidden_layers": 4}).hidden_size
    96
    """
    if not 0 < scale <= 1:
        raise ValueError(f"--scale is {scale:g}; it must be more than 0, at most 1")
    table = model.model_dump()
    if scale < 1:
        groups = max(1, round(scale * model.num_key_value_heads))
        heads = groups * max(1, round(scale * model.num_attention_heads / groups))
        table |= {
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "hidden_size": heads * model.head_dim,
            "intermediate_size": max(8, round(scale * model.intermediate_size / 8) * 8),
            "vocab_size": max(64, round(scale * model.vocab_size)),
            "name": f"{model.name} x {scale:g}",
        }
    if "hidden_size" in sizes:
        hidden, heads = sizes["hidden_size"], table["num_attention_heads"]
        if hidden % heads or hidden // heads % 2:
            raise ValueError(
                f"--hidden is {hidden}, but it must be an even multiple of {heads} heads; "
                f"use {max(1, round(hidden / heads / 2)) * 2 * heads}"
            )
        ratio = hidden / table["hidden_size"]
        table |= {
            "head_dim": hidden // heads,
            "intermediate_size": max(8, round(ratio * table["intermediate_size"] / 8) * 8),
        }
    return validated(Model, table | dict(sizes), "model")


def session_of(
    model: Model,
    plan: Plan,
    schedules: Sequence[str],
    num_ranks: int,
    **options: Any,  # noqa: ANN401
) -> Session:
    """What to run: the plan's microbatches under each schedule.

    Chunks on a rank are a schedule's usual ones; all stages of a schedule hold as many layers.

    Raises:
        ValueError: a schedule cannot be run with these sizes, or the model's layers are not built.
    """
    _require_built(model)
    plays = []
    for name in schedules:
        recipe = recipe_of(name)
        if recipe.weights is not None:
            raise ValueError(
                f"{name} is asynchronous: its rows update weights, which PyTorch's runtime does "
                "not; leave it out"
            )
        chunks = recipe.chunks if name != plan.schedule else max(plan.vpp, recipe.chunks)
        stages = num_ranks * chunks
        layers = model.num_hidden_layers
        if layers % stages:
            raise ValueError(
                f"{name} has {stages} stages on {num_ranks} ranks, which must divide the model's "
                f"{layers} layers; use --layers {max(1, layers // stages) * stages}"
            )
        table = {
            "schedule": name,
            "pp": num_ranks,
            "vpp": chunks,
            "num_microbatches": plan.num_microbatches,
        }
        rows = build(validated(Plan, table, "plan"))
        held = (layers // stages,) * stages
        plays.append(Play(name=name, rows=str(rows), layers_per_stage=held))
    table = {
        "model": model,
        "plays": tuple(plays),
        "micro_batch_size": plan.micro_batch_size,
        "num_microbatches": plan.num_microbatches,
        **options,
    }
    return validated(Session, table, "session")


def _require_built(model: Model) -> None:
    """Refuse a model whose layers are others than those of `validator/stage.py`."""
    what = ""
    if model.num_experts > 1:
        what = f"{model.num_experts} experts in a layer"
    elif model.kv_lora_rank is not None:
        what = "latent attention"
    if what:
        raise ValueError(
            f"{model.name} has {what}, which the validator does not build; use a dense model, as "
            "--model llama3-8b"
        )
    if model.sliding_window is not None and model.sliding_window < model.seq_len:
        raise ValueError(
            f"{model.name} attends within {model.sliding_window} of {model.seq_len} tokens, which "
            f"the validator does not build; use --seq-len {model.sliding_window}"
        )


def refuse_unplayable(session: Session) -> None:
    """Refuse rows that PyTorch's runtime cannot run, before any process is started.

    Raises:
        ValueError: it cannot run some play.
    """
    from validator.pytorch_rows import why_not

    for play in session.plays:
        reason = why_not(play.schedule)
        if reason is not None:
            raise ValueError(f"{play.name} cannot be run: {reason}; leave it out of --schedules")


def refuse(job: Job) -> str:
    """What of a job is not run, in one line; empty if all of it is.

    Raises:
        ValueError: it cannot be left out.
    """
    plan = job.plan
    if plan.recompute != "none":
        raise ValueError(
            f"plan.recompute is {plan.recompute}, which the validator does not run; use a copy of "
            'the job whose plan says recompute = "none"'
        )
    parts = [
        f"{name} = {getattr(plan, name)}" for name in ("tp", "cp", "dp") if getattr(plan, name) > 1
    ]
    return (
        f"one pipeline runs, whole layers on each rank: {', '.join(parts)} left out"
        if parts
        else ""
    )
