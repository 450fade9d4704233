"""From a published row to the job that it measured, and what was measured of it.

A row's own words come first, then what `tables.toml` states for its table, then its framework's
defaults. Nothing is chosen row by row.
"""

from functools import cache
from typing import Any

from simulator.accuracy.layouts import layers_of_stages
from simulator.accuracy.rows import FOLDER, Row, Table, load_table
from simulator.errors import validated
from simulator.files import parse_toml
from simulator.frameworks import Framework, load_framework, plan_defaults
from simulator.job import Job, Model, Plan
from simulator.load import job_from_options, load_model

__all__ = ["job_of_row", "measured_memory", "measured_seconds"]

ZERO_STAGES = {
    "ZeRO-1": 1,
    "ZeRO-0": 0,
    "FULL_SHARD": 3,
    "HYBRID_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "none": 0,
}
SIZES = ("layers", "hidden", "heads", "vocab")
NEEDED = ("seq_len", "gpus", "tp", "pp", "dp", "global_batch")


def job_of_row(table: Table, row: Row) -> Job:
    """The job that a row measured.

    Raises:
        ValueError: the row does not say enough, or the program cannot simulate what it says.

    >>> job = job_of_row(load_table("megatron-sc21"), load_table("megatron-sc21").rows[2])
    >>> job.plan.tp, job.plan.dp, job.plan.micro_batch_size, job.plan.overlap_grad_reduce
    (4, 32, 16, True)
    """
    if table.omitted or row.text("omitted"):
        raise ValueError(table.omitted or row.text("omitted"))
    row = _whole(row) if table.layers else row
    known = row.text("model") in table.models
    missing = [name for name in (*(() if known else SIZES), *NEEDED) if not row.text(name)]
    if missing:
        raise ValueError(f"{' and '.join(missing)} not printed")
    framework = load_framework(table.framework_of(row))
    model = _model(table, row, framework)
    plan = _plan(table, row, framework)
    layout = layers_of_stages(table.framework, model, plan["pp"] * plan.get("vpp", 1))
    if layout is not None:
        plan["layers_per_stage"] = layout
    if "framework" in Plan.model_fields:
        plan["framework"] = table.framework_of(row)
    names = {"name": row.id, "model": model.model_dump(), "cluster": table.cluster_of(row)}
    return job_from_options(names | plan)


def _whole(row: Row) -> Row:
    """A row of a single layer with the sizes of a job that has nothing else."""
    one = {"layers": "1", "pp": "1", "dp": "1", "vocab": "51200", "kv_heads": row.text("heads")}
    one |= {"gpus": row.text("tp"), "global_batch": row.text("micro_batch")}
    return Row(id=row.id, cells=dict(row.cells) | one)


def measured_seconds(row: Row) -> float:
    """The measured step time: as printed, or from the printed throughput. [s]

    Raises:
        ValueError: the row prints neither.
    """
    for name in ("iter_time_s", "derived_iter_time_s"):
        value = row.number(name)
        if value is not None:
            return value
    raise ValueError("no step time printed")


def measured_memory(row: Row) -> float | None:
    """The measured peak of one GPU's memory; None if the row prints none. [bytes]"""
    value = row.number("mem_gb_per_gpu")
    return None if value is None else value * 1e9


@cache
def _families() -> dict[str, Any]:
    return parse_toml((FOLDER / "families.toml").read_bytes(), "families.toml")


def _model(table: Table, row: Row, framework: Framework) -> Model:
    """The row's model; logits are tied or not as its printed number of parameters says."""
    preset = table.models.get(row.text("model"))
    sizes: dict[str, Any]
    if preset is not None:
        known = load_model(preset)
        sizes = {
            "seq_len": row.count("seq_len"),
            "vocab_size": framework.padded_vocab(known.vocab_size, int(row.text("tp"))),
            "num_nextn_predict_layers": row.count("mtp_layers") or 0,
        }
        return known.model_copy(update=sizes)
    sizes = {
        "name": row.text("model"),
        "num_hidden_layers": row.count("layers"),
        "hidden_size": row.count("hidden"),
        "num_attention_heads": row.count("heads"),
        "num_key_value_heads": row.count("kv_heads") or row.count("heads"),
        "seq_len": row.count("seq_len"),
        "vocab_size": framework.padded_vocab(int(row.text("vocab")), int(row.text("tp"))),
    }
    if row.text("ffn_hidden"):
        sizes["intermediate_size"] = row.count("ffn_hidden")
    sizes |= _families()[table.family_of(row)]
    printed = row.number("params_b")
    if "tie_word_embeddings" in sizes or printed is None:
        return validated(Model, sizes, "model")
    both = [validated(Model, sizes | {"tie_word_embeddings": tied}) for tied in (False, True)]
    return min(both, key=lambda model: abs(model.num_parameters - printed * 1e9))


def _plan(table: Table, row: Row, framework: Framework) -> dict[str, Any]:
    """The plan's fields: the framework's defaults, and over them what the row says."""
    sizes = {name: row.count(name) or 1 for name in ("tp", "pp", "vpp", "dp", "cp", "ep")}
    recompute = _recompute(row, framework)
    dtype = _dtype(table, row)
    plan = plan_defaults(
        framework,
        dtype=dtype,
        tp=sizes["tp"],
        dp=sizes["dp"],
        pp=sizes["pp"],
        vpp=sizes["vpp"],
        recompute=recompute,
        recompute_modules=tuple(row.text("recompute_modules").split()) or None,
    )
    plan |= sizes | {"dtype": dtype, "recompute": recompute}
    plan["schedule"] = "interleaved" if sizes["vpp"] > 1 else "1f1b"
    if row.text("schedule").startswith("zb-"):
        plan |= {"schedule": row.text("schedule"), "p2p": "overlapped"}  # of its own runtime
    if row.text("moe_a2a_overlap"):
        plan["schedule"] = "1f1b-overlap"
    plan["micro_batch_size"] = _micro_batch(table, row)
    plan["global_batch_size"] = row.count("global_batch")
    _lay_words(row, plan)
    return plan


def _lay_words(row: Row, plan: dict[str, Any]) -> None:
    """Lay over a plan what the row says in words: sharding, gradients, sequence parallelism."""
    sharding = row.text("optimizer_sharding")
    stage = next((k for word, k in ZERO_STAGES.items() if word in sharding), None)
    if stage is not None and plan["dp"] * plan["cp"] > 1:
        plan["zero_stage"] = stage
        if stage not in (1, 2):
            plan.pop("overlap_param_gather", None)
        if "HYBRID_SHARD" in sharding:
            plan["shard_size"] = row.count("gpus_per_node")
        if row.text("shard_size"):
            plan["shard_size"] = row.count("shard_size")
    if row.text("etp"):
        plan["etp"] = row.count("etp")
    if row.text("recompute_modules"):
        plan["recompute_modules"] = tuple(row.text("recompute_modules").split())
    if row.text("offload_layers"):
        plan["offload_activations"] = True
        plan["offload_num_layers"] = row.count("offload_layers")
    if row.text("capacity_factor"):
        plan["capacity_factor"] = row.number("capacity_factor")
    if "fp32 grad accumulation" in row.text("precision"):
        plan["grad_dtype"] = "fp32"
    if plan["dp"] > 1 and "DDP-impl=" in row.text("notes"):
        plan["overlap_grad_reduce"] = "DDP-impl=torch" in row.text("notes")
    split = row.text("seq_parallel")
    if split:
        plan["sequence_parallel"] = split.startswith("yes")
        if plan["sequence_parallel"]:
            plan.pop("scatter_gather", None)


def _recompute(row: Row, framework: Framework) -> str:
    """What a row says of recomputation, in its framework's words; none if it says nothing."""
    word = next(iter(row.text("recompute").split()), "")
    return {"full": "full", "selective": framework.selective}.get(word, "none")


def _dtype(table: Table, row: Row) -> str:
    """The dtype of the products, by the row's words or else by the table's."""
    text = row.text("precision").lower()
    if " or " in text:  # the source's section tells which
        text = "bf16" if "section 'bf16'" in row.text("notes") else table.precision
    text = text or table.precision
    return next(
        (dtype for dtype in ("nvfp4", "fp8", "bf16", "fp16") if dtype in text), table.precision
    )


def _micro_batch(table: Table, row: Row) -> int:
    """The microbatch of a row, or of the rows that its table says are alike."""
    if row.text("micro_batch"):
        return int(row.text("micro_batch"))
    if not table.micro_batch_like:
        raise ValueError("micro_batch not printed")
    for other in load_table(table.micro_batch_like).rows:
        if other.text("hidden") == row.text("hidden"):
            return int(other.text("micro_batch"))
    raise ValueError("micro_batch not printed")
