"""CSV: one row a span, in SI units, for spreadsheets and pandas.

A memory sample is a row of the kind MEMORY with a time under `start` and its size under `bytes`.
An op without a microbatch leaves that cell empty.
"""

import csv
import io

from simulator.schedule import NO_MICROBATCH, Kind
from simulator.timeline import Timeline
from traces.columns import Sample, Span, timeline_of
from traces.labels import Labels

__all__ = ["SUFFIXES", "decode", "encode"]

SUFFIXES = (".csv",)
HEADER = ["rank", "stage", "kind", "microbatch", "start", "end", "bytes"]
_MEMORY = "MEMORY"


def encode(timeline: Timeline, _labels: Labels, _suffix: str) -> bytes:
    """The spans in their order, then the memory samples in theirs."""
    names = [kind.name for kind in Kind]
    numbers = {NO_MICROBATCH: ""}
    t = timeline
    columns = (t.rank, t.stage, t.kind, t.microbatch, t.start, t.end)
    lines = [",".join(HEADER)]
    lines += [
        f"{rank},{stage},{names[kind]},{numbers.get(microbatch, microbatch)},{start!r},{end!r},"
        for rank, stage, kind, microbatch, start, end in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    samples = (column.tolist() for column in (t.memory_rank, t.memory_time, t.memory_bytes))
    lines += [
        f"{rank},,{_MEMORY},,{time!r},,{nbytes!r}"
        for rank, time, nbytes in zip(*samples, strict=True)
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def decode(data: bytes) -> Timeline:
    """The timeline of `encode`.

    Raises:
        ValueError: something is missing or is no number, with its line.

    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text ({error.reason} at byte {error.start})") from None
    rows = csv.reader(io.StringIO(text, newline=""))
    header = next(rows, [])
    missing = [name for name in HEADER if name not in header]
    if missing:
        raise ValueError(f"its first line lacks the columns {' '.join(missing)}")
    if not text.endswith("\n"):
        raise ValueError("its last line does not end, so the file is cut off")
    spans: list[Span] = []
    samples: list[Sample] = []
    kinds = {kind.name: int(kind) for kind in Kind}
    places = [header.index(name) for name in HEADER]
    for row in rows:
        try:
            rank, stage, kind, microbatch, start, end, nbytes = [row[place] for place in places]
            if kind == _MEMORY:
                samples.append((int(rank), float(start), float(nbytes)))
            else:
                number = int(microbatch) if microbatch else NO_MICROBATCH
                values = (int(rank), int(stage), kinds[kind], number, float(start), float(end))
                spans.append(values)
        except IndexError:
            raise ValueError(
                f"line {rows.line_num} has {len(row)} of {len(header)} cells"
            ) from None
        except KeyError:
            known = " ".join([*kinds, _MEMORY])
            raise ValueError(
                f"line {rows.line_num} has the kind {kind!r}; kinds are {known}"
            ) from None
        except ValueError as error:
            raise ValueError(f"line {rows.line_num}: {error}") from None
    return timeline_of(spans, samples)
