"""Every row that can be scored, predicted; every row that cannot, with the reason."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from simulator.accuracy.jobs import job_of_row, measured_memory, measured_seconds
from simulator.accuracy.layer_times import layer_seconds
from simulator.accuracy.rows import Row, Table
from simulator.costs.flops import hardware_flops
from simulator.job import Job
from simulator.report import spans_of_ranks
from simulator.schedule import Kind
from simulator.simulate import simulate
from simulator.timeline import Timeline

__all__ = ["Prediction", "Scored", "Skipped", "predict"]

MANY = 4  # microbatches beside which what is done once a step is small [1]
SICK = 2.0  # a row that takes this many times what a sibling takes contradicts it [1]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One measured time beside ours."""

    table: str
    row: str
    job: Job
    measured: float  # [s]
    predicted: float  # [s]
    flops: float  # that one GPU executes, recomputation included [FLOP]
    measured_memory: float | None = None  # of one GPU [bytes]
    predicted_memory: float | None = None  # of the fullest rank [bytes]
    fits: bool | None = None  # whether we say that it fits; it did, for it ran
    contradicted: bool = False  # a sibling of its table takes half its time

    @property
    def error(self) -> float:
        """Predicted over measured, less one. [1]"""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A row that cannot be scored."""

    table: str
    row: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A table with all of its rows, scored or not."""

    table: Table
    predictions: tuple[Prediction, ...]
    skipped: tuple[Skipped, ...]


def predict(table: Table) -> Scored:
    """Predict every row of a table that says enough."""
    predictions: list[Prediction] = []
    skipped: list[Skipped] = []
    seen: dict[tuple[str, float], str] = {}
    for row in table.rows:
        try:
            job = job_of_row(table, row)
            if table.layers:
                predictions += _layers(table, row, job)
                continue
            seconds = measured_seconds(row)
        except ValueError as error:
            skipped.append(Skipped(table=table.name, row=row.id, reason=str(error)))
            continue
        plain = job.model_copy(update={"name": ""})
        first = seen.setdefault((plain.model_dump_json(), seconds), row.id)
        if first != row.id:
            skipped.append(
                Skipped(table=table.name, row=row.id, reason="the same measurement printed again")
            )
            continue
        predictions.append(_step(table, row, job, seconds))
    return Scored(
        table=table,
        predictions=tuple(predictions) if table.layers else _judged(predictions),
        skipped=tuple(skipped),
    )


def _step(table: Table, row: Row, job: Job, seconds: float) -> Prediction:
    """A step's time and memory."""
    run = simulate(job)
    report, peak = run.report, run.report.peak_memory
    seconds_of_step = report.step_time
    if row.text("optimizer") == "post-validation":
        seconds_of_step = _validated_step(run.timeline)
    return Prediction(
        table=table.name,
        row=row.id,
        job=job,
        measured=seconds,
        predicted=seconds_of_step,
        flops=hardware_flops(job) / job.plan.num_gpus,
        measured_memory=measured_memory(row),
        predicted_memory=None if peak is None else float(peak.max()),
        fits=report.fits,
    )


def _validated_step(timeline: Timeline) -> float:
    """A step whose ranks update at once, and start the next one without waiting for others. [s]

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 4: post-validation.
    """
    update = timeline.kind == Kind.OPTIMIZER
    longest = np.zeros(timeline.num_ranks)
    np.add.at(longest, timeline.rank[update], (timeline.end - timeline.start)[update])
    return float((spans_of_ranks(timeline)[0] + longest).max())


def _layers(table: Table, row: Row, job: Job) -> list[Prediction]:
    """A single layer's forward and backward."""
    found = []
    for name, seconds, flops in layer_seconds(job):
        measured = row.number(f"{name}_ms")
        assert measured is not None
        found.append(
            Prediction(
                table=table.name,
                row=f"{row.id} {name}",
                job=job,
                measured=measured / 1e3,
                predicted=seconds,
                flops=flops,
            )
        )
    return found


def _judged(predictions: list[Prediction]) -> tuple[Prediction, ...]:
    """The predictions, marked where a table's own rows contradict each other.

    Rows of one model, GPU, tp, pp and microbatch differ in dp and in the number of microbatches
    alone, so their time per microbatch in the pipeline should hardly differ, but for what is done
    once a step. A row of four microbatches or more that takes twice as long per microbatch
    as a sibling, or one of fewer that does so beside a sibling with no more, was measured on a
    machine in trouble. Predictions play no part in this.
    """
    groups: dict[tuple[object, ...], list[tuple[int, float]]] = defaultdict(list)
    paces: dict[str, tuple[tuple[object, ...], int, float]] = {}
    for one in predictions:
        plan = one.job.plan
        sizes = (plan.tp, plan.pp, plan.vpp, plan.cp, plan.micro_batch_size)
        key: tuple[object, ...] = (
            one.job.model,
            one.job.cluster.gpu.name,
            plan.dtype,
            plan.recompute,
            *sizes,
        )
        pace = one.measured / (plan.num_microbatches + (plan.pp - 1) / plan.vpp)
        groups[key].append((plan.num_microbatches, pace))
        paces[one.row] = (key, plan.num_microbatches, pace)
    marked = []
    for one in predictions:
        key, count, pace = paces[one.row]
        least = min(other for m, other in groups[key] if m <= count or count >= MANY)
        marked.append(one if pace < SICK * least else replace(one, contradicted=True))
    return tuple(marked)
