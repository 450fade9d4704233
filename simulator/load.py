"""Reads what a user writes: presets, a job's TOML file, a `config.json`, command-line options.

All of them become raw tables, which are merged first and resolved once: `gpus` becomes `dp` and
`num_nodes`, `global_batch_size` becomes `num_microbatches`. What a Job holds is the outcome, never
the convenience. Every error is a ValueError of one sentence.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w

from simulator.errors import shown, unknown, validated
from simulator.files import parse_toml, read_bytes, read_json
from simulator.frameworks import load_framework, plan_defaults
from simulator.huggingface import model_from_config
from simulator.job import GPU, Cluster, Job, Model, Plan
from simulator.overrides import assigned, read_assignments

__all__ = [
    "dump_job",
    "job_from_options",
    "load_cluster",
    "load_gpu",
    "load_job",
    "load_model",
    "preset_names",
]

Folder = Literal["gpus", "models", "clusters"]
Table = dict[str, Any]

JOB_KEYS = ("name", "model", "cluster", "plan", "gpus")
PLAN_KEYS = (*Plan.model_fields, "global_batch_size")
OPTIONS = ("name", "model", "cluster", "gpus", "num_nodes", "seq_len", *PLAN_KEYS)


def preset_names(folder: Folder) -> tuple[str, ...]:
    """Names of the presets in a folder of `simulator/specs`, in order.

    >>> "gpt3-175b" in preset_names("models")
    True
    """
    files = (resources.files("simulator") / "specs" / folder).iterdir()
    stems = (file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems))


def load_gpu(name: str) -> GPU:
    """The GPU of a preset."""
    return validated(GPU, _expand("gpus", name), "gpu")


def load_model(name_or_path: str | Path) -> Model:
    """The model of a preset, a Hugging Face `config.json` or a TOML file.

    >>> load_model("gpt3-175b").hidden_size
    12288
    """
    return validated(Model, _expand("models", _reference(name_or_path)), "model")


def load_cluster(name_or_path: str | Path) -> Cluster:
    """The cluster of a preset or a TOML file, of one node unless the file says more."""
    return validated(Cluster, _cluster_table(_reference(name_or_path)), "cluster")


def load_job(path: str | Path) -> Job:
    """The job that a TOML file describes."""
    return _resolve(_read_toml(Path(path)))


def job_from_options(
    options: Mapping[str, Any], base: Path | None = None, assignments: Sequence[str] = ()
) -> Job:
    """The job of a file, `base`, with the options laid over it; or of the options alone.

    An option takes the place of what the file says about the same thing: `gpus` of its `dp` and
    `num_nodes`, `global_batch_size` of its `num_microbatches`, and the other way round.
    `assignments`, as "plan.pp=16", are laid over both, in order.
    """
    raw = _read_toml(base) if base is not None else {}
    for key in options:
        if key not in OPTIONS:
            raise ValueError(unknown("option", key, OPTIONS))
    raw |= {key: options[key] for key in ("name", "model", "cluster") if key in options}
    if "seq_len" in options and "model" in raw:
        raw["model"] = _as_table("model", raw["model"]) | {"seq_len": options["seq_len"]}
    _lay_sizes(raw, options)
    return _resolve(_with_assignments(raw, assignments))


def dump_job(job: Job) -> str:
    """The job as TOML that `load_job` reads back to an equal job."""
    return tomli_w.dumps(job.model_dump(mode="json", exclude_none=True))


def _lay_sizes(raw: Table, options: Mapping[str, Any]) -> None:
    """Lay the options' sizes over a file's tables, without what they take the place of."""
    plan = _as_table("plan", raw.get("plan", {}))
    if "gpus" in options:
        plan.pop("dp", None)
        raw["gpus"] = options["gpus"]
    elif "dp" in options:
        raw.pop("gpus", None)
    for given, rival in (
        ("num_microbatches", "global_batch_size"),
        ("global_batch_size", "num_microbatches"),
    ):
        if given in options:
            plan.pop(rival, None)
    raw["plan"] = plan | {key: options[key] for key in PLAN_KEYS if key in options}
    if "cluster" in raw and ("gpus" in options or "num_nodes" in options):
        cluster = _as_table("cluster", raw["cluster"])
        cluster.pop("num_nodes", None)
        nodes = {"num_nodes": options["num_nodes"]} if "num_nodes" in options else {}
        raw["cluster"] = cluster | nodes


def _with_assignments(raw: Table, texts: Sequence[str]) -> Table:
    """The tables with dotted assignments laid over them; each sees what the ones before made."""
    before: list[str] = []
    for one in read_assignments(texts):
        if "model" in raw:
            raw["model"] = _expand("models", raw["model"])
        if "cluster" in raw:
            raw["cluster"] = _cluster_table(raw["cluster"])
        raw = assigned(raw, one, before, partial(_resolve, raw))
        before.append(one.path)
    return raw


def _resolve(raw: Table) -> Job:
    """The job of merged raw tables."""
    for key in raw:
        if key in PLAN_KEYS:
            raise ValueError(f"{key} is not a key of a job, but of its plan; write it under [plan]")
        if key not in JOB_KEYS:
            raise ValueError(unknown("key", key, JOB_KEYS))
    for key in ("model", "cluster"):
        if key not in raw:
            raise ValueError(
                f"{key} is missing; give a preset's name (`bubblescope presets` lists all), a file "
                f"or a [{key}] table"
            )
    gpus = _count("gpus", raw["gpus"]) if "gpus" in raw else None
    model = validated(Model, _expand("models", raw["model"]), "model")
    plan = _resolve_plan(_as_table("plan", raw.get("plan", {})), gpus)
    cluster = _resolve_cluster(_cluster_table(raw["cluster"]), plan, gpus)
    parts: Table = {"model": model, "cluster": cluster, "plan": plan}
    return validated(Job, parts | {key: raw[key] for key in ("name",) if key in raw})


def _resolve_plan(table: Table, gpus: int | None) -> Plan:
    """The plan of its table, with `dp` from the GPUs and the microbatches from the batch."""
    given = {key: value for key, value in table.items() if key != "global_batch_size"}
    plan = validated(Plan, given, "plan")
    if gpus is not None:
        one = plan.pp * plan.tp * plan.cp
        if "dp" not in given:
            _require_multiple("gpus", gpus, "plan.pp x tp x cp", one)
            plan = plan.model_copy(update={"dp": gpus // one})
        elif plan.num_gpus != gpus:
            raise ValueError(
                f"gpus is {gpus}, but plan.pp x tp x cp x dp is {plan.num_gpus}; "
                f"leave out one of gpus and plan.dp, or make them agree"
            )
    plan = _with_habits(plan, given)
    if "global_batch_size" in table:
        batch = _count("plan.global_batch_size", table["global_batch_size"])
        one = plan.dp * plan.micro_batch_size
        _require_multiple("plan.global_batch_size", batch, "plan.dp x micro_batch_size", one)
        if "num_microbatches" not in given:
            plan = plan.model_copy(update={"num_microbatches": batch // one})
        elif plan.global_batch_size != batch:
            raise ValueError(
                f"plan.global_batch_size is {batch}, but num_microbatches x micro_batch_size x dp "
                f"is {plan.global_batch_size}; leave out one of plan.global_batch_size and "
                f"plan.num_microbatches, or make them agree"
            )
    return plan


def _with_habits(plan: Plan, given: Mapping[str, Any]) -> Plan:
    """The plan with its framework's defaults for what the table leaves open."""
    if plan.framework is None:
        return plan
    names = ("dtype", "tp", "dp", "pp", "vpp", "recompute", "recompute_modules")
    sizes = {name: getattr(plan, name) for name in names}
    habits = plan_defaults(load_framework(plan.framework), **sizes)
    left = {name: value for name, value in habits.items() if name not in given}
    if plan.zero_stage not in (1, 2) and "zero_stage" in given:
        left.pop("overlap_param_gather", None)  # a habit of another stage
    return validated(Plan, plan.model_dump(exclude_unset=True) | left, "plan")


def _resolve_cluster(table: Table, plan: Plan, gpus: int | None) -> Cluster:
    """The cluster of its table, with the fewest nodes that hold the plan if it states none."""
    cluster = validated(Cluster, table, "cluster")
    least = -(-plan.num_gpus // cluster.gpus_per_node)
    if "num_nodes" not in table:
        return cluster.model_copy(update={"num_nodes": least})
    if gpus is not None and cluster.num_nodes != least:
        raise ValueError(
            f"gpus is {gpus}, which fills {least} nodes of {cluster.gpus_per_node}, but "
            f"cluster.num_nodes is {cluster.num_nodes}; leave out one of the two"
        )
    return cluster


def _cluster_table(value: object) -> Table:
    """A cluster's table with its GPU's table inside."""
    table = _expand("clusters", value)
    if "gpu" in table:
        table["gpu"] = _expand("gpus", table["gpu"])
    return table


def _expand(folder: Folder, value: object) -> Table:
    """The table behind a preset's name, a file's path, or a table that overrides its `preset`."""
    overrides = _as_table(folder.removesuffix("s"), value)
    if "preset" not in overrides:
        return overrides
    preset = overrides.pop("preset")
    if not isinstance(preset, str):
        raise ValueError(
            f"preset is {shown(preset)}; it must be a name or a file; write it in quotes"
        )
    if not _is_path(preset):
        return _merged(_read_preset(folder, preset), overrides)
    path = Path(preset) / "config.json" if Path(preset).is_dir() else Path(preset)
    if folder == "models" and path.suffix != ".toml":
        name = path.absolute().parent.name if path.stem == "config" else path.stem
        model = model_from_config(read_json(path), name, overrides.get("seq_len"))
        return _merged(model.model_dump(), overrides)
    table = _read_toml(path)
    if "preset" in table:
        raise ValueError(f"{path} names a preset itself; a file of its own states every field")
    return _merged(table, overrides)


def _merged(base: Table, overrides: Mapping[str, Any]) -> Table:
    """A table with the overrides laid over it, table by table."""
    merged = dict(base)
    for key, value in overrides.items():
        below = merged.get(key)
        if key == "gpu" and isinstance(below, str):
            below = {"preset": below}
        inside = isinstance(value, Mapping) and isinstance(below, Mapping) and "preset" not in value
        merged[key] = _merged(dict(below), value) if inside and below else value
    return merged


def _as_table(name: str, value: object) -> Table:
    """A table as it is, a name as the table that names that preset."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) and name != "plan":
        return {"preset": value}
    kinds = "a table" if name == "plan" else "a preset's name, a file or a table"
    raise ValueError(
        f"{name} is {shown(value)}; it must be {kinds}; write its fields under [{name}]"
    )


def _reference(name_or_path: str | Path) -> str:
    """A preset's name as it is, a path as one that cannot be taken for a name."""
    return name_or_path if isinstance(name_or_path, str) else str(name_or_path.absolute())


def _is_path(text: str) -> bool:
    """Whether a name means a file rather than a preset."""
    path = Path(text)
    return "/" in text or path.is_absolute() or path.suffix in (".json", ".toml")


def _anchored(value: Any, folder: Path) -> Any:  # noqa: ANN401 - any TOML value
    """A file's value with the paths in it taken from the file's own folder."""
    if isinstance(value, str):
        return str(folder / value) if _is_path(value) else value
    if isinstance(value, Mapping):
        named = ("model", "cluster", "gpu", "preset")
        return {k: _anchored(v, folder) if k in named else v for k, v in value.items()}
    return value


def _read_preset(folder: Folder, name: str) -> Table:
    """The table of a preset, to be changed at will."""
    return deepcopy(_preset(folder, name))


@cache
def _preset(folder: Folder, name: str) -> Table:
    """What a preset's file says, read once."""
    names = preset_names(folder)
    if name not in names:
        dashed = name.replace("_", "-")
        alike = get_close_matches(dashed, names, 3, 0.4)
        near = sorted(alike, key=lambda one: not one.startswith(dashed))
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"{shown(name)} is not a {folder.removesuffix('s')} preset; {hint}"
            f"`bubblescope presets` lists all; a file ends in .toml or .json"
        )
    file = resources.files("simulator") / "specs" / folder / f"{name.replace('-', '_')}.toml"
    return parse_toml(file.read_bytes(), file.name)


def _read_toml(path: Path) -> Table:
    """The table of a TOML file, with its paths taken from the file's folder."""
    table: Table = _anchored(parse_toml(read_bytes(path), str(path)), path.parent)
    return table


def _count(name: str, value: object) -> int:
    """A count that no value type holds, checked as all others are."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**12:
        raise ValueError(
            f"{name} is {shown(value)}; it must be a whole number; use 1 or more, at most 1e+12"
        )
    return value


def _require_multiple(name: str, value: int, unit: str, one: int) -> None:
    """Raise the one error of totals that do not split, with the nearest that do."""
    if value % one:
        below = value // one * one
        near = f"{below} or {below + one}" if below else f"{one}"
        raise ValueError(
            f"{name} is {value}, but it must be a multiple of {unit} = {one}; use {near}"
        )
