"""The points of a chunk that are legal and may fit, with a bound on what they can reach.

Knobs are settled one after the other, slowest first: a value that breaks a rule drops every point
behind it at once. The rules are the job's own and the schedules' own. To ask for one early, the
knobs that are still open take values that no rule forbids.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice, product
from math import inf, prod
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from simulator.costs import Costs
from simulator.costs.estimate import StageBytes
from simulator.frameworks import load_framework
from simulator.job import Job, Plan
from simulator.schedules import recipe_of
from simulator.search.bound import step_bound, work_bound
from simulator.search.front import Hurdle
from simulator.search.known import Known
from simulator.search.reasons import BEATEN, CROWDED, EVEN, TOO_LARGE, no_room, reason
from simulator.search.shape import Shape, least_peaks
from simulator.search.space import (
    KNOBS,
    Space,
    check_chunks,
    check_experts,
    cut,
    even_job,
    uneven_job,
    with_layers,
    with_plan,
)

__all__ = ["Candidate", "Slow", "candidates"]

GROUPS = (KNOBS[:7], ("pp",), ("zero_stage",), ("vpp",))  # settled together; then the leaf
# Fields of the plan that early questions are asked with; of the others, those that no rule forbids.
KEPT = ("framework", "dtype", "grad_dtype", "attention", "offload", "offload_activations")
ROUNDING = 1e-12  # part by which a sum of bytes in another order may differ [1]

Values = dict[str, Any]


class Candidate(NamedTuple):
    """A legal point that may fit."""

    point: int
    least_step: float  # [s]
    most_headroom: float  # [bytes]


class Slow(Exception):
    """A range of points takes longer than one has patience for; halves of it will not."""


def candidates(
    space: Space,
    first: int,
    stop: int,
    known: Known,
    dropped: Counter[str],
    until: float = inf,
    hurdle: Hurdle | None = None,
) -> list[Candidate]:
    """The points in [first, stop) that are legal and may fit; the others are counted by reason.

    Of those that fit, only the ones whose work alone lets them take the hurdle, if there is one.

    Raises:
        Slow: the clock passes `until` before the last of several points. [s]
    """
    found: list[Candidate] = []
    for values, base, start, end in _leaves(space, first, stop, known, dropped):
        _Leaf(space, values, known, dropped, hurdle).judge(base, start, end, found)
        if perf_counter() > until and stop - first > 1:
            raise Slow
    return found


def _leaves(
    space: Space, first: int, stop: int, known: Known, dropped: Counter[str]
) -> Iterator[tuple[Values, int, int, int]]:
    """Legal values of all knobs but the leaf's, their first point, and those in [first, stop)."""
    fixed = {name: getattr(space.job.plan, name) for name in KEPT}
    if space.job.plan.recompute_modules is not None:
        fixed |= {"recompute": "selective", "recompute_modules": space.job.plan.recompute_modules}
    bare = space.job.cluster.model_copy(update={"stragglers": {}})
    alone = space.job.model_copy(update={"cluster": bare, "plan": Plan(**fixed)})
    whole = space.model_copy(update={"job": alone})
    open_knobs = {"vpp": 1, "schedule": alone.plan.schedule}

    def check(values: Values, group: int) -> None:
        """Raise if the values settled so far break a rule."""
        if group == 0:
            check_experts(space, values)
            kept = {name: getattr(space.job.plan, name) for name in ("scatter_gather", "cp_comm")}
            with_plan(alone, {**values, **kept, "ep": 1})  # whether ep divides dp is not known yet
        elif group == 1:
            cut(space, values)
        elif group == 2:
            dp, _ = cut(space, values)
            with_plan(alone, {**values, "pp": 1, "dp": dp})
            if values["pp"] <= space.job.model.num_hidden_layers:
                static = known.static(uneven_job(whole, {**values, **open_knobs}))
                if sum(static.values()) * (1 - ROUNDING) > space.job.cluster.gpu.memory:
                    raise ValueError(TOO_LARGE)
        elif group == 3:
            check_chunks(values)
            if values["pp"] * values["vpp"] > space.job.model.num_hidden_layers:
                raise ValueError(CROWDED)

    def walk(values: Values, group: int, base: int) -> Iterator[tuple[Values, int, int, int]]:
        if group == len(GROUPS):
            size = len(space.layer_split) * len(space.schedule)
            yield values, base, max(first, base), min(stop, base + size)
            return
        rest = [knob for later in GROUPS[group + 1 :] for knob in later]
        block = prod(len(getattr(space, k)) for k in (*rest, "layer_split", "schedule"))
        choices = product(*(getattr(space, knob) for knob in GROUPS[group]))
        least, most = max(0, first - base) // block, -(-(stop - base) // block)
        for at, choice in enumerate(islice(choices, least, most), least):
            start, end = max(first, base + at * block), min(stop, base + (at + 1) * block)
            more = values | dict(zip(GROUPS[group], choice, strict=True))
            try:
                check(more, group)
            except ValueError as error:
                dropped[reason(error)] += end - start
                continue
            yield from walk(more, group + 1, base + at * block)

    return walk({}, 0, 0)


class _Leaf:
    """Points that differ in layer split and schedule alone. A class because they share costs."""

    def __init__(
        self,
        space: Space,
        values: Values,
        known: Known,
        dropped: Counter[str],
        hurdle: Hurdle | None,
    ) -> None:
        self.space, self.known, self.dropped, self.hurdle = space, known, dropped, hurdle
        named = {**values, "schedule": space.schedule[0]}
        self.jobs = {"balanced": self._job(uneven_job, named)}
        self.jobs["even"] = self._even(named)
        self.held: dict[tuple[int, ...], tuple[Job, Costs | StageBytes]] = {}
        self.costs: dict[tuple[int, ...], Costs] = {}
        self.bounds: dict[object, float] = {}
        self.slack = load_framework(space.job.plan.framework).allocator_slack

    def _job(self, make: Any, values: Values) -> Job | str:  # noqa: ANN401
        try:
            job: Job = make(self.space, values)
        except ValueError as error:
            return reason(error)
        return job

    def _even(self, values: Values) -> Job | str:
        """The job whose stages are all alike; the other one has been through all other rules."""
        job = self.jobs["balanced"]
        if isinstance(job, str) or job.model.num_hidden_layers % job.plan.num_stages:
            return self._job(even_job, values)
        plan = job.plan.model_copy(update={"layers_per_stage": None})
        return job.model_copy(update={"plan": plan})

    def judge(self, base: int, start: int, end: int, found: list[Candidate]) -> None:
        """Judge the points in [start, end) of the leaf, whose first one is `base`."""
        size = len(self.space.schedule)
        for at, split in enumerate(self.space.layer_split):
            first = base + at * size
            least, most = max(0, start - first), min(size, end - first)
            job = self.jobs[split]
            if least >= most:
                continue
            if isinstance(job, str):
                self.dropped[job] += most - least
                continue
            shapes = self.known.rows(job.plan, self.space.schedule)[least:most]
            for which, shape in enumerate(shapes, least):
                if isinstance(shape, str):
                    self.dropped[shape] += 1
                    continue
                one = self._candidate(first + which, job, split, which, shape)
                if isinstance(one, str):
                    self.dropped[one] += 1
                else:
                    found.append(one)

    def _candidate(
        self, index: int, job: Job, split: str, which: int, shape: Shape
    ) -> Candidate | str:
        """A point that may fit, or why it is dropped; `which` is its schedule."""
        schedule = self.space.schedule[which]
        recipe = recipe_of(schedule)
        if split == "balanced":
            layers = self.known.split(job, schedule, shape)
            if isinstance(layers, str):
                return layers
            even = self.jobs["even"]
            if not isinstance(even, str) and layers == even.layers_per_stage:
                return EVEN
        else:
            layers = job.layers_per_stage
        if recipe.weights is not None or "num_slices" in recipe.takes:
            return Candidate(index, 0.0, float("inf"))  # neither bound is proven
        if layers not in self.held:
            split_job = with_layers(job, layers)
            self.held[layers] = split_job, self.known.held(split_job)
        return self._bounded(index, layers, shape)

    def _bounded(self, index: int, layers: tuple[int, ...], shape: Shape) -> Candidate | str:
        job, held = self.held[layers]
        parts = least_peaks(shape, held, self.slack)
        peak = np.sum(list(parts.values()), axis=0)
        room = job.cluster.gpu.memory - float(peak.max()) * (1 - ROUNDING)
        if room < 0:
            worst = int(peak.argmax())
            return no_room({name: float(part[worst]) for name, part in parts.items()})
        if self._is_beaten(job, shape, room):
            return BEATEN
        key = (layers, shape.of_bound)
        if key not in self.bounds:
            if layers not in self.costs:
                self.costs[layers] = self.known.costs(job)
            wires = self.known.wire(job, shape)
            self.bounds[key] = step_bound(job, self.costs[layers], shape, wires)
        return Candidate(index, self.bounds[key], room)

    def _is_beaten(self, job: Job, shape: Shape, room: float) -> bool:
        """Whether a plan's work alone takes longer than its free memory [bytes] allows."""
        if self.hurdle is None or job.plan.offload_activations:
            return False
        least = work_bound(job, self.known.work(job), shape)
        tokens = self.space.global_batch_size * self.space.job.model.seq_len
        return tokens < least * self.hurdle.at(room + ROUNDING * abs(room))
