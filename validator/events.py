"""What the ranks wrote down, in one file: enough to analyse a run again without the hardware."""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import validated
from traces.replacing import replace_bytes
from validator.records import check
from validator.session import Session

__all__ = ["Measured", "collect", "is_events", "load", "save"]

FORMAT = "bubblescope validation 1"


@dataclass(frozen=True)
class Measured:
    """A session and the records of its ranks, in the order in which each wrote them."""

    session: Session
    records: tuple[dict[str, Any], ...]

    def of(self, part: str, **wanted: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
        """The records of a part, with these values."""
        for record in self.records:
            if record["part"] == part and all(record.get(k) == v for k, v in wanted.items()):
                yield record

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that ran: all of them, or those that were played alone."""
        told = (record for record in self.records if record["part"] != "verdict")
        return tuple(sorted({int(record["rank"]) for record in told}))

    def of_rank(self, rank: int) -> "Measured":
        """What one rank wrote."""
        return Measured(self.session, tuple(r for r in self.records if r["rank"] == rank))

    def buffer_bytes(self, held: Iterable[int], num_stages: int) -> float:
        """Receive buffers of one microbatch: PyTorch's runtime keeps one for each. [bytes]"""
        ends = sum((stage > 0) + (stage < num_stages - 1) for stage in held)
        return float(ends * self.session.boundary_bytes)

    @property
    def about(self) -> dict[str, Any]:
        """Hardware and software of rank 0."""
        return next(self.of("about"), {})


def collect(session: Session, folder: Path) -> Measured:
    """What lies in the folder of a run; a line that a dying rank cut off is left out."""
    records = []
    for path in sorted(folder.glob("rank*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                continue
    return Measured(session, tuple(records))


def save(measured: Measured, path: Path) -> None:
    """Write `.json` or `.json.gz`, whole or not at all."""
    document = {
        "format": FORMAT,
        "session": measured.session.model_dump(mode="json"),
        "records": measured.records,
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    replace_bytes(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def is_events(path: Path) -> bool:
    """Whether a file begins as `save` begins it; nothing more is read."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            return file.read(64).startswith(f'{{"format":"{FORMAT}"'.encode())
    except (OSError, EOFError):
        return False


def load(path: Path) -> Measured:
    """Read what `save` wrote.

    Raises:
        ValueError: the file cannot be read, or holds something else.
    """
    try:
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} holds no events of a validation: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(
            f"{path} holds no events of a validation; validate writes them with -o EVENTS.json.gz"
        )
    missing = [key for key in ("session", "records") if key not in document]
    if missing:
        raise ValueError(f"{path} is damaged: it has no {missing[0]}; run validate again")
    try:
        session = validated(Session, document["session"], "session")
        records = check(document["records"], session)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return Measured(session, records)
