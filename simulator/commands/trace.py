"""`bubblescope trace`: where did the step of a measured run go?"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.commands.saved import CRITICAL, load_run, writable
from simulator.report import IDLE, SPLIT, Report
from simulator.table import NAMES, columns, percent, seconds
from simulator.timeline import Timeline

__all__ = ["add", "run"]

MOST_ROWS = 16  # ranks in a table
LARGE = 50e6  # from here on, reading says how far it is [bytes]
OUTPUT = (
    "also save the step: .json (opens in Perfetto; simulate's verbs read it) .csv .html .svg .png "
    ".pdf .gif .tex, or a folder with / at its end: a file a rank, as PyTorch's profiler writes "
    "them, for Holistic Trace Analysis; may be given several times"
)


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="one a pipeline rank: PyTorch profiler's .json or .json.gz, Chrome or Perfetto JSON, "
        "Nsight Systems' .sqlite; or one saved run",
    )
    parser.add_argument("--mapping", metavar="FILE", help="TOML: what the names of ranges mean")
    parser.add_argument("--ranks", metavar="R,R,...", help="ranks of one pipeline, in its order")
    parser.add_argument(
        "--step", type=int, metavar="N", help="as in ProfilerStep#N; the median one"
    )
    parser.add_argument("--against", metavar="JOB", help="compare with a job's .toml or saved run")
    parser.add_argument("--gaps", type=int, default=3, help="how many to explain, one a rank [1]")
    parser.add_argument("-o", "--output", action="append", default=[], metavar="FILE", help=OUTPUT)
    parser.add_argument("--critical-path", action="store_true", help=CRITICAL)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--no-gantt", dest="gantt", action="store_false", help="no Gantt chart")
    parser.add_argument("--width", type=int, help="of the Gantt chart; the terminal's if left out")


def run(arguments: argparse.Namespace) -> None:
    """Read, explain, save."""
    from traces.measured.findings import explained, messages_of, report_of

    if arguments.gaps < 0:
        raise ValueError(f"--gaps is {arguments.gaps}; it must be at least 0")
    folders = [Path(name) for name in arguments.output if name.endswith("/")]
    outputs = writable([name for name in arguments.output if not name.endswith("/")])
    against = None if arguments.against is None else load_run(Path(arguments.against))
    made = _load(arguments)
    more = f" and {len(arguments.files) - 1} more" if len(arguments.files) > 1 else ""
    report = report_of(made, Path(arguments.files[0]).name + more)
    if arguments.json:
        print(json.dumps(_as_json(made, report), indent=2))
    else:
        lines = [*_head(made), "", *_figures(report), "", *_shares(report)]
        lines += _messages(messages_of(made), made.ranks)
        gaps = explained(made.timeline, most=arguments.gaps)
        lines += ["", "longest gaps, one a rank:", *(f"  {gap}" for gap in gaps)] if gaps else []
        if against is not None:
            lines += ["", *_against(made.timeline, report, against.timeline, against.report)]
        print("\n".join(lines))
        if arguments.gantt:
            _print_gantt(made.timeline, arguments.width)
    for folder in folders:
        _write_folder(made.timeline, folder)
    for path in outputs:
        _write(made, report, path, critical_path=arguments.critical_path)


def _load(arguments: argparse.Namespace) -> Any:  # noqa: ANN401
    """The run: recorded elsewhere, or saved by us."""
    from traces import is_measured, read, read_about
    from traces.measured.imported import bring_in, from_saved
    from traces.measured.mapping import BUILT_IN, read_mapping

    paths = [Path(name) for name in arguments.files]
    if len(paths) == 1 and not is_measured(paths[0]):
        for name in ("mapping", "ranks", "step"):
            if getattr(arguments, name) is not None:
                raise ValueError(
                    f"--{name} is for traces of other tools; {paths[0]} is a saved run"
                )
        about = read_about(paths[0]) if paths[0].suffix.lower() == ".json" else {}
        return from_saved(read(paths[0]), about)
    return bring_in(
        paths,
        mapping=BUILT_IN if arguments.mapping is None else read_mapping(Path(arguments.mapping)),
        step=arguments.step,
        ranks=None if arguments.ranks is None else _ranks(arguments.ranks),
        progress=_progress(paths),
    )


def _ranks(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise ValueError(f"--ranks is {text!r}; give whole numbers with commas between, as in 0,8")
    return [int(part) for part in parts]


def _progress(paths: Sequence[Path]) -> Any:  # noqa: ANN401
    """Says on stderr which file is read and how much is done, where that takes a while."""
    total, done = sum(path.stat().st_size for path in paths if path.exists()), 0
    if total < LARGE:
        return None

    def tell(path: Path, size: int) -> None:
        nonlocal done
        print(f"{done / total:4.0%} of {total / 1e9:.1f} GB; reading {path}", file=sys.stderr)
        done += size

    return tell


def _head(made: Any) -> list[str]:  # noqa: ANN401
    """Which step of which ranks, and how far times can be trusted."""
    ranks = ", ".join(map(str, made.ranks[:8])) + (", ..." if len(made.ranks) > 8 else "")
    if made.on_device is None:
        return [f"ranks     {ranks}; a saved run"]
    lines = [f"ranks     {ranks}; times of {'kernels' if made.on_device else 'the host'}"]
    if made.step is not None:
        steps = ", ".join(map(str, made.steps[:8])) + (", ..." if len(made.steps) > 8 else "")
        lines.append(f"step      {made.step}, of {steps}")
    if len(made.ranks) > 1:
        lines.append(f"clocks    {_clocks(made.clocks, made.aligned_by)}")
    return lines + [f"note      {note}" for note in made.notes]


def _clocks(clocks: Any, aligned_by: str) -> str:  # noqa: ANN401
    """How far apart they were, and how well they are aligned by what."""
    bounded = np.isfinite(clocks.margin)
    text = UNALIGNED.get(aligned_by, "")
    if not text:
        far, sure = np.abs(clocks.offset).max(), round(clocks.margin[bounded].max(), 9)
        how = " by the order of ops" if aligned_by == "order of ops" else ""
        text = f"up to {seconds(far)} apart, aligned{how}"
        text += f" to within {seconds(sure)}" if bounded.sum() > 1 else ""
        if clocks.drift.any():
            text += f", drifting up to {1e6 * np.abs(clocks.drift).max():.1f} us/s"
        if not bounded.all():
            text += f"; rank {int(np.argmin(bounded))}'s is bound on one side only"
    if clocks.residual >= 1e-9:
        text += f"; a message still arrives {seconds(clocks.residual)} before it was sent"
    return text


UNALIGNED = {
    "one clock": "one, of one machine",
    "record": "as recorded: no message tells more, and the order of ops fits",
    "nothing": "unknown, so each file begins at its first event",
}


def _figures(report: Report) -> list[str]:
    figures = [
        ("step time", seconds(report.step_time)),
        ("bubble", f"{percent(report.bubble_fraction)} of the step"),
        ("", f"{percent(report.bubble_to_ideal)} of the ideal time"),
        ("", f"{percent(report.span_bubble)} of the largest single-rank span"),
    ]
    if report.peak_memory is not None:
        figures.append(("peak memory", f"{report.peak_memory.max() / 1e9:.1f} GB"))
    return [f"{name:<10}{text}" for name, text in figures]


def _shares(report: Report) -> list[str]:
    """Where each rank's step goes; causes that have no share anywhere are left out."""
    parts = {name: getattr(report.split, name) / report.makespan for name in SPLIT}
    shown = [name for name in SPLIT if (parts[name] > 5e-4).any()]
    rows = [["share of the step [%]", *(NAMES[name] for name in shown)]]
    for rank in _some(report.num_ranks):
        rows.append([f"rank {rank}", *(f"{100 * parts[name][rank]:.1f}" for name in shown)])
    rows.append(["mean", *(f"{100 * parts[name].mean():.1f}" for name in shown)])
    idle = [NAMES[name] for name in shown if name in IDLE]
    return [*columns(rows), *([f"idle: {', '.join(idle)}"] if idle else [])]


def _some(number: int) -> list[int]:
    """All ranks, or as many as a table has room for."""
    if number <= MOST_ROWS:
        return list(range(number))
    return sorted(set(np.linspace(0, number - 1, MOST_ROWS).round().astype(int).tolist()))


def _messages(messages: Any, ranks: Sequence[int]) -> list[str]:  # noqa: ANN401
    """Waiting for the peer told apart from moving bytes, a line a rank."""
    if not messages.received.any():
        return []
    rows = [["messages", "received", "fastest", "moving", "waits for sender", "for receiver"]]
    for rank in _some(len(ranks)):
        fastest = messages.fastest[rank]
        rows.append(
            [
                f"rank {rank}",
                f"{messages.received[rank]}",
                "-" if np.isnan(fastest) else seconds(float(fastest)),
                seconds(float(messages.moving[rank])),
                seconds(float(messages.receive_wait[rank])),
                seconds(float(messages.send_wait[rank])),
            ]
        )
    notes = "sums over the step; an end waits from when it is ready until the other is"
    return ["", *columns(rows), notes]


def _against(measured: Timeline, report: Report, simulated: Timeline, theirs: Report) -> list[str]:
    """The measured step beside the simulated one."""
    from traces.measured.difference import differs, kind_times

    steps = (report.step_time, theirs.step_time)
    rows = [["", "measured", theirs.name, "ratio"]]
    rows.append(["step time", *(seconds(time) for time in steps), f"{steps[0] / steps[1]:.3f}"])
    both = (report.bubble_fraction, theirs.bubble_fraction)
    rows.append(["bubble", *(percent(value) for value in both), ""])
    for name in SPLIT:
        shares = [float(getattr(r.split, name).mean()) / r.makespan for r in (report, theirs)]
        if max(shares) > 5e-4:
            rows.append([f"  {NAMES[name]}", *(percent(share) for share in shares), ""])
    for one in kind_times(measured, simulated):
        times = (one.measured, one.simulated)
        cells = ["-" if np.isnan(time) else seconds(time) for time in times]
        ratio = "" if "-" in cells or one.simulated == 0 else f"{times[0] / times[1]:.3f}"
        rows.append([f"one {one.kind.name}", *cells, ratio])
    where = differs(measured, simulated)
    last = f"the order of ops differs: {where}" if where else "the order of ops is the same"
    return [*columns(rows), last]


def _print_gantt(timeline: Timeline, width: int | None) -> None:
    from rich.console import Console

    from traces.text import text_gantt

    console = Console(width=width, highlight=False, soft_wrap=True)
    print()
    console.print(text_gantt(timeline, width=console.width))


def _as_json(made: Any, report: Report) -> dict[str, Any]:  # noqa: ANN401
    """The report, the clocks and the messages, as JSON types."""
    from traces.measured.findings import messages_of

    messages, clocks = messages_of(made), made.clocks
    names = ("sent", "received", "moving", "receive_wait", "send_wait")
    return {
        **report.to_dict(),
        "ranks": list(made.ranks),
        "step": made.step,
        "steps": list(made.steps),
        "clock_aligned_by": made.aligned_by,
        "clock_offset": clocks.offset.tolist(),
        "clock_drift": clocks.drift.tolist(),
        "clock_residual": clocks.residual,
        "clock_margin": [m if np.isfinite(m) else None for m in clocks.margin.tolist()],
        "messages": {name: getattr(messages, name).tolist() for name in names},
        "notes": list(made.notes),
    }


def _write(made: Any, report: Report, path: Path, *, critical_path: bool) -> None:  # noqa: ANN401
    """Save the step by the file's suffix."""
    from traces import write
    from traces.replacing import replace_bytes

    share = float(report.split.compute.mean()) / report.makespan
    words = {
        "title": f"{report.name}: ranks compute {100 * share:.0f}% of the step",
        "subtitle": f"{report.num_ranks} ranks, {report.num_microbatches} microbatches, "
        f"bubble {percent(report.bubble_fraction)} of the step",
    }
    suffix = path.suffix.lower()
    if suffix == ".txt":
        lines = [*_head(made), "", *_figures(report), "", *_shares(report)]
        replace_bytes(path, ("\n".join(lines) + "\n").encode())
    elif suffix == ".html":
        from dashboard.figures.gantt import write_html

        write_html(made.timeline, path, **words, unit="s", critical_path=critical_path)
    else:
        about = {"report": report.to_dict(), "job": "", "posted": made.posted.tolist()}
        write(made.timeline, path, **words, critical_path=critical_path, about=about)
    print(f"wrote {path}", file=sys.stderr)


def _write_folder(timeline: Timeline, folder: Path) -> None:
    from traces.measured.holistic import write_ranks

    paths = write_ranks(timeline, folder)
    print(f"wrote {folder}: {len(paths)} files, one a rank", file=sys.stderr)
