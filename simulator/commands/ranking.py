"""What a search found, as text and JSON."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.commands.sweeps import WORDS, counted, knobs_of
from simulator.report import Report
from simulator.search.front import Front
from simulator.search.judge import Judged
from simulator.search.reasons import TOO_LARGE, num_legal
from simulator.search.run import Outcome
from simulator.search.space import KNOBS, Space
from simulator.search.store import COLUMNS
from simulator.simulate import Run
from simulator.table import columns, percent, seconds

__all__ = ["Found", "as_json", "as_text", "nothing_fits", "speed"]

LARGE = "does not fit"  # how the reasons begin that mean memory
ABOUT = {  # what a rule speaks of, and the knobs that it follows from
    "num_gpus": ("tp", "pp", "cp"),
    "global_batch_size": ("micro_batch_size", "tp", "pp", "cp"),
    "plan.dp": ("tp", "pp", "cp"),
    "plan.num_microbatches": ("micro_batch_size", "pp", "tp", "cp"),
}
SAME = 1e-8  # part by which two executors may differ [1]
LEGAL = "legal plans, each counted once"
MOST_RULES = 4  # that a refusal names [1]
MOST_REASONS = 8  # that are printed [1]
MOST_FRONT = 20  # points of the front that are printed [1]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A search's results, and how it went."""

    space: Space
    margin: float | None  # within this share of the best nothing was pruned; None: nowhere
    by: str
    price: float | None  # of one GPU for an hour
    num_judged: int
    num_simulated: int
    dropped: Mapping[str, int]
    best: Judged
    front: Front
    outcome: Outcome | None  # None where it was interrupted
    again: Run | None  # the best once more, in the event engine; None where it was interrupted
    line: str | None  # the command that simulates the winner
    doubles: int = 0  # plans left out of the best, equal to one of them but for the schedule [1]


def as_text(found: Found) -> str:
    """The tables."""
    space = found.space
    job = space.job
    title = (
        f"{job.model.name} on {job.cluster.name}: {counted(space.num_gpus, 'GPU')}, "
        f"{counted(space.global_batch_size, 'sequence')} of {job.model.seq_len:,} tokens a step"
    )
    lines = [title, "", *_counts(found), ""]
    if len(found.best.index):
        first = {"tokens": "fastest", "headroom": "roomiest", "cost": "cheapest"}[found.by]
        lines += [f"the {first} plans"]
        lines += [*_plans(found, found.best), *_fixed(space)]
        if found.doubles:
            lines += ["plans whose figures are equal but for the schedule's name stand here once"]
        lines += [""]
        lines += [*_front(found), ""]
    if found.again is not None:
        lines += _winner(found, found.again.report)
    if found.outcome is not None and found.outcome.set_aside:
        points = ", ".join(map(str, found.outcome.set_aside))
        lines += ["", f"not judged, for they kill the process that judges them: points {points}"]
    return "\n".join(lines).rstrip()


def as_json(found: Found) -> dict[str, Any]:
    """The same as JSON types, in SI units."""
    again = found.again
    return {
        "num_points": found.space.num_points,
        "num_judged": found.num_judged,
        "num_simulated": found.num_simulated,
        "num_legal": num_legal(found.num_simulated, found.dropped),
        "dropped": dict(found.dropped),
        "seconds": None if found.outcome is None else found.outcome.seconds,
        "interrupted": found.outcome is None,
        "not_judged": [] if found.outcome is None else list(found.outcome.set_aside),
        "by": found.by,
        "best": _records(found.space, found.best, COLUMNS),
        "front": _records(found.space, found.front, COLUMNS[1:4]),
        "engine_step_time": None if again is None else again.report.step_time,
        "simulate": found.line,
    }


def nothing_fits(space: Space, dropped: Mapping[str, int], given: Sequence[str]) -> str:
    """Which rules emptied a space, and the way out.

    Memory, where any plan is legal or nobody asked; else first what speaks of the knobs that the
    user has given values for, then what dropped most.
    """
    total = sum(dropped.values())
    large = {reason: n for reason, n in dropped.items() if reason.startswith(LARGE)}
    named = large or dropped
    about = {reason: [knob for knob in _knobs(reason) if knob in given] for reason in named}
    order = sorted(named.items(), key=lambda item: (not about[item[0]], -item[1]))
    rules = "; ".join(f"{reason}: {points:,}" for reason, points in order[:MOST_RULES])
    if len(order) > MOST_RULES:
        rules += f"; {counted(len(order) - MOST_RULES, 'other rule')}"
    if not large:
        guilty = about[order[0][0]]
        flags = " and ".join(f"--{knob.replace('_', '-')}" for knob in guilty)
        way_out = "leave the knob that the first rule names out, or list more of its values"
        if guilty:
            way_out = f"leave {flags} out, or list more values"
        return f"none of {total:,} points is a legal plan; {rules}; {way_out}"
    room = space.job.cluster.gpu.memory / 1e9
    legal = num_legal(0, dropped)
    first = f"none of {counted(legal, 'legal plan')} fits in {room:.0f} GB"
    if TOO_LARGE in large:
        first = f"of {total:,} points none that is a legal plan fits in {room:.0f} GB"
    return (
        f"{first}; {rules}; use more --gpus than {space.num_gpus:,}, larger GPUs, or "
        "leave out the knobs that hold tp, pp, zero_stage and recompute down"
    )


def _knobs(reason: str) -> tuple[str, ...]:
    """The knobs that a rule is about.

    >>> _knobs("num_gpus: it must be a multiple of tp x pp x cp")
    ('tp', 'pp', 'cp')
    """
    subject = reason.partition(": ")[0]
    if subject in ABOUT:
        return ABOUT[subject]
    return tuple(knob for knob in KNOBS if re.search(rf"\b{knob}\b", subject))


def _counts(found: Found) -> list[str]:
    """Points, and what became of them."""
    rows = [["points", f"{found.space.num_points:,}"]]
    named = list(found.dropped.items())
    rows += [[f"  {reason}", f"{points:,}"] for reason, points in named[:MOST_REASONS]]
    if len(named) > MOST_REASONS:
        others = named[MOST_REASONS:]
        left = f"  {len(others)} other rules, listed by --json"
        rows.append([left, f"{sum(points for _, points in others):,}"])
    rows.append(["  simulated", f"{found.num_simulated:,}"])
    if found.num_judged < found.space.num_points:
        rows.append(["  not judged", f"{found.space.num_points - found.num_judged:,}"])
    rows.append([LEGAL, f"{num_legal(found.num_simulated, found.dropped):,}"])
    return columns(rows)


def speed(outcome: Outcome) -> str:
    """How fast it went."""
    if not outcome.num_judged:
        return "all points were judged before"
    took = max(outcome.seconds, 1e-9)
    rate, legal = outcome.num_judged / took, outcome.num_legal / took
    died = f"; {counted(outcome.deaths, 'worker')} died, and what they had was judged again"
    return (
        f"{outcome.num_judged:,} points judged in {outcome.seconds:.1f} s, {rate:,.0f} a second; "
        f"{counted(outcome.num_legal, 'legal plan')} of them, {legal:,.0f} a second"
        f"{died if outcome.deaths else ''}"
    )


def _varying(space: Space) -> list[str]:
    """The knobs that have several values, and dp."""
    known = ["tp", "pp", *(k for k in KNOBS if k not in ("tp", "pp"))]
    names = [name for name in known if len(getattr(space, name)) > 1]
    if {"tp", "pp", "cp"} & set(names):
        names.insert(sum(name in ("tp", "pp") for name in names), "dp")
    return names


def _fixed(space: Space) -> list[str]:
    """The knobs that have one value, in words."""
    single = [k for k in KNOBS if len(getattr(space, k)) == 1 and getattr(space, k) != (None,)]
    words = [f"{WORDS.get(k, k)} {_word(getattr(space, k)[0])}" for k in single]
    return [f"in all: {', '.join(words)}"] if words else []


def _plans(found: Found, judged: Judged) -> list[str]:
    """A line a plan."""
    space = found.space
    names = _varying(space)
    knobs = knobs_of(space, judged.index)
    memory = space.job.cluster.gpu.memory
    cost = "$/M tokens" if found.price else "GPU h/M tokens"
    header = ["rank", *(WORDS.get(name, name) for name in names)]
    header += ["step", "tokens/s", "MFU", "bubble", "peak", "free", cost]
    rows = [header]
    price = (found.price or 1.0) * 1e6 / 3600
    for at in range(len(judged.index)):
        row = [f"{at + 1}", *(_word(knobs[name][at]) for name in names)]
        row += [seconds(float(judged.step_time[at])), f"{judged.tokens_per_second[at]:,.0f}"]
        row += [percent(float(judged.mfu[at])), percent(float(judged.bubble_fraction[at]))]
        room = float(judged.headroom[at])
        row += [f"{(memory - room) / 1e9:.1f} GB", f"{room / 1e9:.1f} GB"]
        row.append(f"{judged.gpu_seconds_per_token[at] * price:.4g}")
        rows.append(row)
    return columns(rows)


def _front(found: Found) -> list[str]:
    """The plans that no other beats in speed, free memory and cost at once."""
    space, front = found.space, found.front
    order = np.lexsort((front.index, -front.headroom, -front.tokens_per_second))
    count = len(order)
    lines = [f"Pareto front: {counted(count, 'plan')} that none beats in all rankings"]
    if count > MOST_FRONT:
        order = order[np.linspace(0, count - 1, MOST_FRONT).round().astype(int)]
        lines[0] += f"; {MOST_FRONT} of them"
    names = _varying(space)
    knobs = knobs_of(space, front.index)
    rows = [["", *(WORDS.get(name, name) for name in names), "tokens/s", "free"]]
    for at in order.tolist():
        cells = [_word(knobs[name][at]) for name in names]
        room = front.headroom[at] / 1e9
        rows.append(["", *cells, f"{front.tokens_per_second[at]:,.0f}", f"{room:.1f} GB"])
    return lines + columns(rows)


def _winner(found: Found, report: Report) -> list[str]:
    """The winner in the event engine."""
    names = _varying(found.space)
    knobs = knobs_of(found.space, found.best.index[:1])
    plan = ", ".join(f"{WORDS.get(n, n)} {_word(knobs[n][0])}" for n in names)
    other = report.step_time / float(found.best.step_time[0]) - 1
    same = "the same" if abs(other) < SAME else f"{other:+.2%}: please report this"
    return [
        f"the best: {plan}",
        f"  once more in the event engine: step {seconds(report.step_time)}, {same}",
        f"  {found.line or '--save-job FILE writes its job, to simulate'}",
    ]


def _records(space: Space, points: Judged | Front, names: Sequence[str]) -> list[dict[str, Any]]:
    """Points as JSON objects."""
    knobs = knobs_of(space, points.index)
    figures = {name: getattr(points, name).tolist() for name in names}
    table = {"point": points.index.tolist(), **knobs, **figures}
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _word(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
