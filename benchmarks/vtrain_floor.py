"""How well any smooth model could rank vTrain's rows: `python benchmarks/vtrain_floor.py`, 20 s.

The rows are looked at alone, then our regret is compared with that of our model with parts replaced
by the rows' own, or corrected by a regression. Diagnosis only: nothing here is used to predict.
"""

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.accuracy.predictions import Prediction, Scored, predict
from simulator.accuracy.rows import load_table
from simulator.accuracy.scores import score
from simulator.kernel import compile_all

TABLE = load_table("vtrain")

Column = NDArray[np.float64]
Cell = tuple[int, int, int]  # hidden size, tp, microbatch


class Fit(NamedTuple):
    """A step of one cell as a line in its microbatches and its layers. [s]"""

    layer: float  # of one microbatch in one layer
    rest: float  # of one microbatch besides


def cell_of(one: Prediction) -> Cell:
    return one.job.model.hidden_size, one.job.plan.tp, one.job.plan.micro_batch_size


def by_cell(rows: tuple[Prediction, ...]) -> dict[Cell, list[int]]:
    cells: dict[Cell, list[int]] = defaultdict(list)
    for at, one in enumerate(rows):
        cells[cell_of(one)].append(at)
    return cells


def straightness(rows: tuple[Prediction, ...]) -> list[float]:
    """Largest deviation from a line in the layers, of three plans or more alike in all else. [1]"""
    lines = defaultdict(list)
    for one in rows:
        plan = one.job.plan.model_dump_json(exclude={"layers_per_stage"})
        key = (plan, one.job.model.hidden_size)
        lines[key].append((one.job.model.num_hidden_layers, one.measured))
    found = []
    for points in lines.values():
        if len(points) > 2:
            layers, seconds = np.array(points).T
            fit = np.polynomial.Polynomial.fit(layers, seconds, 1)
            found.append(float(np.abs(fit(layers) / seconds - 1).max()))
    return found


def fit_cell(rows: list[Prediction], seconds: Column) -> Fit:
    """Layer and rest of a cell, beside constants by pp and dp and the layers' update."""
    plans = [one.job.plan for one in rows]
    layers = np.array([one.job.model.num_hidden_layers / one.job.plan.pp for one in rows])
    passes = np.array([plan.num_microbatches for plan in plans], float)
    fill = np.array([plan.pp - 1 for plan in plans])
    columns = [(passes + fill) * layers, passes, layers]
    columns += [np.array([plan.pp == pp for plan in plans], float) for pp in (2, 4)]
    columns += [np.array([plan.dp == dp for plan in plans], float) for dp in (1, 2, 4, 8)]
    table = np.array(columns).T / seconds[:, None]
    found = np.linalg.lstsq(table, np.ones(len(rows)), rcond=1e-9)[0]
    return Fit(float(found[0]), float(found[1]))


def report(name: str, rows: tuple[Prediction, ...], seconds: Column) -> None:
    """Error, ordering and regret of these times instead of ours."""
    other = [replace(one, predicted=time) for one, time in zip(rows, seconds, strict=True)]
    found = score(Scored(table=TABLE, predictions=tuple(other), skipped=()))
    order = found.ordering
    print(f"{name:52} {found.error:6.1%} {order.right:8.1%} {order.regret:8.2%}")


def corrected(rows: tuple[Prediction, ...], folds: NDArray[np.int64]) -> Column:
    """Ours times a regression on the logarithms of all sizes, each fold left out in turn."""
    ours = np.array([one.predicted for one in rows])
    ratio = np.log([one.measured / one.predicted for one in rows])
    sizes = np.log2(
        [(*cell_of(one), one.job.plan.pp, one.job.plan.dp, one.job.plan.num_microbatches)
         for one in rows]
    )  # fmt: skip
    pairs = [sizes[:, i] * sizes[:, j] for i in range(6) for j in range(i, 6)]
    table = np.column_stack([np.ones(len(rows)), sizes, *pairs])
    guess = np.zeros(len(rows))
    for fold in np.unique(folds):
        out = folds == fold
        guess[out] = table[out] @ np.linalg.lstsq(table[~out], ratio[~out], rcond=1e-9)[0]
    return np.asarray(ours * np.exp(guess))


def main() -> None:
    compile_all()
    rows = predict(TABLE).predictions
    lines = straightness(rows)
    print(f"{len(lines)} lines in the layers, three plans or more on each: the plan farthest from")
    print(
        f"its line is {np.median(lines):.1e} of its time off it (median), {max(lines):.1e} at most"
    )
    ours = np.array([one.predicted for one in rows])
    measured = np.array([one.measured for one in rows])
    cells = by_cell(rows)
    theirs, mine = (
        {
            cell: fit_cell([rows[at] for at in where], seconds[where])
            for cell, where in cells.items()
        }
        for seconds in (measured, ours)
    )
    print(
        "\nmilliseconds of a layer and microbatch, measured (ours), of microbatches of 1, 2, 4, 8:"
    )
    for hidden in (1024, 2048):
        for tp in (1, 2, 4, 8):
            times = [(theirs[hidden, tp, b].layer, mine[hidden, tp, b].layer) for b in (1, 2, 4, 8)]
            text = "  ".join(f"{a * 1e3:6.2f} ({b * 1e3:5.2f})" for a, b in times)
            print(f"  {hidden} tp {tp}  {text}")
    more = [
        (cell, larger)
        for cell in cells
        for larger in ((cell[0] * 2, cell[1], cell[2]), (cell[0], cell[1], cell[2] * 2))
        if larger in cells
    ]
    odd = sum(theirs[larger].layer < theirs[cell].layer for cell, larger in more)
    print(f"{odd} of {len(more)} pairs: twice the hidden size or microbatch takes less time")

    passes = np.array([one.job.plan.num_microbatches + one.job.plan.pp - 1 for one in rows])
    layers = np.array([one.job.model.num_hidden_layers / one.job.plan.pp for one in rows])
    gain = np.array([theirs[cell_of(one)].layer - mine[cell_of(one)].layer for one in rows])
    number = {cell: at for at, cell in enumerate(cells)}
    apart = np.array([number[cell_of(one)] for one in rows])
    random = np.random.default_rng(0).integers(0, 32, len(rows))
    print(f"\n{'':52} {'error':>6} {'ordered':>8} {'regret':>8}")
    report("ours", rows, ours)
    report("with each cell's own time of a layer", rows, ours + passes * layers * gain)
    report("corrected by a regression, random rows left out", rows, corrected(rows, random))
    report("corrected by a regression, whole cells left out", rows, corrected(rows, apart))


if __name__ == "__main__":
    main()
