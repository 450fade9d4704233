"""Files that a browser sends: saved runs and traces, kept under a token, read as timelines.

A file's name is words to show and gives its kind; it is kept under a number. What cannot be read
is refused at once and not kept.
"""

import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from dashboard.shelf import folder_of, new_folder
from simulator.report import Report
from simulator.timeline import Timeline
from traces import is_measured, read, read_about
from traces.measured.imported import bring_in

__all__ = ["MOST_FILES", "MOST_UPLOAD", "Uploaded", "keep", "uploaded"]

MOST_UPLOAD = 50_000_000  # of the files of one upload together [bytes]
MOST_UNPACKED = 400_000_000  # of the same, unpacked [bytes]
MOST_FILES = 64  # of one upload [1]
MOST_RANKS, MOST_STAGES, MOST_SPANS = 1_024, 4_096, 1_000_000  # of a timeline that is shown [1]
SUFFIXES = (".json.gz", ".json")
NAMES = "names.json"
PIECE = 1 << 20  # [bytes]


@dataclass(frozen=True, eq=False, kw_only=True)
class Uploaded:
    """A timeline that a user sent."""

    name: str  # of the file, as the user calls it
    timeline: Timeline
    report: Report | None  # of a run that we saved
    unit: str  # "s", or "t" where times have none
    is_measured: bool  # recorded elsewhere, or saved from a recording
    notes: tuple[str, ...]  # what could not be told


def keep(files: Sequence[tuple[str, IO[bytes]]]) -> str:
    """Keep the files of one run, check that they can be read, and return their token.

    Args:
        files: what each is called, and its content.

    Raises:
        ValueError: they are too many, too large, or hold no timeline.
    """
    if not 0 < len(files) <= MOST_FILES:
        raise ValueError(
            f"{len(files)} files were sent; send a saved run, or up to {MOST_FILES} traces, one "
            "for each pipeline rank"
        )
    token, folder = new_folder()
    try:
        names, packed, unpacked = {}, 0, 0
        for at, (name, content) in enumerate(files):
            suffix = _suffix(name)
            path = folder / f"{at}{suffix}"
            packed += _copy(content, path, MOST_UPLOAD - packed)
            unpacked += _unpacked(path, name, MOST_UNPACKED - unpacked)
            names[path.name] = Path(name.replace("\\", "/")).name[:120]
        (folder / NAMES).write_text(json.dumps(names))
        uploaded(token)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return token


@lru_cache(maxsize=12)
def _read(token: str) -> Uploaded:
    folder = folder_of(token)
    try:
        names: dict[str, str] = json.loads((folder / NAMES).read_bytes())
    except OSError:
        raise ValueError("this address names a search where an upload should be") from None
    paths = [folder / name for name in names]
    try:
        return _timeline(paths, list(names.values()))
    except ValueError as error:
        text = str(error)
        for path in paths:
            text = text.replace(str(path), names[path.name])
        raise ValueError(text) from None
    except (RecursionError, MemoryError, OverflowError, KeyError, TypeError, IndexError):
        raise ValueError(
            f"{next(iter(names.values()))} is damaged: it has the form of a trace, but its events "
            "do not fit together; record it again"
        ) from None


def uploaded(token: str) -> Uploaded:
    """What a token stands for; read once, then kept in memory for a while.

    Raises:
        ValueError: it is not on the shelf any more, or cannot be read.
    """
    folder_of(token)
    return _read(token)


def _timeline(paths: list[Path], names: list[str]) -> Uploaded:
    name = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    about: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if len(paths) == 1 and not is_measured(paths[0]):
        timeline, about, measured = read(paths[0]), read_about(paths[0]), False
    else:
        made = bring_in(paths)
        timeline, notes, measured = made.timeline, made.notes, True
    _check(timeline, name)
    report = Report.from_dict(about["report"]) if "report" in about else None
    return Uploaded(
        name=name,
        timeline=timeline,
        report=report,
        unit="t" if about.get("unit") == "t" else "s",
        is_measured=measured or (report is not None and report.executor == "trace"),
        notes=notes,
    )


def _check(timeline: Timeline, name: str) -> None:
    for what, found, most in (
        ("pipeline ranks", timeline.num_ranks, MOST_RANKS),
        ("stages", timeline.num_stages, MOST_STAGES),
        ("spans", timeline.num_spans, MOST_SPANS),
    ):
        if found > most:
            raise ValueError(
                f"{name} has {found:,} {what}; at most {most:,} are shown: cut it to fewer, or use "
                "`bubblescope trace`"
            )
    if not 0 < timeline.makespan < 1e9:
        raise ValueError(f"{name} holds no span that lasts, so there is nothing to show")


def _suffix(name: str) -> str:
    found = next((s for s in SUFFIXES if name.lower().endswith(s)), None)
    if found is None:
        raise ValueError(
            f"{name[:80]!r} cannot be read; send a saved run (.json), or traces of PyTorch's "
            "profiler or other trace-event JSON (.json, .json.gz)"
        )
    return found


def _copy(content: IO[bytes], path: Path, room: int) -> int:
    """Write a file, up to a size; its bytes."""
    size = 0
    with path.open("xb") as file:
        while piece := content.read(PIECE):
            size += len(piece)
            if size > room:
                raise ValueError(
                    f"the files are larger than {MOST_UPLOAD / 1e6:.0f} MB together; record fewer "
                    "steps or without stacks, or use `bubblescope trace`"
                )
            file.write(piece)
    return size


def _unpacked(path: Path, name: str, room: int) -> int:
    """The bytes of a file once it is unpacked, up to a size."""
    if path.suffix != ".gz":
        return path.stat().st_size
    size = 0
    try:
        with gzip.open(path) as file:
            while piece := file.read(PIECE):
                size += len(piece)
                if size > room:
                    raise ValueError(
                        f"the files unpack to more than {MOST_UNPACKED / 1e6:.0f} MB; record "
                        "fewer steps, or use `bubblescope trace`"
                    )
    except (OSError, EOFError):
        raise ValueError(f"{name[:80]} is no gzip file, or is cut off; send it again") from None
    return size
