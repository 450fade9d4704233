"""Timelines in and out of the formats that people use, chosen by the file's suffix.

A format is one file in this folder that names its `SUFFIXES` and has
`encode(timeline, labels, suffix) -> bytes`, `decode(data) -> Timeline`, or both. Nothing else
needs an edit: `read`, `write` and the list of suffixes pick it up. A format's file stays quick to
import; what is heavy, such as drawing, it imports when it is called.

What other tools recorded of a run, in JSON, `.gz` or SQLite, `measured` turns into a timeline.
"""

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from simulator.timeline import Timeline
from traces.labels import Labels
from traces.replacing import replace_bytes

__all__ = [
    "Labels",
    "is_measured",
    "read",
    "read_about",
    "readable_suffixes",
    "writable_suffixes",
    "write",
]

MEASURED = (".gz", ".sqlite", ".sqlite3", ".db", ".nsys")  # never ours


def write(
    timeline: Timeline,
    path: str | Path,
    *,
    title: str = "",
    subtitle: str = "",
    unit: str = "s",
    critical_path: bool = False,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Save a timeline in the format of the path's suffix; a failure leaves an old file as it was.

    `title` and `subtitle` stand above a picture; `unit` is "s" for an axis in s, ms or µs, "t"
    for an axis without a unit, as uniform costs have it; `critical_path` draws that over
    the rows of `.svg`, `.pdf` and `.png`. `about`, JSON types, travels in `.json`.

    Raises:
        ValueError: the suffix is unknown, the timeline does not suit the format, or the path
            cannot be written.

    """
    path = Path(path)
    suffix = path.suffix.lower()
    encode = _format_of("encode", suffix, path).encode
    replace_bytes(
        path, encode(timeline, Labels(title, subtitle, unit, critical_path, about or {}), suffix)
    )


def read(*paths: str | Path, mapping: str | Path | None = None) -> Timeline:
    """Load the timeline that `write` saved, equal bit for bit, or one that was recorded elsewhere.

    Traces of PyTorch's profiler (`.json`, `.json.gz`), other trace-event JSON and SQLite exports
    of Nsight Systems give their median complete step; a pipeline's are given together, one a
    rank. `traces.measured.imported.bring_in` tells more of them.

    Args:
        paths: one file, or one for each pipeline rank.
        mapping: a TOML file that says what the names of ranges mean (docs/traces.md).

    Raises:
        ValueError: the suffix is unknown, a file cannot be read, or it holds no timeline.

    """
    files = [Path(path) for path in paths]
    if not files:
        raise ValueError("read needs the path of a file")
    if len(files) == 1 and mapping is None and not is_measured(files[0]):
        return _read_ours(files[0])
    from traces.measured.imported import bring_in
    from traces.measured.mapping import BUILT_IN, read_mapping

    names = BUILT_IN if mapping is None else read_mapping(Path(mapping))
    return bring_in(files, mapping=names).timeline


def is_measured(path: Path) -> bool:
    """Whether a file was recorded elsewhere: by its suffix, or as JSON that is not ours.

    Raises:
        ValueError: the file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix != ".json":
        return suffix in MEASURED
    from traces import chrome

    try:
        with path.open("rb") as file:
            return chrome.is_foreign(file)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _read_ours(path: Path) -> Timeline:
    decode = _format_of("decode", path.suffix.lower(), path).decode
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    try:
        timeline: Timeline = decode(data)
    except ValueError as error:
        raise ValueError(f"{path} holds no timeline: {error}") from error
    return timeline


def read_about(path: str | Path) -> dict[str, Any]:
    """What a `.json` says beside its timeline: `title`, `subtitle`, `unit` and `write`'s `about`.

    Raises:
        ValueError: the file cannot be read, or is not one of ours.

    """
    from traces import chrome

    try:
        return chrome.about(Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} holds no saved run: {error}") from error


def writable_suffixes() -> tuple[str, ...]:
    """Suffixes that `write` knows, sorted."""
    return tuple(sorted(s for s, module in _modules().items() if hasattr(module, "encode")))


def readable_suffixes() -> tuple[str, ...]:
    """Suffixes that `read` knows, sorted."""
    return tuple(sorted(s for s, module in _modules().items() if hasattr(module, "decode")))


def _format_of(function: str, suffix: str, path: Path) -> ModuleType:
    known = writable_suffixes() if function == "encode" else readable_suffixes()
    if suffix not in known:
        verb = "written" if function == "encode" else "read"
        known += () if function == "encode" else (".json.gz", ".sqlite")  # recorded elsewhere
        raise ValueError(
            f"{path} has the suffix {suffix or '(none)'}, which cannot be {verb} here;"
            f" use one of {' '.join(known)}"
        )
    return _modules()[suffix]


@cache
def _modules() -> dict[str, ModuleType]:
    files = (info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg)
    modules = [import_module(f"{__name__}.{name}") for name in sorted(files)]
    return {suffix: module for module in modules for suffix in getattr(module, "SUFFIXES", ())}
