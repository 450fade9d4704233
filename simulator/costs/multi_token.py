"""Multi-token prediction: modules behind the last layer that foresee one token more each.

A module norms the embedding of the next token and the state of the layers before it, projects both
together to one state, and has a layer of its own; final norm, logits and loss follow. Embedding and
logits are the model's, so that the last stage holds a copy of the embedding. The module's layer is
counted with the last stage's layers; here is the rest.
Sources: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (arXiv 2412.19437), section 2.2 and
equation 21; NVIDIA/Megatron-LM, megatron/core/transformer/multi_token_prediction.py.
"""

from simulator.costs.kernels import BYTES
from simulator.costs.operators import Operator, elementwise, hidden_elements, linear, norm
from simulator.job import Job

__all__ = ["join_bytes", "join_operators", "join_weight_grad_bytes"]


def join_operators(job: Job) -> tuple[Operator, ...]:
    """The two norms, the two states laid side by side, and their projection to one."""
    elements, hidden = hidden_elements(job), job.model.hidden_size
    joined = 2 * 2 * BYTES * elements
    return (
        norm(job, "token norm", elements),
        norm(job, "state norm", elements),
        elementwise(job, "join", joined, joined),
        linear(job, "join projection", hidden / job.plan.tp, 2 * hidden),
    )


def join_bytes(job: Job) -> float:
    """Inputs of the norms and of the projection, which one module keeps. [bytes]"""
    return 4 * BYTES * hidden_elements(job)


def join_weight_grad_bytes(job: Job) -> float:
    """Input of the projection and the gradient of its output, from I to W. [bytes]"""
    return 3 * BYTES * hidden_elements(job)
