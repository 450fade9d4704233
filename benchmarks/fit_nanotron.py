"""How nanotron's profile was fitted, and how much of its sweep any plan can tell.

Each constant's best value on its own rows of the sweep, the others as shipped; then the error with
transfers that stall where the profile says so, nowhere, everywhere, and, row by row, in the better
of the two ways: what a model could reach that knew which runs stall. Run it whenever the cost
model changes: `python benchmarks/fit_nanotron.py`.
"""

import numpy as np

from simulator.accuracy.jobs import job_of_row, measured_seconds
from simulator.accuracy.rows import load_table
from simulator.frameworks import load_framework
from simulator.kernel import compile_all
from simulator.simulate import simulate

PROFILE = load_framework("nanotron")
ALWAYS, NEVER = {"stall_above": 0, "stall_tensor": 1}, {"transfer_stall": 0.0}
NODE = 8


def alone(plan):
    """No pipeline, tensor parallelism within a node, at most 16 nodes."""
    return plan.pp == 1 and plan.tp <= NODE and plan.num_gpus <= 16 * NODE


def narrow(plan):
    """Of these, tensor parallelism and few tokens: the host is slower than the GPU."""
    return alone(plan) and plan.tp >= 4 and plan.micro_batch_size <= 2


def stalled(plan):
    """Pipelines of 64 nodes, or of tp = 32."""
    return plan.pp > 1 and (plan.num_gpus > 32 * NODE or plan.tp >= 4 * NODE)


def other(plan):
    """The other pipelines over nodes."""
    return plan.pp > 1 and plan.num_gpus > NODE and not stalled(plan)


def pipelined(plan):
    """Of these, those with tensor parallelism."""
    return other(plan) and plan.tp > 1


FITS = (
    ("product_share", alone, np.arange(0.8, 1.01, 0.02)),
    ("host_share", narrow, np.arange(1.8, 2.31, 0.05)),
    ("pipelined_host", pipelined, np.arange(2.4e-3, 3.5e-3, 0.1e-3)),
    ("transfer_stall", stalled, np.arange(0.24, 0.33, 0.01)),
)


def predicted(jobs, **changes):
    """Step time of these jobs under the profile with some fields changed. [s]"""
    fields = vars(PROFILE)  # of the one value that every module loads
    kept = {name: fields[name] for name in changes}
    fields.update(changes)
    times = np.array([simulate(job).report.step_time for job in jobs])
    fields.update(kept)
    return times


compile_all()
table = load_table("nanotron")
JOBS = [job_of_row(table, row) for row in table.rows]
MEASURED = np.array([measured_seconds(row) for row in table.rows])

for name, rule, values in FITS:
    chosen = [at for at, job in enumerate(JOBS) if rule(job.plan)]
    jobs, measured = [JOBS[at] for at in chosen], MEASURED[chosen]
    either = [{}] if rule is not pipelined else [NEVER, ALWAYS]

    def loss(value, name=name, jobs=jobs, measured=measured, either=either):
        """Median |log error|, which rows of another way to run do not move."""
        logs = [abs(np.log(predicted(jobs, **way, **{name: value}) / measured)) for way in either]
        return float(np.median(np.min(logs, axis=0)))

    losses = [loss(float(value)) for value in values]
    best, shipped = int(np.argmin(losses)), getattr(PROFILE, name)
    print(
        f"{name:15s} {len(jobs):3d} rows: {shipped:g} as shipped, {loss(shipped):.3f}; "
        f"best {values[best]:.4g}, {losses[best]:.3f}"
    )

ways = {"as shipped": predicted(JOBS), "no stall": predicted(JOBS, **NEVER)}
ways["all stall"] = predicted(JOBS, **ALWAYS)
errors = {name: abs(times / MEASURED - 1) for name, times in ways.items()}
errors["the better of both, row by row"] = np.minimum(errors["no stall"], errors["all stall"])
for name, error in errors.items():
    print(f"{name:30s} {error.mean():6.1%} on average, {np.median(error):5.1%} in the median")
shared = [at for at, job in enumerate(JOBS) if other(job.plan)]
stall = errors["all stall"][shared] < errors["no stall"][shared]
print(f"{stall.sum()} of {len(shared)} other pipelines look as if they stalled")
