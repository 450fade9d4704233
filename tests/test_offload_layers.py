"""Activations of some layers wait in the host's memory for their backward."""

import pytest

from simulator.costs import estimate
from simulator.costs.activations import layer_bytes
from simulator.load import job_from_options, load_cluster
from simulator.schedule import Kind

LLAMA = {"model": "llama3-70b", "cluster": "gb200-nvl72", "dp": 64, "framework": "nemo-2"}


def job(layers=None, **options):
    table = LLAMA | {"zero_stage": 3, "micro_batch_size": 2} | options
    if layers is not None:
        table |= {"offload_activations": True, "offload_num_layers": layers}
    return job_from_options(table)


@pytest.mark.parametrize("layers", [1, 40, 78])
def test_each_layer_that_moves_leaves_its_share_of_what_is_kept(layers):
    kept = estimate(job()).activation_bytes
    assert estimate(job(layers)).activation_bytes == pytest.approx(kept * (1 - layers / 80))


def test_two_layers_stay_however_many_move():
    found = [estimate(job(layers)).activation_bytes[0] for layers in (78, 79, 80)]
    every = estimate(job(offload_activations=True)).activation_bytes[0]
    assert found == [every] * 3


def test_forty_layers_of_llama_70b_cross_c2c_beside_a_forward_of_eighty():
    """2 x 8192 tokens: 40 layers in some 205 GB/s take 0.6 of the forward, and nothing shows."""
    plain, some = (estimate(j) for j in (job(), job(40)))
    link = load_cluster("gb200-nvl72").host_link
    copy = 40 * layer_bytes(job()) / (link.bandwidth * link.efficiency)
    assert 0.3 < copy / plain.seconds[Kind.F, 0] < 0.9
    assert (some.seconds == plain.seconds).all()


def test_over_a_slow_link_the_copies_lengthen_forward_and_backward_to_their_own_time():
    slow = load_cluster("gb200-nvl72").host_link.model_copy(
        update={"bandwidth": 25e9, "efficiency": 1.0, "latency": 0.0}
    )
    made = job(40)
    cluster = made.cluster.model_copy(update={"host_link": slow})
    costs = estimate(made.model_copy(update={"cluster": cluster}))
    gone = estimate(job()).activation_bytes[0] - costs.activation_bytes[0]
    assert costs.seconds[Kind.F, 0] == pytest.approx(gone / 25e9)
    assert costs.seconds[Kind.B, 0] == pytest.approx(
        max(gone / 25e9, estimate(job()).seconds[Kind.B, 0])
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"offload_num_layers": 5}, "offload_activations is false: it would have no effect"),
        (
            {"offload_num_layers": 81, "offload_activations": True},
            "no stage has more than 80 layers; use at most 80",
        ),
        ({"offload_num_layers": 0, "offload_activations": True}, "offload_num_layers"),
    ],
)
def test_layers_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        job(**options)
