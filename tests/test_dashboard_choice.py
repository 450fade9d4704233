"""What a page sends becomes a job, or a sentence with the field and the values that work."""

import json

import pytest

from dashboard.choice import Choice, choice_of, job_of, pasted_model
from dashboard.exploration import ExploreState
from dashboard.limits import MOST_OPS, MOST_PASTE, require_work
from dashboard.problems import fields_of, problem_of, working_values
from dashboard.request import plan_of, state_of
from dashboard.runs import run_of
from simulator.job import Plan
from simulator.load import load_job
from simulator.simulate import simulate

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def test_a_choice_runs_as_the_same_job_of_the_command_line():
    choice = Choice(model="llama3-8b", cluster="dgx-h100", plan={"pp": 4, "num_microbatches": 16})
    assert run_of(choice).timeline == simulate(job_of(choice)).timeline


@pytest.mark.parametrize("name", ["small_8_gpus", "korthikanti_22b_full"])
def test_a_job_file_opens_as_itself(name):
    job = load_job(f"examples/{name}.toml")
    again = job_of(choice_of(job))
    assert again.model_copy(update={"name": job.name, "cluster": job.cluster}) == job
    assert simulate(again).report.step_time == simulate(job).report.step_time


@pytest.mark.parametrize("name", ["/etc/passwd", "../job.toml", "./config.json", "no-such"])
@pytest.mark.parametrize("field", ["model", "cluster"])
def test_a_name_from_a_browser_is_never_a_path(field, name):
    with pytest.raises(ValueError, match=f"^{field} is .*must be a preset"):
        job_of(Choice(**{field: name}))


@pytest.mark.parametrize("key", ["model", "cluster", "gpus", "name", "preset"])
def test_the_plan_takes_fields_of_the_plan_alone(key):
    with pytest.raises(ValueError, match=f"plan.{key} is not a known field"):
        job_of(Choice(plan={key: "/etc/passwd"}))


def test_a_pasted_model_with_a_preset_inside_is_refused():
    with pytest.raises(ValueError, match="preset"):
        job_of(Choice(model="", config={"preset": "/etc/passwd"}))


def test_a_pasted_config_is_a_model():
    model = pasted_model(json.dumps(CONFIG))
    assert model.num_hidden_layers == 16
    choice = Choice(model="", config=model.model_dump(mode="json"), plan={"pp": 4})
    assert job_of(choice).model == model


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "llama",', "line 1, column"),
        ("[1, 2]", "no JSON object"),
        ("[" * 100_000, "no JSON that can be read"),
        ("1" * 5000, "no JSON that can be read"),
        ("x" * (MOST_PASTE + 1), "at most 256,000"),
        ('{"model_type": "<script>alert(1)</script>"}', "not read yet"),
        ('{"model_type": "llama", "hidden_size": -1}', "no "),
    ],
)
def test_a_broken_config_is_a_sentence(text, said):
    with pytest.raises(ValueError, match=r".") as caught:
        pasted_model(text)
    assert said in str(caught.value)


def test_working_values_of_pp_are_the_divisors_of_96_layers():
    choice = Choice(plan={"pp": 7, "tp": 8, "num_microbatches": 8})
    with pytest.raises(ValueError, match="must divide") as caught:
        run_of(choice)
    problem = problem_of(caught.value, choice)
    assert list(problem.works) == ["pp", "vpp"]
    assert set(problem.works["pp"]) == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96}
    assert problem.works["vpp"] == ()  # 96 has no divisor 7


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"tp": 5}, "tp"),
        ({"recompute": "selective"}, "recompute"),
        ({"schedule": "interleaved", "vpp": 2, "pp": 8, "num_microbatches": 6}, "num_microbatches"),
        ({"schedule": "gpipe", "vpp": 2, "pp": 2}, "vpp"),
        ({"zero_stage": 1}, "zero_stage"),
        ({"num_microbatches": 10**9}, "num_microbatches"),
        ({"micro_batch_size": "many"}, "micro_batch_size"),
        ({"pp": -1}, "pp"),
        ({"pp": 10**30}, "pp"),
        ({"cp": 3}, "cp"),
        ({"schedule": "one_f_one_b"}, "schedule"),
    ],
)
def test_every_value_that_is_offered_runs(plan, field):
    choice = Choice(model="gpt3-175b", plan=plan)
    with pytest.raises(ValueError, match=r".") as caught:
        run_of(choice)
    problem = problem_of(caught.value, choice)
    assert field in problem.works
    for name, values in problem.works.items():
        for value in values[:3]:
            mended = {**choice.plan, name: value}
            job_of(choice.model_copy(update={"plan": mended}))
    assert any(problem.works.values())


def test_an_error_names_its_fields():
    assert fields_of("plan.pp x plan.vpp is 10 stages, but") == ("pp", "vpp")
    assert fields_of('model is "x"; it must be a preset') == ("model",)
    assert fields_of("bandwidth is 0 bytes/s") == ()


def test_working_values_of_a_schedule_are_those_that_build():
    choice = Choice(plan={"pp": 4, "vpp": 2, "num_microbatches": 8})
    assert "interleaved" in working_values(choice, "schedule")
    assert "1f1b" not in working_values(choice, "schedule")


def test_the_work_limit_is_stated():
    with pytest.raises(ValueError, match=f"at most {MOST_OPS:,}"):
        require_work(Plan(pp=64, num_microbatches=100_000))
    require_work(Plan(pp=64, num_microbatches=512))
    with pytest.raises(ValueError, match="of this schedule"):
        require_work(Plan(schedule="optimal", pp=64, num_microbatches=512))


@pytest.mark.parametrize("request_", [None, 3, "x", [], {"fields": 3}, {"fields": {}, "tokens": 0}])
def test_a_request_that_is_none_is_a_sentence(request_):
    with pytest.raises(ValueError, match=r"."):
        state_of(request_)


def test_controls_become_a_plan_without_what_is_usual():
    fields = {"pp": 8, "tp": 1, "zero_stage": "1", "dtype": "bf16", "layers_per_stage": "6, 7,7"}
    assert plan_of(fields) == {"pp": 8, "zero_stage": 1, "layers_per_stage": (6, 7, 7)}
    assert state_of({"fields": {"pp": 4}, "model": "gpt3-175b"}) == ExploreState(plan={"pp": 4})


def test_modules_of_recomputation_are_words_with_commas_between_them():
    fields = {"recompute": "selective", "recompute_modules": "layernorm, core_attn"}
    plan = Plan(**plan_of(fields))
    assert plan.recompute_modules == ("layernorm", "core_attn")
