"""A job as a page's state holds it: what the user chose, legal or not, until it becomes a Job."""

import json
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from dashboard.limits import MOST_PASTE
from dashboard.state import State
from simulator.checks import Count
from simulator.errors import shown, unknown
from simulator.huggingface import model_from_config
from simulator.job import Job, Model, Plan
from simulator.load import job_from_options, load_cluster, load_model, preset_names

__all__ = ["START", "Choice", "choice_of", "job_of", "pasted_model"]

Name = Annotated[str, StringConstraints(max_length=80)]
Words = Annotated[str, StringConstraints(max_length=60_000)]
PlanValue = bool | int | float | Words | tuple[int, ...] | None
START: dict[str, Any] = {  # the plan that a page opens with
    "pp": 8,
    "tp": 8,
    "num_microbatches": 32,
    "recompute": "full",
}


class Choice(State):
    """Model, cluster and plan; the plan's values are checked when it becomes a Job."""

    model: Name = Field("gpt3-175b", description="a preset's name; empty for a pasted model")
    config: dict[Name, Any] | None = Field(None, description="a model's fields, as pasted")
    cluster: Name = Field("selene", description="a preset's name")
    seq_len: Count | None = Field(None, description="tokens in one sequence; the model's own [1]")
    plan: dict[Name, PlanValue] = Field(
        default_factory=lambda: dict(START), description="fields of the plan"
    )


def job_of(choice: Choice) -> Job:
    """The job, checked. Names are those of presets, never paths.

    Raises:
        ValueError: the first thing that is wrong, as one sentence.
    """
    options: dict[str, Any] = {}
    for name, value in choice.plan.items():
        if name not in Plan.model_fields:
            raise ValueError(unknown("field", f"plan.{name}", Plan.model_fields))
        if value is not None:
            options[name] = value
    options["cluster"] = _preset("cluster", choice.cluster)
    if choice.config is not None:
        model = Model.model_validate(choice.config).model_dump()
        options["model"] = model
    else:
        options["model"] = _preset("model", choice.model)
    if choice.seq_len is not None:
        options["seq_len"] = choice.seq_len
    options["name"] = choice.model or str((choice.config or {}).get("name", "pasted model"))
    return job_from_options(options)


def choice_of(job: Job) -> Choice:
    """The choice that leads to a job again: names where a preset is meant, else its fields.

    Raises:
        ValueError: its cluster is no preset, which a page cannot show yet.
    """
    cluster = next((name for name in preset_names("clusters") if _same(name, job)), None)
    if cluster is None:
        raise ValueError(
            f"cluster is {shown(job.cluster.name)}, but a page takes presets; use one of "
            f"{', '.join(preset_names('clusters'))}"
        )
    length = {"seq_len": job.model.seq_len}
    known = {name: load_model(name) for name in preset_names("models")}
    model = next((n for n, m in known.items() if m.model_copy(update=length) == job.model), "")
    config = None if model else job.model.model_dump(mode="json")
    own = bool(model) and known[model].seq_len != job.model.seq_len
    given = job.plan.model_dump(mode="json", exclude_defaults=True)
    return Choice(
        model=model,
        config=config,
        cluster=cluster,
        seq_len=job.model.seq_len if own else None,
        plan=given,
    )


def _same(name: str, job: Job) -> bool:
    """Whether a preset is the job's cluster, but for the number of nodes."""
    nodes = {"num_nodes": job.cluster.num_nodes}
    return load_cluster(name).model_copy(update=nodes) == job.cluster


def pasted_model(text: str, seq_len: int | None = None) -> Model:
    """The model of a Hugging Face `config.json` that was pasted.

    Raises:
        ValueError: it is too long, no JSON, or no model that can be simulated.
    """
    if len(text) > MOST_PASTE:
        raise ValueError(
            f"the text has {len(text):,} characters; at most {MOST_PASTE:,} are read; paste a "
            "model's config.json alone"
        )
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"line {error.lineno}, column {error.colno}: {error.msg}; paste a whole config.json"
        ) from None
    except (ValueError, RecursionError):
        raise ValueError("this is no JSON that can be read; paste a whole config.json") from None
    if not isinstance(config, dict):
        raise ValueError("this is no JSON object; paste a whole config.json, from { to }")
    return model_from_config(config, "pasted model", seq_len)


def _preset(what: str, name: str) -> str:
    names = preset_names("models" if what == "model" else "clusters")
    if name not in names:
        raise ValueError(
            f"{what} is {shown(name)}; it must be a preset; use one of {', '.join(names)}"
        )
    return name
