"""Up to six runs side by side: schedules on the textbook's costs, plans of a model, uploads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from pydantic import Field

from dashboard.choice import Choice, Name, PlanValue
from dashboard.limits import require_work
from dashboard.runs import run_of
from dashboard.shelf import Token
from dashboard.state import State
from dashboard.uploads import uploaded
from simulator.checks import Count, NotNegative, Positive, Value
from simulator.errors import unknown, validated
from simulator.job import Plan
from simulator.report import SPLIT, Report
from simulator.simulate import Run, simulate_uniform
from simulator.table import NAMES, seconds
from simulator.timeline import Timeline
from traces.measured.findings import report_of
from traces.measured.imported import from_saved

__all__ = [
    "FIELDS",
    "MOST_RUNS",
    "CompareState",
    "Compared",
    "Entry",
    "compared",
    "figure_rows",
    "finding",
    "textbook",
]

MOST_RUNS = 6
FIELDS = {  # of a plan, and with a model's costs only
    "textbook": ("schedule", "pp", "vpp", "num_microbatches"),
    "model": (
        "schedule",
        "pp",
        "vpp",
        "tp",
        "dp",
        "num_microbatches",
        "micro_batch_size",
        "recompute",
    ),
}
Plain = dict[Name, PlanValue]


class Entry(Value):
    """One run of a comparison: a plan's fields, checked when it runs, or an upload."""

    plan: Plain = Field(default_factory=dict, description="fields of the plan")
    token: Token | None = Field(None, description="an upload, instead of a plan")


def _start() -> tuple[Entry, ...]:
    sizes: Plain = {"pp": 4, "num_microbatches": 8}
    chosen = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1))
    return tuple(Entry(plan={"schedule": name, **sizes, "vpp": vpp}) for name, vpp in chosen)


class CompareState(State):
    """What is compared, and which part of the time axis is looked at."""

    costs: Literal["textbook", "model"] = Field("textbook", description="what ops cost")
    forward: Positive = Field(1.0, description="one microbatch through one rank [t]")
    input_grad: Positive = Field(1.0, description="backward for the input, likewise [t]")
    weight_grad: Positive = Field(1.0, description="backward for the weights, likewise [t]")
    latency: NotNegative = Field(0.0, description="of every message [t]")
    model: Name = Field("gpt-22b", description="a preset's name")
    cluster: Name = Field("dgx-a100", description="a preset's name")
    seq_len: Count | None = Field(None, description="tokens in one sequence; the model's own [1]")
    runs: tuple[Entry, ...] = Field(
        default_factory=_start, max_length=MOST_RUNS, description="runs"
    )
    view: tuple[NotNegative, NotNegative] | None = Field(None, description="part shown [s]")


@dataclass(frozen=True, eq=False, kw_only=True)
class Compared:
    """What became of an entry: a run, or the reason why there is none."""

    name: str
    timeline: Timeline | None
    report: Report | None
    unit: str = "s"
    error: str = ""


def compared(state: CompareState) -> list[Compared]:
    """Every entry of a comparison, simulated or read."""
    found = [_one(state, entry) for entry in state.runs]
    names = _names(state.runs, [one.name for one in found])
    return [
        Compared(name=name, timeline=f.timeline, report=f.report, unit=f.unit, error=f.error)
        for name, f in zip(names, found, strict=True)
    ]


def textbook(
    plan: dict[str, Any],
    times: tuple[float, float, float],
    latency: float = 0.0,
) -> Run:
    """A schedule on equal stages and free communication; times of F, I and W of one rank. [t]

    Raises:
        ValueError: the plan is not legal, or more than a page's work.
    """
    return _textbook(tuple(sorted(plan.items())), times, latency)


def figure_rows(runs: Sequence[Compared]) -> list[dict[str, Any]]:
    """Rows of the table: figures that differ first; `best` names the cell that is best."""
    reports = [run.report for run in runs]
    rows = []
    for figure in FIGURES:
        values = [None if report is None else figure.value(report) for report in reports]
        if all(value is None for value in values):
            continue
        texts = [
            ""
            if v is None
            else f"{v:g}"
            if figure.value is _time and run.unit == "t"
            else figure.text(v)
            for v, run in zip(values, runs, strict=True)
        ]
        known = [v for v in values if v is not None]
        shown = {text for text, report in zip(texts, reports, strict=True) if report is not None}
        same = len(shown) == 1
        best = None
        comparable = figure.value is not _time or not _units_differ(runs)
        if figure.best is not None and comparable and not same and len(known) > 1:
            best = f"run{values.index(figure.best(known))}"
        cells = {f"run{at}": text or "-" for at, text in enumerate(texts)}
        rows.append({"figure": figure.name, "same": same, "best": best, **cells})
    return sorted(rows, key=lambda row: bool(row["same"]))


def _one(state: CompareState, entry: Entry) -> Compared:
    try:
        if entry.token is not None:
            return _uploaded(entry.token)
        run = _simulated(state, entry)
    except ValueError as error:
        name = "upload" if entry.token else str(entry.plan.get("schedule", "run"))
        return Compared(name=name, timeline=None, report=None, error=str(error))
    return Compared(
        name=run.plan.schedule,
        timeline=run.timeline,
        report=run.report,
        unit="t" if state.costs == "textbook" else "s",
    )


def _simulated(state: CompareState, entry: Entry) -> Run:
    if state.costs == "textbook":
        plan = {k: v for k, v in entry.plan.items() if k in FIELDS["textbook"]}
        return textbook(plan, (state.forward, state.input_grad, state.weight_grad), state.latency)
    plan = {k: v for k, v in entry.plan.items() if v is not None}
    return run_of(
        Choice(model=state.model, cluster=state.cluster, seq_len=state.seq_len, plan=plan)
    )


@lru_cache(maxsize=32)
def _textbook(
    plan: tuple[tuple[str, Any], ...], times: tuple[float, float, float], latency: float
) -> Run:
    for name, _ in plan:
        if name not in Plan.model_fields:
            raise ValueError(unknown("field", f"plan.{name}", Plan.model_fields))
    made = validated(Plan, {name: value for name, value in plan if value is not None}, "plan")
    require_work(made)
    forward, input_grad, weight_grad = times
    return simulate_uniform(
        made, forward, input_grad + weight_grad, weight_grad=weight_grad, latency=latency
    )


def _uploaded(token: str) -> Compared:
    found = uploaded(token)
    report = found.report
    if report is None:
        report = report_of(from_saved(found.timeline, {}), found.name)
    kind = "measured: " if found.is_measured else ""
    return Compared(
        name=f"{kind}{found.name}", timeline=found.timeline, report=report, unit=found.unit
    )


def _names(entries: Sequence[Entry], names: Sequence[str]) -> list[str]:
    """Each run's name: the schedule, and what of its plan differs from the others'."""
    plans = [entry.plan for entry in entries if entry.token is None]
    fields = list(dict.fromkeys(name for plan in plans for name in plan if name != "schedule"))
    differ = [f for f in fields if len({str(plan.get(f)) for plan in plans}) > 1]
    found = []
    for entry, name in zip(entries, names, strict=True):
        own = [] if entry.token else [f for f in differ if (f, entry.plan.get(f)) != ("vpp", 1)]
        parts = [f"{WORDS.get(f, f)} {entry.plan.get(f)}" for f in own]
        found.append(" · ".join([name, *parts]))
    return found


class _Figure(NamedTuple):
    """A number of a report that runs are compared by."""

    name: str
    value: Callable[[Report], float | None]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _time(report: Report) -> float:
    return report.step_time


def _plain(value: float) -> str:
    return f"{value:,.4g}"


def _gigabytes(value: float) -> str:
    return f"{value / 1e9:.1f} GB"


def _peak(report: Report) -> float | None:
    if report.peak_memory is None or report.memory_capacity is None:
        return None
    return float(report.peak_memory.max())


def _free(report: Report) -> float | None:
    peak, room = _peak(report), report.memory_capacity
    return None if peak is None or room is None else room - peak


def _part(name: str) -> Callable[[Report], float | None]:
    def value(report: Report) -> float | None:
        column = getattr(report.split, name)
        return float(column.mean()) / report.makespan if column.any() else None

    return value


WORDS = {"num_microbatches": "microbatches", "micro_batch_size": "microbatch size"}
FIGURES = (
    _Figure("step time", _time, seconds, min),
    _Figure("tokens/s", lambda r: r.tokens_per_second, lambda v: f"{v:,.0f}", max),
    _Figure("TFLOP/s per GPU", lambda r: r.tflops_per_gpu, lambda v: f"{v:.1f}", max),
    _Figure("MFU", lambda r: r.mfu, _share, max),
    _Figure("bubble, of the step", lambda r: r.bubble_fraction, _share, min),
    _Figure("bubble, to the ideal time", lambda r: r.bubble_to_ideal, _share, min),
    _Figure("bubble, of the largest span", lambda r: r.span_bubble, _share, min),
    _Figure("most forwards in flight", lambda r: float(r.peak_in_flight.max()), _plain, min),
    _Figure("peak memory", _peak, _gigabytes, min),
    _Figure("free memory", _free, _gigabytes, max),
    _Figure("GPUs", lambda r: r.num_gpus, lambda v: f"{v:,.0f}", None),
    _Figure("pipeline ranks", lambda r: float(r.num_ranks), _plain, None),
    _Figure("microbatches", lambda r: float(r.num_microbatches), _plain, None),
    *(_Figure(f"share: {NAMES[name]}", _part(name), _share, None) for name in SPLIT),
)


def _units_differ(runs: Sequence[Compared]) -> bool:
    """Whether some runs' times have a unit and others' have none."""
    return len({one.unit for one in runs if one.report is not None}) > 1


def finding(runs: Sequence[Compared]) -> str:
    """What the comparison shows, in a sentence."""
    shown = [(one, one.report) for one in runs if one.report is not None]
    if len(shown) < 2:
        return ""
    if _units_differ(runs):
        return "Textbook times have no unit: write F, I and W in seconds to compare them."
    fast = min(shown, key=lambda pair: pair[1].step_time)
    slow = max(shown, key=lambda pair: pair[1].step_time)
    ratio = slow[1].step_time / fast[1].step_time
    if ratio < 1 + 1e-9:
        return "All of them take equally long."
    return f"{fast[0].name} is the fastest: {slow[0].name} takes {ratio:.2f} times as long."
