"""`bubblescope calibrate`: measured costs from a trace."""

import argparse
import sys
from pathlib import Path

from simulator.calibrate import Calibration, calibrate, dump_calibration, predict
from simulator.errors import validated
from simulator.job import Plan
from simulator.schedule import Kind
from simulator.schedules import schedules
from simulator.timeline import Timeline
from traces import is_measured, read
from traces.labels import byte_unit, time_unit
from traces.replacing import replace_bytes

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "traces",
        nargs="+",
        metavar="TRACE",
        help="saved runs, the trace files of a run's ranks, or raw events of validate",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the costs as JSON")
    group = parser.add_argument_group("prediction")
    group.add_argument(
        "--schedules", help="names with commas: print each one's step on these costs, or all"
    )
    group.add_argument("--pp", type=int, help="pipeline ranks; the trace's when left out [1]")
    group.add_argument("--microbatches", type=int, help="the trace's when left out [1]")


def run(arguments: argparse.Namespace) -> None:
    """Fit, print, save, predict."""
    if arguments.output is not None and not Path(arguments.output).parent.is_dir():
        raise ValueError(f"cannot write {arguments.output}: its folder does not exist")
    paths = [Path(name) for name in arguments.traces]
    found, ranks, microbatches = _calibrated(paths)
    print(_table(found))
    if arguments.schedules is not None:
        print()
        print(
            _predictions(
                found,
                arguments.schedules,
                arguments.pp or ranks,
                arguments.microbatches or microbatches,
            )
        )
    if arguments.output is not None:
        replace_bytes(Path(arguments.output), f"{dump_calibration(found)}\n".encode())
        print(f"wrote {arguments.output}: measured costs", file=sys.stderr)


def _calibrated(paths: list[Path]) -> tuple[Calibration, int, int]:
    """The costs, and the ranks and microbatches that they were measured with."""
    from validator.events import is_events, load

    if any(map(is_events, paths)):
        if len(paths) > 1:
            raise ValueError("raw events of validate stand alone; give one file of them")
        from validator.calibration import calibration_of

        measured = load(paths[0])
        session = measured.session
        first = session.plays[0]
        alike = [play for play in session.plays if play.cut == first.cut]
        split = next((play for play in alike if play.splits_backward), first)  # knows I and W too
        found = calibration_of(measured, split)
        return found, session.num_ranks, session.num_microbatches
    name = paths[0].name + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    if any(map(is_measured, paths)):  # then they are the ranks of one run
        from traces.measured.imported import bring_in_steps

        timelines = [step.timeline for step in bring_in_steps(paths)]
        name += f", {len(timelines)} steps" if len(timelines) > 1 else ""
    else:
        timelines = [read(path) for path in paths]
    most = max(timelines, key=lambda timeline: timeline.num_spans)
    return calibrate(timelines, name), most.num_ranks, _microbatches(most)


def _microbatches(timeline: Timeline) -> int:
    return int(timeline.microbatch.max(initial=0)) + 1


def _table(found: Calibration) -> str:
    """Every op's time with its quartiles, the links and the memory."""
    width = max(len(f"{op.stage}{op.kind}") for op in found.ops)
    lines = [found.name, f"{'op':<{width}}  {'median':>9}   {'quartiles':<21}  measurements"]
    for op in found.ops:
        unit = time_unit(op.seconds)
        between = f"{unit.text(op.low)} to {unit.text(op.high)}"
        lines.append(
            f"{f'{op.stage}{op.kind}':<{width}}  {unit.text(op.seconds):>9}   {between:<21}  "
            f"{op.count}"
        )
    if found.latency or found.boundary_bytes:
        rate = f", {found.bandwidth / 1e9:.3g} GB/s" if found.boundary_bytes else ""
        text = time_unit(max(found.latency, 1e-9)).text(found.latency)
        lines.append(f"message of a stage to the next: {text}{rate}")
    if any(found.activation_bytes):
        memory = byte_unit(max(found.activation_bytes))
        kept = ", ".join(memory.text(each) for each in found.activation_bytes)
        lines.append(f"F keeps, by stage: {kept}")
    return "\n".join(lines)


def _predictions(found: Calibration, names: str, pp: int, microbatches: int) -> str:
    """The step of each schedule that has the measured number of stages."""
    if found.num_stages % pp:
        raise ValueError(
            f"--pp is {pp}, but it must divide the {found.num_stages} stages that were measured"
        )
    chunks = found.num_stages // pp
    asked = list(schedules()) if names == "all" else names.split(",")
    lines = [f"{'schedule':<20}{'step':>10}"]
    halved = []
    for name in asked:
        table = {"schedule": name, "pp": pp, "vpp": chunks, "num_microbatches": microbatches}
        try:
            timeline = predict(validated(Plan, table, "plan"), found)
        except ValueError as error:
            if names != "all":
                raise
            lines.append(f"{name:<20}{'':>10}  not with {chunks} stages a rank: {error}")
            continue
        lines.append(f"{name:<20}{time_unit(timeline.makespan).text(timeline.makespan):>10}")
        if _whole_only(found) and timeline.of(Kind.I, Kind.W).num_spans:
            halved.append(name)
    if halved:
        stages = ", ".join(map(str, _whole_only(found)))
        lines.append(
            f"note: I and W of stages {stages} were not measured; in {', '.join(halved)} each "
            "takes half of B"
        )
    return "\n".join(lines)


def _whole_only(found: Calibration) -> list[int]:
    """Stages whose backward was measured, but neither half of it."""
    kinds: dict[int, set[str]] = {}
    for op in found.ops:
        kinds.setdefault(op.stage, set()).add(op.kind)
    return [stage for stage, have in sorted(kinds.items()) if "B" in have and not have & {"I", "W"}]
