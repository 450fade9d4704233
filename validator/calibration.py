"""Costs of a play's stages from what the ranks wrote down.

An op's time includes its launch overhead: what the row loses between two ops that wait for
nothing, and what posting its transfers takes the host. On CPU that is where gloo's sends and
receives cost time, since a rank's own thread posts them; their bytes move beside the next op.
"""

from collections import defaultdict
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.calibrate import Calibration, OpTime
from simulator.job import Link
from simulator.robust import fit_link, spread, trimmed_mean
from simulator.schedule import Kind
from validator.events import Measured
from validator.session import Play
from validator.steps import OPS, message_times, op_times, quiet, steps_of

__all__ = ["calibration_of", "lost_of"]

FEWEST_MESSAGES = 5  # to tell how long one takes between busy ranks [1]

Times = dict[tuple[Kind, int], list[float]]  # by kind and stage [s]


def calibration_of(measured: Measured, target: Play) -> Calibration:
    """Costs of a play's stages, from lone ops, the first play's steps, links and lone memory.

    Nothing that is measured while `target` runs is used, unless it is the first play.
    """
    session, first = measured.session, measured.session.plays[0]
    own = next(p for p in session.plays if p.cut == target.cut)
    split = target.splits_backward
    lone = _lone_times(measured, own)
    launch, post = _overheads(measured, first)
    factor = _factors(measured, first)
    num_stages = target.schedule.num_stages
    home = _home(target)
    lost = {key: _lost(*key, home, launch, post) for key in lone}
    ops = []
    for (kind, stage), times in sorted(lone.items()):
        found = spread(times)
        scale = factor.get((kind, home[stage]), 1.0)
        ops.append(
            OpTime(
                kind=kind.name,
                stage=stage,
                seconds=scale * found.median + lost[kind, stage],
                low=scale * found.low + lost[kind, stage],
                high=scale * found.high + lost[kind, stage],
                count=found.size,
            )
        )
    about = measured.about
    what = about.get("gpu", about.get("cpu", "unknown"))
    link = _link(measured, first)
    return Calibration(
        name=f"{session.model.name} on {session.num_ranks} x {what}, {about.get('date', '')}",
        num_stages=num_stages,
        ops=tuple(ops),
        boundary_bytes=session.boundary_bytes,
        launch_overhead=launch,
        post_overhead=post,
        **({} if link is None else {"latency": link.latency, "bandwidth": link.bandwidth}),
        **_memory(measured, own, num_stages, split=split),
    )


def lost_of(calibration: Calibration, target: Play) -> dict[tuple[Kind, int], float]:
    """The launch overhead of each kind of op and stage of a play. [s]"""
    home = _home(target)
    launch, post = calibration.launch_overhead, calibration.post_overhead
    return {(kind, stage): _lost(kind, stage, home, launch, post) for kind in OPS for stage in home}


def _home(target: Play) -> dict[int, int]:
    """The rank of each stage."""
    return {stage: rank for rank, held in enumerate(target.held) for stage in held}


def _lost(kind: Kind, stage: int, home: dict[int, int], launch: float, post: float) -> float:
    """Launch overhead of an op, and of posting the transfers before and after it. [s]"""
    if kind in (Kind.W, Kind.OPTIMIZER):
        return launch

    def far(other: int) -> bool:
        return other in home and home[other] != home[stage]

    return launch + post * (far(stage - 1) + far(stage + 1))


def _lone_times(measured: Measured, own: Play) -> Times:
    """Times of the lone ops of a cut, of whole backwards and of split ones."""
    times: Times = defaultdict(list)
    for step in steps_of(measured, "lone", own):
        for key, seconds in op_times(step).items():
            times[key] += seconds
    if not times:
        raise ValueError(
            f"no lone op of {own.name} was timed; the run ended too early to calibrate on"
        )
    return times


def _factors(measured: Measured, first: Play) -> dict[tuple[Kind, int], float]:
    """How much longer ops take among others than alone, by kind and rank, on the first play.

    I and W take B's factor, and the optimizer none.
    """
    alone = _lone_times(measured, first)
    among: Times = defaultdict(list)
    for step in steps_of(measured, "step", first):
        for key, seconds in op_times(step).items():
            among[key] += seconds
    factor: dict[tuple[Kind, int], float] = {}
    for rank, held in enumerate(first.held):
        for kind, takers in ((Kind.F, (Kind.F,)), (Kind.B, (Kind.B, Kind.I, Kind.W))):
            ratios = [
                float(np.median(among[kind, stage]) / np.median(alone[kind, stage]))
                for stage in held
                if among.get((kind, stage)) and alone.get((kind, stage))
            ]
            if ratios:
                factor |= {(taker, rank): float(np.median(ratios)) for taker in takers}
    return factor


def _link(measured: Measured, first: Play) -> Link | None:
    """The link of lone messages, no faster than those that a rank of the first play waited for.

    A message between busy ranks takes longer: gloo's thread shares a core with the ops, NCCL's
    kernel shares the GPU's. The delay comes and goes, so its trimmed mean counts.
    """
    samples = [(float(n), float(t)) for link in measured.of("link") for n, t in link["samples"]]
    if not samples:
        return None
    nbytes = float(measured.session.boundary_bytes)
    link = fit_link(samples, nbytes)
    waited = [t for step in quiet(steps_of(measured, "step", first)) for t in message_times(step)]
    if len(waited) < FEWEST_MESSAGES:
        return link
    return link.model_copy(
        update={"latency": max(link.latency, trimmed_mean(waited) - nbytes / link.bandwidth)}
    )


def _overheads(measured: Measured, first: Play) -> tuple[float, float]:
    """What the row loses before an op that waits for nothing, and by posting a transfer. [s]"""
    launch: list[float] = []
    post: list[float] = []
    for step in steps_of(measured, "step", first):
        for rank, row in step.rows.items():
            held = first.held[rank]
            for before, after in pairwise(row):
                waits = (after.kind == Kind.F and after.stage and after.stage - 1 not in held) or (
                    after.kind in (Kind.B, Kind.I)
                    and after.stage < first.schedule.num_stages - 1
                    and after.stage + 1 not in held
                )
                if after.kind == Kind.OPTIMIZER or (waits and after.kind in OPS):
                    continue
                (launch if before.kind in OPS else post).append(after.begin - before.end)
    lost = float(np.median(launch)) if launch else 0.0
    return lost, max(0.0, float(np.median(post)) - lost) if post else 0.0


def _memory(
    measured: Measured, own: Play, num_stages: int, *, split: bool
) -> dict[str, tuple[float, ...]]:
    """Bytes that each stage's ops take and free, from the lone ops."""
    change: Times = defaultdict(list)
    extra: Times = defaultdict(list)
    static = np.zeros(num_stages)
    for record in measured.of("lone memory", split=split):
        if own.name not in record["plays"]:
            continue
        rows = record["events"]
        for (kind, stage, _, before, most, after), then in pairwise(rows):
            if kind != Kind.OPTIMIZER:
                change[Kind(kind), stage].append(then[3] - before)
                extra[Kind(kind), stage].append(most - max(before, after))
        held = own.held[record["rank"]]
        repeats = 1 + max(row[2] for row in rows)
        base = rows[0][3] - repeats * measured.buffer_bytes(held, num_stages)
        static[list(held)] = base / len(held)
    if not change:
        return {}

    def of(table: Times, kind: Kind) -> NDArray[np.float64]:
        return np.array([np.median(table.get((kind, s), [0.0])) for s in range(num_stages)])

    forward = of(change, Kind.F)
    back = of(change, Kind.I) + of(change, Kind.W) if split else of(change, Kind.B)
    # stage 0 has its backward in W, whose peak is as high in I's place: nothing ends in between;
    # a forward's in the next backward's place, which begins with as much as that forward left
    backwards = (Kind.I, Kind.W) if split else (Kind.B,)
    transient = np.max([of(extra, kind) for kind in (Kind.F, *backwards)], axis=0)
    # the runtime holds on to what it sent until the step ends
    home, sent = _home(own), np.zeros(num_stages)
    for stage, rank in home.items() if measured.session.transfers != "looped" else ():
        sent[stage] += home.get(stage + 1, rank) != rank
        sent[stage] += home.get(stage - 1, rank) != rank and not split  # else it is in I's own
    kept = forward + back + sent * measured.session.boundary_bytes
    return {
        "static_bytes": tuple(static.tolist()),
        "activation_bytes": tuple(forward.tolist()),
        "input_grad_bytes": tuple((-of(change, Kind.I)).tolist()) if split else (),
        "transient_bytes": tuple(np.maximum(0.0, transient).tolist()),
        "kept_bytes": tuple(np.maximum(0.0, kept).tolist()),
    }
