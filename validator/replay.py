"""One rank of a larger pipeline, played alone: its row with neighbours that are never late.

One GPU is enough: it plays the row of any rank in order, F, I, W and B, with neighbours looped
back. What it takes, and the memory it peaks at, is compared with the simulator's figure for that
row from the calibration on the first schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.calibrate import play
from simulator.lower import step_optimizer
from simulator.robust import Spread, spread
from simulator.schedule import Schedule
from traces.labels import byte_unit, time_unit
from validator.analysis import noise_of, peak_of
from validator.calibration import calibration_of, lost_of
from validator.curve import fit
from validator.events import Measured
from validator.launch import Failed, run_ranks
from validator.session import Play, Session
from validator.steps import quiet, steps_of
from validator.table import failures, noisy_verdict, what_ran

__all__ = ["Replay", "analyse_ranks", "ranks_pass", "ranks_report", "run_each_rank"]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One schedule's row of one rank."""

    schedule: str
    rank: int
    calibrated_on: bool
    predicted: float  # the row without waiting [s]
    measured: Spread  # [s]
    disturbed: float  # what other work took of the core in the steps that count, the middle [1]
    on_gpu: bool
    num_steps: int  # of which `measured.size` were quiet enough to count [1]
    predicted_peak: float  # [bytes]
    peak: float  # measured, 0 if it was not counted [bytes]

    @property
    def error(self) -> float:
        """Predicted over measured, less one. [1]"""
        return self.predicted / self.measured.median - 1

    @property
    def noise(self) -> str:
        """Why its steps say little, empty if they do not."""
        name = f"{self.schedule} on rank {self.rank}"
        return noise_of(name, self.disturbed, self.measured, on_gpu=self.on_gpu)

    @property
    def peak_error(self) -> float | None:
        """The same of the peak memory; None if it was not counted. [1]"""
        return self.predicted_peak / self.peak - 1 if self.peak else None


def run_each_rank(session: Session, rank: int | None) -> Measured:
    """Play one rank, or all in turn, each in a process of its own.

    Raises:
        ValueError: there is no such rank.
        Failed: a rank failed; holds what the ranks before it measured.
    """
    if rank is not None and not 0 <= rank < session.num_ranks:
        raise ValueError(f"--rank is {rank}; the pipeline has ranks 0 to {session.num_ranks - 1}")
    records: list[dict[str, object]] = []
    for each in range(session.num_ranks) if rank is None else (rank,):
        try:
            asked = session.model_copy(update={"sweep": not records})  # one rank's is enough
            records += run_ranks(asked, range(each, each + 1)).records
        except Failed as failed:
            partial = Measured(session, (*records, *failed.measured.records))
            raise Failed(str(failed), partial, failed.exit_code) from None
    return Measured(session, tuple(records))


def analyse_ranks(measured: Measured) -> tuple[Replay, ...]:
    """Every rank that was played, under every schedule.

    Raises:
        ValueError: no step was timed.
    """
    found = [
        replay
        for rank in measured.ranks
        for each in measured.session.plays
        if (replay := _replay(measured.of_rank(rank), each, rank)) is not None
    ]
    if not found:
        raise ValueError("no step was timed; there is nothing to compare")
    return tuple(found)


def ranks_pass(replays: Sequence[Replay], tolerance: float) -> bool:
    """Whether every row's time is within the tolerance."""
    return all(abs(replay.error) <= tolerance for replay in replays)


def ranks_report(measured: Measured, replays: Sequence[Replay], tolerance: float) -> str:
    """The rows' times and peaks as text."""
    unit = time_unit(max(replay.measured.median for replay in replays))
    memory = byte_unit(max(replay.predicted_peak for replay in replays))
    head = f"{'schedule':<14}{'rank':>4}{'predicted':>12}{'measured':>12}{'error':>8}"
    lines = [f"{head}{'steps':>8}{'predicted peak':>17}{'measured':>12}{'error':>8}"]
    for replay in replays:
        off = "" if replay.peak_error is None else f"{replay.peak_error:+.1%}"
        lines.append(
            f"{replay.schedule + ('*' if replay.calibrated_on else ''):<14}{replay.rank:>4}"
            f"{replay.predicted * unit.per_si:>9.4g} {unit.name:<2}"
            f"{replay.measured.median * unit.per_si:>9.4g} {unit.name:<2}{replay.error:>+8.1%}"
            f"{f'{replay.measured.size}/{replay.num_steps}':>8}"
            f"{memory.text(replay.predicted_peak):>17}{memory.text(replay.peak):>12}{off:>8}"
        )
    lines.append("* calibrated on; the others are predicted. A row's time is without any waiting")
    furthest = max(replays, key=lambda replay: abs(replay.error))
    passed = ranks_pass(replays, tolerance)
    off = (
        f"the furthest row, {furthest.schedule} on rank {furthest.rank}, is "
        f"{furthest.error:+.1%} off; the tolerance is {tolerance:.0%}"
    )
    noises = [replay.noise for replay in replays if replay.noise]
    verdict = noisy_verdict(noises, off, passed=passed)
    verdict = verdict or f"{'ok' if passed else 'FAILED'}: {off}"
    said = [record["text"] for record in measured.of("note")] + failures(measured)
    parts = (what_ran(measured), "\n".join(lines), _layers(measured), *said, "\n".join(noises))
    parts = (*parts, verdict)
    return "\n\n".join(part for part in parts if part)


def _layers(measured: Measured) -> str:
    """Layer times over sizes, beside the curves that fit them."""
    lines = []
    for dtype in dict.fromkeys(str(record["dtype"]) for record in measured.of("layer")):
        points = list(measured.of("layer", dtype=dtype))
        sizes = [(int(point["samples"]), int(point["seq_len"])) for point in points]
        columns: list[list[str]] = []
        for way in ("forward", "backward"):
            times = [float(point[way][0]) for point in points]
            curve = fit(sizes, times)
            column = []
            for size, seconds in zip(sizes, times, strict=True):
                error = curve.seconds(*size) / seconds - 1
                column.append(f"{time_unit(seconds).text(seconds):>10}{error:>+8.1%}")
            columns.append(column)
        lines.append(f"one layer, {dtype}     forward   curve   backward   curve")
        lines += [
            f"  {count:>3} x {seq_len:<6} tokens{ahead}{back}"
            for (count, seq_len), ahead, back in zip(sizes, *columns, strict=True)
        ]
    return "\n".join(lines)


def _replay(measured: Measured, target: Play, rank: int) -> Replay | None:
    """One row; None if no step of it was timed."""
    steps = list(steps_of(measured, "step", target))
    if not steps:
        return None
    calibration = calibration_of(measured, target)
    stages = target.schedule.num_stages
    row = step_optimizer(Schedule.of([target.schedule.row(rank)]))
    buffers = np.array([measured.buffer_bytes(target.held[rank], stages) * row.num_microbatches])
    predicted = play(row, calibration, buffers)
    lost = lost_of(calibration, target)
    kept = quiet(steps)
    lengths = [step.timeline(lost).makespan for step in kept]
    peak = peak_of(measured, target)
    return Replay(
        schedule=target.name,
        rank=rank,
        calibrated_on=target == measured.session.plays[0],
        predicted=predicted.makespan,
        measured=spread(lengths),
        disturbed=float(np.median([step.disturbed for step in kept])),
        on_gpu=measured.session.device == "cuda",
        num_steps=len(steps),
        predicted_peak=float(predicted.peak_memory()[0]),
        peak=peak.get(rank, 0.0),
    )
