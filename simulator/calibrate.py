"""Costs from measurements: robust figures of op times, links and memory, and runs made of them.

Machines hiccup, so nothing here is a mean: op times are medians with their quartiles, lines are
fitted by Theil and Sen's median of slopes. A Calibration is a value that travels as JSON.
"""

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from simulator import engine
from simulator.checks import Count, NotNegative, Positive, Value
from simulator.costs.costs import Costs
from simulator.costs.memory import memory_samples
from simulator.dialects import is_lowered
from simulator.errors import validated
from simulator.fabric import Fabric
from simulator.files import read_json
from simulator.job import Plan
from simulator.lower import lower, step_optimizer
from simulator.network import Route
from simulator.robust import spread
from simulator.schedule import Kind, Schedule
from simulator.schedules import build
from simulator.timeline import Timeline

__all__ = [
    "Calibration",
    "OpTime",
    "calibrate",
    "dump_calibration",
    "load_calibration",
    "play",
    "predict",
]

FORMAT = "bubblescope calibration 1"
Column = NDArray[np.float64]

FAST = 1e18  # bandwidth of a link that only its latency is known of [bytes/s]


class OpTime(Value):
    """Measured times of one kind of op on one stage."""

    kind: str = Field(description="F, B, I, W or OPTIMIZER")
    stage: int = Field(ge=0, description="model stage")
    seconds: NotNegative = Field(description="median, launch overhead included [s]")
    low: NotNegative = Field(description="lower quartile [s]")
    high: NotNegative = Field(description="upper quartile [s]")
    count: Count = Field(description="measurements [1]")


class Calibration(Value):
    """What was measured of a pipeline's stages and links: enough to predict other schedules."""

    name: str = Field(description="what was measured, where and when")
    num_stages: Count = Field(description="model stages [1]")
    ops: tuple[OpTime, ...] = Field(description="times of ops")
    latency: NotNegative = Field(0.0, description="of a message between neighbours [s]")
    bandwidth: Positive = Field(FAST, description="of a link between neighbours [bytes/s]")
    boundary_bytes: NotNegative = Field(0.0, description="one microbatch's message [bytes]")
    launch_overhead: NotNegative = Field(0.0, description="of one op, part of its time [s]")
    post_overhead: NotNegative = Field(0.0, description="to post one transfer, likewise [s]")
    static_bytes: tuple[NotNegative, ...] = Field((), description="of each stage [bytes]")
    activation_bytes: tuple[float, ...] = Field((), description="that F keeps [bytes]")
    input_grad_bytes: tuple[float, ...] = Field((), description="that I frees [bytes]")
    transient_bytes: tuple[NotNegative, ...] = Field((), description="during backwards [bytes]")
    kept_bytes: tuple[NotNegative, ...] = Field(
        (), description="that a backward leaves behind until the step ends [bytes]"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for op in self.ops:
            if op.kind not in ("F", "B", "I", "W", "OPTIMIZER") or op.stage >= self.num_stages:
                raise ValueError(f"{op.stage}{op.kind} is no op of {self.num_stages} stages")
        return self

    @property
    def costs(self) -> Costs:
        """Seconds and bytes as the engine takes them.

        Where the backward was measured whole only, I and W are half of it each; where it was
        measured in halves only, B is their sum.
        """
        seconds = np.zeros((len(Kind), self.num_stages))
        for op in self.ops:
            seconds[Kind[op.kind], op.stage] = op.seconds
        measured = seconds > 0
        halves = measured[Kind.I] | measured[Kind.W]
        whole_only = measured[Kind.B] & ~halves
        seconds[Kind.I, whole_only] = seconds[Kind.W, whole_only] = seconds[Kind.B, whole_only] / 2
        halves_only = halves & ~measured[Kind.B]
        seconds[Kind.B, halves_only] = (seconds[Kind.I] + seconds[Kind.W])[halves_only]
        nothing = np.zeros(self.num_stages)
        return Costs(
            seconds=seconds,
            tensor_seconds=np.zeros_like(seconds),
            recompute_seconds=nothing,
            boundary_bytes=np.full(self.num_stages, self.boundary_bytes),
            boundary_gather=nothing,
            reduce_bytes=nothing,
            unshard_bytes=nothing,
            weight_bytes=self._column(self.static_bytes),
            gradient_bytes=nothing,
            optimizer_bytes=nothing,
            activation_bytes=self._column(self.activation_bytes),
            input_grad_bytes=self._column(self.input_grad_bytes),
            transient_bytes=self._column(self.transient_bytes),
            pair_time=np.ones(self.num_stages),
        )

    def fabric(self, num_ranks: int) -> Fabric:
        """A link of its own from every rank to every other."""
        pairs = list(permutations(range(num_ranks), 2))
        return Fabric(
            (self.bandwidth,) * len(pairs),
            tuple(f"rank {a} to {b}" for a, b in pairs),
            {pair: Route((at,), (1.0,), self.latency) for at, pair in enumerate(pairs)},
            {},
            {},
        )

    def _column(self, values: Sequence[float]) -> NDArray[np.float64]:
        return np.array(values, np.float64) if values else np.zeros(self.num_stages)


def calibrate(timelines: Sequence[Timeline], name: str = "measured") -> Calibration:
    """Costs from measured timelines of one job: saved runs, imported traces.

    A message's time is known only as a whole, so it becomes a latency: the shortest tenth of the
    transfers, since the others waited for a peer or shared a link.

    Raises:
        ValueError: a stage has no forward or no backward.
    """
    if not timelines:
        raise ValueError("no timeline to calibrate on; give a saved run")
    num_stages = max(timeline.num_stages for timeline in timelines)
    samples: dict[tuple[int, int], list[float]] = {}
    messages: list[float] = []
    for timeline in timelines:
        compute = timeline.where(~_in_pairs(timeline) & (timeline.kind <= Kind.OPTIMIZER))
        seconds = compute.end - compute.start
        for kind, stage, length in zip(
            compute.kind.tolist(), compute.stage.tolist(), seconds.tolist(), strict=True
        ):
            samples.setdefault((stage, kind), []).append(length)
        received = timeline.of(Kind.RECV_F, Kind.RECV_B)
        messages += (received.end - received.start).tolist()
    for stage in range(num_stages):
        if (stage, Kind.F) not in samples:
            raise ValueError(f"stage {stage} has no forward; give traces of all pipeline ranks")
    return Calibration(
        name=name,
        num_stages=num_stages,
        ops=tuple(_op_time(*key, each) for key, each in sorted(samples.items())),
        latency=float(np.percentile(messages, 10)) if messages else 0.0,
        **_memory(timelines[0], num_stages),
    )


def play(
    lowered: Schedule, calibration: Calibration, buffers: NDArray[np.float64] | None = None
) -> Timeline:
    """The calibrated engine's timeline of lowered rows, transfers posted where they stand.

    `buffers` are bytes of each rank that hold through the step, shape (num_ranks,). [bytes]
    """
    costs = calibration.costs
    timeline = engine.run(lowered, costs, calibration.fabric(lowered.num_ranks))
    return _with_kept(memory_samples(timeline, costs), calibration, buffers)


def predict(plan: Plan, calibration: Calibration) -> Timeline:
    """One step of a plan on measured costs, its optimizer included if that was measured.

    Raises:
        ValueError: the plan's stages are not those that were measured.

    >>> ops = [OpTime(kind=k, stage=s, seconds=t, low=t, high=t, count=1)
    ...        for s in range(4) for k, t in (("F", 1.0), ("B", 2.0))]
    >>> measured = Calibration(name="paper", num_stages=4, ops=ops)
    >>> predict(Plan(pp=4, num_microbatches=8), measured).makespan
    33.0
    """
    if plan.num_stages != calibration.num_stages:
        raise ValueError(
            f"the plan has pp x vpp = {plan.num_stages} stages, but {calibration.name} has "
            f"{calibration.num_stages}; measure the stages that you want to predict"
        )
    costs = calibration.costs
    transfer = calibration.latency + calibration.boundary_bytes / calibration.bandwidth
    schedule = build(plan, costs, transfer)
    lowered = schedule if is_lowered(schedule) else lower(schedule)
    if costs.seconds[Kind.OPTIMIZER].any():
        lowered = step_optimizer(lowered)
    return play(lowered, calibration)


def dump_calibration(calibration: Calibration) -> str:
    """As JSON that `load_calibration` reads back to an equal value."""
    return json.dumps({"format": FORMAT, **calibration.model_dump(mode="json")}, indent=1)


def load_calibration(path: Path) -> Calibration:
    """Read a file of `dump_calibration`.

    Raises:
        ValueError: the file cannot be read, or holds something else.
    """
    table = read_json(path)
    if table.pop("format", None) != FORMAT:
        raise ValueError(f"{path} holds no calibration; make one with: bubblescope calibrate")
    return validated(Calibration, table, "calibration")


def _op_time(stage: int, kind: int, samples: list[float]) -> OpTime:
    found = spread(samples)
    return OpTime(
        kind=Kind(kind).name,
        stage=stage,
        seconds=found.median,
        low=found.low,
        high=found.high,
        count=found.size,
    )


def _in_pairs(timeline: Timeline) -> NDArray[np.bool_]:
    """Spans of overlapped pairs, whose times are not their own."""
    first = timeline.pairs()
    mask = np.zeros(timeline.num_spans, bool)
    mask[first] = mask[first + 1] = True
    return mask


def _memory(timeline: Timeline, num_stages: int) -> dict[str, tuple[float, ...]]:
    """Bytes that stand, that each stage's F keeps, that I frees, that a backward takes meanwhile.

    What fits all samples best: a rank's memory is what stands, plus for each stage what forwards
    in flight, halves of backwards and the backward that runs hold. A rank's standing bytes, what
    the process itself takes among them, are shared evenly by its stages.
    """
    static, kept, freed, meanwhile = np.zeros((4, num_stages))
    compute = timeline.compute
    for rank in range(timeline.num_ranks):
        times, nbytes = timeline.memory_of(rank)
        if not len(times):
            return {}
        mine = compute.where(compute.rank == rank)
        stages = np.unique(mine.stage).tolist()

        def passed(at: NDArray[np.float64], times: NDArray[np.float64] = times) -> Column:
            counts: Column = np.searchsorted(np.sort(at), times, "right").astype(np.float64)
            return counts

        columns = [np.ones(len(times))]
        for stage in stages:
            here = mine.where(mine.stage == stage)
            halves = passed(here.of(Kind.I).end)
            columns.append(passed(here.of(Kind.F).start) - passed(here.of(Kind.B).end) - halves)
            columns.append(halves - passed(here.of(Kind.W).end))
            back = here.of(Kind.B, Kind.I)
            columns.append(passed(back.start) - passed(back.end))
        found = np.linalg.lstsq(np.stack(columns, axis=1), nbytes, rcond=None)[0]
        static[stages] = max(0.0, found[0]) / len(stages)
        kept[stages], freed[stages] = found[1::3], found[1::3] - found[2::3]
        meanwhile[stages] = np.maximum(0.0, found[3::3])
    if not (timeline.kind == Kind.I).any():
        freed[:] = 0.0
    return {
        "static_bytes": tuple(static.tolist()),
        "activation_bytes": tuple(kept.tolist()),
        "input_grad_bytes": tuple(freed.tolist()),
        "transient_bytes": tuple(meanwhile.tolist()),
    }


def _with_kept(
    timeline: Timeline, calibration: Calibration, buffers: NDArray[np.float64] | None = None
) -> Timeline:
    """Add what backwards leave behind, and what holds through the step."""
    rank, time, nbytes = timeline.memory_rank, timeline.memory_time, timeline.memory_bytes.copy()
    kept = np.array(calibration.kept_bytes or (0.0,) * calibration.num_stages)
    backward = timeline.of(Kind.B, Kind.I)
    for each in range(timeline.num_ranks):
        mine = backward.where(backward.rank == each)
        order = np.argsort(mine.end, kind="stable")
        total = np.concatenate([[0.0], np.cumsum(kept[mine.stage[order]])])
        here = rank == each
        nbytes[here] += total[np.searchsorted(mine.end[order], time[here], "right")]
        nbytes[here] += 0.0 if buffers is None else buffers[each]
    return timeline.with_memory(rank, time, nbytes)
