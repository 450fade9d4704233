"""Dotted assignments: what each does to a job, and how a wrong one is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cli import main
from simulator.job import Cluster, Job, Plan
from simulator.load import dump_job, job_from_options, load_cluster, load_gpu, load_job, load_model
from simulator.overrides import read_assignments

ROOT = Path(__file__).parent.parent
SC21 = ROOT / "examples" / "sc21_145_6b.toml"
BASE = load_job(SC21)
OPTIONS = {"model": "gpt3-175b", "cluster": "selene", "gpus": 1024, "pp": 8, "tp": 8}
OPTIONS |= {"global_batch_size": 1536}


def assigned(*words):
    return job_from_options({}, SC21, words)


def changed(job, owner, **values):
    """A job built without assignments, to compare with."""
    part = getattr(job, owner)
    return job.model_copy(update={owner: part.model_copy(update=values)})


def test_an_absolute_value_takes_its_place():
    assert assigned("plan.micro_batch_size=4") == changed(BASE, "plan", micro_batch_size=4)
    assert assigned("name=other").name == "other"
    assert assigned("plan.schedule=bfs").plan.schedule == "bfs"
    assert assigned("plan.sequence_parallel=true").plan.sequence_parallel is True


@pytest.mark.parametrize(
    ("text", "times"), [("2x", 2.0), ("0.5x", 0.5), ("+10%", 1.1), ("-10%", 0.9), ("1e2x", 100.0)]
)
def test_a_relative_value_multiplies_the_presets_25_gb_per_second(text, times):
    job = assigned(f"cluster.inter_node.bandwidth={text}")
    now = BASE.cluster.inter_node.bandwidth
    assert job.cluster.inter_node.bandwidth == pytest.approx(times * now, rel=1e-15)
    link = BASE.cluster.inter_node.model_copy(
        update={"bandwidth": job.cluster.inter_node.bandwidth}
    )
    assert job == changed(BASE, "cluster", inter_node=link)


@given(st.integers(1, 10**6), st.integers(1, 99))
def test_a_relative_count_is_exact_or_refused(count, percent):
    words = (f"plan.num_microbatches={count}",)
    options = {"model": "gpt-1-7b", "cluster": "dgx-a100"}
    present = job_from_options(options, None, words)
    del words
    exact, rest = divmod(present.plan.num_microbatches * (100 + percent), 100)
    grown = {**options, "num_microbatches": count}
    if rest:
        with pytest.raises(ValueError, match="it must be a whole number"):
            job_from_options(grown, None, [f"plan.num_microbatches=+{percent}%"])
    else:
        job = job_from_options(grown, None, [f"plan.num_microbatches=+{percent}%"])
        assert job.plan.num_microbatches == exact


def test_keys_of_dictionaries():
    job = assigned("cluster.stragglers.3=1.2", "cluster.gpu.peak_flops.fp16=2x")
    assert job.cluster.stragglers == {3: 1.2}
    peaks = BASE.cluster.gpu.peak_flops
    assert job.cluster.gpu.peak_flops == peaks | {"fp16": 2 * peaks["fp16"]}
    assert assigned("cluster.stragglers.3=1.5x").cluster.stragglers == {3: 1.5}


def test_a_files_stragglers_can_be_removed_one_or_all(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(dump_job(assigned("cluster.stragglers.3=1.2", "cluster.stragglers.4=1.5")))
    one = job_from_options({}, file, ["cluster.stragglers.3=null"])
    assert one.cluster.stragglers == {4: 1.5}
    assert job_from_options({}, file, ["cluster.stragglers=none"]) == BASE


def test_presets_by_either_spelling_and_what_follows_changes_them():
    assert assigned("cluster.gpu=h100_sxm").cluster.gpu == load_gpu("h100-sxm")
    assert assigned("model=gpt3_175b").model == load_model("gpt3-175b")
    job = assigned("cluster.gpu=h100-sxm", "cluster.gpu.memory=2x")
    assert job.cluster.gpu.memory == 2 * load_gpu("h100-sxm").memory
    whole = assigned("cluster=dgx_h100").cluster
    assert whole == load_cluster("dgx-h100").model_copy(update={"num_nodes": 192})


def test_nothing_else_is_needed_but_assignments():
    words = ["model=llama3-8b", "cluster=dgx-h100", "gpus=8", "plan.tp=4"]
    job = job_from_options({}, None, words)
    assert (job.plan.tp, job.plan.dp) == (4, 2)


def test_dp_that_came_from_gpus_follows_pp():
    job = job_from_options(OPTIONS, None, ["plan.pp=16"])
    assert (job.plan.pp, job.plan.dp, job.plan.num_gpus) == (16, 8, 1024)
    assert job.plan.global_batch_size == 1536
    assert job == job_from_options(OPTIONS | {"pp": 16})


def test_conveniences_keep_their_meaning():
    assert assigned("plan.global_batch_size=2x").plan.num_microbatches == 96
    assert assigned("gpus=2x").plan.dp == 48
    job = job_from_options(OPTIONS, None, ["plan.dp=0.5x"])
    assert (job.plan.num_gpus, job.plan.num_microbatches) == (512, 192)
    assert job_from_options(OPTIONS, None, ["gpus=512"]) == job_from_options(
        OPTIONS | {"gpus": 512}
    )
    job = job_from_options(OPTIONS, None, ["plan.num_microbatches=8"])
    assert job.plan.global_batch_size == 8 * 16


def test_assignments_come_after_options_and_in_order():
    assert job_from_options({"pp": 4}, SC21, ["plan.pp=2"]).plan.pp == 2
    job = assigned("plan.vpp=1", "plan.schedule=1f1b", "plan.pp=2x")
    assert (job.plan.pp, job.plan.vpp) == (16, 1)


def test_null_removes_and_none_may_be_a_value():
    job = assigned("plan.recompute=none")
    assert job.plan.recompute == "none"
    limited = job_from_options({"activation_limit": 1e9}, SC21, ["plan.activation_limit=null"])
    assert limited == BASE
    assert assigned("plan.vpp=null", "plan.schedule=1f1b").plan.vpp == 1


def test_lists_and_text_are_tomls():
    layers = [4, *[5] * 14, 6]
    job = assigned(f"plan.layers_per_stage={layers}")
    assert job.plan.layers_per_stage == tuple(layers)
    assert assigned('name="2x"').name == "2x"


def test_every_number_of_a_job_can_be_doubled():
    refused = []
    for owner, kind in (
        ("cluster", Cluster),
        ("plan", Plan),
        ("cluster.gpu", type(BASE.cluster.gpu)),
    ):
        part = BASE.cluster.gpu if owner == "cluster.gpu" else getattr(BASE, owner)
        for name in kind.model_fields:
            value = getattr(part, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            try:
                job = assigned(f"{owner}.{name}=2x")
            except ValueError as error:
                refused.append((name, str(error)))
                continue
            other = job.cluster.gpu if owner == "cluster.gpu" else getattr(job, owner)
            assert getattr(other, name) == 2 * value, name
    assert all("means nothing" not in reason for _, reason in refused)
    assert {name for name, _ in refused} <= {
        "pp", "vpp", "tp", "cp", "ep", "dp", "gemm_efficiency", "memory_efficiency",
        "batched_gemm_share", "zero_stage", "flash_efficiency", "fp8_efficiency",
        "sustained_share", "flash2_share", "expert_imbalance",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan.ppp=3"], "plan.ppp is not a known value of a job; did you mean plan.pp"),
        (["clusterr.gpu=x"], "did you mean cluster?"),
        (["cluster.gpu.peek_flops.bf16=2x"], "did you mean cluster.gpu.peak_flops"),
        (["pp=3"], "did you mean plan.pp?"),
        (["plan.pp.x=3"], "plan.pp is no table"),
        (["plan=3"], "plan is a table; set one of its values"),
        (["cluster.inter_node=3"], "as in cluster.inter_node.bandwidth=2x"),
        (["cluster.stragglers=2"], "as in cluster.stragglers.0=1.2"),
        (["plan.schedule=2x"], '"interleaved", so that 2x of it means nothing'),
        (["plan.sequence_parallel=2x"], "false, so that 2x"),
        (["plan.activation_limit=2x"], "plan.activation_limit is not set"),
        (["cluster.gpu.peak_flops.fp4=2x"], "cluster.gpu.peak_flops.fp4 is not set"),
        (["plan.pp=0.3x"], "plan.pp is 8, and 0.3x of it is 2.4; it must be a whole number"),
        (["plan.pp=3", "plan.pp=4"], "plan.pp is set twice, to 3 and to 4"),
        (["plan.pp=2x", "plan.pp=2x"], "plan.pp is set twice"),
        (["cluster.gpu.memory=1e9", "cluster.gpu=h200"], "set cluster.gpu first"),
        (["plan.pp"], "--set plan.pp is no assignment; write PATH=VALUE"),
        (["plan.pp="], "no assignment"),
        (["=3"], "no assignment"),
        (["cluster.gpu.memory=none"], "cluster.gpu.memory cannot be removed"),
        (["cluster.gpu=h1000"], "is not a gpu preset; did you mean"),
        (["cluster.stragglers.x=2"], "it must be a whole number"),
        (["plan.pp=two"], "it must be a whole number"),
        (["plan.num_microbatches=48", "plan.global_batch_size=2208"], "make them agree"),
    ],
)
def test_a_wrong_assignment_is_one_clear_line(capsys, words, said):
    flags = [flag for word in words for flag in ("--set", word)]
    assert main(["simulate", str(SC21), *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("bubblescope: error: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_set_needs_a_job(capsys):
    assert main(["simulate", "--uniform", "1,2", "--set", "plan.pp=4"]) == 2
    assert "--uniform has none" in capsys.readouterr().err


def test_the_command_simulates_what_it_was_told(capsys):
    words = ["--set", "plan.pp=4", "--set", "cluster.inter_node.bandwidth=2x", "--no-gantt"]
    assert main(["simulate", str(SC21), *words]) == 0
    assert "4 pipeline ranks" in capsys.readouterr().out


def test_the_same_absolute_value_twice_is_no_contradiction():
    assert len(read_assignments(["plan.pp=4", "plan.pp=4"])) == 1


def test_a_job_is_what_it_was_when_nothing_is_assigned():
    assert isinstance(assigned(), Job)
    assert assigned() == BASE
