"""Pictures of examples/planners.py."""

import matplotlib as mpl
from matplotlib.figure import Figure
from planners import ETHERNET, FLAT, by_layer, data_parallel, llama

from simulator.planners.balanced import balanced_layers, part_seconds
from simulator.planners.imagenet import chain_costs, resnet50, vgg16
from simulator.planners.operator_graph import operator_graph
from simulator.planners.pipedream import pipedream
from simulator.planners.tarnawski import load, tarnawski
from simulator.schedule import Kind
from traces.colors import INK, color


def draw(folder, results):
    """A picture for each planner."""
    mpl.use("svg")
    mpl.rcParams |= {
        "svg.hashsalt": "planners",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "text.color": INK,
        "axes.labelcolor": INK,
    }
    for name, picture in (
        ("balanced", draw_balanced),
        ("pipedream", draw_pipedream),
        ("tarnawski", draw_tarnawski),
        ("flexflow", lambda figure: draw_flexflow(figure, results)),
    ):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        picture(figure)
        figure.savefig(folder / f"planner_{name}.svg", metadata={"Date": None})


def bars(axes, parts, title):
    """Stacked bars, a rank each; `parts` are (label, colour, seconds of each rank)."""
    below = [0.0] * len(parts[0][2])
    for label, fill, seconds in parts:
        height = [1e3 * one for one in seconds]
        axes.bar(range(len(below)), height, bottom=below, color=fill, label=label, width=0.75)
        below = [a + b for a, b in zip(below, height, strict=True)]
    axes.axhline(max(below), color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate(
        f"{max(below):.0f} ms", (-0.5, max(below)), (0, 2), textcoords="offset points", color=INK
    )
    axes.set(title=title, xlabel="pipeline rank", xticks=range(len(below)))


def draw_balanced(figure):
    even = llama("llama3-8b", 8, 128)
    parts = part_seconds(even)
    sides = figure.subplots(1, 2, sharey=True)
    for axes, title, split in (
        (sides[0], "4 layers on every rank", (4,) * 8),
        (sides[1], "balanced: the last rank holds 2", balanced_layers(even)),
    ):
        ends = len(split) - 1
        columns = [
            ("layers", color(Kind.F), [count * parts.layer for count in split]),
            ("embedding", color(Kind.W), [parts.embedding] + [0.0] * ends),
            ("logits and loss", color(Kind.B), [0.0] * ends + [parts.head]),
        ]
        bars(axes, columns, title)
        for rank, count in enumerate(split):
            axes.text(
                rank, 500 * count * parts.layer, count, ha="center", va="center", color="white"
            )
    sides[0].set_ylabel("forward and backward\nof a microbatch [ms]")
    sides[0].legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.93))
    figure.suptitle(
        "Llama 3 8B: the logits are worth 2.75 layers, and the busiest rank sets the pace",
        x=0.01, ha="left", fontsize=11,
    )  # fmt: skip


def draw_pipedream(figure):
    axes = figure.subplots()
    for name, layers, fill, shape in (
        ("VGG-16", vgg16(64), color(Kind.SEND_B), "o"),
        ("ResNet-50", resnet50(128), color(Kind.F), "s"),
    ):
        costs = chain_costs(layers)
        alone = pipedream(costs, FLAT).seconds
        best = [data_parallel(layers, 16)[0]]
        for last in range(1, 9):
            best.append(min(pace_of(layers, cut, 16 - last, last) for cut in range(1, len(layers))))
        line = [1e3 * seconds for seconds in best]
        axes.plot(range(9), line, color=fill, marker=shape, label=name)
        at = min(range(9), key=best.__getitem__)
        assert best[at] == alone or len(pipedream(costs, FLAT).stages) > 2
        axes.plot(at, line[at], marker=shape, markersize=12, mfc="none", mec=INK, linestyle="none")
    axes.annotate("chosen: 15-1", (1, 29.7), (1.25, 45), color=INK)
    axes.annotate("chosen: 16", (0, 19.2), (0.12, 4), color=INK)
    axes.set(
        xlabel="GPUs of 16 on the second stage, cut where it is best; 0: data parallelism",
        ylabel="from minibatch\nto minibatch [ms]",
        ylim=(0, None),
        title="One GPU for the dense layers frees VGG-16 of reducing 495 MB over Ethernet;\n"
        "ResNet-50's is small, and it stays data-parallel",
    )
    axes.legend(frameon=False)


def pace_of(layers, cut, first, second):
    """Of two stages on so many GPUs. [s]"""

    def stage(part, gpus):
        nbytes = 4 * (gpus - 1) / gpus * sum(layer.weight_bytes for layer in part)
        compute = sum(layer.forward + layer.backward for layer in part)
        return max(compute, nbytes / ETHERNET) / gpus

    send = 2 * layers[cut - 1].output_bytes / ETHERNET
    return max(stage(layers[:cut], first), send, stage(layers[cut:], second))


def draw_tarnawski(figure):
    job = llama("llama3-8b", 8, 128)
    graph = operator_graph(job)
    sides = figure.subplots(1, 2, sharey=True)
    split = balanced_layers(job)
    for axes, title, devices in (
        (sides[0], "cut between layers", by_layer(graph, split)),
        (sides[1], "cut between operators", tarnawski(graph, 8).devices),
    ):
        work = [sum(graph.seconds[one] for one in part) for part in devices]
        moved = [load(graph, part) - w for part, w in zip(devices, work, strict=True)]
        bars(
            axes,
            [("operators", color(Kind.F), work), ("transfers", color(Kind.SEND_F), moved)],
            title,
        )
    sides[0].set_ylabel("load of a microbatch [ms]")
    sides[0].set_ylim(0, 135)
    sides[1].legend(frameon=False, loc="upper right", ncols=2)
    figure.suptitle(
        "Llama 3 8B, 420 operators: 5 layers on a rank are too many, 4 and a part are not",
        x=0.01, ha="left", fontsize=11,
    )  # fmt: skip


def draw_flexflow(figure, results):
    _, best, proven, walks = results
    axes = figure.subplots()
    longest = max(len(walk.trace) for walk in walks)
    lines = [
        [100 * (one / best.seconds - 1) for one in walk.trace]
        + [100 * (walk.seconds / best.seconds - 1)] * (longest - len(walk.trace))
        for walk in walks
    ]
    columns = [sorted(column) for column in zip(*lines, strict=True)]
    x = range(1, longest + 1)
    low, middle, high = ([c[int(q * (len(c) - 1))] for c in columns] for q in (0.1, 0.5, 0.9))
    top = 60
    low, middle, high = ([min(one, 10 * top) for one in row] for row in (low, middle, high))
    walk = color(Kind.B)
    axes.fill_between(x, low, high, color=walk, alpha=0.25, linewidth=0, label="8 of 10 walks")
    axes.plot(x, middle, color=walk, label="walk, median of 200")
    trace = [100 * (one / best.seconds - 1) for one in proven.trace]
    axes.plot(range(1, len(trace) + 1), trace, color=color(Kind.F), label="search with a bound")
    axes.plot(len(trace), 0, "o", color=color(Kind.F))
    axes.annotate("proven best", (len(trace), 0), (len(trace) + 1, 2.5), color=color(Kind.F))
    axes.set(
        xlabel="plans simulated",
        ylabel="step over the best [%]",
        ylim=(-1, top),
        xlim=(1, longest),
        title="A walk finds the best plan sooner, but cannot tell that it is the best",
    )
    axes.legend(frameon=False)
