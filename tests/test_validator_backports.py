"""What older torch lacks is added from outside; here to stand-ins that lack it as those did."""

from types import SimpleNamespace

import pytest
import torch

from simulator.job import Plan
from simulator.lower import lower
from simulator.schedule import Schedule
from tests.plans import rows_of
from validator import backports, pytorch_rows


def _batch_p2p(ops):
    return None if not ops else ops[-1]  # as torch 2.6 has it


class OldLoop:
    def _step_microbatches(self, ops):
        _batch_p2p(ops).wait()


class Work:
    def __init__(self):
        self.waited = False

    def wait(self):
        self.waited = True


@pytest.fixture
def old(monkeypatch):
    monkeypatch.delattr(backports.private, "_wait_batch_p2p", raising=False)
    monkeypatch.setattr(backports.distributed, "batch_isend_irecv", list)
    player = OldLoop()
    backports.wait_for_all(player)
    return player


def test_an_old_loop_waits_for_both_of_two_transfers(old):
    works = [Work(), Work()]
    OldLoop()._step_microbatches(works)
    assert [work.waited for work in works] == [False, True]
    works = [Work(), Work()]
    old._step_microbatches(works)
    assert [work.waited for work in works] == [True, True]


def test_an_old_loop_goes_on_where_no_transfer_is_posted(old):
    with pytest.raises(AttributeError, match="'NoneType'"):
        OldLoop()._step_microbatches([])
    old._step_microbatches([])


def test_an_old_stage_sends_microbatch_0_that_was_forwarded_second():
    stage = SimpleNamespace(output_chunks=["of 1", "of 0"], fwd_cache={1: ["of 1"], 0: ["of 0"]})
    stage.get_fwd_send_ops = lambda microbatch: stage.output_chunks[microbatch]
    assert stage.get_fwd_send_ops(0) == "of 1"
    backports._send_by_microbatch(stage)
    assert stage.get_fwd_send_ops(0) == "of 0"
    assert stage.output_chunks == ["of 1", "of 0"]


def test_an_old_last_stage_does_not_detach_a_view():
    stage = SimpleNamespace(is_last=True, fwd_cache={})

    def backward(microbatch):
        for output in stage.fwd_cache.pop(microbatch)[0]:
            output.detach_()

    stage.backward_one_chunk = backward
    weight = torch.ones(4, requires_grad=True)
    stage.fwd_cache[0] = ((2 * weight).view(2, 2),), []
    with pytest.raises(RuntimeError, match="Can't detach views"):
        stage.backward_one_chunk(0)
    backports._keep_views(stage)
    view, whole = (2 * weight).view(2, 2), 2 * weight
    stage.fwd_cache[0] = (view, whole), []
    stage.backward_one_chunk(0)
    assert view.requires_grad
    assert not whole.requires_grad


def test_an_old_stage_lets_go_of_a_received_microbatchs_gradient_alone():
    buffers = [torch.ones(2, requires_grad=True) for _ in range(2)]
    for buffer in buffers:
        buffer.sum().backward()
    stage = SimpleNamespace(
        args_recv_info={m: [SimpleNamespace(buffer=each)] for m, each in enumerate(buffers)},
        backward_one_chunk=lambda _: None,
    )
    backports._free_gradients(stage)
    stage.backward_one_chunk(1)
    assert [buffer.grad is None for buffer in buffers] == [False, True]


def test_the_sum_of_4_microbatches_gradients_of_2_becomes_their_mean():
    module = torch.nn.Linear(1, 1, bias=False)

    def step():
        module.weight.grad = torch.full((1, 1), 4 * 2.0)

    player = SimpleNamespace(_step_microbatches=step, _n_microbatches=4)
    backports.mean_gradients(player, [SimpleNamespace(submod=module)])
    player._step_microbatches()
    assert module.weight.grad.item() == 2.0


def test_torch_without_pairs_runs_their_two_ops_in_turn(monkeypatch):
    monkeypatch.setattr(pytorch_rows, "has_kind", lambda _: False)
    schedule = rows_of(Plan(schedule="dualpipe-v", pp=2, num_microbatches=4, vpp=2))
    assert schedule.paired.any()
    rows = pytorch_rows._in_its_words(schedule)
    assert not rows.paired.any()
    assert list(rows.rows) == list(lower(schedule).rows)
    assert pytorch_rows.why_not(schedule) is None
    with pytest.raises(ValueError, match=r"lowers no overlapped pairs; use 2\.9 or later"):
        pytorch_rows.lowered_by_pytorch(schedule)


def test_torch_without_reduce_grad_runs_the_other_ops(monkeypatch):
    monkeypatch.setattr(pytorch_rows, "has_kind", lambda _: False)
    rows = Schedule.parse("0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0")
    assert str(pytorch_rows._in_its_words(rows)) == str(rows).replace(",0REDUCE_GRAD", "")
