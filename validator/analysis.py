"""From what the ranks wrote down to the verdict: calibrate once, predict every play, compare."""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.calibrate import play
from simulator.lower import step_optimizer
from simulator.robust import Spread, spread
from simulator.schedule import Kind
from simulator.timeline import Timeline
from validator.calibration import calibration_of, lost_of
from validator.events import Measured
from validator.session import TOLERANCE, Play
from validator.steps import QUIET, incomplete, is_whole, op_times, quiet, steps_of

__all__ = ["Comparison", "OpError", "analyse", "bubble_of", "noise_of", "peak_of"]

Times = dict[tuple[Kind, int], list[float]]  # by kind and stage [s]


class OpError(NamedTuple):
    """An op's time, predicted and measured, of one kind and stage."""

    kind: Kind
    stage: int
    predicted: float  # [s]
    measured: Spread  # [s]

    @property
    def error(self) -> float:
        """Predicted over measured, less one. [1]"""
        return self.predicted / self.measured.median - 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One schedule, predicted and measured."""

    name: str
    calibrated_on: bool  # whether its own steps were calibrated on
    predicted: Timeline
    measured: Timeline  # of the step in the middle
    step: Spread  # measured step times [s]
    num_steps: int  # of which `step.size` were quiet enough to count [1]
    bubble: float  # measured idle share, the middle of the steps [1]
    peak: NDArray[np.float64]  # measured, shape (num_ranks,), or empty [bytes]
    ops: tuple[OpError, ...]
    disturbed: float  # what other work took of the ranks' cores, the middle of those [1]
    incomplete: int  # steps that a rank did not write down whole, left out [1]
    gradient_error: float | None  # worst of all ranks, None if not checked [1]
    tolerance: float  # of the gradients [1]
    on_gpu: bool  # whose stream does not tell what other work took

    @property
    def error(self) -> float:
        """Predicted step over measured, less one. [1]"""
        return self.predicted.makespan / self.step.median - 1

    @property
    def noise(self) -> str:
        """Why its steps say little, empty if they do not."""
        return noise_of(self.name, self.disturbed, self.step, on_gpu=self.on_gpu)

    @property
    def predicted_bubble(self) -> float:
        """Predicted idle share. [1]"""
        return bubble_of(self.predicted)

    @property
    def peak_errors(self) -> NDArray[np.float64]:
        """Predicted peak memory over measured, less one, by rank. [1]"""
        errors: NDArray[np.float64] = (
            self.predicted.peak_memory()[: len(self.peak)] / self.peak - 1
            if len(self.peak)
            else self.peak
        )
        return errors

    @property
    def gradients_agree(self) -> bool:
        """Whether the gradients are those without a pipeline, or were not checked."""
        return self.gradient_error is None or self.gradient_error <= self.tolerance


def analyse(measured: Measured) -> tuple[Comparison, ...]:
    """Every play that ran, predicted from the calibration on the first.

    Raises:
        ValueError: no step of the first play was timed.
    """
    first = measured.session.plays[0]
    if not any(steps_of(measured, "step", first)):
        cut_short = incomplete(measured, first)
        why = f"was written down whole, {cut_short} incomplete" if cut_short else "was timed"
        raise ValueError(f"no step of {first.name} {why}; there is nothing to calibrate on")
    return tuple(
        _comparison(measured, each)
        for each in measured.session.plays
        if any(steps_of(measured, "step", each))
    )


def bubble_of(timeline: Timeline) -> float:
    """Idle share of the step: what the compute streams do not fill; a pair fills once. [1]"""
    compute = timeline.compute
    seconds = compute.end - compute.start
    busy = float(seconds.sum() - seconds[compute.pairs()].sum())
    return 1 - busy / (timeline.makespan * timeline.num_ranks)


def noise_of(name: str, disturbed: float, step: Spread, *, on_gpu: bool) -> str:
    """Why the steps that count say little, empty if they do not.

    Threads tell what other work took of their cores. A GPU's stream does not, so there the middle
    half of the steps must lie close together.
    """
    if disturbed > QUIET:
        return f"{name} not quiet: other work took {disturbed:.0%} of the cores"
    apart = (step.high - step.low) / step.median
    if on_gpu and apart > QUIET:
        return f"{name} not steady: the middle half of its steps spans {apart:.0%} of the median"
    return ""


def _comparison(measured: Measured, target: Play) -> Comparison:
    session, first = measured.session, measured.session.plays[0]
    calibration = calibration_of(measured, target)
    lowered = step_optimizer(target.lowered)
    predicted = play(lowered, calibration, _buffers(measured, target))
    steps = list(steps_of(measured, "step", target))
    kept = quiet(steps)
    lost = lost_of(calibration, target)
    peaks = peak_of(measured, target)
    whole = len(peaks) == session.num_ranks
    timelines = [step.timeline(lost) for step in kept]
    lengths = [timeline.makespan for timeline in timelines]
    middle = timelines[int(np.argsort(lengths)[len(lengths) // 2])]
    costs = calibration.costs
    times: Times = defaultdict(list)
    for step in steps:
        for key, seconds in op_times(step).items():
            times[key] += [length + lost[key] for length in seconds]
    numerics = [float(record["error"]) for record in measured.of("numerics", play=target.name)]
    return Comparison(
        name=target.name,
        calibrated_on=target == first,
        predicted=predicted,
        measured=middle,
        step=spread(lengths),
        num_steps=len(steps),
        disturbed=float(np.median([step.disturbed for step in kept])),
        incomplete=incomplete(measured, target),
        on_gpu=session.device == "cuda",
        bubble=float(np.median([bubble_of(timeline) for timeline in timelines])),
        peak=np.array([peaks[rank] for rank in sorted(peaks)] if whole else [], np.float64),
        ops=tuple(
            OpError(kind, stage, float(costs.seconds[kind, stage]), spread(each))
            for (kind, stage), each in sorted(times.items())
            if each
        ),
        gradient_error=max(numerics) if len(numerics) == session.num_ranks else None,
        tolerance=TOLERANCE[session.dtype],
    )


def _buffers(measured: Measured, target: Play) -> NDArray[np.float64]:
    """Receive buffers of each rank, shape (num_ranks,). [bytes]"""
    m, stages = target.schedule.num_microbatches, target.schedule.num_stages
    return np.array([m * measured.buffer_bytes(held, stages) for held in target.held])


def peak_of(measured: Measured, target: Play) -> dict[int, float]:
    """Most bytes of each rank in the step that counted them. [bytes]"""
    return {
        int(record["rank"]): max(float(row[4]) for row in record["events"])
        for record in measured.of("memory", play=target.name)
        if is_whole(record, target, lone=False)
    }
