"""Layer times over sizes and dtypes on one device."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from simulator.model import Model
from simulator.robust import Spread, spread
from validator.clocks import clock_of
from validator.player import DTYPES
from validator.stage import Layer

__all__ = ["Point", "sweep"]

REPEATS = 15  # of each size, after a warm-up [1]
WARM_UP = 3
LEAD = 10_000_000  # that a GPU sleeps first, some milliseconds [clock cycles]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One layer at one size."""

    dtype: str
    samples: int  # sequences [1]
    seq_len: int  # tokens in one [1]
    forward: Spread  # [s]
    backward: Spread  # [s]


def sweep(
    model: Model,
    device: torch.device,
    dtypes: Iterable[str],
    samples: Sequence[int],
    seq_lens: Sequence[int],
    alive: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Point]:
    """Time one layer at every size and dtype; sizes take turns, so a hiccup hits one repeat.

    A size for which the memory does not suffice is noted and left out.
    """
    found = []
    for dtype in dtypes:
        times: dict[tuple[int, int], list[tuple[float, float]]] = {}
        layers = {}
        too_large: set[tuple[int, int]] = set()
        for seq_len in seq_lens:
            sized = model.model_copy(update={"seq_len": seq_len})
            with device:
                layers[seq_len] = Layer(sized, DTYPES[dtype])
        for turn in range(WARM_UP + REPEATS):
            alive()
            for count, seq_len in itertools.product(samples, seq_lens):
                if (count, seq_len) in too_large:
                    continue
                try:
                    pair = _timed(layers[seq_len], count, seq_len, model.hidden_size, device)
                except torch.OutOfMemoryError:
                    too_large.add((count, seq_len))
                    times.pop((count, seq_len), None)
                    torch.cuda.empty_cache()
                    note(f"one layer, {dtype}: no memory for {count} x {seq_len} tokens; left out")
                    continue
                if turn >= WARM_UP:
                    times.setdefault((count, seq_len), []).append(pair)
        for (count, seq_len), pairs in times.items():
            forward, backward = (spread(column) for column in zip(*pairs, strict=True))
            found.append(
                Point(
                    dtype=dtype, samples=count, seq_len=seq_len, forward=forward, backward=backward
                )
            )
    return found


def _timed(
    layer: Layer, samples: int, seq_len: int, hidden: int, device: torch.device
) -> tuple[float, float]:
    """Forward and backward of one layer. [s]

    On random numbers: a GPU draws less power on zeros and keeps a higher clock. It sleeps while the
    host issues the layer, or small sizes would be timed as the host's.
    """
    dtype = next(layer.parameters()).dtype
    shape = (samples, seq_len, hidden)
    x = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    gradient = torch.randn(shape, dtype=dtype, device=device)
    layer.zero_grad(set_to_none=False)
    clock = clock_of(device)
    clock.begin()
    if device.type == "cuda":
        torch.cuda._sleep(LEAD)  # type: ignore[no-untyped-call]
    begin = clock.mark()
    result = layer(x)
    middle = clock.mark()
    result.backward(gradient)
    marks = clock.seconds([begin, middle, clock.mark()])
    forward, backward = np.diff(marks).tolist()
    return forward, backward
