"""What may be written in a job's file or on the command line, and what each mistake is told."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.job import Cluster, Job, Link, Model, Plan
from simulator.load import (
    OPTIONS,
    dump_job,
    job_from_options,
    load_cluster,
    load_gpu,
    load_job,
    load_model,
    preset_names,
)

EXAMPLES = Path(__file__).parents[1] / "examples"
HEAD = 'model = "gpt3-175b"\ncluster = "dgx-a100"\n'
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


def refusal(call: Callable[[], object]) -> str | None:
    """What a call is refused with, checked to be one line of a plain ValueError."""
    try:
        call()
    except ValueError as error:
        kind, text = type(error), str(error)
    else:
        return None
    assert kind is ValueError
    assert text.splitlines() == [text]
    return text


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "job.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_preset_is_its_file_name_with_dashes():
    assert {"gpt3-175b", "llama3-70b", "gpt-1-7b"} <= set(preset_names("models"))
    assert {"selene", "dgx-h100", "gb200-nvl72"} <= set(preset_names("clusters"))


def test_preset_dropped_in_the_folder_is_picked_up(tmp_path, monkeypatch):
    (tmp_path / "specs" / "models").mkdir(parents=True)
    text = 'name = "Tiny"\nnum_hidden_layers = 2\nhidden_size = 8\nnum_attention_heads = 2\n'
    file = tmp_path / "specs" / "models" / "my_tiny.toml"
    file.write_text(text + "vocab_size = 10\nseq_len = 4\n")
    monkeypatch.setattr("simulator.load.resources.files", lambda _package: tmp_path)
    assert preset_names("models") == ("my-tiny",)
    assert load_model("my-tiny").head_dim == 4


@pytest.mark.parametrize(
    ("load", "name", "says"),
    [
        (load_gpu, "h100", '"h100" is not a gpu preset; did you mean h100-sxm'),
        (load_model, "gpt3_175b", '"gpt3_175b" is not a model preset; did you mean gpt3-175b'),
        (load_cluster, "selen", '"selen" is not a cluster preset; did you mean selene'),
        (load_cluster, "zzz", '"zzz" is not a cluster preset; `bubblescope presets` lists all'),
    ],
)
def test_unknown_preset_is_told_the_nearest_and_how_to_list_all(load, name, says):
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        load(name)
    assert "`bubblescope presets` lists all" in str(error.value)


def test_job_of_two_presets_runs_on_one_gpu_of_one_node(write):
    job = load_job(write('model = "gpt-1-7b"\ncluster = "dgx-a100"\n'))
    assert (job.name, job.plan, job.cluster.num_nodes) == ("job", Plan(), 1)


def test_table_overrides_the_preset_it_names_link_by_link(write):
    path = write(
        """
        name = "mine"
        [model]
        preset = "gpt3-175b"
        seq_len = 4096
        [cluster]
        preset = "selene"
        num_nodes = 192
        gpu.memory = 40e9
        inter_node.latency = 1e-6
        [cluster.stragglers]
        1 = 1.5
        [plan]
        pp = 2
        """
    )
    job, selene = load_job(path), load_cluster("selene")
    assert (job.name, job.model.seq_len, job.model.hidden_size) == ("mine", 4096, 12288)
    assert job.cluster.num_nodes == 192
    assert job.cluster.inter_node == selene.inter_node.model_copy(update={"latency": 1e-6})
    assert job.cluster.gpu == selene.gpu.model_copy(update={"memory": 40e9})
    assert job.cluster.stragglers == {1: 1.5}


def test_another_gpu_takes_the_place_of_the_presets(write):
    base = 'model = "gpt-1-7b"\n[cluster]\npreset = "dgx-a100"\n'
    named = load_job(write(base + 'gpu = "h100-sxm"\n'))
    assert named.cluster.gpu == load_gpu("h100-sxm")
    table = load_job(write(base + '[cluster.gpu]\npreset = "h100-sxm"\nmemory = 96e9\n'))
    assert table.cluster.gpu == load_gpu("h100-sxm").model_copy(update={"memory": 96e9})


@pytest.mark.parametrize("model", ['"sub/config.json"', '"sub/"', '{ preset = "sub/config.json" }'])
def test_config_json_is_found_beside_the_jobs_file(write, tmp_path, model):
    (tmp_path / "sub").mkdir()
    write(json.dumps(GPT2), "sub/config.json")
    job = load_job(write(f'model = {model}\ncluster = "dgx-a100"\n'))
    assert (job.model.name, job.model.num_parameters) == ("sub", 124_439_808)


def test_path_is_never_taken_for_a_presets_name(write, tmp_path, monkeypatch):
    (tmp_path / "gpt3-175b").mkdir()
    write(json.dumps(GPT2), "gpt3-175b/config.json")
    monkeypatch.chdir(tmp_path)
    assert load_model(Path("gpt3-175b")).num_parameters == 124_439_808
    assert load_model("gpt3-175b").name == "GPT-3 175B"


def test_config_json_takes_the_sequence_length_of_its_table(write):
    write(json.dumps(GPT2), "config.json")
    job = load_job(
        write('cluster = "dgx-a100"\n[model]\npreset = "./config.json"\nname = "N"\nseq_len = 64\n')
    )
    assert (job.model.name, job.model.seq_len) == ("N", 64)


def test_cluster_and_model_may_be_files_of_their_own(write, tmp_path):
    write('preset = "dgx-a100"\nname = "Ours"\n', "cluster.toml")
    with pytest.raises(ValueError, match=r"cluster.toml names a preset itself; a file of its own"):
        load_cluster(tmp_path / "cluster.toml")
    table = dump_job(load_job(write(HEAD))).split("[cluster]\n")[0].split("[model]\n")[1]
    write(table, "model.toml")
    assert load_model(tmp_path / "model.toml") == load_model("gpt3-175b")


def test_gpus_alone_give_dp_and_nodes(write):
    job = load_job(write(HEAD + "gpus = 1024\n[plan]\npp = 8\ntp = 8\n"))
    assert (job.plan.dp, job.cluster.num_nodes) == (16, 128)


def test_gpus_that_fill_no_whole_node_still_get_it(write):
    job = load_job(write(HEAD + "gpus = 12\n[plan]\ntp = 4\n"))
    assert (job.plan.dp, job.cluster.num_nodes) == (3, 2)


def test_global_batch_gives_the_number_of_microbatches(write):
    job = load_job(write(HEAD + "[plan]\ndp = 4\nmicro_batch_size = 2\nglobal_batch_size = 96\n"))
    assert job.plan.num_microbatches == 12


def test_conveniences_that_agree_with_what_they_replace_are_welcome(write):
    sizes = "[plan]\ndp = 4\nnum_microbatches = 3\nglobal_batch_size = 12\n"
    assert load_job(write(HEAD + "gpus = 4\n" + sizes)) == load_job(write(HEAD + sizes))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "gpus = 1000\n[plan]\npp = 8\ntp = 8",
            "gpus is 1000, but it must be a multiple of plan.pp x tp x cp = 64; use 960 or 1024",
        ),
        (
            "gpus = 8\n[plan]\npp = 8\ntp = 8",
            "gpus is 8, but it must be a multiple of plan.pp x tp x cp = 64; use 64",
        ),
        (
            "gpus = 64\n[plan]\ntp = 8\ndp = 4",
            "gpus is 64, but plan.pp x tp x cp x dp is 32; leave out one of gpus and plan.dp, "
            "or make them agree",
        ),
        (
            "[plan]\ndp = 4\nmicro_batch_size = 2\nglobal_batch_size = 100",
            "plan.global_batch_size is 100, but it must be a multiple of "
            "plan.dp x micro_batch_size = 8; use 96 or 104",
        ),
        (
            "[plan]\nnum_microbatches = 3\nglobal_batch_size = 4",
            "plan.global_batch_size is 4, but num_microbatches x micro_batch_size x dp is 3; "
            "leave out one of plan.global_batch_size and plan.num_microbatches, or make them agree",
        ),
        ("gpus = 0", "gpus is 0; it must be a whole number; use 1 or more"),
        ("gpus = true", "gpus is true; it must be a whole number; use 1 or more"),
        (
            '[plan]\nglobal_batch_size = "many"',
            'plan.global_batch_size is "many"; it must be a whole number; use 1 or more',
        ),
        (
            "[plan]\ntp = 0",
            "plan.tp is 0 (tensor-parallel size [1]); it must be at least 1; use 1 or more",
        ),
        ("[plan]\ntp = -3", "plan.tp is -3 (tensor-parallel size [1]); it must be at least 1"),
        (
            '[plan]\ntp = "eight"',
            'plan.tp is "eight" (tensor-parallel size [1]); it must be a whole number; '
            "write it without quotes and point, such as 8",
        ),
        ("[plan]\ntp = 1.5", "plan.tp is 1.5 (tensor-parallel size [1]); it must be a whole"),
        ("[plan]\ntp = nan", "plan.tp is nan (tensor-parallel size [1]); it must be a finite"),
        ("[plan]\ntp = true", "plan.tp is true (tensor-parallel size [1]); it must be a number"),
        ("[plan]\ntp = []", "plan.tp is [] (tensor-parallel size [1]); it must be a whole number"),
        ("[plan]\nlayers_per_stage = 3", "such as [6, 7, 7, 6]"),
        ("[plan]\nlayers_per_stage = [97, -1]", "plan.layers_per_stage.1 is -1 (layers on each"),
        (
            '[plan]\nrecompute = "some"',
            "it must be 'none', 'selective', 'alternate' or 'full'; use one of these",
        ),
        (
            '[plan]\nsequence_parallel = "maybe"',
            'plan.sequence_parallel is "maybe" (norms and dropouts split along the sequence); '
            "it must be true or false; write true or false",
        ),
        ("[plan]\nschedule = 3", "plan.schedule is 3 (pipeline schedule); it must be text"),
        ("[plan]\ntpp = 3", "plan.tpp is not a known key; did you mean plan.tp or plan.pp?"),
        (
            "[plan]\nglobal_batch = 3",
            "plan.global_batch is not a known key; did you mean plan.global_batch_size",
        ),
        ("gpu = 3", "gpu is not a known key; did you mean gpus?"),
        ("tp = 3", "tp is not a key of a job, but of its plan; write it under [plan]"),
        ("plan = 3", "plan is 3; it must be a table; write its fields under [plan]"),
        ('plan = "1f1b"', 'plan is "1f1b"; it must be a table; write its fields under [plan]'),
        ("name = 3", "name is 3 (name of the job); it must be text; write it in quotes"),
        (
            "[plan]\ntp = 0\npp = 0",
            "plan.pp is 0 (pipeline-parallel size [1]); it must be at least 1; "
            "use 1 or more (and 1 more)",
        ),
        ("[plan]\ntp = 7", "plan.tp is 7, but it must divide model.num_attention_heads = 96"),
    ],
)
def test_mistake_in_a_job_is_told_the_value_the_rule_and_the_way_out(write, text, says):
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        load_job(write(HEAD + text + "\n"))
    assert type(error.value) is ValueError
    assert "\n" not in str(error.value)
    assert "pydantic" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("inter_node.bandwidth = 0", "it must be more than 0; use a positive number"),
        ("inter_node.bandwidth = nan", "it must be a finite number; write an ordinary number"),
        (
            'intra_node.latency = "fast"',
            'cluster.intra_node.latency is "fast" (time before the first byte arrives [s]); '
            "it must be a number; write it without quotes, such as 2.5e9",
        ),
        ("intra_node.efficiency = 1.5", "it must be at most 1; use 1 or less"),
        ("intra_node.latency = -1", "it must be at least 0; use 0 or more"),
        (
            "intra_node = 3",
            "cluster.intra_node is 3 (one GPU's port to the others of its node); it must be a "
            "table; write its fields under [cluster.intra_node]",
        ),
        (
            "intra_node.bandwith = 3",
            "cluster.intra_node.bandwith is not a known key; "
            "did you mean cluster.intra_node.bandwidth?",
        ),
        ("gpu.memory = 0", "cluster.gpu.memory is 0 (capacity [bytes]); it must be more than 0"),
        ("gpu.memry = 1", "cluster.gpu.memry is not a known key; did you mean cluster.gpu.memory"),
        ('gpu = "a1000"', '"a1000" is not a gpu preset; did you mean a100-sxm-'),
        ("gpu = 3", "gpu is 3; it must be a preset's name, a file or a table"),
        ("stragglers.first = 2", 'a key of cluster.stragglers is "first"'),
        ("stragglers.0 = 0", "cluster.stragglers.0 is 0 (slow-down of the compute of a pipeline"),
        ("stragglers.5 = 2", "cluster.stragglers names rank 5, but the pipeline has ranks 0 to 0"),
        ("num_nodes = 0", "cluster.num_nodes is 0 (nodes [1]); it must be at least 1"),
        ("oversubscription = 0.5", "it must be at least 1; use 1 or more"),
    ],
)
def test_mistake_in_a_cluster_is_told_the_value_the_rule_and_the_way_out(write, text, says):
    head = 'model = "gpt3-175b"\n[cluster]\npreset = "dgx-a100"\n'
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        load_job(write(head + text + "\n"))
    assert type(error.value) is ValueError
    assert "\n" not in str(error.value)


def test_plan_larger_than_the_stated_nodes_is_told_how_many_it_needs(write):
    path = write(
        'model = "gpt3-175b"\n[cluster]\npreset = "dgx-a100"\nnum_nodes = 2\n[plan]\ndp = 24\n'
    )
    says = "uses pp x tp x cp x dp = 24 GPUs, but DGX A100 has 16; use at least num_nodes = 3"
    with pytest.raises(ValueError, match=says):
        load_job(path)


def test_gpus_and_nodes_that_disagree_are_refused(write):
    path = write('model = "gpt3-175b"\ngpus = 16\n[cluster]\npreset = "dgx-a100"\nnum_nodes = 3\n')
    says = "gpus is 16, which fills 2 nodes of 8, but cluster.num_nodes is 3; leave out one"
    with pytest.raises(ValueError, match=says):
        load_job(path)


@pytest.mark.parametrize("key", ["model", "cluster"])
def test_job_without_a_model_or_cluster_is_told_what_to_give(write, key):
    text = "\n".join(line for line in HEAD.splitlines() if not line.startswith(key))
    says = f"{key} is missing; give a preset's name (`bubblescope presets` lists all), a file or"
    with pytest.raises(ValueError, match=re.escape(says)):
        load_job(write(text))


def test_missing_field_is_named_with_its_meaning(write):
    path = write('cluster = "dgx-a100"\n[model]\nname = "x"\nnum_hidden_layers = 2\n')
    says = "model.hidden_size is missing (width of the residual stream [1]); add it"
    with pytest.raises(ValueError, match=re.escape(says)):
        load_job(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'model = "gpt3', "job.toml, line 1: "),
        (b'name = "a"\nmodel = [1, 2', "job.toml, line 2: "),
        (b'name = "a"\nmodel', "job.toml, line 2: "),
        (b'name = "a"\n}{\n', "job.toml, line 2: "),
        (b'name = "a"\nname = "b"\n', "job.toml, line 2: "),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "job.toml is not UTF-8 text; is it a TOML file?"),
        (b"a = " + b"[" * 100_000, "job.toml, line 1: "),
        (b"", "model is missing"),
    ],
)
def test_broken_file_is_told_its_name_and_line(tmp_path, data, says):
    path = tmp_path / "job.toml"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        load_job(path)
    assert type(error.value) is ValueError
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cut", range(0, 600, 7))
def test_truncated_job_never_ends_in_another_kind_of_error(tmp_path, cut):
    text = (EXAMPLES / "llama3_70b_dgx_h100.toml").read_text()
    path = tmp_path / "job.toml"
    path.write_text(text[:cut])
    assert refusal(lambda: load_job(path)) is None or cut < len(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"model_type": "gpt2",\n', "config.json, line 2: "),
        ("[1, 2]", "config.json holds no JSON object; is it a model's config.json?"),
    ],
)
def test_broken_config_json_is_told_its_name(write, tmp_path, text, says):
    write(text, "config.json")
    with pytest.raises(ValueError, match=re.escape(says)):
        load_model(tmp_path / "config.json")


def test_config_json_that_is_not_text_is_told_so(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"config.json is not UTF-8 text; is it a config.json\?"):
        load_model(tmp_path / "config.json")


def test_absent_file_and_folder_are_told_their_path(tmp_path):
    says = r"absent.toml: no such file or directory; give the path of a readable file"
    with pytest.raises(ValueError, match=says):
        load_job(tmp_path / "absent.toml")
    with pytest.raises(ValueError, match="is a directory; give the path of a readable file"):
        load_job(tmp_path)
    with pytest.raises(ValueError, match="meta-llama/Llama: no such file or directory"):
        load_model("meta-llama/Llama")


def test_options_alone_make_a_job():
    job = job_from_options(
        {
            "name": "mine",
            "model": "gpt3-175b",
            "cluster": "selene",
            "gpus": 128,
            "tp": 8,
            "pp": 8,
            "global_batch_size": 64,
            "seq_len": 4096,
        }
    )
    assert (job.name, job.model.seq_len, job.plan.dp) == ("mine", 4096, 2)
    assert (job.plan.num_microbatches, job.cluster.num_nodes) == (32, 16)


FILE = HEAD + "gpus = 64\n[plan]\ntp = 8\npp = 4\nglobal_batch_size = 32\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"dp": 2, "num_microbatches": 16}),
        ({"tp": 4}, {"dp": 4, "num_microbatches": 8}),
        ({"gpus": 128}, {"dp": 4, "num_microbatches": 8}),
        ({"dp": 1}, {"dp": 1, "num_microbatches": 32, "num_gpus": 32}),
        ({"micro_batch_size": 4}, {"dp": 2, "num_microbatches": 4}),
        ({"num_microbatches": 5}, {"num_microbatches": 5, "global_batch_size": 10}),
        ({"global_batch_size": 64}, {"num_microbatches": 32}),
        ({"schedule": "gpipe"}, {"schedule": "gpipe"}),
    ],
    ids=str,
)
def test_option_overrides_the_file_and_what_hangs_on_it_follows(write, options, expected):
    plan = job_from_options(options, write(FILE)).plan
    assert {key: getattr(plan, key) for key in expected} == expected


def test_option_takes_the_place_of_what_the_file_says_of_the_same_thing(write):
    fixed = write(
        """
        model = "gpt3-175b"
        [cluster]
        preset = "selene"
        num_nodes = 4
        [plan]
        dp = 32
        num_microbatches = 3
        """
    )
    more = job_from_options({"gpus": 64, "global_batch_size": 128}, fixed)
    assert (more.plan.dp, more.cluster.num_nodes, more.plan.num_microbatches) == (64, 8, 2)
    nodes = job_from_options({"num_nodes": 6}, fixed)
    assert (nodes.plan.dp, nodes.cluster.num_nodes) == (32, 6)
    other = job_from_options({"model": "gpt-1-7b", "cluster": "dgx-h100"}, fixed)
    assert (other.model.name, other.cluster.num_nodes) == ("GPT 1.7B", 4)


def test_options_of_a_saved_job_override_it_too(write):
    saved = write(dump_job(load_job(write(FILE))), "saved.toml")
    job = job_from_options({"gpus": 128, "seq_len": 1024}, saved)
    assert (job.plan.dp, job.model.seq_len, job.cluster.num_nodes) == (4, 1024, 16)


def test_unknown_option_is_told_the_nearest(write):
    with pytest.raises(ValueError, match="micro_batch is not a known option; did you mean micro_"):
        job_from_options({"micro_batch": 3}, write(FILE))


def test_mistaken_option_is_told_the_value_and_the_rule(write):
    with pytest.raises(ValueError, match=r'plan.tp is "x" .*; it must be a whole number'):
        job_from_options({"tp": "x"}, write(FILE))


def test_options_without_a_model_are_told_what_to_give():
    with pytest.raises(ValueError, match="model is missing; give a preset's name"):
        job_from_options({"seq_len": 8, "cluster": "selene"})


def test_dump_writes_no_convenience(write):
    text = dump_job(load_job(write(FILE)))
    assert "gpus = " not in text.splitlines()
    assert "global_batch_size" not in text
    assert "dp = 2" in text


anything = st.one_of(
    st.integers(-2, 9),
    st.sampled_from([10**400, "1f1b", "a\nb", "x/y", "none", "", "fp16"]),
    st.floats(),
    st.booleans(),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["preset", "name", "gpu", "memory"]), st.integers(0, 3)),
)


@settings(deadline=None)  # reads and writes files
@given(options=st.dictionaries(st.sampled_from(OPTIONS), anything, max_size=4))
def test_whatever_an_option_holds_it_is_refused_in_one_plain_line(options):
    known = {"model": "gpt-1-7b", "cluster": "dgx-a100"}
    refusal(lambda: job_from_options(known | options))


@settings(deadline=None)  # reads and writes files
@given(
    place=st.sampled_from(["cluster", "cluster.gpu", "cluster.inter_node", "model"]),
    key=st.sampled_from(["memory", "bandwidth", "hidden_size", "num_nodes", "stragglers", "gpu"]),
    value=anything,
)
def test_whatever_a_table_holds_it_is_refused_in_one_plain_line(place, key, value):
    raw = {"model": {"preset": "gpt-1-7b"}, "cluster": {"preset": "dgx-a100"}}
    table = raw
    for step in place.split("."):
        table = table.setdefault(step, {})
    table[key] = value
    refusal(lambda: job_from_options(raw))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.integers(1, 4)
positives = st.floats(min_value=1e-300, max_value=1e300)
links = st.builds(
    Link,
    bandwidth=st.floats(1e-3, 1e300),
    latency=st.floats(0, 1e300),
    efficiency=st.floats(1e-9, 1),
)


@st.composite
def jobs(draw):
    pp, vpp, tp = draw(counts), draw(counts), draw(counts)
    dp = draw(counts)
    split = draw(st.none() | st.lists(counts, min_size=pp * vpp, max_size=pp * vpp).map(tuple))
    plan = Plan(
        schedule=draw(texts),
        pp=pp,
        vpp=vpp,
        tp=tp,
        dp=dp,
        num_microbatches=draw(counts),
        micro_batch_size=draw(counts),
        dtype=draw(st.sampled_from(["fp16", "bf16"])),
        recompute=draw(st.sampled_from(["none", "full"])),
        zero_stage=draw(st.sampled_from([0, 1])) if dp > 1 else 0,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        layers_per_stage=split,
    )
    model = Model.model_validate(
        {
            "name": draw(texts),
            "num_hidden_layers": sum(split) if split else pp * vpp * draw(counts),
            "hidden_size": 24 * draw(counts),
            "num_attention_heads": 12,
            "vocab_size": draw(st.integers(1, 10**12)),
            "seq_len": 12 * draw(counts),
            "gated_mlp": draw(st.booleans()),
            "norm": draw(st.sampled_from(["layernorm", "rmsnorm"])),
        }
    )
    cluster = Cluster(
        name=draw(texts),
        gpu=load_gpu("a100-sxm-80gb"),
        num_nodes=plan.num_gpus,
        gpus_per_node=tp * draw(counts),
        intra_node=draw(links),
        inter_node=draw(links),
        nics_per_node=draw(counts),
        oversubscription=draw(st.floats(1, 1e300)),
        stragglers=draw(st.dictionaries(st.integers(0, pp - 1), positives)),
    )
    return Job(name=draw(texts), model=model, cluster=cluster, plan=plan)


@settings(deadline=None)  # reads and writes files
@given(job=jobs())
def test_any_job_is_read_back_as_it_was_written(job, tmp_path_factory):
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(dump_job(job), encoding="utf-8", newline="\n")
    assert load_job(path) == job
