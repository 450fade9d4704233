"""HetPipe: cuts over unlike GPUs, waves under a parameter server, and which assignment wins."""

import runpy
from itertools import combinations, combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import engine
from simulator.costs import estimate, uniform
from simulator.costs.memory import memory_samples
from simulator.fabric import ideal
from simulator.job import Link
from simulator.load import job_from_options, load_gpu, load_job
from simulator.lower import lower, post_receives_early
from simulator.planners.convnets import convnet_costs, resnet152, training_speed, vgg19
from simulator.planners.hetpipe import (
    all_reduce_rate,
    best_assignment,
    equal_distribution,
    hybrid_distribution,
    node_partition,
    outcome,
    traffic,
)
from simulator.planners.layerwise import layerwise, merged, single_precision
from simulator.planners.minimax import minimax_cut
from simulator.planners.parameter_server import global_staleness, wave_synchronous
from simulator.planners.virtual_workers import (
    CONTEXT_BYTES,
    MixedCluster,
    continuous,
    fitted,
    steady_pace,
)
from simulator.schedule import Kind
from simulator.schedules.one_f_one_b import one_f_one_b

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = runpy.run_path(str(EXAMPLES / "hetpipe.py"))
CLUSTER, costs_of = EXAMPLE["CLUSTER"], EXAMPLE["costs_of"]
VGG, RESNET = costs_of("VGG-19"), costs_of("ResNet-152")


def test_vgg19_has_548_mib_and_resnet152_230_mib_of_fp32_parameters():
    sizes = [4 * sum(layer.parameters for layer in net()) / 2**20 for net in (vgg19, resnet152)]
    assert [round(size) for size in sizes] == [548, 230]


def test_resnet152_trains_as_fast_on_the_titans_as_was_measured():
    for name, rate in (("TITAN V", 107.0), ("TITAN RTX", 129.0)):
        seconds = RESNET[name].seconds[[Kind.F, Kind.B]].sum()
        assert 32 / seconds == pytest.approx(rate)


def test_a_gpu_without_a_measurement_is_refused():
    with pytest.raises(ValueError, match="speed of H100 SXM on convolutions in fp32 is not known"):
        training_speed(load_gpu("h100-sxm"))


@pytest.mark.parametrize("name", ["small_8_gpus", "llama3_70b_dgx_h100", "deepseek-v3"])
def test_layers_merged_again_cost_what_the_job_costs(name):
    if name == "deepseek-v3":  # its first three layers are dense
        size = {"pp": 16, "ep": 8, "dp": 8, "num_nodes": 16, "layers_per_stage": (4,) * 15 + (1,)}
        job = job_from_options({"model": name, "cluster": "dgx-h100", **size})
        assert job.model.num_dense_layers == 3
    else:
        job = load_job(EXAMPLES / f"{name}.toml")
    counts = np.array(job.layers_per_stage)
    counts[[0, -1]] += 1  # the embedding and the head
    bounds = [0, *np.cumsum(counts).tolist()]
    alone = job.plan.model_copy(
        update={"overlap_grad_reduce": False, "overlap_param_gather": False}
    )
    whole = estimate(job.model_copy(update={"plan": alone}))
    again = merged([layerwise(job)] * len(counts), bounds)
    kinds = [Kind.F, Kind.B, Kind.I, Kind.W]
    for column in ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes"):
        assert getattr(again, column) == pytest.approx(getattr(whole, column))
    for column in ("boundary_bytes", "input_grad_bytes", "transient_bytes", "reduce_bytes"):
        assert getattr(again, column) == pytest.approx(getattr(whole, column))
    assert again.seconds[kinds] == pytest.approx(whole.seconds[kinds])


def test_an_fp32_run_is_a_16_bit_run_on_half_the_memory_and_links():
    cluster = load_job(EXAMPLES / "small_8_gpus.toml").cluster
    with pytest.raises(ValueError, match="has no fp32 peak"):
        single_precision(cluster)
    gpu = load_gpu("quadro-rtx-5000")
    half = single_precision(cluster.model_copy(update={"gpu": gpu}))
    assert half.gpu.peak_flops["fp16"] == 11.2e12
    assert half.gpu.memory_bandwidth == gpu.memory_bandwidth / 2
    assert half.inter_node.bandwidth == cluster.inter_node.bandwidth / 2


@given(st.data(), st.integers(1, 4), st.integers(1, 7))
def test_minimax_cut_is_the_best_of_all_cuts(data, ranks, layers):
    time = st.lists(st.integers(1, 9), min_size=layers, max_size=layers)
    speeds = data.draw(st.lists(st.integers(1, 4), min_size=ranks, max_size=ranks))
    room = data.draw(st.lists(st.integers(1, layers), min_size=ranks, max_size=ranks))
    sums = np.concatenate([[0], np.cumsum(data.draw(time))]).astype(float)
    count = np.arange(layers + 1)
    held = count[None, :] - count[:, None]
    tables = [
        np.where(held <= most, (sums[None, :] - sums[:, None]) * speed, np.inf)
        for speed, most in zip(speeds, room, strict=True)
    ]

    def slowest(bounds):
        return max(t[a, b] for t, a, b in zip(tables, bounds, bounds[1:], strict=False))

    cuts = [(0, *inner, layers) for inner in combinations(range(1, layers), ranks - 1)]
    best = min(map(slowest, cuts), default=np.inf)
    found = minimax_cut(tables)
    if found is None:
        assert best == np.inf
    else:
        assert slowest(found) == best


def test_as_many_minibatches_as_ranks_in_flight_is_1f1b():
    assert continuous(uniform(4, 1.0, 2.0), 4, 12, [0.0] * 3) == one_f_one_b(4, 12)


@pytest.mark.parametrize(
    ("seconds", "flight", "pace"),
    [
        ([1, 1, 1, 1], 4, 3),  # full: the slowest rank's forward and backward
        ([1, 1, 1, 1], 1, 12),  # one at a time: all of them in a row
        ([1, 1, 1, 1], 2, 6),  # two share that time
        ([1, 2, 1, 1], 8, 6),
    ],
)
def test_a_worker_is_paced_by_its_slowest_rank_or_by_what_is_in_flight(seconds, flight, pace):
    pieces = [uniform(len(seconds), float(s), 2.0 * s) for s in seconds]
    costs = merged(pieces, range(len(seconds) + 1))
    ranks = range(len(seconds))
    fabric = ideal({(a, b) for a in ranks for b in ranks})
    rows = continuous(costs, flight, 48, [0.0] * (len(seconds) - 1))
    timeline = engine.run(post_receives_early(lower(rows)), costs, fabric)
    assert steady_pace(timeline) == pytest.approx(pace)


def by_events(pace, latency, wave, distance, num_waves, push, pull):
    """The same rule as processes: one for each worker, one for each of its minibatches."""
    env = simpy.Environment()
    workers, count = range(len(latency)), num_waves * wave
    done = [[env.event() for _ in range(count)] for _ in workers]
    pushed = [[env.event() for _ in range(num_waves)] for _ in workers]
    end = np.zeros((len(latency), count))

    def minibatch(w, p):
        yield env.timeout(latency[w])
        if p:
            yield done[w][p - 1]
            yield env.timeout(max(0.0, end[w, p - 1] + pace[w] - env.now))
        else:
            yield env.timeout(max(0.0, pace[w] - env.now))
        end[w, p] = env.now
        done[w][p].succeed()

    def worker(w):
        for p in range(count):
            if p >= wave:
                yield done[w][p - wave]
            needed = p // wave - distance - 1
            if p % wave == wave - 1 and needed >= 0:
                last = env.now
                yield env.all_of([pushed[v][needed] for v in workers])
                arrived = max(when[v, needed] for v in workers) + pull
                yield env.timeout(max(0.0, arrived - last - (env.now - last)))
            env.process(minibatch(w, p))

    when = np.zeros((len(latency), num_waves))

    def pusher(w):
        for c in range(num_waves):
            yield done[w][(c + 1) * wave - 1]
            yield env.timeout(push)
            when[w, c] = env.now
            pushed[w][c].succeed()

    for w in workers:
        env.process(worker(w))
        env.process(pusher(w))
    env.run()
    return end


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.5, 4.0]),
)
def test_waves_agree_with_a_simulation_by_events(workers, wave, distance, transfer):
    pace, latency = ([float(x) for x in column] for column in zip(*workers, strict=True))
    runs = wave_synchronous(
        pace, latency, wave=wave, distance=distance, num_waves=6, push=transfer, pull=transfer / 2
    )
    events = by_events(pace, latency, wave, distance, 6, transfer, transfer / 2)
    assert runs.end == pytest.approx(events)


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_no_minibatch_misses_more_updates_than_s_global(paces, wave, distance):
    runs = wave_synchronous(paces, paces, wave=wave, distance=distance, num_waves=8)
    last = runs.end[:, wave - 1 :: wave].max(axis=0)  # when all workers have ended a wave
    stale = global_staleness(wave, distance)
    for p, start in enumerate(runs.start.min(axis=0), 1):
        known = wave * int((last <= start).sum())
        assert known >= p - (stale + 1)


def test_with_d_0_all_workers_go_at_the_pace_of_the_slowest():
    pace = [1.0, 2.0, 5.0]
    runs = wave_synchronous(pace, [4.0, 8.0, 20.0], wave=4, distance=0, num_waves=200)
    assert runs.rate() == pytest.approx(3 / 5.0, rel=1e-3)


def test_a_fast_worker_runs_freely_until_it_is_d_plus_1_waves_ahead_then_it_waits():
    runs = wave_synchronous([1.0, 10.0], [1.0, 10.0], wave=1, distance=4, num_waves=100)
    assert runs.end[0, :5].tolist() == [1, 2, 3, 4, 5]
    assert runs.end[0, 5:8].tolist() == [11, 21, 31]  # one for each of the slow one's
    assert runs.rate() == pytest.approx(2 / 10.0, rel=1e-2)


def test_np_waits_for_its_slowest_node_and_ed_for_nobody():
    nodes = outcome(node_partition(CLUSTER), CLUSTER, VGG, num_in_flight=4)
    assert nodes.rate == pytest.approx(4 / max(w.pace for w in nodes.workers), rel=1e-2)
    even = outcome(equal_distribution(CLUSTER), CLUSTER, VGG, local=True)
    assert even.rate == pytest.approx(even.free_rate, rel=1e-3)


def test_ed_beats_hd_beats_np_and_gains_more_than_the_published_49_percent():
    base, gpus = all_reduce_rate(CLUSTER, VGG)
    assert gpus == 16
    assign = (equal_distribution, hybrid_distribution, node_partition)
    even, half, nodes = (outcome(how(CLUSTER), CLUSTER, VGG).rate for how in assign)
    assert even > half > nodes
    assert even / base > 1.49


def test_resnet152_does_not_fit_an_rtx_2060_so_data_parallelism_has_12_gpus():
    assert all_reduce_rate(CLUSTER, RESNET)[1] == 12


@pytest.mark.parametrize(("layers", "flight"), [(VGG, 6), (RESNET, 7)])
def test_equal_distribution_is_the_best_of_all_465_assignments(layers, flight):
    best, ways = best_assignment(CLUSTER, layers, flight)
    assert best == equal_distribution(CLUSTER)
    rows = combinations_with_replacement(range(4), 4)
    counts = [[row.count(node) for node in range(4)] for row in rows]
    four = combinations_with_replacement(counts, 4)
    assert ways == 465 == sum(all(sum(c) == 4 for c in zip(*way, strict=True)) for way in four)


def test_with_4_in_flight_workers_that_cross_the_network_once_are_better():
    best, _ = best_assignment(CLUSTER, VGG, 4)
    assert best == ((0, 0, 2, 2),) * 2 + ((1, 1, 3, 3),) * 2


def test_a_push_crosses_the_network_but_for_one_part_in_four_and_not_at_all_if_local():
    even = outcome(equal_distribution(CLUSTER), CLUSTER, VGG, num_in_flight=4)
    weights = 4 * 143_667_240
    out, into = traffic(even.workers, CLUSTER, local=False)
    assert sum(out) == sum(into) == pytest.approx(4 * weights * 3 / 4)
    assert traffic(even.workers, CLUSTER, local=True) == ([0.0] * 4, [0.0] * 4)
    mixed = outcome(node_partition(CLUSTER), CLUSTER, VGG, num_in_flight=4)
    with pytest.raises(ValueError, match="local parameters need every stage on one node"):
        traffic(mixed.workers, CLUSTER, local=True)


@pytest.mark.parametrize("layers", [VGG, RESNET], ids=["vgg19", "resnet152"])
@pytest.mark.parametrize("flight", [1, 4, 7])
def test_no_rank_holds_more_than_its_gpu(layers, flight):
    worker = fitted((0, 1, 2, 3), CLUSTER, layers, flight, 4)
    peak = memory_samples(worker.timeline, worker.costs).peak_memory()  # one version of the weights
    for rank, node in enumerate(worker.nodes):
        assert peak[rank] <= CLUSTER.kinds[node].memory - CONTEXT_BYTES


def test_faster_gpus_get_more_of_the_work():
    worker = fitted((0, 1, 2, 3), CLUSTER, RESNET, 4, 4)
    work = sum(layer.flops for layer in resnet152())
    flops = [
        sum(x.flops for x in resnet152()[a:b]) / work
        for a, b in zip(worker.bounds, worker.bounds[1:], strict=False)
    ]
    by_node = dict(zip(worker.nodes, flops, strict=True))
    assert by_node[1] > by_node[0] > by_node[2] > by_node[3]


def test_a_model_that_fits_nowhere_is_refused():
    tiny = [gpu.model_copy(update={"memory": 1e9}) for gpu in CLUSTER.kinds]
    port = Link(bandwidth=1e9, latency=0.0)
    cluster = MixedCluster(tuple(tiny), 4, port, port)
    with pytest.raises(ValueError, match="does not fit into virtual workers"):
        outcome(node_partition(cluster), cluster, VGG)
    with pytest.raises(ValueError, match="no GPU holds the whole model"):
        all_reduce_rate(cluster, VGG)


def test_odd_nodes_cannot_be_paired():
    cluster = MixedCluster(CLUSTER.kinds[:3], 4, CLUSTER.intra_node, CLUSTER.inter_node)
    with pytest.raises(ValueError, match="3 nodes of 4 GPUs cannot be halved and paired"):
        hybrid_distribution(cluster)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wave": 0}, "a wave has at least one minibatch"),
        ({"distance": -1}, "D is at least 0"),
        ({"num_waves": 0}, "at least one wave"),
        ({"push": -1.0}, "not negative"),
    ],
)
def test_waves_that_make_no_sense_are_refused(change, message):
    given = {"wave": 1, "distance": 0, "num_waves": 1} | change
    with pytest.raises(ValueError, match=message):
        wave_synchronous([1.0], [1.0], **given)


def test_costs_of_a_batch_of_32_are_32_images():
    one, many = (convnet_costs(vgg19(), load_gpu("titan-v"), batch) for batch in (1, 32))
    assert many.seconds[Kind.F] == pytest.approx(32 * one.seconds[Kind.F])
    assert many.weight_bytes == pytest.approx(one.weight_bytes)
