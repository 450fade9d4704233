"""Reads Nsight Systems' SQLite export: NVTX ranges and the kernels launched within them.

One file may hold several processes; each is a rank. Tables are made only if they have rows.

Source: NVIDIA, "Nsight Systems Exporter", SQLite schema reference: times in ns; an event's process
is `globalTid / 0x1000000 % 0x1000000`; a name is inline or an id of StringIds; eventType 59 is a
pushed range, 60 one with a start and an end.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from traces.measured.recording import Collector, Recording

__all__ = ["SUFFIXES", "read_nsys"]

SUFFIXES = (".sqlite", ".sqlite3", ".db", ".nsys")
PROCESS = 0x1000000
RANGES = (59, 60)  # NvtxPushPopRange, NvtxStartEndRange


def read_nsys(path: Path) -> list[Recording]:
    """The processes of a file that have ranges or kernels, in order of device, then process id.

    Raises:
        ValueError: it is no SQLite file, or no export of Nsight Systems.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return _read(database, str(path))
    except sqlite3.Error as error:
        raise ValueError(f"it is no SQLite export of Nsight Systems ({error})") from None


def _read(database: sqlite3.Connection, source: str) -> list[Recording]:
    tables = _tables(database)
    if "NVTX_EVENTS" not in tables:
        raise ValueError(
            "it has no table NVTX_EVENTS; record with nsys profile --trace=cuda,nvtx and export "
            "with nsys export --type sqlite"
        )
    origin = _origin(database, tables)
    made: dict[int, Collector] = {}
    device: dict[int, int] = {}

    def of(process: int) -> Collector:
        return made.setdefault(process, Collector(source, 1e-9, origin=origin, host=source))

    for process, name, start, end in database.execute(_ranges(tables)):
        one = of(process)
        one.ranges.append((one.name(name), start, start, end))
    for process, number, name, asked, start, end in database.execute(_kernels(tables)):
        one = of(process)
        one.kernels.append((one.name(name), asked, start, end))
        device.setdefault(process, number)
    if not made:
        raise ValueError("it holds no NVTX ranges: 0 events that last")
    order = sorted(made, key=lambda process: (device.get(process, -1), process))
    return [made[process].recording() for process in order]


def _tables(database: sqlite3.Connection) -> dict[str, set[str]]:
    """The columns of each table."""
    names = [
        name
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if name.startswith(("NVTX_", "CUPTI_ACTIVITY_KIND_", "StringIds", "TARGET_INFO_"))
    ]
    return {
        name: {row[0] for row in database.execute("SELECT name FROM pragma_table_info(?)", (name,))}
        for name in names
    }


def _origin(database: sqlite3.Connection, tables: dict[str, set[str]]) -> int | None:
    """Unix time of the file's time zero, None where it does not say. [ns]"""
    if "utcEpochNs" not in tables.get("TARGET_INFO_SESSION_START_TIME", set()):
        return None
    row = database.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return int(row[0]) if row and row[0] else None


def _ranges(tables: dict[str, set[str]]) -> str:
    """Process, name, start, end of every closed NVTX range."""
    has = tables["NVTX_EVENTS"]
    texts = ["n.text"] if "text" in has else []
    join = ""
    if "textId" in has and "StringIds" in tables:
        texts.append("s.value")
        join = " LEFT JOIN StringIds AS s ON n.textId = s.id"
    text = f"COALESCE({', '.join(texts)}, '')" if texts else "''"
    return (
        f"SELECT n.globalTid / {PROCESS} % {PROCESS}, {text}, n.start, n.end "  # noqa: S608
        f"FROM NVTX_EVENTS AS n{join} "
        f"WHERE n.eventType IN {RANGES} AND n.end IS NOT NULL AND n.end >= n.start"
    )


def _kernels(tables: dict[str, set[str]]) -> str:
    """Process, device, name, launch, start, end of every kernel; nothing where there are none."""
    has = tables.get("CUPTI_ACTIVITY_KIND_KERNEL", set())
    launches = tables.get("CUPTI_ACTIVITY_KIND_RUNTIME", set())
    if not has or not launches or "StringIds" not in tables:
        return "SELECT 0, 0, '', 0, 0, 0 WHERE 0"
    name = "shortName" if "shortName" in has else "demangledName"
    same = "r.correlationId = k.correlationId"
    if "globalPid" in has:
        same += f" AND r.globalTid / {PROCESS} % {PROCESS} = k.globalPid / {PROCESS} % {PROCESS}"
    return (
        f"SELECT r.globalTid / {PROCESS} % {PROCESS}, k.deviceId, COALESCE(s.value, ''), "  # noqa: S608
        "r.start, k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL AS k "
        f"JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r ON {same} "
        f"LEFT JOIN StringIds AS s ON s.id = k.{name}"
    )
