"""Runs in files: what a verb writes and reads again."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.load import dump_job, load_job
from simulator.report import Report
from simulator.simulate import Run, simulate
from simulator.table import report_table
from simulator.timeline import Timeline
from traces import is_measured, read, read_about, writable_suffixes, write
from traces.replacing import replace_bytes

__all__ = ["CRITICAL", "OUTPUT", "Saved", "load_run", "saved_of", "writable", "write_run"]

CRITICAL = "draw the critical path into .html .svg .png .pdf"
OUTPUT = (
    "also save the run, by suffix: .json (a run to read again, opens in Perfetto) .csv .html .svg "
    ".png .pdf .gif .tex, or .txt (the report); may be given several times"
)


@dataclass(frozen=True)
class Saved:
    """What can be written and compared: a timeline with its report."""

    timeline: Timeline
    report: Report
    job: str  # its TOML, empty with uniform costs

    @property
    def unit(self) -> str:
        """Uniform costs have no unit of time worth printing."""
        return "s" if self.job or self.report.executor == "trace" else "t"

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


def saved_of(run: Run) -> Saved:
    """What is kept of a run."""
    return Saved(run.timeline, run.report, "" if run.job is None else dump_job(run.job))


def load_run(path: Path) -> Saved:
    """A saved run, or a job's file, simulated."""
    if is_measured(path):
        raise ValueError(
            f"{path} was recorded elsewhere; use: bubblescope trace {path} --against JOB"
        )
    if path.suffix.lower() == ".json":
        about = read_about(path)
        if "report" not in about:
            raise ValueError(
                f"{path} holds a timeline without a report; save runs with: "
                "bubblescope simulate JOB -o RUN.json"
            )
        return Saved(read(path), Report.from_dict(about["report"]), str(about.get("job", "")))
    return saved_of(simulate(load_job(path)))


def write_run(
    run: Saved, path: Path, *, tokens: float | None = None, critical_path: bool = False
) -> None:
    """Write a run by the file's suffix, whole or not at all, and say so."""
    suffix = path.suffix.lower()
    if suffix == ".txt":
        replace_bytes(path, (report_table(run.report, tokens) + "\n").encode())
    else:
        labels = {"title": run.report.name, "subtitle": run.subtitle, "unit": run.unit}
        if suffix == ".html":
            from dashboard.figures.gantt import write_html

            write_html(run.timeline, path, **labels, critical_path=critical_path)
        else:
            about = {"report": run.report.to_dict(), "job": run.job}
            write(run.timeline, path, **labels, critical_path=critical_path, about=about)
    print(f"wrote {path}: {CONTENTS.get(suffix, 'Gantt chart')}", file=sys.stderr)


CONTENTS = {
    ".txt": "the report",
    ".json": "the run; opens in ui.perfetto.dev, and in bubblescope export and compare",
    ".csv": "the spans",
    ".html": "interactive Gantt chart; open it in a browser",
    ".gif": "the schedule unfolding",
    ".tex": "Gantt chart for LaTeX",
}


def writable(names: Sequence[str]) -> list[Path]:
    """The outputs, once it is clear that each can be written: before any time is spent."""
    paths = [Path(name) for name in names]
    if not paths:
        return paths  # without loading what writes pictures, half of a short run's start
    known = sorted({*writable_suffixes(), ".html", ".txt"})
    for at, path in enumerate(paths):
        if path in paths[:at]:
            raise ValueError(f"{path} is given twice as an output; give it once")
        if path.suffix.lower() not in known:
            raise ValueError(
                f"{path} has the suffix {path.suffix or '(none)'}; use one of {' '.join(known)}"
            )
        if not path.parent.is_dir():
            raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
    return paths
