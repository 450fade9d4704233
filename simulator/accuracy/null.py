"""Models that know almost nothing: one rate for all rows, or our prediction and one free scalar.

Each row is predicted from the others alone (leave-one-out), so neither sees its own answer.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.accuracy.predictions import Prediction

__all__ = ["null_errors", "scaled_errors"]

Column = NDArray[np.float64]


def null_errors(predictions: Sequence[Prediction]) -> Column | None:
    """Errors of "every GPU reaches the same FLOP/s", the geometric mean of the other rows'. [1]

    FLOP count recomputation. None where a row has no other.
    """
    measured = np.array([one.measured for one in predictions])
    flops = np.array([one.flops for one in predictions])
    return _leave_one_out(flops, measured)


def scaled_errors(predictions: Sequence[Prediction]) -> Column | None:
    """Errors of our times, multiplied by the other rows' mean ratio: is the shape right? [1]"""
    measured = np.array([one.measured for one in predictions])
    predicted = np.array([one.predicted for one in predictions])
    return _leave_one_out(predicted, measured)


def _leave_one_out(known: Column, measured: Column) -> Column | None:
    """Errors of times proportional to `known`, each row's factor being the mean of the others.

    >>> _leave_one_out(np.array([1.0, 2.0]), np.array([3.0, 6.0]))
    array([0., 0.])
    """
    count = len(known)
    if count < 2:
        return None
    ratio = np.log(measured / known)
    others = (ratio.sum() - ratio) / (count - 1)
    errors: Column = np.round(known * np.exp(others) / measured - 1, 12)
    return errors
