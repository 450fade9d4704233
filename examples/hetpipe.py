"""HetPipe's cluster: which GPUs should share a virtual worker, and what may run ahead of what.

Source: Park et al., "HetPipe", USENIX ATC 2020: four nodes of four GPUs, each node of its own kind;
PCIe 3.0 x16 (15.75 GB/s) inside, 56 Gb/s InfiniBand (7 GB/s) between; minibatches of 32 images.
"""

import argparse
from pathlib import Path

import numpy as np

from simulator.job import Link
from simulator.load import load_gpu
from simulator.planners.convnets import convnet_costs, resnet152, vgg19
from simulator.planners.hetpipe import POLICIES, all_reduce_rate, best_assignment, outcome
from simulator.planners.parameter_server import global_staleness, wave_synchronous
from simulator.planners.virtual_workers import MixedCluster

BATCH = 32
KINDS = [load_gpu(name) for name in ("titan-v", "titan-rtx", "rtx-2060", "quadro-p4000")]
LETTERS = "VRGQ"
CLUSTER = MixedCluster(
    kinds=tuple(KINDS),
    gpus_per_node=4,
    intra_node=Link(bandwidth=15.75e9, latency=3e-6),
    inter_node=Link(bandwidth=7e9, latency=3e-6),
)
NETWORKS = {"VGG-19": vgg19(), "ResNet-152": resnet152()}
JITTER = 0.2  # spread of a minibatch's time, lognormal [1]


def costs_of(name):
    return {gpu.name: convnet_costs(NETWORKS[name], gpu, BATCH) for gpu in KINDS}


def letters(worker):
    return "".join(LETTERS[node] for node in worker.nodes)


def assignments(name):
    """The outcome of every policy, by its label."""
    layers = costs_of(name)
    found = {
        policy: outcome(assign(CLUSTER), CLUSTER, layers) for policy, assign in POLICIES.items()
    }
    found["ED-local"] = outcome(POLICIES["ED"](CLUSTER), CLUSTER, layers, local=True)
    return found


def show_assignments(name, found):
    layers = costs_of(name)
    base, gpus = all_reduce_rate(CLUSTER, layers)
    print(f"{name}, images/s            long run  none waits  longest wait  over NICs   gain")
    print(f"all-reduce on {gpus} GPUs         {base * BATCH:>8.0f}{'1.00x':>43}")
    for label, one in found.items():
        kinds = " ".join(dict.fromkeys(letters(worker) for worker in one.workers))
        share = float(one.waves.waiting_share.max())
        label = f"{label}, {one.waves.wave} in flight"
        print(
            f"{label:<24}{one.rate * BATCH:>14.0f}{one.free_rate * BATCH:>12.0f}{share:>14.0%}"
            f"{one.network_bytes / 1e9:>9.2f} GB{one.rate / base:>6.2f}x  {kinds}"
        )
    wave = found["ED"].waves.wave
    best, ways = best_assignment(CLUSTER, layers, wave)
    kinds = " ".join("".join(LETTERS[node] for node in nodes) for nodes in best)
    print(f"best of all {ways} assignments with {wave} in flight: {kinds}\n")


def jittered(workers, wave, distance, num_waves=200):
    """A run in which every minibatch's time varies, the same in every call."""
    pace = np.array([worker.pace for worker in workers])[:, None]
    noise = np.random.default_rng(0).lognormal(
        -(JITTER**2) / 2, JITTER, (len(pace), num_waves * wave)
    )
    return wave_synchronous(
        pace * noise,
        [worker.latency for worker in workers],
        wave=wave,
        distance=distance,
        num_waves=num_waves,
    )


def node_waves(name, distance, wave, num_waves):
    """NP's workers under a clock distance."""
    assignment, layers = POLICIES["NP"](CLUSTER), costs_of(name)
    return outcome(
        assignment, CLUSTER, layers, distance=distance, num_in_flight=wave, num_waves=num_waves
    )


def show_distance(found):
    even, wave = found["ED-local"], found["NP"].waves.wave
    distances = (0, 1, 4, 16)
    print("clock distance D               0       1       4      16")
    rates = [jittered(even.workers, even.waves.wave, d).rate() * BATCH for d in distances]
    print("ED, times vary by 20%  " + "".join(f"{rate:>8.0f}" for rate in rates))
    runs = [node_waves("VGG-19", d, wave, 200).waves for d in distances]
    print(
        "NP, first 10 s         " + "".join(f"{r.completed(10) * BATCH / 10:>8.0f}" for r in runs)
    )
    print("NP, long run           " + "".join(f"{run.rate() * BATCH:>8.0f}" for run in runs))
    stale = [global_staleness(wave, d) for d in distances]
    print("updates NP may miss    " + "".join(f"{s:>8}" for s in stale))


def draw(folder, networks):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "hetpipe", "font.size": 10})
    import matplotlib.pyplot as plt

    from traces.colors import text_color

    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    colors = {"VGG-19": "#0072b2", "ResNet-152": "#e69f00"}
    labels = ["all-reduce", "NP", "HD", "ED"]
    for shift, (name, found) in zip((-0.2, 0.2), networks.items(), strict=True):
        rates = [all_reduce_rate(CLUSTER, costs_of(name))[0]]
        rates += [found[label].rate for label in labels[1:]]
        at = np.arange(len(labels)) + shift
        bars = left.bar(at, np.array(rates) * BATCH, 0.36, color=colors[name], label=name)
        left.bar_label(bars, fmt="%.0f", label_type="center", color=text_color(colors[name]))
        free = [found[label].free_rate * BATCH for label in labels[1:]]
        left.hlines(free, at[1:] - 0.18, at[1:] + 0.18, color="#222222", linestyle=":")
    left.hlines([], [], [], color="#222222", linestyle=":", label="if no worker waited")
    left.set(ylabel="throughput [images/s]", title="Equal workers lose nothing to waiting")
    left.set_xticks(
        range(len(labels)), ["all-reduce", "NP\nVVVV RRRR …", "HD\nVVQQ RRGG", "ED\nVRGQ"]
    )
    left.legend(frameon=False, loc="upper left")
    styles = {0: "-", 4: "--"}
    hues = dict(zip(LETTERS, ("#0072b2", "#009e73", "#e69f00", "#d55e00"), strict=True))
    names = {letter: gpu.name for letter, gpu in zip(LETTERS, KINDS, strict=True)}
    for distance, style in styles.items():
        one = node_waves("VGG-19", distance, networks["VGG-19"]["NP"].waves.wave, 40)
        for worker, end in zip(one.workers, one.waves.end, strict=True):
            letter = letters(worker)[0]
            label = f"4 x {names[letter]}" if distance == 0 else None
            count = BATCH * np.arange(1, len(end) + 1)
            shown = end <= 20
            right.plot(end[shown], count[shown], style, color=hues[letter], label=label)
    for distance, style in styles.items():
        right.plot([], [], style, color="#666666", label=f"D = {distance}")
    right.set(xlabel="time [s]", ylabel="images done by a worker", xlim=(0, 20), ylim=0)
    right.set_title("NP, VGG-19: D waves ahead, then the pace of the slowest")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylim(0, 1450)
    fig.savefig(Path(folder) / "hetpipe_assignments.svg", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", metavar="FOLDER", help="write the picture here")
    arguments = parser.parse_args()
    networks = {name: assignments(name) for name in NETWORKS}
    for name, found in networks.items():
        show_assignments(name, found)
    show_distance(networks["VGG-19"])
    if arguments.images:
        draw(arguments.images, networks)


if __name__ == "__main__":
    main()
