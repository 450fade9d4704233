"""What the validator is worth, and what it costs: `python benchmarks/validation.py [RUNS]`.

Errors of five schedules from one calibration, as medians of several runs of two CPU processes, and
the share of a step that timing its ops takes. A busy machine shows: run it on a quiet one.
"""

import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.job import Plan
from validator.analysis import analyse
from validator.asked import SCHEDULES, SMALL, session_of
from validator.beacon import Beacon
from validator.clocks import HostClock
from validator.launch import run_ranks
from validator.recorder import Recorder

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
MARKS = 20_000


def errors():
    """Relative error of each schedule's step, by run."""
    asked = session_of(
        SMALL,
        Plan(num_microbatches=8, micro_batch_size=2),
        SCHEDULES,
        2,
        device="cpu",
        dtype="fp32",
    )
    found = {name: [] for name in SCHEDULES}
    steps = {}
    for _ in range(RUNS):
        for run in analyse(run_ranks(asked)):
            found[run.name].append(run.error)
            steps[run.name] = run.step.median
    return found, steps


def seconds_an_op():
    """What noting one op takes: two marks, two words in the beacon, one event."""
    with TemporaryDirectory() as folder:
        recorder = Recorder(HostClock(), Beacon(Path(folder, "beacon"), 1))
        begin = time.perf_counter()
        for _ in range(MARKS):
            recorder.during(0, 0, lambda: None)
        noted = time.perf_counter() - begin
        begin = time.perf_counter()
        for _ in range(MARKS):
            (lambda: None)()
        return (noted - (time.perf_counter() - begin)) / MARKS


found, steps = errors()
print(f"step predicted from a calibration on {SCHEDULES[0]}, 2 CPU processes, {RUNS} runs")
print(f"{'schedule':<14}{'median error':>14}{'worst':>9}")
for name, each in found.items():
    print(f"{name:<14}{statistics.median(each):>+14.1%}{max(each, key=abs):>+9.1%}")
cost, length = seconds_an_op(), steps[SCHEDULES[0]]
ops = 16 + 16 + 1  # of 8 microbatches on a rank: ops, posts of transfers, the optimizer
print(
    f"\ntracing: {1e6 * cost:.1f} us an op, {ops} ops of a step of {1e3 * length:.0f} ms: ", end=""
)
print(f"{ops * cost / length:.3%} of the step")
