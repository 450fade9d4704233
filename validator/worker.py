"""What every process of a validation does: numerics, links, timed steps, lone ops, memory.

It writes one JSON line after each part, so what was measured outlives a failure.
"""

import gc
import json
import os
import socket
import time
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed

from simulator.schedule import Schedule
from validator.allocation import probe_of
from validator.beacon import Beacon
from validator.clocks import clock_of, offset_to
from validator.hardware import about
from validator.links import exchange, message_sizes
from validator.lone import LONE_REPEATS, lone_rows, neighbours
from validator.numerics import furthest, held_names, reference
from validator.player import DTYPES, Player
from validator.recorder import Event, Recorder
from validator.room import kept_bytes
from validator.session import Play, Session
from validator.stage import Stage, cut
from validator.sweep import sweep

__all__ = ["Worker"]

ROOM = 0.3  # share of a GPU's memory that the cuts may hold side by side [1]
COMPILING = 600.0  # that the first steps of compiled layers may take beyond the timeout [s]
WAIT = 0.02  # between two looks whether a turn is over [s]


class Parts(NamedTuple):
    """What the plays of one cut share."""

    modules: Mapping[int, Stage]
    players: Mapping[str, Player]  # by the play's name
    lone: Mapping[bool, Player]  # looped back, by whether the backward is split


class Worker:
    """One rank of a session. A class to hold what its parts share."""

    def __init__(self, session: Session, folder: Path, rank: int) -> None:
        self.session, self.rank = session, rank
        self.device = torch.device(session.device)
        self.path = Path(folder, f"rank{rank}.jsonl")
        self.beacon = Beacon(Path(folder, f"rank{rank}.beacon"), os.getpid())
        self.clock = clock_of(self.device)
        self.recorder = Recorder(self.clock, self.beacon)
        self.expected: dict[str, torch.Tensor] = {}
        self.kept: dict[Any, Parts] = {}
        self.keeps = self._has_room()
        self.control: distributed.ProcessGroup | None = None  # on which hosts compare clocks
        self.hosts: list[Any] = [None] * session.num_ranks
        self.begin = time.monotonic()

    def write(self, part: str, **values: Any) -> None:  # noqa: ANN401
        """Keep what was measured."""
        with self.path.open("a") as file:
            file.write(json.dumps({"part": part, "rank": self.rank, **values}) + "\n")

    def run(self) -> None:
        """All parts, in order."""
        session = self.session
        self.write("about", **about(self.device))
        if session.transfers != "looped":  # which has no inputs that a model without a cut has
            self.expected = self._reference()
        self._links()
        if self.session.sweep:
            self._sweep()
        alike = groupby(
            sorted(enumerate(session.plays), key=lambda p: p[1].cut), lambda p: p[1].cut
        )
        cuts = [(key, list(plays)) for key, plays in alike]
        for turn in range(session.rounds):
            self._offsets(turn)
            for _, plays in cuts:
                self._cut(turn, plays)
        self.write("done", seconds=time.monotonic() - self.begin)

    def _has_room(self) -> bool:
        """Whether all cuts fit side by side on this rank's device."""
        if self.device.type == "cpu":
            return True
        return kept_bytes(self.session, self.rank) < ROOM * torch.cuda.mem_get_info()[1]

    def _reference(self) -> dict[str, torch.Tensor]:
        """The gradients to expect of this rank's parameters.

        Ranks that share a GPU take turns, since each holds the whole model meanwhile.
        """
        session, alive = self.session, self.beacon.leave
        found: dict[str, torch.Tensor] = {}
        shared = session.transfers == "staged"
        for turn in range(session.num_ranks) if shared else (self.rank,):
            if turn == self.rank:
                names = held_names(session, self.rank)
                found = reference(session, names, self.device, self.write, alive)
            over = distributed.barrier(async_op=True) if shared else None
            while over is not None and not over.is_completed():
                alive()  # the rank whose turn it is would be the one that hangs
                time.sleep(WAIT)
            if over is not None:
                over.wait()
        return found

    def _offsets(self, turn: int) -> None:
        """What rank 0 adds to the clocks of ranks on other hosts; one host has one clock.

        Once a round, since the clocks of two hosts drift apart by microseconds a second.
        """
        session = self.session
        if session.num_ranks == 1 or session.transfers == "looped":
            return
        if self.control is None:
            self.control = distributed.new_group(backend="gloo")
            distributed.all_gather_object(self.hosts, socket.gethostname(), group=self.control)
        for peer in range(1, session.num_ranks):
            if self.hosts[peer] != self.hosts[0] and self.rank in (0, peer):
                offset, residual = offset_to(0 if self.rank else peer, self.rank, self.control)
                if self.rank == 0:
                    self.write("offset", peer=peer, round=turn, seconds=offset, residual=residual)

    def _links(self) -> None:
        """Every pair of ranks whose stages are neighbours in some play."""
        session = self.session
        if session.transfers == "looped":
            return
        sizes = message_sizes(session.boundary_bytes)
        for source, target in sorted(neighbours(session)):
            if self.rank in (source, target):
                self.beacon.leave()
                staged = session.transfers == "staged"
                device = torch.device("cpu") if staged else self.device
                found = exchange(source, target, self.rank, sizes, device)
                if self.rank == source:
                    self.write("link", source=source, target=target, samples=found)
            self._barrier()

    def _barrier(self) -> None:
        """Meet all ranks. NCCL is told the GPU, or it would guess one by the rank."""
        direct = self.device.type == "cuda" and self.session.transfers == "direct"
        distributed.barrier(device_ids=[torch.cuda.current_device()] if direct else None)

    def _sweep(self) -> None:
        """One layer over sizes and dtypes."""
        model = self.session.model
        dtypes = {self.session.dtype: None}
        if self.device.type == "cuda":
            dtypes |= dict.fromkeys(("bf16", "fp16", "fp32"))
        seq_lens = sorted({max(1, model.seq_len // part) for part in (4, 2, 1)})
        self.beacon.leave()
        alive = self.beacon.leave

        def note(text: str) -> None:
            self.write("note", text=text)

        for point in sweep(model, self.device, dtypes, (1, 2, 4), seq_lens, alive, note):
            self.write(
                "layer",
                dtype=point.dtype,
                samples=point.samples,
                seq_len=point.seq_len,
                forward=point.forward,
                backward=point.backward,
            )

    def _cut(self, turn: int, plays: list[tuple[int, Play]]) -> None:
        """All plays of one cut of the model; where there is room, what they need is kept."""
        key = plays[0][1].cut
        parts = self.kept.get(key) or self._parts(plays)
        if self.keeps:
            self.kept[key] = parts
        for index, play in plays:
            self._play(turn, index, play, parts)
        if self.session.tracing:
            for split in sorted({play.splits_backward for _, play in plays}):
                self._lone(turn, plays, parts, split=split)
        del parts
        if not self.keeps:
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _parts(self, plays: list[tuple[int, Play]]) -> Parts:
        """Modules and optimizers of a cut, and a player of each of its plays."""
        session, play = self.session, plays[0][1]
        modules = cut(
            session.model,
            play.layers_per_stage,
            play.held[self.rank],
            DTYPES[session.dtype],
            self.device,
        )
        if session.compiled:
            for module in modules.values():
                for layer in module.layers.values():
                    layer.compile()
        optimizers = {
            stage: torch.optim.AdamW(module.parameters(), lr=0.0, fused=True)
            for stage, module in modules.items()
        }

        def player(lowered: Schedule, *, looped: bool) -> Player:
            return Player(
                session,
                lowered,
                modules,
                optimizers,
                self.device,
                looped=looped,
                recorder=self.recorder if session.tracing else None,
            )

        lone = {
            split: player(lone_rows(play.held, LONE_REPEATS, split=split), looped=True)
            for split in sorted({each.splits_backward for _, each in plays})
        }
        return Parts(modules, {p.name: player(p.lowered, looped=False) for _, p in plays}, lone)

    def _play(self, turn: int, index: int, play: Play, parts: Parts) -> None:
        """Warm up, check the gradients once, time some steps, count the memory once."""
        session, player = self.session, parts.players[play.name]
        self.beacon.enter(index)
        if turn == 0 or not self.keeps:
            with self.beacon.patient(COMPILING if session.compiled else 0.0):
                player.warm_up(session.warmup)
        if turn == 0 and session.transfers != "looped":
            player.gradients_only()  # on all ranks, though some may have nothing to compare with
            if self.expected:
                self.write("numerics", play=play.name, **furthest(parts.modules, self.expected))
            for module in parts.modules.values():
                module.zero_grad(set_to_none=False)
        for step in range(session.steps):
            self._timed(player, "step", play=play.name, round=turn, step=step)
        if turn == 0 and session.tracing:
            self._counted(player, "memory", play=play.name)
        self.beacon.leave()

    def _lone(self, turn: int, plays: list[tuple[int, Play]], parts: Parts, *, split: bool) -> None:
        """Every op of these stages, looped back: what it takes when nothing is waited for."""
        player = parts.lone[split]
        named = {"plays": [play.name for _, play in plays], "split": split}
        self.beacon.enter(plays[0][0])
        if turn == 0 or not self.keeps:
            with self.beacon.patient(COMPILING if self.session.compiled else 0.0):
                player.warm_up(1)
        self._timed(player, "lone", **named, round=turn)
        if turn == 0:
            self._counted(player, "lone memory", **named)
        self.beacon.leave()

    def _timed(self, player: Player, part: str, **values: Any) -> None:  # noqa: ANN401
        """One step, each op timed."""
        self.recorder.events.clear()
        gc.collect()
        gc.disable()  # a collection in a step would be some op's time
        self.clock.begin()
        if self.session.transfers != "looped":
            self._barrier()
        begin = self.clock.mark()
        player.step()
        end = self.clock.mark()
        gc.enable()
        events = self.recorder.events
        marks = [begin, end, *(m for event in events for m in (event.begin, event.end))]
        seconds = self.clock.seconds(marks).tolist()
        worked = self.clock.worked(marks)
        own = [None] * len(events) if worked is None else (worked[3::2] - worked[2::2]).tolist()
        columns = zip(events, seconds[2::2], seconds[3::2], own, strict=True)
        self.write(
            part,
            **values,
            begin=seconds[0],
            end=seconds[1],
            residual=self.clock.residual,
            events=[[*_op(event), *times] for event, *times in columns],
        )

    def _counted(self, player: Player, part: str, **values: Any) -> None:  # noqa: ANN401
        """One step with memory read around every op."""
        self.recorder.events.clear()
        with probe_of(self.device, player.tensors()) as probe:
            self.recorder.marker = probe
            try:
                player.step()
            finally:
                self.recorder.marker = self.clock
        rows = [
            [*_op(event), event.begin[0], event.end[1], event.end[0]]  # before, most, after
            for event in self.recorder.events
            if event.kind.is_compute
        ]
        self.write(part, **values, events=rows)


def _op(event: Event) -> list[int]:
    return [int(event.kind), event.stage, event.microbatch]
