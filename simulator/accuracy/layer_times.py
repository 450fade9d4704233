"""Times of a single transformer layer, as papers measure them."""

from simulator.costs.flops import layer_flops
from simulator.costs.layers import layer_costs
from simulator.job import Job

__all__ = ["layer_seconds"]


def layer_seconds(job: Job) -> tuple[tuple[str, float, float], ...]:
    """One layer's forward and backward of one microbatch: name, time and FLOP of one GPU. [s, FLOP]

    The backward includes what it recomputes.
    """
    found = layer_costs(job)
    layer = found.layer
    forward = layer.forward + layer.forward_tensor
    backward = layer.input_grad + layer.weight_grad
    backward += layer.input_tensor + layer.weight_tensor - layer.overlapped
    backward += layer.again + layer.again_tensor
    work = layer_flops(job.model)
    once = job.plan.micro_batch_size * sum(work.values()) / job.plan.tp
    again = {"none": 0.0, "selective": work["core"] / sum(work.values()), "full": 1.0}
    return (
        ("forward", forward, once),
        ("backward", backward, (2 + again[job.plan.recompute]) * once),
    )
