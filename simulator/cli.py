"""The command: parses words, calls the library, prints. Heavy imports happen inside the verbs."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from simulator.report import Report
    from simulator.simulate import Run
    from simulator.timeline import Timeline

__all__ = ["main"]

PACKAGES = ("simulator", "traces", "dashboard", "validator")
PLAIN = {"job", "uniform", "latency", "rows", "tokens", "json", "output", "gantt", "width", "verb"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0, or 2 after an error that the user can mend."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _check_names()
        arguments = _parser(words).parse_args(words)
        verb: Callable[[argparse.Namespace], None] = arguments.verb
        verb(arguments)
    except (ValueError, ModuleNotFoundError) as error:
        print(f"bubblescope: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        sys.stderr.close()
    return 0


def _one_line(error: Exception) -> str:
    """The message; for a missing extra, the line that installs it."""
    if isinstance(error, ModuleNotFoundError):
        extra = {"plotly": "dashboard", "torch": "validator"}.get(error.name or "")
        if extra is None:
            raise error
        return f"this needs {error.name}; install it with: pip install 'bubblescope[{extra}]'"
    return str(error)


def _check_names() -> None:
    """Our packages have plain names; make sure that no other distribution's stand in for them."""
    from importlib.util import find_spec

    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = find_spec(name)
        origin = spec.origin if spec else None
        if origin is None or Path(origin).resolve().parent.parent != home:
            raise ValueError(
                f"the package {name} comes from {origin}, not from bubblescope; another installed "
                "distribution owns that name: install bubblescope in an environment of its own"
            )


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; a verb's own options are added only when that verb is asked for."""
    parser = argparse.ArgumentParser(
        prog="bubblescope",
        description="See, predict and verify how a large language model is cut over GPUs.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs")
    for name, (add, help_text) in VERBS.items():
        child = verbs.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        if name in words:
            add(child)
    return parser


def _version() -> str:
    from importlib.metadata import version

    return f"bubblescope {version('bubblescope')}"


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    from simulator.options import add_job_options

    parser.set_defaults(verb=_simulate)
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="a job's TOML file; options override it"
    )
    parser.add_argument("-o", "--output", action="append", default=[], metavar="FILE", help=_OUTPUT)
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.add_argument(
        "--tokens", type=float, help="also print the days to train on this many tokens"
    )
    parser.add_argument(
        "--no-gantt", dest="gantt", action="store_false", help="print no Gantt chart"
    )
    parser.add_argument(
        "--width", type=int, help="width of the Gantt chart; the terminal's when left out"
    )
    parser.add_argument(
        "--uniform",
        metavar="F,B",
        help="instead of a model: seconds of one microbatch's forward and backward on one rank, or "
        "F,I,W with the backward in its two halves",
    )
    parser.add_argument("--latency", type=float, help="with --uniform: of every message [s]")
    add_job_options(parser)


_OUTPUT = (
    "also save the run, by suffix: .json (a run to read again, opens in Perfetto) .csv .html .svg "
    ".png .pdf .gif .tex, or .txt (the report); may be given several times"
)


def _simulate(arguments: argparse.Namespace) -> None:
    if arguments.width is not None and (arguments.json or not arguments.gantt):
        raise ValueError("--width is of the Gantt chart; leave it out without one")
    outputs = _writable(arguments.output)
    run = _run(arguments)
    if arguments.json:
        import json

        if arguments.tokens is not None:
            raise ValueError("--tokens is for the printed report; leave it out with --json")
        text = json.dumps(run.report.to_dict(), indent=2)
    else:
        from simulator.table import report_table

        text = report_table(run.report, arguments.tokens)
    show_gantt = arguments.gantt and not arguments.json
    gantt = _gantt(run, arguments.width) if show_gantt else None
    for path in outputs:
        _write(_saved(run), path)
    print(text)
    if gantt is not None:
        console, chart = gantt
        print()
        console.print(chart)


def _run(arguments: argparse.Namespace) -> "Run":
    """The simulated run that the options of `simulate` describe."""
    from simulator.options import job_options, uniform_plan, uniform_times

    options = job_options(arguments, PLAIN)
    if arguments.uniform is None:
        if arguments.latency is not None:
            raise ValueError("--latency needs --uniform; a job's latencies are its cluster's")
        from simulator.load import job_from_options
        from simulator.simulate import simulate

        if arguments.job is None and "model" not in options:
            raise ValueError("give a JOB file, --model with --cluster, or --uniform F,B")
        return simulate(job_from_options(options, Path(arguments.job) if arguments.job else None))
    from simulator.simulate import simulate_uniform

    if arguments.job is not None:
        raise ValueError(
            f"--uniform takes the place of a job; leave out {arguments.job} or --uniform"
        )
    forward, backward, weight_grad = uniform_times(arguments.uniform)
    return simulate_uniform(
        uniform_plan(options),
        forward,
        backward,
        weight_grad=weight_grad,
        latency=arguments.latency or 0.0,
    )


@dataclass(frozen=True)
class Saved:
    """What can be written and compared: a timeline with its report."""

    timeline: "Timeline"
    report: "Report"
    job: str  # its TOML, empty with uniform costs

    @property
    def unit(self) -> str:
        """Uniform costs have no unit of time worth printing."""
        return "s" if self.job else "t"

    @property
    def subtitle(self) -> str:
        """The caption of a picture."""
        report = self.report
        parts = [f"{report.num_ranks} ranks, {report.num_microbatches} microbatches"]
        if report.num_gpus is not None:
            parts.insert(0, f"{report.num_gpus:,} GPUs")
        parts.append(f"bubble {100 * report.bubble_fraction:.1f}% of the step")
        if report.peak_memory is not None:
            parts.append(f"peak memory {report.peak_memory.max() / 1e9:.1f} GB")
        return ", ".join(parts)


def _saved(run: "Run") -> Saved:
    from simulator.load import dump_job

    return Saved(run.timeline, run.report, "" if run.job is None else dump_job(run.job))


def _load(path: Path) -> Saved:
    """A saved run, or a job's file, simulated."""
    if path.suffix.lower() == ".json":
        from simulator.report import Report
        from traces import read, read_about

        about = read_about(path)
        if "report" not in about:
            raise ValueError(
                f"{path} holds a timeline without a report; save runs with: "
                "bubblescope simulate JOB -o RUN.json"
            )
        return Saved(read(path), Report.from_dict(about["report"]), str(about.get("job", "")))
    from simulator.load import load_job
    from simulator.simulate import simulate

    return _saved(simulate(load_job(path)))


def _write(run: Saved, path: Path) -> None:
    """Write a run by the file's suffix, whole or not at all, and say so."""
    suffix = path.suffix.lower()
    if suffix == ".txt":
        from simulator.table import report_table
        from traces.replacing import replace_bytes

        replace_bytes(path, (report_table(run.report) + "\n").encode())
    else:
        labels = {"title": run.report.name, "subtitle": run.subtitle, "unit": run.unit}
        if suffix == ".html":
            from dashboard.figures.gantt import write_html

            write_html(run.timeline, path, **labels)
        else:
            from traces import write

            about = {"report": run.report.to_dict(), "job": run.job}
            write(run.timeline, path, **labels, about=about)
    print(f"wrote {path}: {CONTENTS.get(suffix, 'Gantt chart')}", file=sys.stderr)


CONTENTS = {
    ".txt": "the report",
    ".json": "the run; opens in ui.perfetto.dev, and in bubblescope export and compare",
    ".csv": "the spans",
    ".html": "interactive Gantt chart; open it in a browser",
    ".gif": "the schedule unfolding",
    ".tex": "Gantt chart for LaTeX",
}


def _gantt(run: "Run", width: int | None) -> "tuple[Console, Text]":
    """The text Gantt chart, and the terminal to print it on."""
    from rich.console import Console

    from traces.text import text_gantt

    console = Console(width=width, highlight=False, soft_wrap=True)
    unit = "t" if run.job is None else "s"
    return console, text_gantt(run.timeline, width=console.width, unit=unit)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(verb=_compare)
    parser.add_argument(
        "runs", nargs="+", metavar="JOB_OR_RUN", help="a job's .toml or a saved .json"
    )
    parser.add_argument("--json", action="store_true", help="print the whole reports as JSON")


def _compare(arguments: argparse.Namespace) -> None:
    if len(arguments.runs) < 2:
        raise ValueError("compare needs at least two jobs or saved runs")
    reports = [_load(Path(path)).report for path in arguments.runs]
    if arguments.json:
        import json

        print(json.dumps([report.to_dict() for report in reports], indent=2))
        return
    from simulator.table import compare_table

    print(compare_table(reports))


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(verb=_export)
    parser.add_argument("run", metavar="JOB_OR_RUN", help="a job's .toml or a saved .json")
    parser.add_argument("outputs", nargs="+", metavar="OUT", help=_OUTPUT)


def _export(arguments: argparse.Namespace) -> None:
    outputs = _writable(arguments.outputs)
    run = _load(Path(arguments.run))
    for path in outputs:
        _write(run, path)


def _writable(names: Sequence[str]) -> list[Path]:
    """The outputs, once it is clear that each can be written: before any time is spent."""
    from traces import writable_suffixes

    known = sorted({*writable_suffixes(), ".html", ".txt"})
    paths = [Path(name) for name in names]
    for path in paths:
        if path.suffix.lower() not in known:
            raise ValueError(
                f"{path} has the suffix {path.suffix or '(none)'}; use one of {' '.join(known)}"
            )
        if not path.parent.is_dir():
            raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
    return paths


def _add_presets(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(verb=_presets)


def _presets(arguments: argparse.Namespace) -> None:  # noqa: ARG001
    from simulator.load import preset_names
    from simulator.schedules import schedules

    for folder in ("models", "clusters", "gpus"):
        print(f"{folder:<10}{' '.join(preset_names(folder))}")
    print(f"{'schedules':<10}{' '.join(schedules())}")


VERBS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "simulate": (_add_simulate, "Simulate one training step: report and Gantt chart."),
    "compare": (_add_compare, "Put jobs or saved runs side by side, differences first."),
    "export": (_add_export, "Write a job's or a saved run's timeline in another format."),
    "presets": (_add_presets, "List the models, clusters, GPUs and schedules that have a name."),
}
