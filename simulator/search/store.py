"""Results of a search in one SQLite file, written as they come; the truth about what is judged.

Three tables: `plan` has a row for each simulated point, `judged` the ranges of points that are
done, merged, so that 10^8 points in order are one row, and `dropped` how many points each reason
took out. A chunk's rows, its range and its counts are one transaction: a process that is killed
at any moment leaves each chunk either counted once or not at all. The file is locked while it is
open, by the operating system, which lets go of it when the process dies.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

from simulator.search.changes import changes
from simulator.search.front import _scores
from simulator.search.judge import Judged

__all__ = ["COLUMNS", "Store", "model_version", "opened"]

APPLICATION = 0x42425343  # "BBSC", in the header of every file of ours
SCHEMA = 1
COLUMNS = (
    "step_time",
    "tokens_per_second",
    "headroom",
    "gpu_seconds_per_token",
    "bubble_fraction",
    "mfu",
)
BLOCK = 65_536  # rows that are read at once
TIE = 1e-8  # figures closer than this may be equal to the front [1]
MOST_CHANGES = 4  # differences that a refusal names

TABLES = f"""
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE plan (point INTEGER PRIMARY KEY, {", ".join(f"{name} REAL" for name in COLUMNS)});
CREATE TABLE judged (first INTEGER PRIMARY KEY, stop INTEGER NOT NULL);
CREATE TABLE dropped (reason TEXT PRIMARY KEY, points INTEGER NOT NULL);
"""


class Store:
    """An open file of results. A class because it holds the connection."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._connection = connection
        self.path = path  # None of a temporary one

    def record(self, chunks: Sequence[Judged]) -> list[Judged]:
        """Keep chunks, in one transaction; those that are kept already are left out.

        Returns the chunks that were new.

        Raises:
            ValueError: the file cannot be written.
        """
        fresh: list[Judged] = []
        with _writing(self.path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            for chunk in chunks:
                if chunk.first < chunk.stop and self._add_range(chunk.first, chunk.stop):
                    self._add_plans(chunk)
                    fresh.append(chunk)
        return fresh

    def gaps(self, num_points: int) -> list[tuple[int, int]]:
        """The ranges of points that are still to be judged, in order: [first, stop)."""
        edges = [0]
        for first, stop in self._connection.execute("SELECT first, stop FROM judged ORDER BY 1"):
            edges += [first, stop]
        edges.append(num_points)
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(first, stop) for first, stop in pairs if first < stop]

    @property
    def num_judged(self) -> int:
        """Points that are judged, dropped ones with them. [1]"""
        return self._one("SELECT coalesce(sum(stop - first), 0) FROM judged")

    @property
    def num_simulated(self) -> int:
        """Points that were simulated. [1]"""
        return self._one("SELECT count(*) FROM plan")

    @property
    def num_ranges(self) -> int:
        """Rows of the ledger: disjoint ranges that are judged. [1]"""
        return self._one("SELECT count(*) FROM judged")

    def dropped(self) -> dict[str, int]:
        """How many points each reason took out, the strongest first."""
        rows = self._connection.execute("SELECT reason, points FROM dropped ORDER BY 2 DESC, 1")
        return dict(rows.fetchall())

    def best(self, by: str, most: int) -> Judged:
        """The simulated points that rank first: by "tokens", "headroom" or "cost".

        Figures are compared as the front compares them; equal ones stand in the order of the other
        rankings, then of their numbers.
        """
        key = {"tokens": "step_time", "headroom": "-headroom", "cost": "gpu_seconds_per_token"}[by]
        last = self._connection.execute(
            f"SELECT max(x) FROM (SELECT {key} AS x FROM plan ORDER BY x LIMIT ?)",  # noqa: S608
            (most,),
        ).fetchone()[0]
        edge = 0.0 if last is None else last + TIE * abs(last)
        text = f"SELECT point, {', '.join(COLUMNS)} FROM plan WHERE {key} <= ?"  # noqa: S608
        found = _judged(self._connection.execute(text, (edge,)).fetchall())
        scores = _scores(found.tokens_per_second, found.headroom, found.gpu_seconds_per_token)
        first = {"tokens": 0, "headroom": 1, "cost": 2}[by]
        keys = [first, *(at for at in range(3) if at != first)]
        order = np.lexsort((found.index, *(-scores[at] for at in reversed(keys))))[:most]
        columns = {name: getattr(found, name)[order] for name in ("index", *COLUMNS)}
        return Judged(first=0, stop=0, dropped={}, **columns)

    def blocks(self) -> Iterator[Judged]:
        """All simulated points, in order, some at a time."""
        text = f"SELECT point, {', '.join(COLUMNS)} FROM plan ORDER BY point"  # noqa: S608 - our words
        cursor = self._connection.execute(text)
        while rows := cursor.fetchmany(BLOCK):
            yield _judged(rows)

    def _add_range(self, first: int, stop: int) -> bool:
        """Mark a range, joined with its neighbours; False where it is marked already."""
        ask = self._connection.execute
        over = ask(
            "SELECT first, stop FROM judged WHERE first < ? ORDER BY first DESC LIMIT 1", (stop,)
        ).fetchone()
        if over is not None and over[1] > first:
            if over[0] <= first and stop <= over[1]:
                return False
            raise AssertionError(f"chunk {first} to {stop} is partly in {over[0]} to {over[1]}")
        if over is not None and over[1] == first:
            first = over[0]
        after = ask("SELECT stop FROM judged WHERE first = ?", (stop,)).fetchone()
        if after is not None:
            ask("DELETE FROM judged WHERE first = ?", (stop,))
            stop = after[0]
        ask("INSERT OR REPLACE INTO judged VALUES (?, ?)", (first, stop))
        return True

    def _add_plans(self, chunk: Judged) -> None:
        columns = (chunk.index, *(getattr(chunk, name) for name in COLUMNS))
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(
            f"INSERT INTO plan VALUES ({marks})",  # noqa: S608 - question marks
            zip(*(column.tolist() for column in columns), strict=True),
        )
        self._connection.executemany(
            "INSERT INTO dropped VALUES (?, ?) "
            "ON CONFLICT (reason) DO UPDATE SET points = points + excluded.points",
            ((reason, int(count)) for reason, count in chunk.dropped.items() if count),
        )

    def _one(self, text: str) -> int:
        return int(self._connection.execute(text).fetchone()[0])


@contextmanager
def opened(path: Path | None, about: Mapping[str, str]) -> Iterator[Store]:
    """The store in a file, made if need be, for this search alone; with no path a temporary one.

    `about` says what is searched and by what, such as the space's JSON; a file that holds the
    results of something else is refused and left as it is.

    Raises:
        ValueError: the file is not ours, is of another version, holds another search, is in use or
            cannot be written.
    """
    name = "" if path is None else str(path)
    place = "" if path is None else str(Path(path).absolute())  # ":memory:" is a file's name here
    try:
        connection = sqlite3.connect(place, timeout=0, isolation_level=None)
    except sqlite3.Error as error:
        raise ValueError(f"cannot open {name}: {error}") from error
    try:
        with _writing(path):
            _claim(connection, name, {"version": model_version(), **about})
        yield Store(connection, path)
    finally:
        connection.close()


@cache
def model_version() -> str:
    """The version of what judges: the distribution's, and a digest of the cost model's code."""
    digest = sha256()
    home = resources.files("simulator")
    folders = [home, *(home / name for name in ("costs", "schedules", "search"))]
    for folder in folders:
        for file in sorted(folder.iterdir(), key=lambda one: one.name):
            if file.name.endswith(".py") and file.name not in OUTSIDE:
                digest.update(file.name.encode() + file.read_bytes())
    return f"{metadata.version('bubblescope')}, cost model {digest.hexdigest()[:8]}"


OUTSIDE = (
    "cli.py",
    "options.py",
    "store.py",
    "local.py",
    "cluster.py",
    "run.py",
    "changes.py",
)  # judge nothing


def _claim(connection: sqlite3.Connection, name: str, about: dict[str, str]) -> None:
    """Lock the file, then make our tables in an empty one, or check what a full one holds."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION and (application or tables):
        raise ValueError(
            f"{name} is an SQLite file, but not one of results of a search; it is left as it is: "
            "use another file"
        )
    connection.execute("BEGIN EXCLUSIVE")
    if application == APPLICATION:
        _check(connection, name, about)
    else:
        for statement in filter(str.strip, TABLES.split(";")):
            connection.execute(statement)
        connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.execute("COMMIT")  # with this locking mode the lock stays until it is closed


def _check(connection: sqlite3.Connection, name: str, about: dict[str, str]) -> None:
    """Refuse a file of another version or of another search."""
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if schema != SCHEMA:
        raise ValueError(
            f"{name} has version {schema} of the file format, this is version {SCHEMA}; it is left "
            "as it is: use another file"
        )
    held = dict(connection.execute("SELECT key, value FROM about").fetchall())
    if held.pop("version", "") != about["version"]:
        theirs = connection.execute("SELECT value FROM about WHERE key = 'version'").fetchone()
        raise ValueError(
            f"{name} was written by bubblescope {theirs[0]}, this is {about['version']}: their "
            "results cannot be mixed; it is left as it is: use another file"
        )
    now = {key: value for key, value in about.items() if key != "version"}
    changed = changes(held, now)
    if changed:
        shown = "; ".join(changed[:MOST_CHANGES])
        more = f"; and {len(changed) - MOST_CHANGES} more" if len(changed) > MOST_CHANGES else ""
        raise ValueError(
            f"{name} holds another search: {shown}{more}; it is left as it is: use another file, "
            "or go back to that search"
        )


def _judged(rows: Sequence[tuple[Any, ...]]) -> Judged:
    """Rows of the table as columns."""
    table = np.array(rows, np.float64).reshape(len(rows), 1 + len(COLUMNS))
    index = np.array([row[0] for row in rows], np.int64)
    columns = {name: table[:, at].copy() for at, name in enumerate(COLUMNS, 1)}
    return Judged(first=0, stop=0, dropped={}, index=index, **columns)


@contextmanager
def _writing(path: Path | None) -> Iterator[None]:
    """What SQLite refuses, in one sentence."""
    name = "the temporary store" if path is None else str(path)
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text:
            raise ValueError(
                f"{name} is in use by another search; wait for it, or use another file"
            ) from error
        raise ValueError(f"cannot write {name}: {text}; what it holds is kept") from error
    except sqlite3.DatabaseError as error:
        raise ValueError(
            f"{name} is not a file of results ({error}); it is left as it is: use another file"
        ) from error
