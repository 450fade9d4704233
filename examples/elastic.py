"""PipeTransformer's run: ViT-B/16 on 16 GPUs, whose layers freeze from the input on.

Sources: He et al., "PipeTransformer", ICML 2021; from the authors' repository, Distributed-AI/
PipeTransformer on GitHub, pipe_transformer/log: the run's batch size, layers frozen by epoch and
throughput (cifar10-pipetransformer-10minutes.txt), and the time of a transition, 33 s from 8 ranks
to 4 and 23 s from 4 to 2 for copies to the GPUs and new process groups (performance_analysis.log).
"""

import argparse
from pathlib import Path

from simulator.job import Cluster, Job, Link, Model, Plan
from simulator.load import load_gpu
from simulator.planners.elastic import elastic_run, frozen_layers
from simulator.planners.layerwise import single_precision

VIT = Model(
    name="ViT-B/16",  # Dosovitskiy et al., ICLR 2021, Table 1; 14 x 14 patches and a class token
    num_hidden_layers=12,
    hidden_size=768,
    num_attention_heads=12,
    vocab_size=1000,  # the classes; as an embedding, about the size of the patch projection
    seq_len=197,
    learned_positions=True,
    bias=True,
    norm="layernorm",
    dropout=True,
)
CLUSTER = Cluster(
    name="2 machines of 8 Quadro RTX 5000",
    gpu=load_gpu("quadro-rtx-5000"),
    num_nodes=2,
    gpus_per_node=8,
    nics_per_node=1,
    intra_node=Link(bandwidth=15.75e9, latency=3.4e-6),  # PCIe 3.0 x16
    inter_node=Link(bandwidth=5e9, latency=14e-6),  # InfiniBand CX353A, as the paper says
)
BATCH = 320  # images of a replica in a step
TRANSITION = 28.0  # [s]
CIFAR, IMAGENET = 50_000, 1_281_167  # images in an epoch
LOGGED = (0, 0, 6, 8, 8, 8, 10, 10, 12, 12)  # layers frozen in each epoch of the logged run
# by (frozen, cached) [images/s]; the last waits for its data loader
MEASURED = {(0, 0): 430, (6, 0): 600, (8, 8): 1780, (10, 10): 3850, (12, 10): 2300}


def job():
    return Job(
        name="vit",
        model=VIT,
        cluster=single_precision(CLUSTER),
        plan=Plan(
            schedule="gpipe",
            pp=8,
            dp=2,
            num_microbatches=8,
            micro_batch_size=BATCH // 8,
            layers_per_stage=(1, 2) * 4,
            dtype="fp16",
            grad_dtype="fp16",
            attention="eager",
        ),
    )


def total(phases):
    return sum(phase.epoch_time for phase in phases)


def logged(frozen=LOGGED):
    """The logged run: as many microbatches as ranks, as the repository cut them then."""
    return elastic_run(job(), frozen, CIFAR, transition=TRANSITION, microbatches_per_rank=(1,))


def show_run(phases, plain):
    print("epoch  frozen  cached  ranks x replicas  images/s  measured  error  epoch [s]")
    for epoch, phase in enumerate(phases):
        seen = MEASURED.get((phase.frozen, phase.cached))
        error = "" if seen is None else f"{phase.rate / seen - 1:+.0%}"
        print(
            f"{epoch:<7}{phase.frozen:>6}{phase.cached:>8}{phase.pp:>12} x {phase.dp:<3}"
            f"{phase.rate:>10.0f}{seen or '':>10}{error:>7}{phase.epoch_time:>11.1f}"
        )
    print(f"10 epochs: {total(phases):.0f} s, plain pipeline {total(plain):.0f} s, ", end="")
    print(f"{total(plain) / total(phases):.2f}x\n")


def show_speedups():
    print("speed-up over 10 epochs       ranks by epoch       CIFAR  ImageNet  without cache")
    for alpha in (0.2, 0.3, 0.4, 0.5):
        frozen = frozen_layers(12, alpha, 10)
        speedups = []
        for images, cache in ((CIFAR, True), (IMAGENET, True), (IMAGENET, False)):
            runs = elastic_run(job(), frozen, images, cache=cache, transition=TRANSITION)
            plain = elastic_run(job(), (0,) * 10, images)
            speedups.append(total(plain) / total(runs))
        ranks = " ".join(str(phase.pp) for phase in runs)
        shown = "".join(f"{s:>{w}.2f}x" for s, w in zip(speedups, (9, 9, 14), strict=True))
        print(f"alpha = {alpha:<20}{ranks:<20}{shown}")


def draw(folder, phases, plain):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "elastic", "font.size": 10})
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    epochs = range(len(phases))
    left.step(epochs, [p.rate for p in phases], where="mid", color="#0072b2", label="simulated")
    left.step(epochs, [p.rate for p in plain], where="mid", color="#d55e00", label="plain pipeline")
    seen = [(e, MEASURED.get((p.frozen, p.cached))) for e, p in enumerate(phases)]
    shown = [(e, rate) for e, rate in seen if rate is not None]
    left.plot(*zip(*shown, strict=True), "o", color="#222222", label="measured by the authors")
    left.set_yscale("log")
    left.set_xticks(epochs, [f"{e}\n{p.frozen}\n{p.pp} x {p.dp}" for e, p in enumerate(phases)])
    left.set(xlabel="epoch / frozen layers / ranks x replicas", ylabel="throughput [images/s]")
    left.set_title("Each layer that freezes buys throughput")
    left.legend(frameon=False)
    for runs, color, label in ((phases, "#0072b2", "elastic"), (plain, "#d55e00", "plain")):
        times = [0.0]
        for phase in runs:
            times.append(times[-1] + phase.epoch_time)
        right.plot(times, range(len(times)), "o-", color=color, markersize=3)
        right.annotate(
            f"{label}: {times[-1]:.0f} s",
            (times[-1], 10),
            (0, 6),
            ha="right",
            textcoords="offset points",
            color=color,
        )
    right.set(xlabel="time [s]", ylabel="epochs done", ylim=(0, 11), xlim=0)
    right.set_title(f"{total(plain) / total(phases):.1f} times faster over the run")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    fig.savefig(Path(folder) / "elastic_throughput.svg", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", metavar="FOLDER", help="write the picture here")
    arguments = parser.parse_args()
    phases, plain = logged(), logged((0,) * 10)
    show_run(phases, plain)
    show_speedups()
    if arguments.images:
        draw(arguments.images, phases, plain)


if __name__ == "__main__":
    main()
