"""The search for a plan, as a page speaks of it: what to search, and what was found, as JSON."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dashboard.choice import Choice, Name, job_of
from dashboard.shelf import Token
from dashboard.state import State, encode
from simulator.checks import Count
from simulator.load import load_cluster, preset_names
from simulator.search.front import Front
from simulator.search.local import MARGIN
from simulator.search.run import Progress
from simulator.search.space import KNOBS, Space, plan_at, point, space_of
from simulator.search.store import COLUMNS, Store
from simulator.table import seconds

__all__ = [
    "BY",
    "KNOBS_TYPED",
    "LISTED",
    "MARGIN",
    "MOST_POINTS",
    "SearchState",
    "choice_at",
    "found",
    "knob_words",
    "numbers_of",
    "space_for",
    "table_rows",
]

MOST_POINTS = 10_000_000  # of a search on a page [1]
MOST_FRONT = 400  # points of the front that travel to the page [1]
LISTED = 25  # plans in the table [1]
BY = {"tokens": "throughput", "headroom": "free memory", "cost": "cost per token"}

KNOBS_TYPED = ("tp", "pp", "vpp", "micro_batch_size")  # lists of numbers, typed
MOST_VALUES = 64  # of one knob [1]

Numbers = tuple[Count, ...] | None
Names = tuple[Name, ...] | None
WORDS = {
    "micro_batch_size": "microbatch",
    "zero_stage": "ZeRO",
    "sequence_parallel": "sp",
    "layer_split": "layers",
}


class SearchState(State):
    """What is searched, and the job that searches it."""

    model: Name = Field("gpt-22b", description="a preset's name")
    cluster: Name = Field("selene", description="a preset's name")
    num_gpus: Count = Field(64, description="GPUs to use, tp x pp x dp [1]")
    global_batch_size: Count = Field(128, description="sequences in one step [1]")
    seq_len: Count | None = Field(None, description="tokens in one sequence; the model's own [1]")
    tp: Numbers = Field(None, description="tensor-parallel sizes; all divisors [1]")
    pp: Numbers = Field(None, description="pipeline-parallel sizes; all divisors [1]")
    vpp: Numbers = Field(None, description="model chunks on a rank; all divisors [1]")
    micro_batch_size: Numbers = Field(None, description="sequences in one microbatch; divisors [1]")
    schedule: Names = Field(
        ("1f1b", "interleaved", "zb-h1", "zb-v"), description="pipeline schedules"
    )
    recompute: Names = Field(("none", "full"), description="activations computed again")
    by: Literal["tokens", "headroom", "cost"] = Field("tokens", description="what ranks first")
    job: Token | None = Field(None, description="the search that runs or has run")


def space_for(state: SearchState) -> Space:
    """The space of plans that a page asks for.

    Raises:
        ValueError: no space follows, or it has too many plans.
    """
    base = Choice(model=state.model, cluster=state.cluster, seq_len=state.seq_len, plan={})
    job = job_of(base)
    nodes = -(-state.num_gpus // job.cluster.gpus_per_node)
    cluster = job.cluster.model_copy(update={"num_nodes": nodes})
    if state.num_gpus < 1 or nodes > 100_000:
        raise ValueError(f"num_gpus is {state.num_gpus:,}; use 1 to 800,000")
    if state.global_batch_size > 1_000_000:
        raise ValueError(
            f"global_batch_size is {state.global_batch_size:,}; use at most 1,000,000 sequences"
        )
    knobs = {
        name: getattr(state, name)
        for name in ("tp", "pp", "vpp", "micro_batch_size", "schedule", "recompute")
        if getattr(state, name)
    }
    space = space_of(
        job.model_copy(update={"cluster": cluster}),
        global_batch_size=state.global_batch_size,
        num_gpus=state.num_gpus,
        cp=(1,),  # other sizes are not costed
        zero_stage=(0, 1),
        **knobs,
    )
    if space.num_points > MOST_POINTS:
        raise ValueError(
            f"these knobs make {space.num_points:,} plans; a page searches at most "
            f"{MOST_POINTS:,}: list fewer values, or use `bubblescope search`"
        )
    return space


def numbers_of(text: object) -> tuple[int, ...] | None:
    """The values of a knob as they are typed; nothing typed stands for all sensible ones.

    Raises:
        ValueError: they are no whole numbers.

    >>> numbers_of("1, 2,4"), numbers_of("")
    ((1, 2, 4), None)
    """
    parts = [part.strip() for part in str(text or "").split(",") if part.strip()]
    if not parts:
        return None
    if len(parts) > MOST_VALUES or not all(p.isdecimal() and int(p[:8]) > 0 for p in parts):
        raise ValueError(
            f"{str(text)[:40]!r} is no list of whole numbers; write them with commas, as in 1,2,4, "
            f"at most {MOST_VALUES}, or leave it empty"
        )
    return tuple(int(part[:8]) for part in parts)


def found(space: Space, store: Store, now: Progress) -> dict[str, Any]:
    """How far a search is, its front and its best plans, as JSON types."""
    best = {by: _plans(space, store.best(by, LISTED)) for by in BY}
    dropped = store.dropped()
    return {
        "num_points": now.num_points,
        "num_judged": now.num_judged,
        "num_simulated": store.num_simulated,
        "rate": now.rate,
        "seconds_left": now.seconds_left,
        "memory": space.job.cluster.gpu.memory,
        "front": _front(space, now.front),
        "num_front": len(now.front.index),
        "best": best,
        "dropped": dict(list(dropped.items())[:12]),
    }


def table_rows(plans: Iterable[Mapping[str, Any]], memory: float) -> list[dict[str, Any]]:
    """Plans as rows of the table: knobs as they are, figures as text with units."""
    rows = []
    for rank, plan in enumerate(plans, 1):
        rows.append(
            {
                "rank": rank,
                "point": plan["index"],
                "open": f"[Explore]({plan['explore']})",
                "step": seconds(plan["step_time"]),
                "tokens/s": f"{plan['tokens_per_second']:,.0f}",
                "MFU": f"{100 * plan['mfu']:.1f} %",
                "bubble": f"{100 * plan['bubble_fraction']:.1f} %",
                "peak": f"{(memory - plan['headroom']) / 1e9:.1f} GB",
                "free": f"{plan['headroom'] / 1e9:.1f} GB",
                **{WORDS.get(k, k): _word(v) for k, v in plan["knobs"].items()},
                "GPU h / M tokens": f"{plan['gpu_seconds_per_token'] * 1e6 / 3600:.4g}",
            }
        )
    return rows


def choice_at(space: Space, index: int) -> Choice:
    """A plan of the space, as the Explore page takes it.

    Raises:
        ValueError: there is no such plan.
    """
    table = plan_at(space, index).plan.model_dump(mode="json", exclude_defaults=True)
    return Choice(
        model=space.job.name,
        cluster=_preset_of(space),
        plan={name: tuple(v) if isinstance(v, list) else v for name, v in table.items()},
    )


def knob_words(knobs: Mapping[str, Any]) -> str:
    """A plan in a line.

    >>> knob_words({"tp": 4, "pp": 2, "schedule": "1f1b"})
    'tp 4, pp 2, schedule 1f1b'
    """
    return ", ".join(f"{WORDS.get(k, k)} {_word(v)}" for k, v in knobs.items())


@lru_cache(maxsize=2048)
def _query(space_text: str, index: int) -> str:
    return encode(choice_at(Space.model_validate_json(space_text), index))


def _explore(space: Space, index: int) -> str:
    """Where a plan opens in Explore."""
    return "/" + _query(space.model_dump_json(), index)


def _preset_of(space: Space) -> str:
    """The name of the preset that the cluster was made from."""
    name = space.job.cluster.name
    return next(p for p in preset_names("clusters") if load_cluster(p).name == name)


def _plans(space: Space, judged: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - Judged
    return [
        {
            "index": int(index),
            "knobs": _knobs(space, int(index)),
            "explore": _explore(space, int(index)),
            **{name: float(getattr(judged, name)[at]) for name in COLUMNS},
        }
        for at, index in enumerate(judged.index.tolist())
    ]


def _front(space: Space, front: Front) -> list[dict[str, Any]]:
    """The front from fast to roomy, some of it where it is long."""
    order = np.lexsort((front.index, -front.headroom, -front.tokens_per_second))
    if len(order) > MOST_FRONT:
        order = order[np.linspace(0, len(order) - 1, MOST_FRONT).round().astype(int)]
    return [
        {
            "index": int(front.index[at]),
            "knobs": _knobs(space, int(front.index[at])),
            "explore": _explore(space, int(front.index[at])),
            "tokens_per_second": float(front.tokens_per_second[at]),
            "headroom": float(front.headroom[at]),
        }
        for at in order.tolist()
    ]


def _knobs(space: Space, index: int) -> dict[str, Any]:
    """The knobs that vary, and dp."""
    values = point(space, index)
    values["etp"] = values["etp"] or values["tp"]
    dp = space.num_gpus // (values["tp"] * values["pp"] * values["cp"])
    names = ["tp", "pp", *(k for k in KNOBS if k not in ("tp", "pp"))]
    shown = {k: values[k] for k in names if len(getattr(space, k)) > 1 or k in ("tp", "pp")}
    return {**shown, "dp": dp}


def _word(value: object) -> str | int | float:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, int | float) else str(value)
