"""What the planners of the literature find, and what that is worth; --images DIR draws it."""

import argparse
import itertools
import statistics
from math import inf
from pathlib import Path

from simulator.costs import estimate
from simulator.load import job_from_options
from simulator.planners.balanced import balanced_layers
from simulator.planners.flexflow import bounded, exhaustive, flexflow
from simulator.planners.imagenet import chain_costs, resnet50, vgg16
from simulator.planners.operator_graph import operator_graph
from simulator.planners.pipedream import Level, Stage, pipedream
from simulator.planners.replicated import pace
from simulator.planners.tarnawski import Graph, load, tarnawski
from simulator.schedule import Kind
from simulator.simulate import simulate

ETHERNET = 1.25e9  # [bytes/s], 10 Gb/s
PCIE = 15.75e9  # [bytes/s], version 3.0, 16 lanes
FLAT = (Level(16, ETHERNET),)
SERVERS = (Level(4, PCIE), Level(4, ETHERNET))
BERT_24 = (  # [ms] of each layer forward on a GPU, as profiled by Tarnawski et al.
    3.598, 3.608, 3.584, 3.576, 3.576, 3.621, 3.616, 3.58, 3.698, 3.6, 3.566, 3.55,
    3.608, 3.539, 3.54, 3.541, 3.597, 3.541, 3.547, 3.542, 3.559, 3.552, 3.557, 3.59,
)  # fmt: skip
NUM_WALKS = 200
BATCH = 32  # sequences
KNOBS = {
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4, 8),
    "vpp": (1, 3),
    "micro_batch_size": (1, 2),
    "recompute": ("none", "full"),
}


def llama(name, pp, microbatches, **more):
    asked = {"model": name, "cluster": "dgx-h100", "pp": pp, "num_microbatches": microbatches}
    return job_from_options(asked | {"dp": 1} | more)


def show_balanced():
    print("Balanced layers: embedding and logits counted; DGX H100, tp = 1, 1F1B\n")
    print(
        f"{'model':<12}{'pp':>3}{'m':>5}  {'layers on each stage':<27}{'even':>8}{'balanced':>10}"
    )
    for name, pp, m in (("llama3-8b", 4, 16), ("llama3-8b", 8, 64), ("llama2-7b", 8, 64)):
        even = llama(name, pp, m)
        split = balanced_layers(even)
        before = simulate(even).report.step_time
        after = simulate(llama(name, pp, m, layers_per_stage=split)).report.step_time
        row = f"{name:<12}{pp:>3}{m:>5}  {' '.join(map(str, split)):<27}"
        print(f"{row}{before:>6.2f} s{after:>8.2f} s{before / after - 1:>+7.0%}")


def data_parallel(layers, gpus):
    """Data parallelism on all GPUs: its reduction hidden behind compute, or behind nothing. [s]"""
    compute = sum(layer.forward + layer.backward for layer in layers)
    nbytes = sum(layer.weight_bytes for layer in layers)
    reduce = 4 * (gpus - 1) / gpus * nbytes / ETHERNET
    return max(compute, reduce) / gpus, (compute + reduce) / gpus


def network_bytes(layers, stages):
    """Sent over the network for each minibatch, by all GPUs. [bytes]"""
    total = 0.0
    for stage in stages:
        weights = sum(layer.weight_bytes for layer in layers[stage.start : stage.stop])
        total += 2 * (stage.replicas - 1) / stage.replicas * weights
        if stage.stop < len(layers):
            total += 2 * layers[stage.stop - 1].output_bytes
    return total


def show_pipedream():
    print("\nPipeDream: 16 V100, 10 Gb/s Ethernet, fp32; ms from minibatch to minibatch\n")
    print(
        f"{'model':<11}{'batch':>6}  {'network':<8}{'plan':<10}{'last stage':<12}"
        f"{'planned':>8}{'engine':>8}{'all data-parallel':>19}{'gain':>7}"
    )
    for name, layers, batch in (("VGG-16", vgg16(64), 64), ("ResNet-50", resnet50(128), 128)):
        costs = chain_costs(layers)
        for network, levels in (("flat", FLAT), ("4 x 4", SERVERS)):
            plan = pipedream(costs, levels)
            played = pace(costs, plan.stages, ETHERNET)
            hidden, open_ = data_parallel(layers, 16)
            last = layers[plan.stages[-1].start].name + ".."
            print(
                f"{name:<11}{batch:>6}  {network:<8}{plan!s:<10}{last:<12}"
                f"{plan.seconds * 1e3:>8.1f}{played * 1e3:>8.1f}"
                f"{hidden * 1e3:>11.1f}..{open_ * 1e3:<6.1f}"
                f"{hidden / plan.seconds:>6.1f}x"
            )
    layers = vgg16(64)
    plan = pipedream(chain_costs(layers), FLAT)
    ours = network_bytes(layers, plan.stages)
    theirs = network_bytes(layers, [Stage(0, len(layers), 16)])
    print(
        f"VGG-16, 15-1 sends {ours / 1e6:.0f} MB a minibatch, data parallelism {theirs / 1e6:.0f}:",
        end=" ",
    )
    print(f"{1 - ours / theirs:.0%} less")


def by_layer(graph, split):
    """Operators of each stage of a split by whole layers."""
    ends = [i for i, name in enumerate(graph.names) if name.endswith("mlp residual")]
    cuts = [0, *(ends[sum(split[:k]) - 1] + 1 for k in range(1, len(split))), len(graph.names)]
    return [tuple(range(a, b)) for a, b in itertools.pairwise(cuts)]


def bert_24():
    """Inference of BERT-24 by layer, and the split by an expert.

    Source: msr-fiddle/dnn-partitioning, commit b207b6a, throughput-inputs/LayerGraphs and
    human-experts, bert24_inference. Without the inputs, which take no time.
    """
    milliseconds = (0.696, *BERT_24, 0.169, 5.655)  # embedding, layers, pooler, head
    cost = 0.001953125  # of 4 MiB
    chain = [(at, at + 1) for at in range(26)]
    graph = Graph(
        seconds=tuple(one / 1e3 for one in milliseconds),
        transfer=tuple(one / 1e3 for one in (*[cost] * 25, 3.814697265625e-06, 0.0)),
        nbytes=(131325952, *[54579200] * 24, 4206592, 254373120),
        edges=(*chain, (24, 26)),
    )
    bounds = (0, 5, 9, 13, 17, 21, 27)
    return graph, [range(a, b) for a, b in itertools.pairwise(bounds)]


def show_tarnawski():
    print(
        "\nTarnawski et al.: Llama 3 8B by operator, transfers on the GPUs' time; ms a microbatch\n"
    )
    print(
        f"{'pp':>3}{'operators':>11}{'even layers':>13}{'balanced layers':>17}"
        f"{'operators':>11}{'gain':>8}"
    )
    for pp in (4, 8, 16):
        job = llama("llama3-8b", pp, 16, num_nodes=2)
        graph = operator_graph(job)
        worst = {}
        for name, split in (("even", [32 // pp] * pp), ("layers", balanced_layers(job))):
            worst[name] = max(load(graph, part) for part in by_layer(graph, split))
        best = tarnawski(graph, pp).seconds
        print(
            f"{pp:>3}{len(graph.names):>11}{worst['even'] * 1e3:>13.1f}"
            f"{worst['layers'] * 1e3:>17.1f}{best * 1e3:>11.1f}{worst['layers'] / best - 1:>+8.1%}"
        )
    graph, expert = bert_24()
    by_hand, best = max(load(graph, part) for part in expert), tarnawski(graph, 6, 17185374208.0)
    print(
        f"the authors' BERT-24 on 6 accelerators: {by_hand * 1e3:.2f} ms by their expert, "
        f"{best.seconds * 1e3:.2f} at best: {by_hand / best.seconds - 1:+.1%}"
    )


def jobs():
    """GPT 22B on 32 A100: every job that the knobs allow."""
    found = {}
    for choice in itertools.product(*KNOBS.values()):
        plan = dict(zip(KNOBS, choice, strict=True))
        dp, rest = divmod(32, plan["tp"] * plan["pp"])
        if rest or not dp or BATCH % (dp * plan["micro_batch_size"]):
            continue
        microbatches = BATCH // dp // plan["micro_batch_size"]
        if plan["vpp"] > 1 and (plan["pp"] == 1 or microbatches % plan["pp"]):
            continue
        plan["schedule"] = "interleaved" if plan["vpp"] > 1 else "1f1b"
        plan |= {"sequence_parallel": plan["tp"] > 1, "zero_stage": int(dp > 1)}
        asked = {"model": "gpt-22b", "cluster": "dgx-a100", "gpus": 32, "global_batch_size": BATCH}
        found[choice] = job_from_options(asked | plan)
    return found


def flexflow_results():
    """The choices, the exhaustive best, the bounded search, and the walks."""
    known = jobs()
    steps = {}

    def step(choice):
        if choice not in steps:
            report = simulate(known[choice]).report
            steps[choice] = report.step_time if report.fits else inf
        return steps[choice]

    def bound(choice):
        job = known[choice]
        seconds = estimate(job).seconds
        work = (seconds[Kind.F] + seconds[Kind.B]).reshape(job.plan.vpp, job.plan.pp).sum(axis=0)
        return job.plan.num_microbatches * float(work.max())

    choices = list(known)
    best = exhaustive(choices, step)
    start = (1, 1, 1, 1, "none")  # data parallelism
    walks = [
        flexflow(choices, step, start=start, seed=seed, num_proposals=150)
        for seed in range(NUM_WALKS)
    ]
    return choices, best, bounded(choices, step, bound), walks


def show_flexflow(results):
    choices, best, proven, walks = results
    print("\nFlexFlow's walk: GPT 22B, batch 32, 32 A100; 150 proposals from data parallelism\n")
    plan = ", ".join(f"{k} {v}" for k, v in zip(KNOBS, best.choice, strict=True))
    print(f"best of all {len(choices)} plans: {best.seconds:.3f} s ({plan})")
    print(
        f"search with a bound: the same {proven.seconds:.3f} s, proven after {len(proven.trace)} "
        f"simulations, found at the {proven.simulations}th"
    )
    hits = [walk for walk in walks if walk.seconds == best.seconds]
    print(f"{len(walks)} walks: {len(hits) / len(walks):.0%} find the best plan,", end=" ")
    close = sum(walk.seconds <= 1.05 * best.seconds for walk in walks)
    print(f"{close / len(walks):.0%} within 5% of it;")
    middle = statistics.median(walk.simulations for walk in hits)
    spent = statistics.median(len(walk.trace) for walk in walks)
    print(
        f"the median one simulates it as plan {middle:.0f}, but cannot know and "
        f"goes on to {spent:.0f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, metavar="DIR", help="also draw pictures here")
    folder = parser.parse_args().images
    show_balanced()
    show_pipedream()
    show_tarnawski()
    results = flexflow_results()
    show_flexflow(results)
    if folder:
        from planner_pictures import draw

        draw(folder, results)


if __name__ == "__main__":
    main()
