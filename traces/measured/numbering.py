"""Numbers that names do not give: steps, and the stages and microbatches of `forward_step`.

A rank counts its forwards and its backwards. With several chunks Megatron runs `pp` microbatches
through one chunk, then through the next; backwards take the chunks in reverse.

Source: D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021, section 2.2.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import NO_MICROBATCH, Kind
from traces.measured.mapping import UNKNOWN
from traces.measured.ops import NO_STEP, Ops, RankOps

__all__ = ["numbered", "with_steps"]


def with_steps(one: RankOps) -> RankOps:
    """Every op with its step; those outside of all steps are left out.

    Where the trace marks no steps, an op that runs again begins the next one, and so does an op
    that follows an optimizer step.
    """
    ops, carriers = one.ops, one.carriers
    if (ops.step != NO_STEP).any():
        return replace(one, ops=ops.where(ops.step != NO_STEP))
    if len(ops.kind) == 0:
        return one
    update = ops.kind == Kind.OPTIMIZER
    counted = (ops.microbatch == UNKNOWN).any()
    if counted or update.any():
        step = np.concatenate([[0], np.cumsum(update[:-1] & ~update[1:])])
    else:
        step = _occurrence(np.column_stack([ops.kind, ops.stage, ops.microbatch]))
    ends = np.array([ops.left[step == s].max() for s in range(int(step.max()))])
    return replace(
        one,
        ops=replace(ops, step=step.astype(np.int64)),
        carriers=replace(carriers, step=np.searchsorted(ends, carriers.asked)),
    )


def _occurrence(key: NDArray[np.integer]) -> NDArray[np.int64]:
    """How many equal rows stand before each row."""
    _, inverse = np.unique(key, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    order = np.argsort(inverse, kind="stable")
    ordered = inverse[order]
    first = np.searchsorted(ordered, ordered)
    found = np.empty(len(key), np.int64)
    found[order] = np.arange(len(key)) - first
    return found


def numbered(ops: Ops, rank: int, num_ranks: int, num_chunks: int) -> Ops:
    """The ops of one rank with every stage and microbatch."""
    stage, microbatch = ops.stage.astype(np.int64), ops.microbatch.astype(np.int64)
    chunk = ops.chunk.astype(np.int64)
    for step in np.unique(ops.step).tolist():
        for kind in np.unique(ops.kind).tolist():
            mine = np.flatnonzero((ops.step == step) & (ops.kind == kind))
            _count(stage, microbatch, chunk, mine, Kind(kind), (rank, num_ranks, num_chunks))
    return replace(ops, stage=stage.astype(np.int32), microbatch=microbatch.astype(np.int32))


def _count(
    stage: NDArray[np.int64],
    microbatch: NDArray[np.int64],
    chunk: NDArray[np.int64],
    mine: NDArray[np.intp],
    kind: Kind,
    sizes: tuple[int, int, int],
) -> None:
    """Fill in what is unknown of one kind's ops, in the order in which they ran."""
    rank, num_ranks, num_chunks = sizes
    place = np.arange(len(mine))
    within = place % (num_ranks * num_chunks)
    turn = within // num_ranks if num_chunks > 1 else np.zeros(len(mine), np.int64)
    if kind in (Kind.B, Kind.I, Kind.W, Kind.SEND_B, Kind.RECV_B):
        turn = num_chunks - 1 - turn
    if (microbatch[mine] == NO_MICROBATCH).all():
        turn = np.zeros(len(mine), np.int64)
    in_turn = np.where(chunk[mine] == UNKNOWN, turn, chunk[mine])
    no_stage = stage[mine] == UNKNOWN
    stage[mine[no_stage]] = (rank + num_ranks * in_turn)[no_stage]
    unknown = mine[microbatch[mine] == UNKNOWN]
    if len(unknown):
        microbatch[unknown] = _occurrence(stage[unknown, None])
