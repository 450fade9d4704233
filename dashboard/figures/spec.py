"""A plotly figure as the table that the browser gets, built without plotly's own objects.

They check every property, which takes longer than a simulation; the tests have them check each
figure instead. Columns travel as base64 of their bytes, as plotly.js reads them.
"""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Figure", "add", "packed", "started"]

Figure = dict[str, Any]  # plotly's: "data", a list of traces, and "layout"

_TYPES = {
    "float64": "f8",
    "float32": "f4",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint32": "u4",
    "uint16": "u2",
    "uint8": "u1",
}


def packed(column: NDArray[Any]) -> dict[str, str]:
    """A column of numbers as plotly.js reads it: type, bytes in base64, and shape if 2-D or more.

    >>> packed(np.array([1, 2], np.uint8))
    {'dtype': 'u1', 'bdata': 'AQI='}
    """
    if column.dtype.name not in _TYPES:  # whole numbers of 64 bits, which JavaScript has not
        column = column.astype(np.int32)
    data = base64.b64encode(column.tobytes()).decode()
    made = {"dtype": _TYPES[column.dtype.name], "bdata": data}
    if column.ndim > 1:
        made["shape"] = ", ".join(map(str, column.shape))
    return made


def started(layout: dict[str, Any]) -> Figure:
    """A figure without traces."""
    return {"data": [], "layout": layout}


def add(fig: Figure, kind: str, **trace: Any) -> None:  # noqa: ANN401 - plotly's values
    """Add a trace of a kind, as "bar"; its columns are packed."""
    columns = {k: packed(v) if isinstance(v, np.ndarray) else v for k, v in trace.items()}
    fig["data"].append({"type": kind, **columns})
