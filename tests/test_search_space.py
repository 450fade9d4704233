"""The space: what it holds without a word, its numbering, and what it refuses."""

import itertools

import pytest

from simulator.job import Job, Plan
from simulator.load import job_from_options, load_cluster, load_model
from simulator.search.space import KNOBS, Space, check_experts, job_at, point, space_of


def job_of(num_nodes=64, model="gpt3-175b", **plan):
    cluster = load_cluster("dgx-a100").model_copy(update={"num_nodes": num_nodes})
    return Job(model=load_model(model), cluster=cluster, plan=Plan(**plan))


def test_gpt3_on_512_gpus_takes_every_divisor_and_every_synchronous_schedule():
    space = space_of(job_of(), global_batch_size=1536)
    assert space.num_gpus == 512
    assert space.tp == (1, 2, 4, 8, 16, 32)
    assert space.pp == (1, 2, 4, 8, 16, 32, 64)
    assert space.vpp == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)
    assert space.micro_batch_size == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    assert {"1f1b", "interleaved", "zb-v", "chimera", "v-half"} <= set(space.schedule)
    assert not {"optimal", "terapipe", "pipedream", "zb-auto"} & set(space.schedule)
    assert not {"dualpipe", "1f1b-overlap"} & set(space.schedule)  # pairs are for experts
    assert space.recompute == ("none", "full")  # flash attention refuses selective
    assert space.zero_stage == (0, 1, 2, 3)
    assert space.num_points > 13e6


def test_points_number_the_product_of_the_knobs_with_the_last_one_fastest():
    space = space_of(
        job_of(),
        global_batch_size=1536,
        pp=(8, 16),
        tp=8,
        cp=1,
        vpp=1,
        micro_batch_size=(1, 2, 4),
        schedule=("1f1b", "gpipe"),
        recompute="full",
        zero_stage=1,
        sequence_parallel=True,
        layer_split="even",
    )
    values = [point(space, index) for index in range(space.num_points)]
    product = itertools.product(*(getattr(space, knob) for knob in KNOBS))
    assert [tuple(one.values()) for one in values] == list(product)
    assert [one["schedule"] for one in values[:3]] == ["1f1b", "gpipe", "1f1b"]


def test_a_point_is_the_job_that_a_user_would_write():
    space = space_of(
        job_of(attention="eager"), global_batch_size=1536, tp=8, pp=8, cp=1, vpp=2,
        recompute="full", zero_stage=1, micro_batch_size=4, schedule="interleaved",
        sequence_parallel=True,
        layer_split="even",
    )  # fmt: skip
    plan = job_at(space, 0).plan
    assert plan == Plan(
        schedule="interleaved", tp=8, pp=8, vpp=2, dp=8, num_microbatches=48, micro_batch_size=4,
        attention="eager", recompute="full", zero_stage=1, sequence_parallel=True,
    )  # fmt: skip
    assert plan.global_batch_size == 1536


def test_balanced_layers_give_the_logits_stage_fewer_and_take_any_pp():
    space = space_of(
        job_of(), global_batch_size=1536, tp=8, pp=64, cp=1, vpp=1, recompute="full", zero_stage=0,
        micro_batch_size=8, schedule="1f1b", sequence_parallel=True,
        layer_split=("even", "balanced"),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"must divide model\.num_hidden_layers"):
        job_at(space, 0)
    layers = job_at(space, 1).layers_per_stage
    assert sum(layers) == 96
    assert layers[-1] == min(layers) == 1


@pytest.mark.parametrize(
    ("knobs", "rule"),
    [
        ({"ep": 2}, "has no experts"),
        ({"zero_stage": 2}, "would be split after every microbatch"),
        ({"pp": 1, "vpp": 2, "schedule": "interleaved"}, "chunks need a pipeline"),
        ({"tp": 3}, "must be a multiple of tp x pp x cp"),
        ({"micro_batch_size": 5}, "must be a multiple of dp x micro_batch_size"),
        ({"recompute": "selective"}, "flash attention already recomputes"),
        ({"vpp": 2}, "takes no vpp"),
        ({"schedule": "interleaved", "pp": 64, "micro_batch_size": 32}, "multiple of pp"),
    ],
)
def test_an_illegal_point_names_its_rule(knobs, rule):
    one = {
        "tp": 8, "pp": 8, "cp": 1, "vpp": 1, "recompute": "full", "zero_stage": 0,
        "micro_batch_size": 1, "schedule": "1f1b", "sequence_parallel": True,
        "layer_split": "balanced",
    } | knobs  # fmt: skip
    space = space_of(job_of(), global_batch_size=1536, **one)
    with pytest.raises(ValueError, match=rule):
        job_at(space, 0)


def test_a_value_that_plans_refuse_is_searched_only_if_asked_for(monkeypatch):
    refuse = Plan.model_validate

    def without_cp(table, *more):
        if table["cp"] > 1:
            raise ValueError("not costed")
        return refuse(table, *more)

    assert space_of(job_of(), global_batch_size=1536).cp == (1, 2, 4, 8, 16, 32)
    monkeypatch.setattr(Plan, "model_validate", without_cp)
    assert space_of(job_of(), global_batch_size=1536).cp == (1,)
    assert space_of(job_of(), global_batch_size=1536, cp=2).cp == (2,)


def test_experts_are_spread_over_every_divisor_and_pairs_are_searched():
    space = space_of(job_of(model="mixtral-8x7b"), global_batch_size=512)
    assert space.ep == (1, 2, 4, 8)
    assert {"dualpipe", "1f1b-overlap"} <= set(space.schedule)


def test_slow_ranks_ask_for_one_pp():
    cluster = load_cluster("dgx-a100").model_copy(update={"stragglers": {1: 1.5}})
    job = Job(model=load_model("gpt-1-7b"), cluster=cluster, plan=Plan(pp=2, num_microbatches=8))
    with pytest.raises(ValueError, match=r"names pipeline rank 1, .*; search one pp, or leave"):
        space_of(job)
    assert space_of(job, pp=2).pp == (2,)


def test_space_survives_json():
    space = space_of(job_of(), global_batch_size=1536, pp=(8, 16), sequence_parallel=True)
    assert Space.model_validate_json(space.model_dump_json()) == space


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"pipeline": 8}, "pipeline is not a known knob"),
        ({"pp": ()}, "pp has no values"),
        ({"pp": (0,)}, "at least 1"),
        ({"schedule": "2f2b"}, "unknown"),
        ({"recompute": "some"}, "'none', 'selective', 'alternate' or 'full'"),
        ({"tp": 0}, r"^tp is 0 \(tensor-parallel sizes \[1\]\); it must be at least 1"),
        ({"global_batch_size": "x"}, 'global_batch_size is "x"; it must be a whole number'),
        ({"num_gpus": 1024}, "use at least num_nodes = 128"),
        ({"global_batch_size": 0}, "at least 1"),
    ],
)
def test_nonsense_is_refused_with_the_way_out(given, rule):
    with pytest.raises(ValueError, match=rule):
        space_of(job_of(), **given)


def test_rows_of_ones_own_cannot_be_searched():
    rows = Plan(schedule="custom", rows="0F0,0B0")
    with pytest.raises(ValueError, match="makes the rows of each plan itself"):
        space_of(Job(model=load_model("gpt-1-7b"), cluster=load_cluster("dgx-a100"), plan=rows))


def test_a_point_outside_the_space_is_refused():
    space = space_of(job_of(), global_batch_size=1536)
    with pytest.raises(ValueError, match="does not exist"):
        point(space, space.num_points)


def test_whole_experts_are_a_knob_of_models_with_experts_alone():
    space, dense = (
        space_of(job_from_options({"model": m, "cluster": "dgx-h100", "dp": 8}))
        for m in ("mixtral-8x7b", "llama3-8b")
    )
    assert (space.etp, dense.etp) == ((None, 1), (None,))


def test_whole_experts_without_tensor_parallelism_are_counted_once():
    job = job_from_options({"model": "mixtral-8x7b", "cluster": "dgx-h100", "dp": 8, "ep": 8})
    one = {"tp": (1, 8), "pp": 1, "vpp": 1, "cp": 1, "ep": 8, "sequence_parallel": True}
    space = space_of(job, **one, micro_batch_size=1, recompute="none", layer_split="even")
    values = {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1, "vpp": 1, "etp": 1}
    with pytest.raises(ValueError, match="as when etp is left out"):
        check_experts(space, values)
    check_experts(space, values | {"tp": 8})
    check_experts(space.model_copy(update={"etp": (1,)}), values)
