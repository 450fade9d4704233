"""How each framework cuts layers that do not divide over the stages, or never divides evenly."""

from simulator.job import Model

__all__ = ["layers_of_stages"]


def layers_of_stages(framework: str, model: Model, stages: int) -> tuple[int, ...] | None:
    """Layers on each stage, None where every stage has as many.

    >>> from simulator.load import load_model
    >>> layers_of_stages("deepspeed", load_model("gpt-1-7b"), 5)
    (5, 5, 5, 5, 4)
    """
    layers = model.num_hidden_layers
    if stages == 1:
        return None
    if framework == "nanotron":
        return _by_cost(model, stages)
    if framework == "nemo-2" and model.is_latent and 2 * stages <= layers + 3:
        return _by_recipe(layers, stages)
    if layers % stages == 0:
        return None
    if (layers + 2) % stages == 0:  # embedding and logits count as a layer each
        inner = (layers + 2) // stages
        return (inner - 1, *[inner] * (stages - 2), inner - 1)
    most = -(-layers // stages)
    full = layers - (most - 1) * stages
    return (*[most] * full, *[most - 1] * (stages - full))


def _by_recipe(layers: int, stages: int) -> tuple[int, ...]:
    """The cut of Megatron-Bridge's DeepSeek-V3: the last stage has what the others leave it.

    Multi-token prediction and the loss count as a layer each; where a stage would have two, the
    embedding does too. Source: NVIDIA-NeMo/Megatron-Bridge, commit 05d003fb89,
    src/megatron/bridge/recipes/deepseek/deepseek_v3.py, layout_map; commit 0fa501acee,
    scripts/performance/configs/deepseek, "Et|(tt|)*30mL".

    >>> _by_recipe(61, 8), _by_recipe(61, 32)[-3:]
    ((8, 8, 8, 8, 8, 8, 8, 5), (2, 2, 0))
    """
    most = -(-(layers + 2) // stages)
    if most <= 2:
        return (1, *[2] * (stages - 2), layers - 1 - 2 * (stages - 2))
    return (*[most] * (stages - 1), layers - most * (stages - 1))


def _by_cost(model: Model, stages: int) -> tuple[int, ...]:
    """The cut of nanotron: a block stays on the rank whose share of the cost it overflows.

    A layer costs its parameters, the logits theirs, the embedding nothing.
    Source: huggingface/nanotron, src/nanotron/models/base.py, build_model.
    """
    query = model.num_attention_heads * model.head_dim
    layer = 4 * query * model.hidden_size + 3 * model.intermediate_size * model.hidden_size
    costs = [layer] * model.num_hidden_layers
    total = sum(costs) + model.vocab_size * model.hidden_size
    counts, rank, done = [0] * stages, 0, 0
    for cost in costs:
        counts[rank] += 1
        done += cost
        if done > total * ((rank + 1) / stages):
            rank += 1
    return tuple(counts)
