"""The report of a validation as text."""

from collections.abc import Sequence

from traces.labels import byte_unit, time_unit
from validator.analysis import Comparison
from validator.calibration import calibration_of
from validator.events import Measured

__all__ = ["passes", "report", "what_ran", "worst"]


def report(measured: Measured, runs: Sequence[Comparison], tolerance: float) -> str:
    """Everything that was asked: steps, bubbles, memory, ops, gradients, links, verdict."""
    parts = [what_ran(measured), _steps(runs), _ops(worst(runs)), _calibrated(measured)]
    parts += [record["text"] for record in measured.of("note")]
    parts += [
        f"rank {record['rank']} failed at {record['op']}: {record['text']}"
        for record in measured.of("error")
    ]
    parts.append(_verdict(runs, tolerance))
    return "\n\n".join(part for part in parts if part)


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
    unit = time_unit(max(run.step.median for run in runs))
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
    lines.append("steps: quiet ones that count, of all; peak memory: the rank furthest off")
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
    if found.activation_bytes:
        most = max(found.activation_bytes)
        kept = ", ".join(byte_unit(most).text(n) for n in found.activation_bytes)
        lines.append(f"F keeps          {kept} by stage")
    return "\n".join(lines)


def _verdict(runs: Sequence[Comparison], tolerance: float) -> str:
    furthest = worst(runs)
    broken = [run.name for run in runs if not run.gradients_agree]
    if broken:
        return f"FAILED: gradients of {', '.join(broken)} differ from the unpipelined model's"
    word = "ok" if abs(furthest.error) <= tolerance else "FAILED"
    return (
        f"{word}: the furthest step, {furthest.name}, is {furthest.error:+.1%} off; the tolerance "
        f"is {tolerance:.0%}"
    )
