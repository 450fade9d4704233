"""The server, asked as a browser asks: every answer is the asker's own, or one clear sentence."""

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from dashboard.choice import Choice
from dashboard.limits import MOST_REQUEST
from dashboard.runs import run_of

NAME = "<img src=x onerror=alert(1)>"


def asked(url, method, path, body=None, headers=None):
    place = urlsplit(url)
    line = http.client.HTTPConnection(place.hostname, place.port, timeout=120)
    try:
        given = {"Content-Type": "application/json"} | (headers or {})
        line.request(method, path, body=body, headers=given)
        answer = line.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        line.close()


def callback(url, target):
    """The callback that a component's property changes, as the page knows it."""
    _, text, _ = asked(url, "GET", "/_dash-dependencies")
    for one in json.loads(text):
        if one["inputs"] and one["inputs"][0]["id"] == target and not one["clientside_function"]:
            return one
    raise AssertionError(f"no callback on {target}")


def outputs_of(text):
    made = []
    for one in text.strip(".").split("..."):
        name, _, prop = one.rpartition(".")
        made.append({"id": name, "property": prop})
    return made


def updated(url, known, request):
    inputs = [dict(one) for one in known["inputs"]]
    inputs[0]["value"] = request
    state = [dict(one, value=None) for one in known["state"]]
    body = {
        "output": known["output"],
        "outputs": outputs_of(known["output"]),
        "inputs": inputs,
        "changedPropIds": ["explore-request.data"],
        "state": state,
    }
    return asked(url, "POST", "/_dash-update-component", json.dumps(body))


def request_of(**more):
    return {
        "fields": {"pp": 2, "num_microbatches": 4},
        "model": "llama3-8b",
        "cluster": "dgx-h100",
        "tokens": 1e9,
        "price": 2.0,
        "scope": "all",
    } | more


def test_ten_users_at_once_with_100_updates_each_lose_none(url):
    known = callback(url, "explore-request")
    lost = []
    together = threading.Barrier(10)

    def use(user):
        together.wait()
        for turn in range(100):
            tokens = 1e6 * (100 * user + turn + 1)
            fields = {"pp": 2, "num_microbatches": 2 + user}
            status, text, _ = updated(url, known, request_of(fields=fields, tokens=tokens))
            query = next(v for k, v in json.loads(text)["response"].items() if "query" in k)
            wanted = (f"plan.num_microbatches={2 + user}", f"tokens={tokens}")
            said = query["data"]["query"]
            if status != 200 or not all(one in said + "&" for one in wanted):
                lost.append((user, turn, status, query))

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(use, range(10)))
    assert not lost


def test_an_answer_holds_the_run_of_its_request(url):
    known = callback(url, "explore-request")
    _, text, _ = updated(url, known, request_of())
    run = run_of(
        Choice(model="llama3-8b", cluster="dgx-h100", plan={"pp": 2, "num_microbatches": 4})
    )
    assert f"{100 * run.report.mfu:.1f}" in text
    assert len(text) < 1_000_000


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (request_of(fields={"pp": "many"}), "plan.pp"),
        (request_of(fields={"pp": 3}), "must divide"),
        (request_of(fields={"pp": 10**40}), "plan.pp"),
        (request_of(fields={"num_microbatches": 10**7}), "at most"),
        (request_of(fields={"rows": NAME, "schedule": "custom"}), "is no op"),
        (request_of(fields={"schedule": NAME}), "unknown"),
        (request_of(fields=[]), "must be a table"),
        (request_of(model=NAME), "must be a preset"),
        (request_of(model="/etc/passwd"), "must be a preset"),
        (request_of(cluster={"a": 1}), "cluster"),
        (request_of(tokens="NaN"), "tokens"),
        (request_of(tokens=None), "tokens is empty"),
        (request_of(config={"name": NAME}), "model"),
        (request_of(window=["a", "b"]), "window"),
        ([1, 2], "not the page's own"),
        ("text", "not the page's own"),
    ],
)
def test_anything_that_a_browser_sends_ends_in_a_sentence(url, request_, said):
    status, text, _ = updated(url, callback(url, "explore-request"), request_)
    assert status == 200
    assert said in text
    assert "Traceback" not in text


@pytest.mark.parametrize("window", [[5, 5], [9, 1], [1e300, 1e301], [0, 0]])
def test_a_window_that_shows_nothing_shows_all(url, window):
    status, text, _ = updated(url, callback(url, "explore-request"), request_of(window=window))
    assert status == 200
    assert "explore-run" in text


@pytest.mark.parametrize(
    "body", ["", "{", "null", "[]", "{}", '{"output": "x.y"}', '{"output": 3}']
)
def test_a_body_that_is_no_callback_gets_a_sentence_and_no_trace(url, body):
    status, text, _ = asked(url, "POST", "/_dash-update-component", body)
    assert 400 <= status <= 500
    assert "Traceback" not in text
    assert json.loads(text)["error"]


def test_200_megabytes_are_refused_before_they_are_read(url):
    place = urlsplit(url)
    line = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    line.putrequest("POST", "/_dash-update-component")
    line.putheader("Content-Type", "application/json")
    line.putheader("Content-Length", str(200_000_000))
    line.endheaders()
    answer = line.getresponse()
    text = answer.read().decode()
    line.close()
    assert answer.status == 413
    assert f"at most {MOST_REQUEST // 1_000_000} MB" in text


def test_other_sites_are_not_answered(url):
    status, text, _ = asked(
        url, "POST", "/_dash-update-component", "{}", {"Origin": "https://elsewhere.example"}
    )
    assert status == 403
    assert "other sites" in text


def test_scripts_come_from_here_alone(url):
    _, page, headers = asked(url, "GET", "/")
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe-eval" not in headers["Content-Security-Policy"]
    assert "http://" not in page.replace(url, "")
    assert "https://" not in page


def test_debug_is_off_and_no_page_runs_code(url):
    from dashboard.app import app

    assert not app.server.debug
    assert not app._dev_tools.ui
    assert asked(url, "GET", "/console")[1].count("Debugger") == 0
