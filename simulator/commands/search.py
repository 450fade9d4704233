"""`bubblescope search`: every plan of a model on a cluster, judged and ranked."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from simulator.commands.ranking import Found, as_json, as_text, nothing_fits, speed
from simulator.commands.spaces import add_space_options, simulate_line, space_from
from simulator.commands.sweeps import counted, csv_bytes, distinct, sweep_of
from simulator.load import dump_job
from simulator.search.front import Front
from simulator.search.local import MARGIN, Here, Processes, Task, Team, grown
from simulator.search.run import Outcome, Progress, search
from simulator.search.space import KNOBS, job_at
from simulator.search.store import Store, opened
from simulator.simulate import simulate
from traces.replacing import replace_bytes

__all__ = ["add", "run"]

FEW = 5_000  # points that are judged before a second process would have started [1]
LINE_EVERY = 5.0  # between two lines of progress where there is no terminal [s]
MOST_PROCESSES = 4  # for each core [1]
SQLITE = b"SQLite format 3\0"  # how such a file begins, sqlite.org/fileformat.html
INTERRUPTED = 130  # exit code after Ctrl-C, as a shell's


def add(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="a job's TOML file; its plan may be left out"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help=_OUTPUT)
    parser.add_argument("--by", choices=("tokens", "headroom", "cost"), default="tokens", help=_BY)
    parser.add_argument("--price-per-gpu-hour", type=float, metavar="X", help="to count cost by")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="plans to print [1]")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; one for each core [1]")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster, tcp://host:8786")
    parser.add_argument("--exhaustive", action="store_true", help=_EXHAUSTIVE)
    parser.add_argument("--csv", metavar="FILE", help=_CSV)
    parser.add_argument("--plot", metavar="FILE", help=_PLOT)
    parser.add_argument("--save-job", metavar="FILE", help="the best plan's job, to simulate")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_space_options(parser)


_OUTPUT = "SQLite file of results; the same command run again goes on where it was stopped"
_BY = "what ranks first: throughput, free memory, or cost per token"
_EXHAUSTIVE = "simulate every plan that fits; without, those proven to be beaten are left out"
_CSV = "every simulated plan with its knobs; implies --exhaustive"
_PLOT = "throughput against each knob, .svg .png .pdf; implies --exhaustive"


def run(arguments: argparse.Namespace) -> None:
    """Search, showing progress; Ctrl-C prints the best so far, a second one nothing."""
    try:
        _run(arguments)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    space = space_from(arguments)
    every = arguments.exhaustive or arguments.csv is not None or arguments.plot is not None
    task = Task(space, None if every else MARGIN)
    about = {"space": space.model_dump_json(), "margin": json.dumps(task.margin)}
    output = None if arguments.output is None else Path(arguments.output)
    with opened(output, about) as store:
        outcome = _searched(task, store, arguments)
        if store.num_simulated == 0 and outcome is not None:
            given = [knob for knob in KNOBS if hasattr(arguments, knob)]
            raise ValueError(nothing_fits(space, store.dropped(), given))
        found = _found(task, store, outcome, arguments)
        if outcome is not None:
            print(speed(outcome), file=sys.stderr)
        print(json.dumps(as_json(found), indent=2) if arguments.json else as_text(found))
        if outcome is not None:
            _write(found, store, arguments)
            if found.again is None:
                print("interrupted; the search is done, the event engine was not", file=sys.stderr)
                raise SystemExit(INTERRUPTED)
    if outcome is None:
        again = "run the same command again to go on" if output else "-o FILE would have kept this"
        print(f"interrupted; {again}", file=sys.stderr)
        raise SystemExit(INTERRUPTED)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse before any work what could only fail after it."""
    from traces.sweep import PICTURES

    for name, least in (("top", 1), ("workers", 1)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} is {value}; it must be at least {least}")
    price = arguments.price_per_gpu_hour
    if price is not None and not 0 < price < 1e9:
        raise ValueError(
            f"--price-per-gpu-hour is {price:g}; it must be positive and less than 1e9"
        )
    most = MOST_PROCESSES * _cores()
    if arguments.workers is not None and arguments.workers > most:
        raise ValueError(
            f"--workers is {arguments.workers:,}, but this machine has "
            f"{counted(_cores(), 'core')}; use at most {most}, or leave it out for one a core"
        )
    if arguments.scheduler is not None and arguments.workers is not None:
        raise ValueError("--workers is of this machine; leave it out with --scheduler")
    if arguments.plot is not None and Path(arguments.plot).suffix.lower() not in PICTURES:
        raise ValueError(f"{arguments.plot} cannot hold a plot; use one of {' '.join(PICTURES)}")
    _check_targets(arguments)


def _check_targets(arguments: argparse.Namespace) -> None:
    """Refuse to write where something stands that would be lost, or where nothing can be written.

    Raises:
        ValueError: says where.
    """
    taken: dict[Path, str] = {}
    for name in ("job", "output", "csv", "plot", "save_job"):
        value = getattr(arguments, name)
        if value is None:
            continue
        flag = "JOB" if name == "job" else "-o" if name == "output" else f"--{name}"
        flag, place = flag.replace("_", "-"), Path(value).resolve()
        if place in taken and name != "job":
            raise ValueError(f"{flag} and {taken[place]} are the same file, {value}; use another")
        taken[place] = flag
        if name == "output":
            taken[place.with_name(f"{place.name}-journal")] = "the journal of -o"
        if name != "job":
            _check_target(Path(value), is_ours=name == "output")


def _check_target(path: Path, *, is_ours: bool) -> None:
    """Refuse a target that cannot be written, or is an SQLite file and not to be one."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"cannot write {path}: there is no such folder")
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is no plain file; name another")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"cannot write {path}: permission denied; name a file elsewhere")
    if not is_ours and path.exists():
        with path.open("rb") as file:
            if file.read(len(SQLITE)) == SQLITE:
                raise ValueError(
                    f"cannot write {path}: it is an SQLite file, as of a search's results, and is "
                    "left as it is; name another"
                )


def _searched(task: Task, store: Store, arguments: argparse.Namespace) -> Outcome | None:
    """The search's outcome; None where Ctrl-C ended it."""
    try:
        with closing(_team(task, arguments)) as team, _shown() as show:
            return search(task, store, team, show)
    except KeyboardInterrupt:
        return None


def _team(task: Task, arguments: argparse.Namespace) -> Team:
    """Who judges."""
    if arguments.scheduler is not None:
        from simulator.search.cluster import Cluster

        return Cluster(task, arguments.scheduler)
    workers = arguments.workers
    if workers is None:
        workers = _cores() if task.space.num_points > FEW else 1
    return Processes(task, workers) if workers > 1 else Here(task)


def _cores() -> int:
    """Cores that this process may use. [1]"""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _found(
    task: Task, store: Store, outcome: Outcome | None, arguments: argparse.Namespace
) -> Found:
    """What is printed: the best plans, the front, and the best in the event engine."""
    front = Front()
    if outcome is None:
        for block in store.blocks():
            front = grown(front, block)
    else:
        front = outcome.front
    # enough that as many are left when equal schedules are taken out
    rivals = store.best(arguments.by, arguments.top * len(task.space.schedule))
    best, doubles = distinct(task.space, rivals, arguments.top)
    winner = int(best.index[0]) if outcome is not None and len(best.index) else None
    again = None
    if winner is not None:
        with suppress(KeyboardInterrupt):
            again = simulate(job_at(task.space, winner), "engine")
    return Found(
        space=task.space,
        margin=task.margin,
        by=arguments.by,
        price=arguments.price_per_gpu_hour,
        num_judged=store.num_judged,
        num_simulated=store.num_simulated,
        dropped=store.dropped(),
        best=best,
        doubles=doubles,
        front=front,
        outcome=outcome,
        again=again,
        line=None if winner is None else simulate_line(arguments, job_at(task.space, winner)),
    )


def _write(found: Found, store: Store, arguments: argparse.Namespace) -> None:
    """The files that were asked for."""
    if arguments.save_job is not None:
        text = dump_job(job_at(found.space, int(found.best.index[0])))
        replace_bytes(Path(arguments.save_job), text.encode())
        print(f"wrote {arguments.save_job}: the best plan", file=sys.stderr)
    if arguments.csv is not None:
        replace_bytes(Path(arguments.csv), csv_bytes(found.space, store))
        print(f"wrote {arguments.csv}: every simulated plan", file=sys.stderr)
    if arguments.plot is not None:
        from traces.sweep import write_sweep

        write_sweep(sweep_of(found.space, store), Path(arguments.plot))
        print(f"wrote {arguments.plot}: throughput against each knob", file=sys.stderr)


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, else a line now and then; on the standard error stream."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    words = TextColumn("{task.fields[words]}")
    console = Console(stderr=True)
    with Bars(TextColumn("{task.percentage:>3.0f}%"), BarColumn(), words, console=console) as bars:
        bar = bars.add_task("", total=None, words="")

        def show(now: Progress) -> None:
            bars.update(bar, total=now.num_points, completed=now.num_judged, words=_words(now))

        yield show


def _lines() -> Callable[[Progress], None]:
    """A line every few seconds."""
    last = time.monotonic()

    def show(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            share = 100 * now.num_judged / now.num_points
            print(f"{share:3.0f}%  {_words(now)}", file=sys.stderr)

    return show


def _words(now: Progress) -> str:
    left = "" if now.seconds_left is None else f", {_clock(now.seconds_left)} left"
    many = f", {now.num_workers or 'waiting for'} workers" if now.num_workers != 1 else ""
    return f"{now.num_judged:,} of {now.num_points:,} points, {now.rate:,.0f}/s{left}{many}"


def _clock(seconds: float) -> str:
    """A time in minutes and seconds, or hours and minutes.

    >>> _clock(83.4), _clock(7500.0)
    ('1:23', '2 h 05')
    """
    if seconds < 3600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d}"
