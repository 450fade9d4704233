"""Chrome JSON: what Perfetto and chrome://tracing ask of a trace."""

import itertools
import json

import numpy as np
import pytest

from simulator.schedule import Kind
from tests.greedy import one_f_one_b, run
from traces import chrome
from traces.labels import Labels


def document(timeline, labels=None):
    return json.loads(chrome.encode(timeline, labels or Labels(), ".json"))


def events(timeline, phase):
    return [event for event in document(timeline)["traceEvents"] if event["ph"] == phase]


@pytest.fixture(scope="module")
def timeline():
    return run(one_f_one_b(4, 8), transfer=0.25, optimizer=1.0)


def test_a_rank_is_a_process_in_order(timeline):
    names = {
        e["pid"]: e["args"]["name"] for e in events(timeline, "M") if e["name"] == "process_name"
    }
    order = {
        e["pid"]: e["args"]["sort_index"]
        for e in events(timeline, "M")
        if e["name"] == "process_sort_index"
    }
    assert names == {rank: f"rank {rank}" for rank in range(4)}
    assert order == {rank: rank for rank in range(4)}


def test_streams_are_named_threads(timeline):
    names = {e["args"]["name"] for e in events(timeline, "M") if e["name"] == "thread_name"}
    assert {"compute", "send", "receive", "collective"} <= names


def test_a_span_is_an_event_named_as_pytorch_prints_it(timeline):
    spans = events(timeline, "X")
    assert len(spans) == timeline.num_spans
    first = next(e for e in spans if e["name"] == "0F0")
    assert (first["pid"], first["tid"], first["ts"], first["dur"]) == (0, 0, 0.0, 1e6)
    assert first["cat"] == "forward"
    assert first["args"]["end"] == 1.0


def test_spans_of_one_thread_never_overlap():
    for transfer in (0.3, 2.5):
        spans = events(run(one_f_one_b(4, 8), transfer=transfer, optimizer=1.0), "X")
        for place in {(e["pid"], e["tid"]) for e in spans}:
            mine = sorted(
                (e["ts"], e["ts"] + e["dur"]) for e in spans if (e["pid"], e["tid"]) == place
            )
            assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(mine)), place


def test_an_arrow_leads_from_each_send_to_its_receive(timeline):
    starts = {e["id"]: e for e in events(timeline, "s")}
    ends = {e["id"]: e for e in events(timeline, "f")}
    sends = timeline.of(Kind.SEND_F, Kind.SEND_B)
    assert starts.keys() == ends.keys()
    assert len(starts) == sends.num_spans == 2 * 3 * 8
    spans = events(timeline, "X")

    def under(arrow):
        return next(
            e
            for e in spans
            if (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"])
            and e["ts"] <= arrow["ts"] < e["ts"] + e["dur"]
        )

    for number, arrow in starts.items():
        send, receive = under(arrow)["args"], under(ends[number])["args"]
        step = 1 if send["kind"] == "SEND_F" else -1
        assert receive["kind"] == send["kind"].replace("SEND", "RECV")
        assert receive["stage"] == send["stage"] + step
        assert receive["microbatch"] == send["microbatch"]
        assert ends[number]["bp"] == "e"


def test_memory_is_a_counter_in_bytes(timeline):
    counters = events(timeline, "C")
    assert len(counters) == len(timeline.memory_time)
    assert {e["name"] for e in counters} == {"memory"}
    assert max(e["args"]["bytes"] for e in counters if e["pid"] == 0) == 26e9


def test_the_document_says_what_it_is(timeline):
    about = document(timeline, Labels("1F1B", "bubble"))
    assert about["displayTimeUnit"] == "ms"
    assert about["otherData"]["title"] == "1F1B"


def test_timestamps_survive_the_cut_to_whole_nanoseconds():
    nanoseconds = np.arange(1, 100_000, 7, dtype=np.int64)
    shown = chrome._microseconds(nanoseconds)
    assert [int(us * 1000) for us in shown] == nanoseconds.tolist()


def test_a_quarter_million_spans_read_back_equal():
    timeline = run(one_f_one_b(64, 690), transfer=0.05, memory=False)
    assert timeline.num_spans > 262_144
    assert chrome.decode(chrome.encode(timeline, Labels(), ".json")) == timeline
