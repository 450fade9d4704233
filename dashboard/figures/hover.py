"""What an op is, its parts and its bytes, in the words of a tooltip."""

import html

import numpy as np

from simulator.costs import Costs
from simulator.schedule import NO_MICROBATCH, Kind, Op
from simulator.simulate import Run
from traces.labels import WORDS, byte_unit, time_unit

__all__ = ["op_lines", "op_words", "parts_of"]


def parts_of(costs: Costs, kind: Kind, stage: int) -> tuple[str, str]:
    """The parts of an op's time and what it does with bytes, each a line; empty where none."""
    parts = []
    total = float(costs.seconds[kind, stage])
    tensor = float(costs.tensor_seconds[kind, stage])
    again = float(costs.recompute_seconds[stage]) if kind in (Kind.B, Kind.I) else 0.0
    for words, seconds in (
        ("compute", total - tensor - again),
        ("recomputation", again),
        ("tensor-parallel communication", tensor),
    ):
        if seconds > 0:
            parts.append(f"{time_unit(seconds).text(seconds)} {words}")
    return " + ".join(parts), _bytes(costs, kind, stage)


def _bytes(costs: Costs, kind: Kind, stage: int) -> str:
    """What an op takes, frees or sends."""
    held, input_grad = costs.activation_bytes[stage], costs.input_grad_bytes[stage]
    below = stage - (kind is Kind.SEND_B)
    above = stage - (kind is Kind.RECV_F)
    sizes = {
        Kind.F: ("takes", held, "of activations"),
        Kind.B: ("frees", held, "of activations"),
        Kind.I: ("frees", input_grad, "of activations"),
        Kind.W: ("frees", held - input_grad, "of activations"),
        Kind.SEND_F: ("sends", costs.boundary_bytes[below], "of activations a GPU"),
        Kind.SEND_B: ("sends", costs.boundary_bytes[below], "of gradients a GPU"),
        Kind.RECV_F: ("receives", costs.boundary_bytes[above], "of activations a GPU"),
        Kind.RECV_B: ("receives", costs.boundary_bytes[above], "of gradients a GPU"),
        Kind.REDUCE_GRAD: ("reduces", costs.reduce_bytes[stage], "of gradients a GPU"),
        Kind.UNSHARD: ("gathers", costs.unshard_bytes[stage], "of weights a GPU"),
        Kind.OPTIMIZER: ("updates", costs.optimizer_bytes[stage], "of optimizer state"),
    }
    if kind not in sizes:
        return ""
    verb, nbytes, what = sizes[kind]
    size = float(nbytes)
    if size < 0:
        verb, size = "takes", -size
    return f"{verb} {byte_unit(size).text(size)} {what}" if size else ""


def op_words(run: Run, op: Op, rank: int, start: float, end: float) -> list[str]:
    """Sentences on one op: what it is, when, its parts, its bytes; plain text."""
    lines = [_name(op, rank), _when(start, end, run.timeline.makespan)]
    return [line for line in (*lines, *parts_of(run.costs, op.kind, op.stage)) if line]


def op_lines(run: Run, spans: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[str]:
    """The tooltip of each of these spans, as HTML that holds nothing of a user's."""
    t, known = run.timeline, {}
    columns = (t.rank, t.stage, t.kind, t.microbatch, t.start, t.end)
    unit = time_unit(t.makespan)
    lines = []
    for rank, stage, kind, number, start, end in zip(
        *(column[spans].tolist() for column in columns), strict=True
    ):
        if (kind, stage) not in known:
            parts = [line for line in parts_of(run.costs, Kind(kind), stage) if line]
            known[kind, stage] = "".join(f"<br>{html.escape(line)}" for line in parts)
        op = Op(stage, Kind(kind), number)
        lines.append(
            f"<b>{op}</b>  {_name(op, rank)}<br>{start * unit.per_si:.5g} to "
            f"{end * unit.per_si:.5g} {unit.name}, {time_unit(end - start).text(end - start)}"
            f"{known[kind, stage]}"
        )
    return lines


def _name(op: Op, rank: int) -> str:
    number = "" if op.microbatch == NO_MICROBATCH else f", microbatch {op.microbatch}"
    return f"{WORDS[op.kind]} of stage {op.stage}{number}, rank {rank}"


def _when(start: float, end: float, makespan: float) -> str:
    unit = time_unit(makespan)
    return (
        f"{unit.text(start)} to {unit.text(end)}, {time_unit(end - start).text(end - start)} long"
    )
