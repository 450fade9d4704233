"""Six findings of Narayanan et al., SC'21, come out by themselves: `python examples/findings.py`.

"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv
2104.04473), sections 3 and 5. Models, plans and batches are those of the authors' scripts,
examples/sc21/run_figure_*.sh of NVIDIA/Megatron-LM; figures are TFLOP/s per GPU with recomputation
counted, as the paper counts. Nothing is told the outcome. Give a file to draw the figures.
"""

import sys
from pathlib import Path

from simulator.frameworks import load_framework, plan_defaults
from simulator.job import Job, Model, Plan
from simulator.load import load_cluster
from simulator.simulate import simulate
from traces.replacing import replace_bytes

FRAMEWORK = "megatron-lm-2021"
COLORS = ("#0072b2", "#d55e00", "#009e73")


def gpt(layers, hidden, heads):
    """A GPT of the paper: sequences of 2,048 tokens, 51,200 words."""
    return Model(
        name=f"GPT, {layers} layers of {hidden:,}",
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        vocab_size=51200,
        seq_len=2048,
        bias=True,
        learned_positions=True,
        tie_word_embeddings=True,
        norm="layernorm",
        dropout=True,
    )


def run(model, gpus, batch, *, recompute="full", micro_batch_size=1, **given):
    """Simulate a plan on Selene in the habits of Megatron-LM in 2021; None if it is no plan."""
    tp, pp = given.get("tp", 1), given.get("pp", 1)
    dp = gpus // tp // pp
    if batch % (dp * micro_batch_size):
        return None
    plan = plan_defaults(
        load_framework(FRAMEWORK),
        dtype="fp16",
        tp=tp,
        dp=dp,
        pp=pp,
        vpp=given.get("vpp", 1),
        recompute=recompute,
    )
    sizes = {"dp": dp, "micro_batch_size": micro_batch_size, "recompute": recompute}
    sizes["num_microbatches"] = batch // dp // micro_batch_size
    plan = Plan(framework=FRAMEWORK, dtype="fp16", **(plan | sizes | given))
    cluster = load_cluster("selene").model_copy(update={"num_nodes": gpus // 8})
    return simulate(Job(name=model.name, model=model, cluster=cluster, plan=plan)).report


def rate(report):
    """TFLOP/s per GPU; None where the plan is none or does not fit."""
    return report.hardware_tflops_per_gpu if report is not None and report.fits else None


GPT_175B, GPT_162B, GPT_6B = gpt(96, 12288, 96), gpt(32, 20480, 128), gpt(32, 3840, 32)
GPT_91B, GPT_145B = gpt(32, 15360, 128), gpt(80, 12288, 96)


def interleaving():
    """Figure 12: 175B on 96 GPUs, t = 8, p = 12, chunks of two layers."""
    batches = (12, 24, 36, 48, 60)
    sizes = {"tp": 8, "pp": 12}
    return batches, {
        "interleaved, v = 4": [
            rate(run(GPT_175B, 96, b, schedule="interleaved", vpp=4, **sizes)) for b in batches
        ],
        "1F1B": [rate(run(GPT_175B, 96, b, **sizes)) for b in batches],
    }


def scatter_gather():
    """Figure 18: the same model and plan."""
    batches = (12, 24, 36, 48, 60)
    sizes = {"schedule": "interleaved", "tp": 8, "pp": 12, "vpp": 4}
    return batches, {
        "with scatter/gather": [rate(run(GPT_175B, 96, b, **sizes)) for b in batches],
        "without": [rate(run(GPT_175B, 96, b, scatter_gather=False, **sizes)) for b in batches],
    }


def tensor_and_pipeline():
    """Figure 13: 162.2B on 64 GPUs of 8 a node."""
    sizes = ((2, 32), (4, 16), (8, 8), (16, 4), (32, 2))
    return [f"{pp}, {tp}" for pp, tp in sizes], {
        f"batch {batch}": [rate(run(GPT_162B, 64, batch, pp=pp, tp=tp)) for pp, tp in sizes]
        for batch in (32, 128)
    }


def tensor_pipeline_and_data():
    """Figures 14 and 15: 5.9B on 64 GPUs, the rest of them data-parallel."""
    sizes = (2, 4, 8, 16, 32)
    return sizes, {
        "pipeline x data": [rate(run(GPT_6B, 64, 512, pp=size)) for size in sizes],
        "tensor x data": [rate(run(GPT_6B, 64, 512, tp=size)) for size in sizes],
    }


def microbatch():
    """Figure 16: 91B on 64 GPUs, t = 8, p = 8."""
    sizes = (1, 2, 4, 8)
    return sizes, {
        f"batch {batch}": [
            rate(run(GPT_91B, 64, batch, tp=8, pp=8, micro_batch_size=size)) for size in sizes
        ]
        for batch in (128, 512)
    }


def recomputation():
    """Figure 17: 145B on 128 GPUs, t = 8, p = 16; sequences a second."""
    batches = (1, 2, 4, 8, 16, 32, 64, 128, 256)

    def samples(batch, recompute):
        report = run(GPT_145B, 128, batch, tp=8, pp=16, recompute=recompute)
        return report.samples_per_second if report.fits else None

    return batches, {
        "recomputed": [samples(batch, "full") for batch in batches],
        "kept": [samples(batch, "none") for batch in batches],
    }


def gain(lines):
    """By how much the first curve is above the second, point by point."""
    first, second = lines.values()
    return [a / b - 1 if a and b else None for a, b in zip(first, second, strict=True)]


def percents(values):
    """Shares as text."""
    return ", ".join("does not fit" if v is None else f"{100 * v:+.0f}%" for v in values)


def numbers(values):
    """Figures as text."""
    return ", ".join("-" if v is None else f"{v:.3g}" for v in values)


FIGURES = {
    "Interleaving pays at small batches": (interleaving, "batch size", "TFLOP/s per GPU"),
    "Scatter/gather shortens transfers": (scatter_gather, "batch size", "TFLOP/s per GPU"),
    "Tensor parallelism ends at the server": (
        tensor_and_pipeline,
        "pipeline-, tensor-parallel size",
        "TFLOP/s per GPU",
    ),
    "Data parallelism wins where the model fits": (
        tensor_pipeline_and_data,
        "pipeline- or tensor-parallel size of 64 GPUs",
        "TFLOP/s per GPU",
    ),
    "A microbatch of two is best": (microbatch, "microbatch size", "TFLOP/s per GPU"),
    "Recomputing costs a quarter": (recomputation, "batch size", "sequences/s"),
}


def told(found):
    """The findings, one or two lines each, beside the paper's words."""
    twelve, eighteen, thirteen, fourteen, sixteen, seventeen = found
    yield f"interleaving gains {percents(gain(twelve[1]))} at batches {numbers(twelve[0])}"
    yield "  paper: 10% or more at small batches, less as they grow (5.3.2)"
    yield f"scatter/gather gains {percents(gain(eighteen[1]))} at batches {numbers(eighteen[0])}"
    yield "  paper: up to 11% (5.7)"
    for name, line in thirteen[1].items():
        yield f"pipeline, tensor {'; '.join(thirteen[0])}: {numbers(line)} TFLOP/s, {name}"
    yield "  paper: best at t = 8, the server's size; 16 and 32 cross servers and collapse (5.4.1)"
    for name, line in fourteen[1].items():
        yield f"{name}, sizes {numbers(fourteen[0])}: {numbers(line)} TFLOP/s"
    yield "  paper: both fall as the size grows, tensor over servers most (5.4.2, 5.4.3)"
    for name, line in sixteen[1].items():
        yield f"microbatches of {numbers(sixteen[0])}: {numbers(line)} TFLOP/s, {name}"
    yield "  paper: 2 is best for this model (5.5)"
    kept = gain(dict(reversed(seventeen[1].items())))
    yield f"without recomputation {percents(kept)} at batches {numbers(seventeen[0])}"
    best = [max(value for value in line if value is not None) for line in seventeen[1].values()]
    yield f"  the best with recomputation is {best[0] / best[1]:.2f} times the best without"
    yield "  paper: recomputing costs up to 33% at small batches; its best is up to 2 times (5.6)"


def draw(found, suffix):
    """Six panels."""
    import io

    from matplotlib.figure import Figure

    from traces.colors import INK, MUTED
    from traces.gantt import drawing

    buffer = io.BytesIO()
    with drawing():
        figure = Figure(figsize=(11.5, 6.6), layout="constrained")
        figure.get_layout_engine().set(hspace=0.08, wspace=0.05)
        axes = figure.subplots(2, 3).flat
        for one, (title, (_, x, y)), (names, lines) in zip(
            axes, FIGURES.items(), found, strict=True
        ):
            for color, mark, (name, line) in zip(COLORS, "osD", lines.items(), strict=False):
                at = [index for index, value in enumerate(line) if value is not None]
                ys = [line[index] for index in at]
                one.plot(at, ys, color=color, marker=mark, ms=4, lw=1.4, label=name)
            one.set_xticks(range(len(names)), [str(name) for name in names])
            one.set_ylim(bottom=0)
            one.set_title(title, loc="left", fontsize=10, color=INK, weight="bold")
            one.set_xlabel(x, fontsize=9, color=MUTED)
            one.set_ylabel(y, fontsize=9, color=MUTED)
            one.tick_params(labelsize=8, color=MUTED, labelcolor=INK)
            one.legend(frameon=False, fontsize=8, labelcolor=INK)
            for edge in ("top", "right"):
                one.spines[edge].set_visible(False)
        figure.savefig(buffer, format=suffix[1:], dpi=150)
    return buffer.getvalue()


def main(path):
    """Print the findings, and draw them."""
    found = [figure() for figure, *_ in FIGURES.values()]
    print("\n".join(told(found)))
    if path is not None:
        replace_bytes(path, draw(found, path.suffix))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
