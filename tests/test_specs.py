"""Every preset and every example loads, and says where its figures are from."""

from pathlib import Path

import pytest

from simulator.load import (
    dump_job,
    load_cluster,
    load_gpu,
    load_job,
    load_model,
    preset_names,
)

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.toml"))
GPTS = {  # size [1e9], as printed
    "gpt-1-7b": 1.7,
    "gpt-3-6b": 3.6,
    "gpt-7-5b": 7.5,
    "gpt-18-4b": 18.4,
    "gpt-39-1b": 39.1,
    "gpt-76-1b": 76.1,
    "gpt-145-6b": 145.6,
    "gpt-310-1b": 310.1,
    "gpt-529-6b": 529.6,
    "gpt-1008b": 1008.0,
}
LLAMAS = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
}


@pytest.mark.parametrize("name", preset_names("models"))
def test_model_preset_loads_and_names_its_source(name):
    assert load_model(name).source


@pytest.mark.parametrize("name", preset_names("clusters"))
def test_cluster_preset_loads_names_its_source_and_leaves_the_nodes_open(name):
    cluster = load_cluster(name)
    assert cluster.source
    assert cluster.num_nodes == 1
    assert cluster.intra_node.bandwidth > cluster.inter_node.bandwidth


@pytest.mark.parametrize("name", preset_names("gpus"))
def test_gpu_preset_loads_and_names_its_source(name):
    assert load_gpu(name).source


@pytest.mark.parametrize("name", GPTS)
def test_sc21_formula_and_num_parameters_give_the_printed_size(name):
    model = load_model(name)
    l, h, v, s = model.num_hidden_layers, model.hidden_size, model.vocab_size, model.seq_len
    formula = 12 * l * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * l * h))
    assert round(formula / 1e9, 1) == GPTS[name]
    assert model.num_parameters == round(formula) + 2 * h


@pytest.mark.parametrize(
    ("name", "size"),
    [("gpt-22b", 22), ("gpt3-175b", 175), ("mt-nlg-530b", 530), ("gpt-1t", 1008)],
)
def test_korthikanti_models_have_their_printed_size(name, size):
    assert round(load_model(name).num_parameters / 1e9) == size


@pytest.mark.parametrize("name", LLAMAS)
def test_llama_has_its_published_number_of_parameters(name):
    assert load_model(name).num_parameters == LLAMAS[name]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_loads_round_trips_and_is_named_after_its_file(path, tmp_path):
    job = load_job(path)
    assert job.name == path.stem
    saved = tmp_path / "job.toml"
    saved.write_text(dump_job(job))
    assert load_job(saved) == job


@pytest.mark.parametrize(
    ("name", "gpus", "batch"),
    [
        ("sc21_1_7b", 32, 512),
        ("sc21_3_6b", 64, 512),
        ("sc21_7_5b", 128, 512),
        ("sc21_18_4b", 256, 1024),
        ("sc21_39_1b", 512, 1536),
        ("sc21_76_1b", 1024, 1792),
        ("sc21_145_6b", 1536, 2304),
        ("sc21_310_1b", 1920, 2160),
        ("sc21_529_6b", 2520, 2520),
        ("sc21_1008b", 3072, 3072),
        ("korthikanti_22b_full", 8, 4),
        ("korthikanti_22b_selective_sp", 8, 4),
        ("korthikanti_175b_full", 64, 64),
        ("korthikanti_175b_selective_sp", 64, 64),
        ("korthikanti_530b_full", 280, 280),
        ("korthikanti_530b_selective_sp", 280, 280),
        ("korthikanti_1t_full", 512, 512),
        ("korthikanti_1t_selective_sp", 512, 512),
        ("korthikanti_530b_selective_sp_2240_gpus", 2240, 2240),
        ("llama3_70b_dgx_h100", 128, 128),
        ("small_8_gpus", 8, 32),
    ],
)
def test_example_has_the_published_gpus_and_global_batch(name, gpus, batch):
    job = load_job(FOLDER / f"{name}.toml")
    assert (job.plan.num_gpus, job.cluster.num_gpus, job.plan.global_batch_size) == (
        gpus,
        gpus,
        batch,
    )
