"""What the scored rows taught: for each, what kind of job it was and how far we were off.

`errors.csv` is written by `benchmarks/learn_errors.py` and read here; a job is compared with it
without predicting anything again.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache

from simulator.accuracy.rows import FOLDER
from simulator.job import Job

__all__ = ["EXPERTS", "Experience", "Kind", "experience", "kind_of", "written"]

EXPERTS = "expert"  # size of layers of experts
PLAIN = "megatron-core"  # whose habits a plan without a framework has
SMALL = (
    5e9  # of one layer's forward on one GPU: less is done before the host issues the next [FLOP]
)


FAMILIES = dict.fromkeys(("B200", "B300", "GB200", "GB300"), "Blackwell")  # else as they are called


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What sort of job it is, for finding similar ones."""

    framework: str
    gpu: str  # family, as A100
    network: str  # one node; several nodes; tp over nodes
    size: str  # small or large layers, or layers of experts


@dataclass(frozen=True, kw_only=True)
class Experience:
    """One scored row."""

    table: str
    row: str
    framework: str
    gpu: str
    network: str
    size: str
    gpu_name: str
    dtype: str
    schedule: str
    hidden_size: int
    seq_len: int
    micro_batch_size: int
    num_gpus: int
    tp: int
    pp: int
    cp: int
    ep: int
    zero_stage: int
    log_error: float  # of measured over predicted [1]

    @property
    def kind(self) -> Kind:
        """The sort of job that it was."""
        return Kind(framework=self.framework, gpu=self.gpu, network=self.network, size=self.size)


def kind_of(job: Job) -> Kind:
    """The sort of a job."""
    plan, model, node = job.plan, job.model, job.cluster.gpus_per_node
    network = "one node" if plan.num_gpus <= node else "several nodes"
    if plan.tp > node:
        network = "tp over nodes"
    tokens = plan.micro_batch_size * model.seq_len
    work = 2.0 * tokens * model.parameters_per_layer / plan.tp / plan.cp
    family = job.cluster.gpu.name.split()[0]
    size = "small" if work < SMALL * _relative_speed(job) else "large"
    return Kind(
        framework=plan.framework or PLAIN,
        gpu=FAMILIES.get(family, family),
        network=network,
        size=EXPERTS if model.is_sparse else size,
    )


def _relative_speed(job: Job) -> float:
    """The GPU's 16-bit peak over an A100's: a faster GPU needs larger layers to stay busy. [1]"""
    peaks = job.cluster.gpu.peak_flops
    return max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) / 312e12


def written(found: Sequence[Experience]) -> str:
    """The text of `errors.csv`."""
    text = io.StringIO()
    out = csv.DictWriter(text, [f.name for f in fields(Experience)], lineterminator="\n")
    out.writeheader()
    out.writerows(asdict(one) for one in found)
    return text.getvalue()


@cache
def experience() -> tuple[Experience, ...]:
    """All of `errors.csv`."""
    text = (FOLDER / "errors.csv").read_text(encoding="utf-8")
    kinds = {f.name: f.type for f in fields(Experience)}
    found = []
    for line in csv.DictReader(io.StringIO(text)):
        values = {name: kinds[name](value) for name, value in line.items()}  # type: ignore[operator]
        found.append(Experience(**values))
    return tuple(found)
