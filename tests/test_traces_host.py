"""Runs on the host's clock: what is compute, when a send left; ops that nobody named."""

import json
import re
from pathlib import Path

import pytest

from simulator.schedule import Kind
from traces.measured.imported import bring_in
from traces.measured.mapping import read_mapping

DOCS = Path(__file__).parent.parent / "docs" / "traces.md"


def span(name, start, end, cat="cpu_op"):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": 1e3 * start,
            "dur": 1e3 * (end - start)}  # fmt: skip


def ranges(*rows):
    return [span(*row, cat="user_annotation") for row in rows]


def saved(folder, *documents):
    paths = []
    for rank, made in enumerate(documents):
        paths.append(folder / f"rank{rank}.json")
        head = {"host_name": "node", "distributedInfo": {"rank": rank}}
        paths[-1].write_text(json.dumps({**head, "traceEvents": made}))
    return paths


# As PyTorch 2.13's GPipe records it, in ms: the range holds the wait before and the send after.
FIRST = [
    *ranges(("PP:0F0", 0.0, 5.0), ("gloo:send", 4.8, 9.0), ("PP:0B0", 20.0, 26.0)),
    span("aten::linear", 0.2, 0.8), span("c10d::send", 0.9, 4.81),
    span("c10d::recv_", 20.1, 20.2), *ranges(("gloo:recv", 20.15, 23.0)),
    span("AddmmBackward0", 23.5, 25.9),
]  # fmt: skip
SECOND = [
    *ranges(("PP:1F0", 0.1, 6.0), ("gloo:recv", 0.3, 3.0), ("PP:1B0", 6.1, 22.9)),
    span("c10d::recv_", 0.2, 0.31), span("aten::linear", 5.5, 5.8), span("MeanBackward0", 6.3, 9.0),
    span("c10d::send", 9.2, 22.8), *ranges(("gloo:send", 22.75, 24.0)),
]  # fmt: skip


def test_an_op_lasts_from_its_first_operator_after_the_wait_to_its_send(tmp_path):
    t = bring_in(saved(tmp_path, FIRST, SECOND)).timeline
    compute = t.where(t.kind <= Kind.W)
    zero = 0.2e-3
    assert compute.start + zero == pytest.approx([0.2e-3, 23.5e-3, 5.5e-3, 6.3e-3])
    assert compute.end + zero == pytest.approx([0.9e-3, 26e-3, 6.0e-3, 9.2e-3])


def test_a_send_is_ready_when_it_is_called_so_no_message_arrives_early(tmp_path):
    """gloo marks the sends at 4.8 and 22.75 ms, but the bytes are there at 3.0 and 23.0 ms."""
    back = bring_in(saved(tmp_path, FIRST, SECOND))
    assert back.clocks.residual == 0.0
    t = back.timeline
    sent = back.posted[(t.kind == Kind.SEND_F) | (t.kind == Kind.SEND_B)] + 0.2e-3
    assert sent == pytest.approx([0.9e-3, 9.2e-3])


def test_a_named_send_is_ready_when_its_range_begins(tmp_path):
    first = [*ranges(("PP:0F0", 0.0, 0.9), ("PP:0SEND_F0", 1.0, 5.0), ("gloo:send", 4.9, 50.0))]
    second = [*ranges(("PP:1RECV_F0", 0.0, 0.2), ("gloo:recv", 0.1, 2.0), ("PP:1F0", 0.3, 3.0))]
    second.append(span("aten::linear", 2.1, 2.9))
    back = bring_in(saved(tmp_path, first, second))
    assert back.clocks.residual == 0.0
    send = back.timeline.kind == Kind.SEND_F
    assert back.timeline.start[send] == pytest.approx([1.0e-3])


def test_a_run_of_schedule1f1b_without_names_is_refused_with_what_to_wrap(tmp_path):
    unnamed = [*ranges(("gloo:send", 1, 2), ("Optimizer.step#SGD.step", 5, 6)),
               span("aten::linear", 0, 1)]  # fmt: skip
    with pytest.raises(ValueError, match="no range is the name of a pipeline op") as error:
        bring_in(saved(tmp_path, unnamed, unnamed))
    assert "Schedule1F1B names no op, so wrap its stage's forward_one_chunk" in str(error.value)


class Stage:
    """The methods of PyTorch's PipelineStage that a schedule calls."""

    stage_index = 2

    def forward_one_chunk(self, microbatch, args, kwargs=None):
        return microbatch, args, kwargs

    def backward_one_chunk(self, microbatch, *, loss=None):
        return microbatch, loss


def test_the_pages_snippet_names_the_ops_of_a_stage():
    torch = pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    scope = {}
    exec(next(block for block in blocks if "forward_one_chunk" in block), scope)
    stage = scope["named"](Stage())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        assert stage.forward_one_chunk(3, (1,), {"a": 2}) == (3, (1,), {"a": 2})
        assert stage.backward_one_chunk(3, loss=5) == (3, 5)
    names = {event.key for event in profiler.key_averages()}
    assert {"PP:2F3", "PP:2B3"} <= names


def test_a_pattern_that_tries_too_many_ways_is_given_up_within_a_second(tmp_path):
    (tmp_path / "map.toml").write_text("[[op]]\nname = '(a|aa)+b'\nkind = 'F'\n")
    mapping = read_mapping(tmp_path / "map.toml")
    assert mapping.read("aab")[0].kind is Kind.F
    assert mapping.read("a" * 5000) == ()  # longer than any name that is tried
    slow = [*ranges(("a" * 60 + "c", 0, 1), ("PP:0F0", 1, 2))]
    with pytest.raises(ValueError, match=r"the pattern '\(a\|aa\)\+b' takes more than 0.5 s"):
        bring_in(saved(tmp_path, slow), mapping=mapping)
