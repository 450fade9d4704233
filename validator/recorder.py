"""What one rank did: a mark before and after each op, and one where a transfer is posted.

The runtime calls a stage's methods; the recorder stands around them. It works with any source of
marks: a clock, or a probe of memory.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed.pipelining import PipelineStage

from simulator.schedule import NO_MICROBATCH, Kind, Op
from validator.beacon import Beacon

__all__ = ["Event", "Marker", "Recorder"]

POSTS = {
    "get_fwd_send_ops": Kind.SEND_F,
    "get_fwd_recv_ops": Kind.RECV_F,
    "get_bwd_send_ops": Kind.SEND_B,
    "get_bwd_recv_ops": Kind.RECV_B,
}


class Event(NamedTuple):
    """One op, or the posting of one end of a transfer, whose two marks are the same."""

    kind: Kind
    stage: int
    microbatch: int
    begin: Any
    end: Any


class Marker(Protocol):
    """A clock or a probe of memory."""

    def mark(self) -> Any:  # noqa: ANN401
        """What it reads now."""

    def extended(self, earlier: Any) -> Any:  # noqa: ANN401
        """What ends an op now that had ended with an `earlier` mark, the last one there is."""


class Recorder:
    """Notes a rank's ops as they run. A class because the runtime's calls add to its list."""

    def __init__(self, marker: Marker, beacon: Beacon) -> None:
        self.marker = marker
        self.beacon = beacon
        self.events: list[Event] = []

    def listen(self, stages: Sequence[PipelineStage]) -> None:
        """Stand around the methods that the runtime calls."""
        for stage in stages:
            self._around(stage, "forward_one_chunk", lambda _: Kind.F)
            self._around(
                stage,
                "backward_one_chunk",
                lambda options: Kind.B if options.get("full_backward", True) else Kind.I,
            )
            self._around(stage, "backward_weight_one_chunk", lambda _: Kind.W)
            for name, kind in POSTS.items():
                self._post(stage, name, kind)

    def extend(self) -> None:
        """The op that ended last goes on until now: the loss is part of the last stage's F."""
        last = self.events[-1]
        self.events[-1] = last._replace(end=self.marker.extended(last.end))

    def unfinished(self) -> tuple[Op | None, bool]:
        """The first op that the GPU has not done, though the host has issued it; None on CPU.

        Second, whether it has begun: an op of a GPU that has not waits for a message.
        """
        for event in list(self.events):
            if hasattr(event.end, "query") and not _done(event.end):
                return Op(event.stage, event.kind, event.microbatch), _done(event.begin)
        return None, True

    def during(self, stage: int, kind: Kind, work: Callable[[], None]) -> None:
        """An op of ours, as the optimizer step."""
        self._run(kind, stage, NO_MICROBATCH, work)

    def _run(self, kind: Kind, stage: int, microbatch: int, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        self.beacon.start(stage, kind, microbatch)
        begin = self.marker.mark()
        result = work()
        self.events.append(Event(kind, stage, microbatch, begin, self.marker.mark()))
        self.beacon.finish()
        return result

    def _around(
        self, stage: PipelineStage, name: str, kind: Callable[[dict[str, Any]], Kind]
    ) -> None:
        method, index = getattr(stage, name), stage.stage_index

        def timed(microbatch: int, *args: Any, **options: Any) -> Any:  # noqa: ANN401
            return self._run(
                kind(options), index, microbatch, lambda: method(microbatch, *args, **options)
            )

        setattr(stage, name, timed)

    def _post(self, stage: PipelineStage, name: str, kind: Kind) -> None:
        method, index = getattr(stage, name), stage.stage_index

        def posted(microbatch: int) -> list[torch.distributed.P2POp]:
            now = self.marker.mark()
            self.events.append(Event(kind, index, microbatch, now, now))
            ops: list[torch.distributed.P2POp] = method(microbatch)
            return ops

        setattr(stage, name, posted)


def _done(event: torch.cuda.Event) -> bool:
    """Whether the GPU has reached the event; after an error of the GPU it never will."""
    try:
        return bool(event.query())  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
