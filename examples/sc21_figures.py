"""Figures 13 to 17 of Narayanan et al., SC'21, as sweeps: `python examples/sc21_figures.py`.

"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 5. Model
sizes, GPUs and batches are those that the figures state; where the paper states no schedule or
microbatch for a figure, the settings below are assumed and say so. A row is a figure's curve;
figures are model TFLOP/s per GPU with recomputation counted, as the paper counts.
"""

import sys
from pathlib import Path

from simulator.job import Job, Model, Plan
from simulator.load import load_cluster
from simulator.simulate import simulate
from traces.sweep import Line, write_lines

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def gpt(name, layers, hidden, heads):
    """A GPT of the paper: sequences of 2,048 tokens, 51,200 words."""
    return Model(
        name=name,
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


GPT_162B = gpt("gpt-162.2b", 32, 20480, 128)
GPT_6B = gpt("gpt-5.9b", 32, 3840, 32)
GPT_91B = gpt("gpt-91b", 48, 12544, 112)  # assumed: the paper gives the size alone
GPT_145B = gpt("gpt-145b", 80, 12288, 96)


def run(model, gpus, batch, **plan):
    """Simulate a plan on Selene; fp16, eager attention, gradients added up in fp16, as in 2021."""
    cluster = load_cluster("selene").model_copy(update={"num_nodes": gpus // 8})
    dp = gpus // (plan.get("tp", 1) * plan.get("pp", 1))
    sequences = dp * plan.setdefault("micro_batch_size", 1)
    if batch % sequences:
        return None
    settings = {"dtype": "fp16", "grad_dtype": "fp16", "attention": "eager", "recompute": "full"}
    made = Plan(dp=dp, num_microbatches=batch // sequences, **{**settings, **plan})
    return simulate(Job(name=model.name, model=model, cluster=cluster, plan=made)).report


def rate(report):
    """TFLOP/s per GPU; nothing where the plan is none, or does not fit."""
    return report.hardware_tflops_per_gpu if report is not None and report.fits else None


def figure_13():
    """Tensor against pipeline parallelism: 162.2B on 64 GPUs."""
    sizes = [(2, 32), (4, 16), (8, 8), (16, 4), (32, 2)]  # pp, tp
    return [
        Line(
            name=f"batch {batch}",
            x=[f"{pp}, {tp}" for pp, tp in sizes],
            y=[rate(run(GPT_162B, 64, batch, pp=pp, tp=tp)) for pp, tp in sizes],
        )
        for batch in (32, 128)
    ]


def figure_14():
    """Pipeline against data parallelism: 5.9B on 64 GPUs."""
    sizes = [(2, 32), (4, 16), (8, 8), (16, 4), (32, 2)]  # pp, dp
    return [
        Line(
            name=f"batch {batch}",
            x=[f"{pp}, {dp}" for pp, dp in sizes],
            y=[rate(run(GPT_6B, 64, batch, pp=pp)) for pp, _ in sizes],
        )
        for batch in (32, 128, 512)
    ]


def figure_15():
    """Tensor against data parallelism: 5.9B on 64 GPUs."""
    sizes = [(2, 32), (4, 16), (8, 8), (16, 4), (32, 2)]  # tp, dp
    return [
        Line(
            name=f"batch {batch}",
            x=[f"{tp}, {dp}" for tp, dp in sizes],
            y=[rate(run(GPT_6B, 64, batch, tp=tp)) for tp, _ in sizes],
        )
        for batch in (32, 128, 512)
    ]


def figure_16():
    """Microbatch size: 91B, tensor 8, pipeline 8 on 64 GPUs."""
    sizes = [1, 2, 4, 8]
    return [
        Line(
            name=f"batch {batch}",
            x=[str(size) for size in sizes],
            y=[rate(run(GPT_91B, 64, batch, tp=8, pp=8, micro_batch_size=size)) for size in sizes],
        )
        for batch in (128, 512)
    ]


def figure_17():
    """Activation recomputation: 145B, tensor 8, pipeline 16 on 128 GPUs; sequences a second."""
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]

    def samples(batch, recompute, size):
        plan = {"recompute": recompute, "micro_batch_size": size}
        report = run(GPT_145B, 128, batch, tp=8, pp=16, **plan)
        return report.samples_per_second if report is not None and report.fits else None

    return [
        Line(
            name=f"{name}, microbatch {size}",
            x=[str(batch) for batch in batches],
            y=[samples(batch, recompute, size) for batch in batches],
        )
        for name, recompute in (("with recomputation", "full"), ("without", "none"))
        for size in (1, 4)
    ]


TITLES = {
    13: "Tensor parallelism up to the node, 8 GPUs, then pipelines",
    14: "Deep pipelines idle: data parallelism wins where the model fits",
    15: "Tensor parallelism costs an all-reduce in every layer",
    16: "The best microbatch weighs GEMM efficiency against the bubble",
    17: "Recomputation costs throughput, but lets large microbatches fit",
}
AXES = {
    13: "pipeline-, tensor-parallel size",
    14: "pipeline-, data-parallel size",
    15: "tensor-, data-parallel size",
    16: "microbatch size",
    17: "batch size",
}
NOTES = {
    13: "162.2B, 64 A100; assumed: microbatch 1, 1F1B, full recomputation",
    14: "5.9B, 64 A100; assumed: microbatch 1, 1F1B, full recomputation",
    15: "5.9B, 64 A100; assumed: microbatch 1, full recomputation",
    16: "91B, 64 A100, tensor 8, pipeline 8; assumed: 48 layers of 12,544, 1F1B, recomputation",
    17: "145B, 128 A100, tensor 8, pipeline 16; assumed: microbatch as named, 1F1B",
}
FIGURES = {13: figure_13, 14: figure_14, 15: figure_15, 16: figure_16, 17: figure_17}


def main(folder):
    """Print the figures as tables, and draw them."""
    for number, figure in FIGURES.items():
        lines = figure()
        unit = "sequences/s" if number == 17 else "TFLOP/s per GPU"
        print(f"Fig. {number}, {unit}: {TITLES[number]}")
        print(f"{AXES[number]:<32}" + "".join(f"{x:>8}" for x in lines[0].x))
        for line in lines:
            cells = ["-" if y is None else f"{y:.2f}" if y < 10 else f"{y:.0f}" for y in line.y]
            print(f"  {line.name:<30}" + "".join(f"{cell:>8}" for cell in cells))
        print(f"  {NOTES[number]}")
        if folder is not None:
            path = folder / f"search_sc21_fig{number}.svg"
            write_lines(
                lines, path, title=TITLES[number], x=AXES[number], y=unit, note=NOTES[number]
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
