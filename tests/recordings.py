"""Traces as PyTorch's profiler writes them on GPUs, of a known timeline on clocks that are wrong.

Fields as PyTorch 2.4 and later write them: kernels joined to launches by `correlation`, NCCL calls
as `record_param_comms`, backward launched from autograd's own thread.
"""

import json
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from simulator.schedule import NO_MICROBATCH, Kind

SENDS, RECEIVES = (Kind.SEND_F, Kind.SEND_B), (Kind.RECV_F, Kind.RECV_B)
MEGATRON = {Kind.F: "forward_step", Kind.B: "backward_step", Kind.OPTIMIZER: "optimizer_step"}
SLOT = 2e-6  # of the host, which runs ahead [s]
EPOCH = 1_790_000_000_000_000_000  # [ns]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the run is recorded."""

    offsets: tuple[float, ...]  # what each rank's clock shows at time zero [s]
    drifts: tuple[float, ...] = ()  # [1]
    jitter: float = 0.0  # of each kernel's times, at most [s]
    waits: float = 0.0  # an end is ready so much early, at most [s]
    steps: int = 1
    first_step: int = 3
    names: str = "PP"  # or "megatron"
    peers: bool = True  # NCCL calls are recorded
    fused: bool = False  # a batch of transfers is one kernel
    same_host: bool = False
    ranks: tuple[int, ...] = ()  # in the whole job
    seed: int = 0
    about: dict = field(default_factory=dict)  # more of the file's head


def documents(timeline, setting):
    """A JSON document for each rank, and when each transfer's end was posted in the first step."""
    shuffled = np.random.default_rng(setting.seed)
    posted = _posted(timeline, setting, shuffled)
    made = []
    for rank in range(timeline.num_ranks):
        mine = np.flatnonzero(timeline.rank == rank)
        writer = Writer(timeline, setting, rank, shuffled)
        for step in range(setting.steps):
            writer.step(step, mine, posted)
        made.append(writer.document())
    return made, posted


def write_documents(folder, made, ranks=()):
    """Save each rank's document; gives the paths."""
    paths = []
    for at, document in enumerate(made):
        path = folder / f"rank{ranks[at] if ranks else at}.json"
        path.write_text(json.dumps(document))
        paths.append(path)
    return paths


def _posted(timeline, setting, shuffled):
    """One end of each message is ready before its transfer starts, the other just then."""
    posted = timeline.start.copy()
    keys = {}
    for at in range(timeline.num_spans):
        kind = Kind(timeline.kind[at])
        if kind in SENDS + RECEIVES:
            deeper = {Kind.SEND_F: 1, Kind.SEND_B: -1}.get(kind, 0)
            forward = kind in (Kind.SEND_F, Kind.RECV_F)
            key = (forward, timeline.stage[at] + deeper, timeline.microbatch[at])
            keys.setdefault(key, []).append(at)
    for both in keys.values():
        early = both[int(shuffled.integers(len(both)))]
        posted[early] -= shuffled.uniform(0, setting.waits)
    return posted


class Writer:
    """Grows one rank's document."""

    def __init__(self, timeline, setting, rank, shuffled):
        self.timeline, self.setting, self.rank, self.shuffled = timeline, setting, rank, shuffled
        self.period = timeline.makespan * 1.1 + 1e-3
        self.ahead = 1e-3 + SLOT * timeline.num_spans * 8
        self.events, self.number, self.slot = [], 0, 0.0
        self.job = setting.ranks or tuple(range(timeline.num_ranks))

    def local(self, time):
        drift = self.setting.drifts[self.rank] if self.setting.drifts else 0.0
        return ((time + 1.0) * (1 + drift) + self.setting.offsets[self.rank]) * 1e6

    def device(self, time):
        return self.local(time + self.shuffled.uniform(-1, 1) * self.setting.jitter)

    def add(self, cat, name, start, end, pid, tid, **args):
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
        self.events.append({**event, "ts": start, "dur": end - start, "args": args})

    def host(self):
        """The next moment of the host, which is ahead of the device. [s]"""
        self.slot += SLOT
        return self.slot

    def step(self, step, mine, posted):
        begin = step * self.period
        self.slot = begin - self.ahead
        first = self.local(self.slot)
        t = self.timeline
        order = self.program(mine)
        batch = []
        for at in order.tolist():
            if Kind(t.kind[at]) in SENDS + RECEIVES:
                batch.append(at)
                if self.setting.fused:
                    continue
            if batch:
                self.transfers(batch, begin, posted)
                batch = []
            if Kind(t.kind[at]) not in SENDS + RECEIVES:
                self.compute(at, begin)
        if batch:
            self.transfers(batch, begin, posted)
        number = self.setting.first_step + step
        self.add("user_annotation", f"ProfilerStep#{number}", first, self.local(self.host()), 1, 1)

    def program(self, mine):
        """The order in which the host launches: receives before their use, sends when made."""
        t = self.timeline
        key = np.where(t.kind[mine] <= Kind.OPTIMIZER, 1, 0)
        order = mine[np.lexsort((key, t.start[mine]))]
        if self.setting.names == "PP":
            return order
        rows = [at for at in order.tolist() if t.kind[at] <= Kind.OPTIMIZER]
        place = {}
        for number, at in enumerate(rows):
            forward = t.kind[at] == Kind.F
            place[forward, int(t.stage[at]), int(t.microbatch[at])] = number
        keys = {}
        for at in order.tolist():
            kind = Kind(t.kind[at])
            forward = kind in (Kind.F, Kind.SEND_F, Kind.RECV_F)
            shift = 0.25 if kind in SENDS else -0.25 if kind in RECEIVES else 0.0
            keys[at] = place[forward, int(t.stage[at]), int(t.microbatch[at])] + shift
        return np.array(sorted(order.tolist(), key=keys.get))

    def compute(self, at, begin):
        t = self.timeline
        kind, start, end = Kind(t.kind[at]), t.start[at] + begin, t.end[at] + begin
        opened = self.host()
        edges = np.linspace(start, end, 4)
        tid = 2 if kind in (Kind.B, Kind.I, Kind.W) else 1
        for low, high in pairwise(edges):
            self.launch("sm90_gemm", self.device(low), self.device(high), tid, 7)
        self.name(at, opened)

    def transfers(self, batch, begin, posted):
        """One kernel, with a range for each where they are named."""
        t = self.timeline
        opened = self.host()
        start, end = min(posted[batch]) + begin, max(t.end[batch]) + begin
        for at in batch:
            send = Kind(t.kind[at]) in SENDS
            peer = self.job[self.peer(at)]
            args = {"Dst Rank" if send else "Src Rank": peer}
            name = {"Collective name": "send" if send else "recv"}
            called = self.local(self.host())
            if self.setting.peers:
                self.add("cpu_op", "record_param_comms", called, called, 1, 1, **name, **args)
        name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        self.launch(name, self.device(start), self.device(end), 1, 20)
        if self.setting.names == "PP":
            self.name(batch[0], opened)

    def launch(self, name, start, end, tid, stream):
        self.number += 1
        called = self.local(self.host())
        self.add("cuda_runtime", "cudaLaunchKernel", called, called, 1, tid,
                 correlation=self.number)  # fmt: skip
        self.add("kernel", name, start, max(start, end), 0, stream, correlation=self.number,
                 stream=stream)  # fmt: skip

    def name(self, at, opened):
        t = self.timeline
        kind, number = Kind(t.kind[at]), int(t.microbatch[at])
        text = f"PP:{t.stage[at]}{kind.name}{'' if number == NO_MICROBATCH else number}"
        if self.setting.names == "megatron":
            text = MEGATRON[kind]
        self.add("user_annotation", text, self.local(opened), self.local(self.host()), 1, 1)

    def peer(self, at):
        t = self.timeline
        kind, stage = Kind(t.kind[at]), t.stage[at]
        other = {
            Kind.SEND_F: (Kind.RECV_F, stage + 1),
            Kind.RECV_F: (Kind.SEND_F, stage - 1),
            Kind.SEND_B: (Kind.RECV_B, stage - 1),
            Kind.RECV_B: (Kind.SEND_B, stage + 1),
        }[kind]
        there = (t.kind == other[0]) & (t.stage == other[1]) & (t.microbatch == t.microbatch[at])
        return int(t.rank[there][0])

    def document(self):
        host = "node" if self.setting.same_host else f"node{self.rank}"
        return {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": self.job[self.rank]},
            "host_name": host,
            "baseTimeNanoseconds": EPOCH,
            **self.setting.about,
            "traceEvents": self.events,
        }
