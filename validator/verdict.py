"""Which rank failed, at which op: told from exit codes, the ranks' own words and their beacons.

Who notices is seldom who failed: a rank that hangs is reported by its neighbours, which wait for
it, and one that dies closes their connections.
"""

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from validator.beacon import RUNNING, Beacon, Place
from validator.events import collect
from validator.session import Session

__all__ = ["Verdict", "ended", "hung"]

SILENT = 3.0  # a rank's watch beats four times a second; one that is this late does not run [s]


class Verdict(NamedTuple):
    """What went wrong."""

    rank: int | None  # whose fault it is, None if nobody's
    text: str


class _Stand(NamedTuple):
    """Where a rank stood when nothing ended any more."""

    rank: int
    at: str
    inside: bool  # an op
    answers: bool

    @property
    def order(self) -> tuple[bool, bool]:
        """Those whom the others wait for are first."""
        return self.answers, not self.inside


def ended(session: Session, folder: Path, codes: Mapping[int, int | None]) -> Verdict:
    """Who failed, once a process has ended with an exit code other than 0; `codes` by rank."""
    for rank, code in codes.items():
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = "; is the host out of memory?" if name == "SIGKILL" else ""
            at = _told(session, folder, rank)
            return Verdict(rank, f"rank {rank} was ended at {at} by {name}{hint}")
    errors = {int(record["rank"]): record for record in collect(session, folder).of("error")}
    for rank, code in codes.items():
        if code and rank not in errors:
            log = (folder / f"rank{rank}.log").read_text(errors="replace").strip().splitlines()
            errors_said = [line for line in log if re.match(r"[\w.]+(Error|Exception): ", line)]
            last = next(iter((errors_said or log)[-1:]), "it said nothing")
            return Verdict(rank, f"rank {rank} ended with code {code}: {last}")
    first = min(errors.values(), key=lambda record: float(record["when"]))
    if first.get("hung"):
        return hung(session, folder, codes)
    stood = ", ".join(
        f"rank {rank} at {_told(session, folder, rank)}" for rank in codes if rank != first["rank"]
    )
    then = f"; meanwhile {stood}" if stood else ""
    return Verdict(
        int(first["rank"]), f"rank {first['rank']} failed at {first['op']}: {first['text']}{then}"
    )


def hung(session: Session, folder: Path, codes: Mapping[int, int | None]) -> Verdict:
    """Whom the others waited for: a rank that does not run, else one inside an op, else nobody."""
    errors = {int(record["rank"]): record for record in collect(session, folder).of("error")}
    stands = [
        _stand(session, folder, rank, errors.get(rank)) for rank, code in codes.items() if code != 0
    ]
    first, *others = sorted(stands, key=lambda stand: stand.order)
    nothing = f"nothing ended for {session.timeout:g} s"
    if first.answers and not first.inside and others:
        where = ", ".join(f"rank {stand.rank} at {stand.at}" for stand in (first, *others))
        return Verdict(None, f"{nothing}: {where}")
    then = ", ".join(
        f"rank {stand.rank} at {stand.at}{'' if stand.answers else ', silent as well'}"
        for stand in others
    )
    how = f"failed at {first.at}" if first.answers else f"does not answer, last at {first.at}"
    return Verdict(
        first.rank, f"rank {first.rank} {how}: {nothing}{f'; meanwhile {then}' if then else ''}"
    )


def _stand(session: Session, folder: Path, rank: int, error: Mapping[str, Any] | None) -> _Stand:
    if error is not None:  # which knows what the GPU has not done, too
        return _Stand(rank, str(error["op"]), bool(error.get("inside")), answers=True)
    place = _place(folder, rank)
    inside = place is not None and place.running == RUNNING
    late = min(SILENT, session.timeout / 2)
    answers = place is not None and time.monotonic() - place.alive < late
    return _Stand(rank, _told(session, folder, rank), inside, answers)


def _place(folder: Path, rank: int) -> Place | None:
    return Beacon.read(folder / f"rank{rank}.beacon")


def _told(session: Session, folder: Path, rank: int) -> str:
    place = _place(folder, rank)
    if place is None:
        return "its start"
    lowered = session.plays[place.play].lowered if place.play >= 0 else None
    return place.told(lowered, rank)
