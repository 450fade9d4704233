"""The gradients that every cut and schedule must have: those of the model without a pipeline."""

import gc
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from validator.player import DTYPES
from validator.session import Session
from validator.stage import Stage, cut, loss_of, tokens_of

__all__ = ["furthest", "held_names", "reference"]

SPARE = 0.8  # share of the free memory that the whole model may take


def held_names(session: Session, rank: int) -> frozenset[str]:
    """The whole model's names of the parameters that a rank holds under some schedule."""
    found: set[str] = set()
    for layers, held in {play.cut for play in session.plays}:
        dtype, nowhere = DTYPES[session.dtype], torch.device("meta")
        for module in cut(session.model, layers, held[rank], dtype, nowhere).values():
            found |= {name for name, _ in module.named_parameters()}
    return frozenset(found)


def reference(
    session: Session,
    names: AbstractSet[str],
    device: torch.device,
    write: Callable[..., None],
    alive: Callable[[], None],
) -> dict[str, torch.Tensor]:
    """Gradients of these parameters, on the host; none if the whole model does not fit."""
    model = session.model
    dtype = DTYPES[session.dtype]
    if device.type == "cuda":
        needed = 2.5 * model.num_parameters * dtype.itemsize
        free = SPARE * torch.cuda.mem_get_info()[0]
        if needed > free:
            write(
                "note",
                text=f"gradients are not checked: the whole model needs {needed / 1e9:.0f} GB, "
                f"{free / 1e9:.0f} GB are free; use fewer layers to check them",
            )
            return {}
    try:
        found = _whole_gradients(session, dtype, device, alive)
    except torch.OutOfMemoryError:  # activations are not counted above
        write("note", text="gradients are not checked: no memory for the whole model's step")
        found = {}
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return {name: found[name] for name in found.keys() & names}


def _whole_gradients(
    session: Session, dtype: torch.dtype, device: torch.device, alive: Callable[[], None]
) -> dict[str, torch.Tensor]:
    """Gradients of all parameters of the model without a pipeline, on the host."""
    model, m = session.model, session.num_microbatches
    with device:
        whole = Stage(model, range(model.num_hidden_layers), dtype)
    inputs, targets = tokens_of(model, session.micro_batch_size * m, device)
    for x, y in zip(inputs.chunk(m), targets.chunk(m), strict=True):
        torch.autograd.backward(loss_of(whole(x), y, 1 / m))
        alive()
    return {n: p.grad.cpu() for n, p in whole.named_parameters() if p.grad is not None}


def furthest(modules: Mapping[int, Stage], expected: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The parameter of these stages whose gradient is furthest from the expected. [1]"""
    worst, where = 0.0, ""
    for module in modules.values():
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, f"no gradient of {name}"
            found, wanted = parameter.grad.cpu().double(), expected[name].double()
            error = float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))
            if not error <= worst:  # also when it is not a number
                worst, where = error, name
    return {"error": worst, "parameter": where}
