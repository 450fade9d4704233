"""A transformer as a graph of operators: what each takes from which, with its residual branches."""

from simulator.costs.communication import p2p_seconds
from simulator.costs.compute import (
    Operator,
    embedding_operators,
    head_operators,
    layer_operators,
)
from simulator.costs.memory import static_bytes
from simulator.job import Job
from simulator.planners.tarnawski import Graph

__all__ = ["operator_graph"]

BYTES = 2  # of one fp16 or bf16 element
NOTHING = Operator("", 0.0, 0.0)


def operator_graph(job: Job) -> Graph:
    """All operators of a job's model, forward and backward, each whole on one GPU.

    Query, key and value are operators of their own, as are the two halves of a gated feed-forward
    layer; they share the time of their common product by their widths. An output crosses to another
    GPU over a NIC, and its gradient back. What stays on a GPU is weights, gradients and optimizer
    state.

    Raises:
        ValueError: the plan splits operators over GPUs, or its attention is several operators.
    """
    plan = job.plan
    if plan.tp > 1 or plan.attention != "flash":
        raise ValueError(
            f"plan.tp is {plan.tp} and plan.attention {plan.attention}, but the graph is of whole "
            "operators; use tp = 1 and flash attention"
        )
    build = _Builder(job)
    embedding, (norm, logits, loss) = embedding_operators(job)[0], head_operators(job)
    hidden, vocabulary = job.model.hidden_size, job.model.vocab_size
    stream = build.add("embedding", embedding, (), hidden, hidden * vocabulary)
    for layer in range(job.model.num_hidden_layers):
        stream = build.layer(f"layer {layer} ", stream)
    stream = build.add(norm.name, norm, (stream,), hidden)
    stream = build.add(logits.name, logits, (stream,), vocabulary, hidden * vocabulary)
    build.add(loss.name, loss, (stream,), 0)
    return build.graph()


class _Builder:
    """Numbers operators as they are added. A class only to hold those lists."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.operators: list[Operator] = []
        self.names: list[str] = []
        self.widths: list[float] = []  # of the outputs, elements a token [1]
        self.parameters: list[float] = []
        self.edges: list[tuple[int, int]] = []

    def add(
        self, name: str, what: Operator, takes: tuple[int, ...], width: float, parameters: float = 0
    ) -> int:
        """Add an operator; gives its number."""
        number = len(self.operators)
        self.operators.append(what)
        self.names.append(name)
        self.widths.append(width)
        self.parameters.append(parameters)
        self.edges += [(one, number) for one in takes]
        return number

    def layer(self, at: str, stream: int) -> int:
        """Add a layer behind an operator; gives its last."""
        model = self.job.model
        hidden, inner = model.hidden_size, model.intermediate_size
        query = model.num_attention_heads * model.head_dim
        key = model.num_key_value_heads * model.head_dim
        by = {operator.name: operator for operator in layer_operators(self.job)}
        norm = self.add(at + "attention norm", by["attention norm"], (stream,), hidden)
        heads = []
        for name, width in (("query", query), ("key", key), ("value", key)):
            what = _share(by["qkv"], width / (query + 2 * key))
            if name != "value":
                for extra in ("query and key norm", "rotary positions"):
                    what = _sum(what, _share(by.get(extra, NOTHING), width / (query + key)))
            heads.append(self.add(at + name, what, (norm,), width, hidden * width))
        core = self.add(at + "attention", by["flash attention"], tuple(heads), query)
        out = self.add(at + "projection", by["projection"], (core,), hidden, hidden * query)
        residual = by["attention residual"]
        stream = self.add(at + "attention residual", residual, (out, stream), hidden)
        norm = self.add(at + "mlp norm", by["mlp norm"], (stream,), hidden)
        sides = ("up", "gate") if model.gated_mlp else ("up",)
        part = _share(by["mlp up"], 1 / len(sides))
        ups = tuple(self.add(at + side, part, (norm,), inner, hidden * inner) for side in sides)
        active = self.add(at + "activation", by["activation"], ups, inner)
        down = self.add(at + "down", by["mlp down"], (active,), hidden, hidden * inner)
        return self.add(at + "mlp residual", by["mlp residual"], (down, stream), hidden)

    def graph(self) -> Graph:
        """The operators so far."""
        plan, link = self.job.plan, self.job.cluster.inter_node
        tokens = plan.micro_batch_size * self.job.model.seq_len
        return Graph(
            seconds=tuple(o.forward + o.input_grad + o.weight_grad for o in self.operators),
            transfer=tuple(2 * p2p_seconds(BYTES * tokens * w, link) for w in self.widths),
            nbytes=tuple(sum(static_bytes(p, self.job)) for p in self.parameters),
            edges=tuple(self.edges),
            names=tuple(self.names),
        )


def _share(whole: Operator, share: float) -> Operator:
    """A part of an operator's work."""
    times = (whole.forward, whole.input_grad, whole.weight_grad)
    return Operator(whole.name, *(share * seconds for seconds in times))


def _sum(a: Operator, b: Operator) -> Operator:
    """The work of two operators as one."""
    back, weight = a.input_grad + b.input_grad, a.weight_grad + b.weight_grad
    return Operator(a.name, a.forward + b.forward, back, weight)
