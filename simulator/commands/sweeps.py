"""A search shown in full: every simulated plan with its knobs, for a table or a picture."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.search.judge import Judged
from simulator.search.space import KNOBS, Space
from simulator.search.store import COLUMNS, Store
from traces.sweep import Sweep

__all__ = ["WORDS", "counted", "csv_bytes", "distinct", "knobs_of", "sweep_of"]

WORDS = {
    "micro_batch_size": "microbatch",
    "sequence_parallel": "sp",
    "layer_split": "layers",
    "zero_stage": "zero",
}


def knobs_of(space: Space, index: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Each knob's value at points, with those that follow: dp, and etp where it is left out."""
    sizes = tuple(len(getattr(space, knob)) for knob in KNOBS)
    places = np.unravel_index(index, sizes)
    found = {
        knob: [getattr(space, knob)[at] for at in place.tolist()]
        for knob, place in zip(KNOBS, places, strict=True)
    }
    if space.job.model.is_sparse:
        sizes_of = zip(found["etp"], found["tp"], strict=True)
        found["etp"] = [tp if etp is None else etp for etp, tp in sizes_of]
    cut = zip(found["tp"], found["pp"], found["cp"], strict=True)
    found["dp"] = [space.num_gpus // (tp * pp * cp) for tp, pp, cp in cut]
    return found


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "GPU"), counted(1024, "GPU")
    ('1 GPU', '1,024 GPUs')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def distinct(space: Space, judged: Judged, most: int) -> tuple[Judged, int]:
    """The first plans, without those that equal an earlier one in all but the schedule's name.

    With a single stage and microbatch, say, schedules have the same figures. Also returns how many
    were left out on the way.
    """
    knobs = knobs_of(space, judged.index)
    seen: set[tuple[object, ...]] = set()
    kept: list[int] = []
    looked = 0
    for at in range(len(judged.index)):
        figures = (f"{getattr(judged, name)[at]:.9g}" for name in COLUMNS)
        one = (*figures, *(values[at] for name, values in knobs.items() if name != "schedule"))
        if one not in seen and len(kept) == most:
            break
        if one not in seen:
            kept.append(at)
        seen.add(one)
        looked = at + 1
    keep = np.array(kept, np.int64)
    columns = {name: getattr(judged, name)[keep] for name in ("index", *COLUMNS)}
    return replace(judged, **columns), looked - len(kept)


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
    known["etp"] = sorted(set(values["etp"])) if "etp" in shown else []
    job = space.job
    return Sweep(
        title=f"{job.model.name}, {counted(space.num_gpus, 'GPU')}, "
        f"batch {space.global_batch_size:,}",
        rate=rate,
        knobs={WORDS.get(name, name): _plain(values[name]) for name in dict.fromkeys(shown)},
        order={WORDS.get(name, name): _plain(known[name]) for name in dict.fromkeys(shown)},
    )


def _plain(values: Sequence[Any]) -> list[Any]:
    """True and false as TOML and the command write them."""
    return [str(v).lower() if isinstance(v, bool) else v for v in values]
