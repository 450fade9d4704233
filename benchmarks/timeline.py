"""How long an answer takes: whole calls on one core, growth and memory, and the engine's pace.

`python benchmarks/timeline.py` prints medians of warm calls. A whole call builds the rows, computes
the timeline with its memory samples, and writes the report; "with messages" lowers the rows too and
makes each end of each message a span, as reading `run.timeline` does. `--growth` adds ten million
ops.
"""

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import simpy

from simulator import engine
from simulator.costs import uniform
from simulator.fabric import ideal
from simulator.job import Job, Plan
from simulator.kernel import compile_all
from simulator.load import load_job
from simulator.lower import lower, post_receives_early
from simulator.matching import match
from simulator.routes import talking
from simulator.schedules import build
from simulator.simulate import simulate, simulate_uniform

EXAMPLES = Path(__file__).parents[1] / "examples"
REPEATS = 9
ENOUGH = 0.5  # of calls of one kind, at least [s]
# schedule, pp, microbatches, vpp, target [s], the fastest other tool's schedule alone [s]
CASES = (
    ("1f1b", 8, 64, 1, 1e-3, None),
    ("1f1b", 64, 512, 1, 15e-3, 0.44),
    ("interleaved", 64, 512, 2, None, 1.7),
    ("interleaved", 64, 512, 4, 60e-3, 9.3),
    ("zb-h1", 64, 512, 1, 30e-3, None),
)
# schedule, vpp, microbatches on 64 ranks: 16,384 to 10 million ops
GROWTH = (
    ("1f1b", 1, (128, 1_280, 12_800, 78_125)),
    ("interleaved", 4, (512, 19_520)),
    ("zb-h1", 1, (512, 52_083)),
)


def timed(call, repeats=REPEATS):
    """Median and least time of a call, after one that is not counted. [s]

    Short calls are repeated for half a second: nine of them are over before a core has left
    another process's caches and clock behind.
    """
    kept = call()  # as a caller holds on to the last answer
    times = []
    while len(times) < repeats or sum(times) < ENOUGH:
        begin = time.perf_counter()
        kept = call()
        times.append(time.perf_counter() - begin)
    del kept
    return statistics.median(times), min(times)


def with_messages(plan):
    """A run whose timeline has been read."""
    run = simulate_uniform(plan, 1.0, 2.0)
    assert run.timeline.num_spans >= run.streams.num_spans
    return run


def whole_calls():
    print(f"{'whole call':<28}{'ops':>9}{'median':>11}{'least':>11}{'with messages':>15}", end="")
    print(f"{'target':>8}{'another tool':>14}{'ratio':>8}")
    for name, pp, m, vpp, target, other in CASES:
        plan = Plan(schedule=name, pp=pp, num_microbatches=m, vpp=vpp)
        took, least = timed(lambda plan=plan: simulate_uniform(plan, 1.0, 2.0))
        whole, _ = timed(lambda plan=plan: with_messages(plan))
        ops = build(plan).num_ops
        goal = f"{1e3 * target:.0f} ms" if target else ""
        peer = f"{other} s" if other else ""
        ratio = f"{other / took:.0f}x" if other else ""
        label = f"{name} p={pp} m={m}" + (f" v={vpp}" if vpp > 1 else "")
        times = f"{1e3 * took:>8.2f} ms{1e3 * least:>8.2f} ms{1e3 * whole:>12.2f} ms"
        print(f"{label:<28}{ops:>9,}{times}{goal:>8}{peer:>14}{ratio:>8}")


def big_job(p2p):
    """530B parameters, p = 35, v = 3, 360 microbatches in groups of 36."""
    table = load_job(EXAMPLES / "korthikanti_530b_selective_sp.toml").model_dump()
    table["plan"] |= {"num_microbatches": 360, "microbatch_group_size": 36, "p2p": p2p}
    return Job.model_validate(table)


def executors(p2p):
    job = big_job(p2p)
    head = f"530B, p=35 v=3 m=360, {p2p}"
    print(f"\n{head:<34}{'median':>11}{'least':>11}{'step time':>14}")
    for executor, repeats in (("longest_path", REPEATS), ("events", REPEATS), ("engine", 3)):
        took, least = timed(lambda e=executor: simulate(job, e), repeats)
        report = simulate(job, executor).report
        times = f"{1e3 * took:>8.1f} ms{1e3 * least:>8.1f} ms"
        print(f"{report.executor:<34}{times}{report.step_time:>12.4f} s")


def bare(num_events, num_processes):
    """Time of a SimPy loop that does nothing but wait. [s]"""
    env = simpy.Environment()

    def process():
        for _ in range(num_events // num_processes):
            yield env.timeout(1.0)

    for _ in range(num_processes):
        env.process(process())
    begin = time.perf_counter()
    env.run()
    return time.perf_counter() - begin


def engine_loop(lowered, costs, fabric):
    """Time of the engine's event loop, and its events. [s]"""
    run = engine._Run(lowered, costs, fabric, {})
    loop, times = run.env.run, []

    def timed():
        begin = time.perf_counter()
        loop()
        times.append(time.perf_counter() - begin)

    run.env.run = timed
    run.timeline()
    return times[0], next(run.env._eid)


def engine_pace():
    print(f"\n{'SimPy engine':<20}{'events':>10}{'events/s':>12}{'bare loop':>12}{'ratio':>8}")
    for pp, m in ((8, 64), (16, 256), (64, 512)):
        lowered = post_receives_early(lower(build(Plan(pp=pp, num_microbatches=m))))
        fabric = ideal(talking(lowered, match(lowered)))
        ours, idle = [], []
        for _ in range(REPEATS):  # in turn, so that both meet the same noise
            took, events = engine_loop(lowered, uniform(pp, 1.0, 2.0), fabric)
            ours.append(took)
            idle.append(bare(events, pp))
        rate, loop = events / statistics.median(ours), events / statistics.median(idle)
        label = f"1f1b p={pp} m={m}"
        print(f"{label:<20}{events:>10,}{rate:>12,.0f}{loop:>12,.0f}{rate / loop:>8.2f}")


def held(name):
    """What this process holds, VmRSS, or has held at most, VmHWM. [bytes]"""
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def one_size(schedule, vpp, microbatches):
    """Print time and memory of one call of a process of its own, and of reading its messages."""
    compile_all()
    with_messages(Plan(schedule=schedule, vpp=vpp, pp=64, num_microbatches=64))
    plan = Plan(schedule=schedule, vpp=vpp, pp=64, num_microbatches=microbatches)
    before = held("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most that was held begins anew
    begin = time.perf_counter()
    run = simulate_uniform(plan, 1.0, 2.0)
    took, most, ops = time.perf_counter() - begin, held("VmHWM") - before, run.schedule.num_ops
    print(f"{schedule:<12}{ops:>11,}{took:>9.3f} s{1e9 * took / ops:>8.0f} ns", end="")
    print(f"{most / ops:>10.0f} B", end="")
    spans = run.timeline.num_spans
    took, most = time.perf_counter() - begin, held("VmHWM") - before
    print(f"{spans:>13,}{took:>9.3f} s{most / ops:>8.0f} B{most / spans:>8.0f} B")


def growth():
    print(f"\n{'p=64':<12}{'ops':>11}{'one call':>11}{'an op':>11}{'peak an op':>12}", end="")
    print(f"{'all spans':>13}{'read too':>11}{'an op':>10}{'a span':>10}", flush=True)
    for schedule, vpp, sizes in GROWTH:
        for microbatches in sizes:
            command = [sys.executable, __file__, schedule, str(vpp), str(microbatches)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] != "--growth":
        one_size(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        compile_all()
        whole_calls()
        executors("overlapped")
        executors("blocking")
        engine_pace()
        if sys.argv[1:]:
            growth()
