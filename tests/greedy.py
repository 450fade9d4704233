"""A second executor, for tests: greedy longest path in plain Python, without the engine."""

import numpy as np

from simulator.job import Plan
from simulator.schedule import Kind, Op, Pair, Schedule
from simulator.schedules import build
from simulator.timeline import Timeline

SECONDS = {Kind.F: 1.0, Kind.B: 2.0, Kind.I: 1.0, Kind.W: 1.0, Kind.OPTIMIZER: 1.0}


def gpipe(pp, m):
    """Rows of GPipe."""
    return build(Plan(schedule="gpipe", pp=pp, num_microbatches=m))


def one_f_one_b(pp, m, v=1):
    """Rows of 1F1B, interleaved when v > 1 (m is then a multiple of pp)."""
    name = "interleaved" if v > 1 else "1f1b"
    return build(Plan(schedule=name, pp=pp, vpp=v, num_microbatches=m))


def split(schedule):
    """The same schedule with each backward in its two halves."""
    halves = {Kind.F: (Kind.F,), Kind.B: (Kind.I, Kind.W)}
    return Schedule.of(
        [
            [Op(op.stage, kind, op.microbatch) for op in row for kind in halves[op.kind]]
            for row in schedule.rows
        ]
    )


def run(
    schedule,
    seconds=SECONDS,
    transfer=0.0,
    optimizer=False,
    memory=True,
    scale=1.0,
    pair_time=1.0,
):
    """Each op as soon as its rank and its input are there; `seconds` by kind, or kind and stage."""
    last = schedule.num_stages - 1
    rows = [list(schedule.items(rank)) for rank in range(schedule.num_ranks)]
    done, free, spans = {}, [0.0] * schedule.num_ranks, []
    home = {op.stage: rank for rank, row in enumerate(schedule.rows) for op in row}
    where = {op: rank for rank, row in enumerate(schedule.rows) for op in row}

    def source_of(stage, kind, mb):
        if kind is Kind.OPTIMIZER:
            return None
        if kind is Kind.F:
            return Op(stage - 1, Kind.F, mb) if stage else None
        if kind is Kind.W:
            return Op(stage, Kind.I, mb)
        if stage == last:
            return Op(stage, Kind.F, mb)
        later = (Op(stage + 1, kind, mb) for kind in (Kind.B, Kind.I))
        return next(op for op in later if op in where)

    def arrival(rank, op):
        """When an op's input is there, and its transfer's spans."""
        source = source_of(*op)
        ready = done.get(source, 0.0)
        if not transfer or source is None or where[source] == rank:
            return ready, []
        forward = op.kind is Kind.F
        names = (Kind.SEND_F, Kind.RECV_F) if forward else (Kind.SEND_B, Kind.RECV_B)
        ends = ((where[source], source.stage, names[0]), (rank, op.stage, names[1]))
        moves = [(*end, op.microbatch, ready, ready + transfer) for end in ends]
        return ready + transfer, moves

    place = [0] * len(rows)
    while any(p < len(row) for p, row in zip(place, rows, strict=True)):
        before = list(place)
        for rank, row in enumerate(rows):
            while place[rank] < len(row):
                item = row[place[rank]]
                ops = tuple(item) if isinstance(item, Pair) else (item,)
                if any((s := source_of(*op)) is not None and s not in done for op in ops):
                    break
                inputs = [arrival(rank, op) for op in ops]
                start = max(free[rank], *(ready for ready, _ in inputs))
                costs = [
                    seconds[k] if isinstance(seconds, dict) else seconds[k, s] for s, k, _ in ops
                ]
                free[rank] = start + sum(costs) * (pair_time if len(ops) > 1 else 1)
                for op, (_, moves) in zip(ops, inputs, strict=True):
                    done[op] = free[rank]
                    spans += [*moves, (rank, *op, start, free[rank])]
                place[rank] += 1
        assert place != before, "the rows cannot finish"
    if optimizer:
        for stage, rank in home.items():
            reduced = free[rank] + 1.5 * optimizer
            spans.append((rank, stage, Kind.REDUCE_GRAD, -1, free[rank] - optimizer, reduced))
        end = max(span[5] for span in spans)
        spans += [
            (r, s, Kind.OPTIMIZER, -1, end, end + optimizer) for s, r in home.items() if s == r
        ]
    spans.sort(key=lambda s: (s[0], s[4], s[5] > s[4], s[2]))
    columns = np.array(spans, dtype=float).T
    types = (np.int32, np.int32, np.int8, np.int32, float, float)
    names = ("rank", "stage", "kind", "microbatch", "start", "end")
    t = {n: c.astype(d) for n, c, d in zip(names, columns, types, strict=True)}
    t["start"], t["end"] = t["start"] * scale, t["end"] * scale
    timeline = Timeline(**t)
    return with_memory(timeline) if memory else timeline


def with_memory(timeline):
    """Samples after each F (+1.5 GB) and B (-1.5 GB) on top of 20 GB of weights."""
    t = timeline.of(Kind.F, Kind.B, Kind.W)
    rank = np.concatenate([np.arange(t.num_ranks), t.rank])
    time = np.concatenate([np.zeros(t.num_ranks), np.where(t.kind == Kind.F, t.start, t.end)])
    change = np.where(t.kind == Kind.F, 1.5e9, -1.5e9)
    change = np.concatenate([np.full(t.num_ranks, 20e9), change])
    order = np.lexsort((change, time, rank))
    order = np.lexsort((time, rank))
    rank, time, change = rank[order].astype(np.int32), time[order], change[order]
    total = np.cumsum(change)
    before = np.concatenate([[0.0], total])[np.searchsorted(rank, rank)]
    return timeline.with_memory(rank, time, total - before)
