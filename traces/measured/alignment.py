"""The clocks of a run's ranks, and what they are aligned by: messages, or the order of ops.

Files of one machine have one clock. Others count from one zero, as Unix time, or from their own.
"""

from typing import Literal

from traces.measured.clocks import Clocks, Messages, align, unaligned
from traces.measured.ops import RankOps
from traces.measured.precedence import implied, joined, tightest
from traces.measured.transfers import Transfers

__all__ = ["AlignedBy", "aligned", "on_one_zero"]

AlignedBy = Literal["one clock", "messages", "order of ops", "record", "nothing"]
TRUSTED = 1e-4  # recorded clocks that break the order of ops by no more are left alone [s]
FAR = 10**15  # zeros of files this far apart are not of one kind of clock [ns]


def on_one_zero(ranks: list[RankOps]) -> tuple[list[RankOps], bool]:
    """Times after the first rank's first event, and whether all files count from one zero.

    Where they do not, each file begins with its first event.
    """
    recordings = [one.recording for one in ranks]
    begins = [one.begin + (one.origin or 0) for one in recordings]
    one_file = len({one.source for one in recordings}) == 1
    told = one_file or all(one.origin is not None for one in recordings)
    one_zero = told and max(begins) - min(begins) <= FAR
    if not one_zero:
        first: dict[str, int] = {}
        for one, begin in zip(recordings, begins, strict=True):
            first[one.source] = min(begin, first.get(one.source, begin))
        begins = [begin - first[one.source] for one, begin in zip(recordings, begins, strict=True)]
    later = [
        one.later((begin - begins[0]) * 1e-9) for one, begin in zip(ranks, begins, strict=True)
    ]
    return later, one_zero


def aligned(ranks: list[RankOps], transfers: Transfers, one_zero: bool) -> tuple[Clocks, AlignedBy]:
    """The clocks, and what they were aligned by.

    Clocks that count from one zero are left alone where no message was told and their times keep
    the order of ops: what was recorded is surer than the middle of wide bounds.
    """
    told = Messages(
        sender=transfers.sender,
        receiver=transfers.receiver,
        sent=transfers.sent,
        arrived=transfers.arrived,
    )
    hosts = _hosts(ranks)
    bounds = implied(ranks, told)
    both = joined(told, tightest(bounds, len(ranks)))
    if len(set(hosts)) == 1:
        return align(both, hosts), "one clock"
    if len(told.sent):
        return align(both, hosts), "messages"
    kept = unaligned(len(ranks))
    if not len(bounds.sent):
        return kept, "record" if one_zero else "nothing"
    if one_zero and (bounds.sent - bounds.arrived).max() <= TRUSTED:
        return kept, "record"
    clocks = align(tightest(bounds, len(ranks)), hosts)  # wide bounds only look like a drift
    return clocks if clocks.residual <= TRUSTED else align(bounds, hosts), "order of ops"


def _hosts(ranks: list[RankOps]) -> list[int]:
    """A number for each rank, the same for ranks on one machine."""
    names = [one.recording.host for one in ranks]
    return [names.index(name) if name else rank for rank, name in enumerate(names)]
