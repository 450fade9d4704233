"""Time of a full prediction: costs, memory and report, without the timeline that a schedule plays.

Run `python benchmarks/costs.py`. Warm: compiled kernels, cached presets and framework profiles.
"""

from collections.abc import Callable
from time import perf_counter

from simulator.costs import estimate
from simulator.costs.estimate import stage_costs
from simulator.costs.flops import hardware_flops, model_flops
from simulator.costs.layers import layer_costs
from simulator.job import Job, Model, Plan
from simulator.load import load_cluster, load_model

REPEATS = 200


def job_of(model: Model, nodes: int, cluster: str, **plan: object) -> Job:
    """A job on as many nodes of a cluster as it needs."""
    sized = load_cluster(cluster).model_copy(update={"num_nodes": nodes})
    return Job(model=model, cluster=sized, plan=Plan.model_validate(plan))


def jobs() -> dict[str, Job]:
    """Jobs of real sizes."""
    return {
        "GPT-3 175B, 1024 A100": job_of(
            load_model("gpt3-175b"), 128, "selene", tp=8, pp=16, dp=8, schedule="1f1b",
            num_microbatches=64, attention="eager", recompute="selective", sequence_parallel=True,
            framework="megatron-lm-2022",
        ),
        "Llama 3 70B, 64 H100": job_of(
            load_model("llama3-70b"), 8, "dgx-h100", tp=8, pp=4, dp=2, num_microbatches=32,
            sequence_parallel=True, zero_stage=1, overlap_grad_reduce=True,
            framework="megatron-core",
        ),
        "Llama 3 8B, FSDP, 64 H100": job_of(
            load_model("llama3-8b"), 8, "dgx-h100", dp=64, zero_stage=3, overlap_grad_reduce=True,
            framework="torchtitan",
        ),
    }  # fmt: skip


def prediction(job: Job) -> tuple[float, float, float]:
    """Costs, memory, and what a report derives from them but the schedule's step."""
    costs = estimate(job)
    memory = float((costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes).max())
    return memory, model_flops(job.model, job.plan.global_batch_size), hardware_flops(job)


def milliseconds(call: Callable[[], object]) -> float:
    """The best of some repeats, warm. [ms]"""
    call()
    best = float("inf")
    for _ in range(REPEATS):
        start = perf_counter()
        call()
        best = min(best, perf_counter() - start)
    return best * 1e3


def main() -> None:
    """Print the time of a prediction, and of its two parts."""
    print(f"{'job':28}{'prediction':>12}{'layers':>10}{'stages':>10}  [ms]")
    for name, job in jobs().items():
        layers = layer_costs(job)
        whole = milliseconds(lambda job=job: prediction(job))
        shared = milliseconds(lambda job=job: layer_costs(job))
        stages = milliseconds(lambda job=job, layers=layers: stage_costs(layers, job))
        print(f"{name:28}{whole:12.3f}{shared:10.3f}{stages:10.3f}")


if __name__ == "__main__":
    main()
