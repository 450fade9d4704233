"""The report of a validation as text."""

from collections.abc import Sequence

from traces.labels import byte_unit, time_unit
from validator.analysis import Comparison
from validator.calibration import calibration_of
from validator.events import Measured
from validator.steps import QUIET

__all__ = ["failures", "noisy_verdict", "passes", "report", "what_ran", "worst"]


def report(measured: Measured, runs: Sequence[Comparison], tolerance: float) -> str:
    """Everything that was asked: steps, bubbles, memory, ops, gradients, links, verdict."""
    parts = [what_ran(measured), _steps(runs), _ops(worst(runs)), _calibrated(measured)]
    parts += dict.fromkeys(record["text"] for record in measured.of("note"))
    parts += failures(measured)
    parts += ["\n".join(run.noise for run in runs if run.noise)]
    parts.append(_verdict(runs, tolerance))
    return "\n\n".join(part for part in parts if part)


def failures(measured: Measured) -> list[str]:
    """What ended the run early: the launcher's verdict, or else the ranks' own words."""
    return [record["text"] for record in measured.of("verdict")] or [
        f"rank {record['rank']} failed at {record['op']}: {record['text']}"
        for record in measured.of("error")
    ]


def noisy_verdict(noises: Sequence[str], off: str, *, passed: bool) -> str:
    """The verdict of steps of which some say little; empty if none does."""
    if not any(noises):
        return ""
    if passed:
        return f"ok, though {next(filter(None, noises))}: {off}"
    return f"NOT QUIET: {off}, but the steps were disturbed; run again while nothing else runs"


def worst(runs: Sequence[Comparison]) -> Comparison:
    """The schedule whose step is predicted worst."""
    return max(runs, key=lambda run: abs(run.error))


def passes(runs: Sequence[Comparison], tolerance: float) -> bool:
    """Whether every step is within the tolerance and all gradients agree."""
    return abs(worst(runs).error) <= tolerance and all(run.gradients_agree for run in runs)


def what_ran(measured: Measured) -> str:
    """Hardware, software and sizes, and what kind of run it was."""
    session, about = measured.session, measured.about
    model = session.model
    if session.device == "cpu":
        where = f"CPU processes on {about.get('cpu', 'an unknown CPU')}"
    else:
        where = f"{about.get('gpu', 'an unknown GPU')}, driver {about.get('driver', 'unknown')}"
    how = {
        "direct": "NCCL" if session.device == "cuda" else "gloo, not a GPU result",
        "staged": "ranks share one GPU; transfers are staged through host memory over gloo",
        "looped": "one rank alone; its neighbours are looped back",
    }[session.transfers]
    return (
        f"{model.name}: {model.num_hidden_layers} layers, hidden size {model.hidden_size}, "
        f"{model.seq_len} tokens x {session.micro_batch_size}, {session.num_microbatches} "
        f"microbatches, {session.dtype}{', compiled' if session.compiled else ''}\n"
        f"{session.num_ranks} pipeline ranks, {where} ({how})\n"
        f"torch {about.get('torch', 'unknown')}, {about.get('date', 'no date')}"
    )


def _steps(runs: Sequence[Comparison]) -> str:
    unit, on_gpu = time_unit(max(run.step.median for run in runs)), runs[0].on_gpu
    head = f"{'schedule':<14}{'predicted':>11}{'measured':>11}{'error':>8}   "
    head += f"{'quartiles':<17}{'steps':>7}   {'bubble':<14}{'peak memory':<14}gradients"
    lines = [head]
    for run in runs:
        low, high = run.step.low * unit.per_si, run.step.high * unit.per_si
        gradients = "not checked"
        if run.gradient_error is not None:
            sign = "<=" if run.gradients_agree else "> "
            gradients = f"{run.gradient_error:.0e} {sign} {run.tolerance:.0e}"
        peak = max(map(abs, run.peak_errors.tolist()), default=None)
        lines.append(
            f"{run.name + ('*' if run.calibrated_on else ''):<14}"
            f"{run.predicted.makespan * unit.per_si:>8.4g} {unit.name:<2}"
            f"{run.step.median * unit.per_si:>8.4g} {unit.name:<2}{run.error:>+8.1%}   "
            f"{f'{low:.4g} to {high:.4g}':<17}{f'{run.step.size}/{run.num_steps}':>7}   "
            f"{f'{run.predicted_bubble:.1%}, {run.bubble:.1%}':<14}"
            f"{'not counted' if peak is None else f'{peak:.1%} off':<14}{gradients}"
        )
    lines.append("* calibrated on; the others are predicted. bubble: predicted, measured")
    quiet = all(run.disturbed <= QUIET for run in runs)
    count = "quiet ones that count" if quiet else "quiet ones, or the quietest, that count"
    if on_gpu:
        count = "that count"
    lines.append(f"steps: {count}, of all; peak memory: the rank furthest off")
    lines += [
        f"{run.name}: {run.incomplete} steps are incomplete and left out"
        for run in runs
        if run.incomplete
    ]
    return "\n".join(lines)


def _ops(run: Comparison) -> str:
    """Op times of one schedule, by kind and stage."""
    lines = [f"{run.name}, by op  predicted   measured   error   quartiles of the measured"]
    for op in run.ops:
        unit = time_unit(op.measured.median)
        low, high = op.measured.low * unit.per_si, op.measured.high * unit.per_si
        lines.append(
            f"{op.stage:>6}{op.kind.name:<10}{unit.text(op.predicted):>11}"
            f"{unit.text(op.measured.median):>11}{op.error:>+8.1%}   {low:.3g} to {high:.3g}"
        )
    return "\n".join(lines)


def _calibrated(measured: Measured) -> str:
    """Links, overheads and bytes."""
    found = calibration_of(measured, measured.session.plays[0])
    small = time_unit(max(found.launch_overhead, 1e-6))
    lines = [
        f"launch overhead  {small.text(found.launch_overhead)} an op, "
        f"{small.text(found.post_overhead)} to post a transfer"
    ]
    if any(measured.of("link")):
        lines.append(
            f"link             latency {time_unit(max(found.latency, 1e-6)).text(found.latency)}, "
            f"bandwidth {found.bandwidth / 1e9:.3g} GB/s, "
            f"{byte_unit(found.boundary_bytes).text(found.boundary_bytes)} a message"
        )
    lines += _clocks(measured)
    if found.activation_bytes:
        most = max(found.activation_bytes)
        kept = ", ".join(byte_unit(most).text(n) for n in found.activation_bytes)
        lines.append(f"F keeps          {kept} by stage")
    return "\n".join(lines)


def _clocks(measured: Measured) -> list[str]:
    """How far the ranks' clocks may be apart, where they are not one."""
    steps = [float(record.get("residual", 0.0)) for record in measured.of("step")]
    hosts = [float(record["residual"]) for record in measured.of("offset")]
    said = []
    if steps and max(steps) > 0:
        text = time_unit(max(steps)).text(max(steps))
        said.append(f"a GPU's and its host's within {text}")
    if hosts:
        text = time_unit(max(*hosts, 1e-9)).text(max(hosts))
        said.append(f"hosts' within {text}")
    return [f"clocks           {', '.join(said)}"] if said else []


def _verdict(runs: Sequence[Comparison], tolerance: float) -> str:
    furthest = worst(runs)
    broken = [run.name for run in runs if not run.gradients_agree]
    if broken:
        return f"FAILED: gradients of {', '.join(broken)} differ from the unpipelined model's"
    passed = abs(furthest.error) <= tolerance
    off = (
        f"the furthest step, {furthest.name}, is {furthest.error:+.1%} off; the tolerance "
        f"is {tolerance:.0%}"
    )
    noisy = noisy_verdict([run.noise for run in runs], off, passed=passed)
    return noisy or f"{'ok' if passed else 'FAILED'}: {off}"
