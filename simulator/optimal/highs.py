"""HiGHS at work on the programme: the only file that imports highspy."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import highspy
import numpy as np

from simulator.optimal.problem import Problem, Words, play
from simulator.optimal.programme import Programme

__all__ = ["Found", "solve"]

Report = Callable[[float, float], None]  # objective [s], bound [s]


class Found(NamedTuple):
    """What HiGHS found."""

    words: Words | None
    bound: float  # no order is better than this [s]


def solve(
    problem: Problem, words: Words, *, deadline: float, nodes: int | None, report: Report
) -> Found:
    """Improve on the words until that is proven impossible, or time or nodes run out.

    `deadline` is a time of the monotonic clock. [s]
    """
    played = play(problem, words)
    assert played is not None
    programme = Programme(problem, words, played.value)
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("mip_rel_gap", 1e-7)
    highs.setOptionValue("mip_abs_gap", 1e-9)
    if deadline < float("inf"):
        highs.setOptionValue("time_limit", max(0.0, deadline - time.monotonic()))
    if nodes is not None:
        highs.setOptionValue("mip_max_nodes", nodes)
    highs.passModel(_linear(programme))
    start = highspy.HighsSolution()
    start.col_value = programme.warm_start().tolist()
    highs.setSolution(start)
    _run(highs, programme.unit, report)
    info, status = highs.getInfo(), highs.getModelStatus()
    bound = info.mip_dual_bound * programme.unit
    if status == highspy.HighsModelStatus.kOptimal:
        bound = info.objective_function_value * programme.unit
    if not np.isfinite(bound):
        bound = 0.0
    has = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    found = programme.words(np.array(highs.getSolution().col_value)) if has else None
    return Found(found, float(bound))


def _linear(programme: Programme) -> highspy.HighsLp:
    """The programme in HiGHS's own form."""
    model, lp = programme.model, highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.low), len(model.row_low)
    cost = np.zeros(len(model.low))
    cost[programme.objective] = 1.0
    lp.col_cost_ = cost
    lp.col_lower_, lp.col_upper_ = np.array(model.low), np.array(model.high)
    lp.row_lower_, lp.row_upper_ = np.array(model.row_low), np.array(model.row_high)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(model.starts, np.int32)
    lp.a_matrix_.index_ = np.array(model.index, np.int32)
    lp.a_matrix_.value_ = np.array(model.value)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[whole] for whole in model.integer]
    return lp


def _run(highs: highspy.Highs, unit: float, report: Report) -> None:
    """Run HiGHS in a thread of its own, so that Ctrl-C reaches us and ends it."""
    latest: list[tuple[float, float]] = []
    highs.HandleUserInterrupt = True

    def note(event: highspy.HighsCallbackEvent) -> None:
        out = event.data_out
        latest.append((out.mip_primal_bound * unit, out.mip_dual_bound * unit))

    highs.cbMipLogging += note
    worker = threading.Thread(target=highs.run, daemon=True)
    worker.start()
    while worker.is_alive():
        try:
            worker.join(0.05)
            while latest:
                report(*latest.pop(0))
        except KeyboardInterrupt:
            highs.cancelSolve()  # type: ignore[no-untyped-call]
