"""What a measured run says: its Report, and how long each rank's messages waited and moved."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.explain import Bubble, causes, explain, longest_gaps
from simulator.report import Report, in_flight, spans_of_ranks, split
from simulator.schedule import Kind
from simulator.timeline import Timeline
from traces.measured.imported import Imported

__all__ = ["Messages", "explained", "messages_of", "report_of"]

Column = NDArray[np.float64]


def report_of(run: Imported, name: str) -> Report:
    """The figures of a measured step; what needs a model, as MFU, is None.

    Raises:
        ValueError: no time passes in the run.
    """
    timeline = run.timeline
    if timeline.makespan <= 0 or timeline.compute.num_spans == 0:
        raise ValueError("no time passes in the run's ops; is it a trace of a whole step?")
    cause = causes(timeline)
    parts = split(timeline, recompute=np.zeros(timeline.num_spans), tensor=run.exposed, cause=cause)
    idle, total = float(parts.idle.sum()), timeline.makespan * timeline.num_ranks
    span, inside = spans_of_ranks(timeline)
    largest = int(span.argmax())
    memory = timeline.peak_memory() if len(timeline.memory_bytes) else None
    return Report(
        name=name,
        schedule="measured",
        executor="trace",
        num_ranks=timeline.num_ranks,
        num_microbatches=int(timeline.microbatch.max(initial=-1)) + 1,
        num_gpus=None,
        step_time=timeline.makespan,
        makespan=timeline.makespan,
        bubble_fraction=idle / total,
        bubble_to_ideal=idle / (total - idle),
        span_bubble=float(inside[largest] / span[largest]),
        internal_bubble=float(inside.sum() / span.sum()),
        split=parts,
        peak_in_flight=in_flight(timeline),
        longest_gaps=explained(timeline, cause, most=3),
        peak_memory=memory,
    )


def explained(
    timeline: Timeline, cause: NDArray[Any] | None = None, *, most: int
) -> tuple[str, ...]:
    """The longest idle gaps before an op, one a rank at the most, in words.

    `cause` is what `causes` says of the timeline, if it is known already.
    """
    cause = causes(timeline) if cause is None else cause
    found: dict[int, str] = {}
    for _, rank, time in longest_gaps(timeline):
        if len(found) == most:
            break
        if rank not in found:
            bubble = explain(timeline, rank, time, cause=cause)
            if bubble.next_op is not None:
                found[rank] = _in_words(bubble)
    return tuple(found.values())


def _in_words(bubble: Bubble) -> str:
    """The bubble with its times in the one unit that fits its length."""
    rest = str(bubble).partition(" (")[2]
    length = bubble.end - bubble.start
    size, unit = next((size, unit) for size, unit in UNITS if length >= size or unit == "us")
    idles, start, end = (f"{time / size:.6g}" for time in (length, bubble.start, bubble.end))
    return f"rank {bubble.rank} idles {idles} {unit} from {start} to {end} {unit} ({rest}"


UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Messages:
    """Of each rank's messages, arrays of shape (num_ranks,)."""

    sent: NDArray[np.int64]  # [1]
    received: NDArray[np.int64]  # [1]
    moving: Column  # receives, from both ends ready to the last byte [s]
    receive_wait: Column  # a receive was ready, its sender not [s]
    send_wait: Column  # a send was ready, its receiver not [s]
    fastest: Column  # its shortest receive, NaN without one [s]


def messages_of(run: Imported) -> Messages:
    """Waiting for the peer told apart from moving bytes."""
    t, ranks = run.timeline, run.timeline.num_ranks
    send = np.isin(t.kind, (Kind.SEND_F, Kind.SEND_B))
    receive = np.isin(t.kind, (Kind.RECV_F, Kind.RECV_B))

    def total(mask: NDArray[np.bool_], seconds: Column) -> Column:
        summed = np.zeros(ranks)
        np.add.at(summed, t.rank[mask], seconds[mask])
        return summed

    fastest = np.full(ranks, np.inf)
    np.minimum.at(fastest, t.rank[receive], (t.end - t.start)[receive])
    return Messages(
        sent=np.bincount(t.rank[send], minlength=ranks),
        received=np.bincount(t.rank[receive], minlength=ranks),
        moving=total(receive, t.end - t.start),
        receive_wait=total(receive, run.wait),
        send_wait=total(send, run.wait),
        fastest=np.where(np.isinf(fastest), np.nan, fastest),
    )
