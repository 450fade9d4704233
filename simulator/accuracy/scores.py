"""What a table's errors amount to, beside those of models that know nothing."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.accuracy.null import null_errors, scaled_errors
from simulator.accuracy.ordering import Ordering, ordering
from simulator.accuracy.predictions import Prediction, Scored

__all__ = ["MemoryScore", "Score", "score"]


@dataclass(frozen=True, kw_only=True)
class MemoryScore:
    """Predicted against measured peaks of one GPU, and the verdicts."""

    rows: int  # with a printed peak [1]
    error: float | None  # mean absolute [1]
    bias: float | None  # mean [1]
    verdicts: int  # rows that ran [1]
    right: int  # of which we say that they fit [1]


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well one table is predicted. Errors are predicted over measured step time, less one."""

    table: str
    title: str
    held_out: bool  # whether no constant was ever fitted on it
    rows: int  # [1]
    skipped: dict[str, int]  # rows left out, by reason [1]
    error: float  # mean absolute [1]
    bias: float  # mean [1]
    median: float  # median absolute [1]
    p90: float  # 90th percentile of the absolute [1]
    worst_row: str
    worst: float  # its error [1]
    null: float | None  # mean absolute, one constant TFLOP/s, leave-one-out [1]
    scaled: float | None  # mean absolute after one free scalar, leave-one-out [1]
    target: float | None  # [1]
    ordering: Ordering | None
    memory: MemoryScore
    contradicted: int  # rows that their own siblings contradict [1]
    error_of_others: float | None  # mean absolute without them [1]


def score(scored: Scored) -> Score | None:
    """The score of a table; None if no row of it can be scored."""
    found = scored.predictions
    if not found:
        return None
    errors = np.array([one.error for one in found])
    worst = int(np.abs(errors).argmax())
    sound = [abs(one.error) for one in found if not one.contradicted]
    return Score(
        table=scored.table.name,
        title=scored.table.title,
        held_out=scored.table.held_out,
        rows=len(found),
        skipped=dict(Counter(one.reason for one in scored.skipped).most_common()),
        error=float(np.abs(errors).mean()),
        bias=float(errors.mean()),
        median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.9)),
        worst_row=found[worst].row,
        worst=float(errors[worst]),
        null=_mean(null_errors(found)),
        scaled=_mean(scaled_errors(found)),
        target=scored.table.target,
        ordering=ordering(_groups(found)) if scored.table.ordering else None,
        memory=_memory(found),
        contradicted=len(found) - len(sound),
        error_of_others=float(np.mean(sound)) if len(sound) < len(found) and sound else None,
    )


def _mean(errors: np.ndarray | None) -> float | None:
    return None if errors is None else float(np.abs(errors).mean())


def _groups(predictions: Sequence[Prediction]) -> list[list[tuple[float, float]]]:
    """Measured and predicted times of plans that compete: one model, batch and number of GPUs."""
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
    for one in predictions:
        plan, model = one.job.plan, one.job.model
        sizes = (model.num_hidden_layers, model.hidden_size, model.num_attention_heads)
        key = (*sizes, plan.num_gpus, plan.global_batch_size)
        groups[key].append((one.measured, one.predicted))
    return [group for group in groups.values() if len(group) > 1]


def _memory(predictions: Sequence[Prediction]) -> MemoryScore:
    errors = np.array(
        [
            one.predicted_memory / one.measured_memory - 1
            for one in predictions
            if one.measured_memory is not None and one.predicted_memory is not None
        ]
    )
    return MemoryScore(
        rows=len(errors),
        error=float(np.abs(errors).mean()) if len(errors) else None,
        bias=float(errors.mean()) if len(errors) else None,
        verdicts=sum(one.fits is not None for one in predictions),
        right=sum(one.fits is True for one in predictions),
    )
