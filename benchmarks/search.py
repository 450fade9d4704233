"""What a search costs besides judging, and how it grows: `python benchmarks/search.py`.

With `--judge` also the rate on GPT-3 175B, 512 A100s, with 1 and 2 processes, for 30 s each.
"""

import argparse
import os
import pickle
import resource
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from simulator.load import job_from_options
from simulator.search.front import Front
from simulator.search.judge import Judged
from simulator.search.local import MARGIN, Here, Processes, Task, grown
from simulator.search.reasons import num_legal
from simulator.search.run import search
from simulator.search.space import space_of
from simulator.search.store import COLUMNS, opened

CHUNK = 2_500  # points that a worker judges in 0.5 s at 5,000 points a second
SHARE = 0.02  # of the points that are simulated, the others being illegal, too large or beaten


def verdict(first, stop, share, rng):
    """A chunk's verdict with random figures: its size is what matters here."""
    index = np.sort(rng.choice(np.arange(first, stop), int(share * (stop - first)), replace=False))
    figures = {name: rng.random(len(index)) for name in COLUMNS}
    dropped = {"illegal": stop - first - len(index)}
    return Judged(first=first, stop=stop, dropped=dropped, index=index, **figures)


def memory():
    """Most memory of this process so far. [MB]"""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def store(folder):
    """Writing, reading again and the file's size."""
    rng = np.random.default_rng(0)
    path = Path(folder) / "plans.sqlite"
    chunks = [verdict(at, at + 2 * CHUNK, 0.5, rng) for at in range(0, 2_000_000, 2 * CHUNK)]
    with opened(path, {}) as kept:
        start = time.perf_counter()
        for chunk in chunks:
            kept.record([chunk])
        took = time.perf_counter() - start
        count = kept.num_simulated
    print(f"{count:,} simulated plans, one chunk of {CHUNK:,} a transaction")
    print(f"  written         {took:8.2f} s  {1e3 * took / len(chunks):.1f} ms a chunk")
    size = path.stat().st_size
    print(f"  file            {size / 1e6:8.1f} MB, {size / count:.0f} B a plan")
    start = time.perf_counter()
    with opened(path, {}) as kept:
        kept.gaps(2_000_000)
        front = Front()
        for block in kept.blocks():
            front = grown(front, block)
    print(
        f"  resumed         {time.perf_counter() - start:8.2f} s: ledger, {count:,} rows, the front"
    )


def ledger(folder):
    """The ledger of 10^8 points, in chunks that come in any order."""
    points, rng = 10**8, np.random.default_rng(1)
    path = Path(folder) / "ledger.sqlite"
    before = memory()
    empty = {name: np.empty(0) for name in COLUMNS}
    none = np.empty(0, np.int64)
    most = 0
    with opened(path, {}) as kept:
        start = time.perf_counter()
        for batch in range(0, points, 64 * CHUNK):
            firsts = np.arange(batch, min(batch + 64 * CHUNK, points), CHUNK)
            rng.shuffle(firsts)
            half = len(firsts) // 2
            for part in (firsts[:half], firsts[half:]):
                kept.record(
                    [
                        Judged(
                            first=first,
                            stop=first + CHUNK,
                            dropped={"illegal": CHUNK},
                            index=none,
                            **empty,
                        )
                        for first in part.tolist()
                    ]
                )
                most = max(most, kept.num_ranges)
        took = time.perf_counter() - start
        assert (kept.num_judged, kept.num_ranges) == (points, 1)
    print(f"10^8 points marked in {points // CHUNK:,} chunks, 64 at a time in any order")
    print(f"  written         {took:8.2f} s  {1e3 * took * CHUNK / points:.2f} ms a chunk")
    print(f"  ranges          {most:8,} at most, 1 at the end")
    print(f"  file            {path.stat().st_size / 1e6:8.2f} MB")
    print(f"  memory          {memory() - before:8.1f} MB more")


def messages():
    """Bytes that travel with a chunk."""
    rng = np.random.default_rng(2)
    space = gpt3()
    chunk = verdict(0, CHUNK, SHARE, rng)
    answer = {name: getattr(chunk, name) for name in ("index", *COLUMNS)}
    front = Front().add(verdict(0, 200, 1.0, rng)).arrays()
    sent = len(space.model_dump_json()) + len(pickle.dumps(front))
    back = len(pickle.dumps(answer))
    chunks = 10**8 // CHUNK
    print(f"a chunk of {CHUNK:,} points, {SHARE:.0%} simulated: {sent:,} B sent, {back:,} B back")
    print(f"  10^8 points     {chunks * (sent + back) / 1e9:8.2f} GB in {chunks:,} chunks")


def gpt3():
    """GPT-3 175B, batch 1,536, on 512 A100s."""
    options = {"model": "gpt3-175b", "cluster": "selene", "gpus": 512, "num_microbatches": 1}
    return space_of(job_from_options(options), global_batch_size=1536, num_gpus=512)


class Enough(Exception):
    """The time is over."""


def rates(seconds):
    """Points a second on a real space, for some time."""
    space = gpt3()
    print(f"GPT-3 175B, 512 A100s: {space.num_points:,} points, {seconds:g} s each")
    for count in (1, 2):
        task = Task(space, MARGIN)
        start = time.perf_counter()
        last = None

        def until(now, start=start):
            nonlocal last
            last = now
            if time.perf_counter() - start > seconds:
                raise Enough

        team = Here(task) if count == 1 else Processes(task, count)
        with closing(team), opened(None, {}) as kept:
            with suppress(Enough):
                search(task, kept, team, until)
            took = last.num_judged / last.rate
            legal = num_legal(kept.num_simulated, kept.dropped()) / took
            print(
                f"  {count} processes     {last.rate:10,.0f} points/s, {legal:,.0f} legal plans/s "
                f"whose weights fit, {kept.num_simulated:,} simulated"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--judge", type=float, metavar="SECONDS")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        ledger(folder)
        store(folder)
    messages()
    if arguments.judge:
        rates(arguments.judge)
