"""A search shown in full: every simulated plan with its knobs, for a table or a picture."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.search.space import KNOBS, Space
from simulator.search.store import COLUMNS, Store
from traces.sweep import Sweep

__all__ = ["WORDS", "csv_bytes", "knobs_of", "sweep_of"]

WORDS = {
    "micro_batch_size": "microbatch",
    "sequence_parallel": "sp",
    "layer_split": "layers",
    "zero_stage": "zero",
}


def knobs_of(space: Space, index: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Each knob's value at points, and the data-parallel size that follows."""
    sizes = tuple(len(getattr(space, knob)) for knob in KNOBS)
    places = np.unravel_index(index, sizes)
    found = {
        knob: [getattr(space, knob)[at] for at in place.tolist()]
        for knob, place in zip(KNOBS, places, strict=True)
    }
    cut = zip(found["tp"], found["pp"], found["cp"], strict=True)
    found["dp"] = [space.num_gpus // (tp * pp * cp) for tp, pp, cp in cut]
    return found


def csv_bytes(space: Space, store: Store) -> bytes:
    """Every simulated point with its knobs, a line each."""
    text = io.StringIO()
    names = [*KNOBS, "dp"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["point", *names, *COLUMNS])
    for block in store.blocks():
        knobs = knobs_of(space, block.index)
        figures = [getattr(block, name).tolist() for name in COLUMNS]
        values = [_plain(knobs[name]) for name in names]
        writer.writerows(zip(block.index.tolist(), *values, *figures, strict=True))
    return text.getvalue().encode()


def sweep_of(space: Space, store: Store) -> Sweep:
    """Throughput and the knobs that vary, as a picture takes them."""
    blocks = list(store.blocks())
    rate = np.concatenate([block.tokens_per_second for block in blocks])
    values = knobs_of(space, np.concatenate([block.index for block in blocks]))
    known = {"dp": sorted(set(values["dp"])), **{k: list(getattr(space, k)) for k in KNOBS}}
    shown = [name for name in ("tp", "pp", "dp", *KNOBS) if len(known[name]) > 1]
    job = space.job
    return Sweep(
        title=f"{job.model.name}, {space.num_gpus:,} GPUs, batch {space.global_batch_size:,}",
        rate=rate,
        knobs={WORDS.get(name, name): _plain(values[name]) for name in dict.fromkeys(shown)},
        order={WORDS.get(name, name): _plain(known[name]) for name in dict.fromkeys(shown)},
    )


def _plain(values: Sequence[Any]) -> list[Any]:
    """True and false as TOML and the command write them."""
    return [str(v).lower() if isinstance(v, bool) else v for v in values]
