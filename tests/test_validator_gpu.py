"""What the GPU path must do and a CPU can show: peaks, errors of events, room, patience."""

import argparse
import time
from types import SimpleNamespace

import pytest
import torch

from simulator.commands import validate
from simulator.job import Plan
from simulator.schedule import Kind, Op
from validator import hardware, numerics, player, rank, sweep
from validator.allocation import AllocatorProbe, StorageProbe
from validator.asked import SMALL, scaled, session_of
from validator.beacon import RUNNING, Beacon
from validator.numerics import held_names
from validator.recorder import Event, Recorder
from validator.room import kept_bytes
from validator.stage import Stage
from validator.transfers import buffers, stage_through_host
from validator.verdict import ended, hung
from validator.worker import Worker

MODEL = scaled(SMALL, 1.0, {"hidden_size": 32, "seq_len": 16, "vocab_size": 64})


def session(names=("1f1b",), m=4, **more):
    return session_of(MODEL, Plan(num_microbatches=m), names, 2, dtype="fp32", **more)


class Last:
    """A last stage: its F takes 4 MB for a moment, and the loss only 4 bytes."""

    stage_index = 1

    def forward_one_chunk(self, _):
        torch.ones(2**20, dtype=torch.float32)

    def backward_one_chunk(self, *_, **__):
        pass

    def backward_weight_one_chunk(self, *_):
        pass

    def get_fwd_send_ops(self, _):
        return []

    get_fwd_recv_ops = get_bwd_send_ops = get_bwd_recv_ops = get_fwd_send_ops


def test_the_last_stages_f_keeps_its_peak_of_4_mb_when_the_loss_ends_it(tmp_path):
    recorder = Recorder(SimpleNamespace(), Beacon(tmp_path / "b", 1))
    stage = Last()
    recorder.listen([stage])
    with StorageProbe([]) as probe:
        recorder.marker = probe
        stage.forward_one_chunk(0)
        loss = torch.ones(1)
        recorder.extend()
    event = recorder.events[0]
    assert event.kind is Kind.F
    assert event.end == (loss.nbytes, 4 * 2**20)


def test_the_allocators_peak_is_kept_too_and_what_others_hold_is_left_out(monkeypatch):
    readings = iter([(100, 100), (110, 900), (120, 130)])
    now = [0, 0]

    def allocated():
        now[:] = next(readings)
        return now[0]

    monkeypatch.setattr(torch.cuda, "memory_allocated", allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: now[1])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with AllocatorProbe([torch.zeros(15)]) as probe:  # 60 bytes of 100: 40 are another play's
        end = probe.mark()
        assert end == (70, 860)
        assert probe.extended(end) == (80, 860)


def test_an_event_that_raises_after_an_error_of_the_gpu_names_its_op(tmp_path):
    def event(done):
        def query():
            if done is None:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return done

        return SimpleNamespace(query=query)

    recorder = Recorder(SimpleNamespace(), Beacon(tmp_path / "b", 1))
    recorder.events = [
        Event(Kind.F, 0, 3, event(True), event(True)),
        Event(Kind.B, 0, 1, event(True), event(None)),
    ]
    assert recorder.unfinished() == (Op(0, Kind.B, 1), True)


def test_an_op_that_the_gpu_has_not_begun_waits_for_a_message_and_is_not_to_blame(tmp_path):
    done, not_yet = (
        SimpleNamespace(query=lambda answer=answer: answer) for answer in (True, False)
    )
    stuck = {  # rank 0 waits for rank 1, whose GPU is inside 1F2
        0: [Event(Kind.F, 0, 2, done, done), Event(Kind.B, 0, 0, not_yet, not_yet)],
        1: [Event(Kind.F, 1, 1, done, done), Event(Kind.F, 1, 2, done, not_yet)],
    }
    asked = session(device="cuda")
    for each, events in stuck.items():
        path = tmp_path / f"rank{each}.beacon"
        worker = SimpleNamespace(session=asked, rank=each)
        worker.recorder = Recorder(SimpleNamespace(), Beacon(path, 1))
        worker.recorder.events = events
        worker.recorder.beacon.enter(0)
        worker.write = Worker.write.__get__(
            SimpleNamespace(rank=each, path=path.with_suffix(".jsonl"))
        )
        op, begun = worker.recorder.unfinished()
        place = Beacon.read(path)._replace(running=RUNNING, op=op)
        rank._report(worker, place, "nothing ended for 120 s", hung=True, waits=not begun)
    verdict = hung(asked, tmp_path, {0: 3, 1: 3})
    assert verdict.rank == 1
    assert verdict.text.startswith("rank 1 failed at 1F2: nothing ended")
    assert verdict.text.endswith("meanwhile rank 0 at 0B0")


def test_neighbours_connect_in_host_memory_where_ranks_share_a_gpu():
    """`meta` stands for the GPU, which gloo cannot read."""

    class Stage:
        device = torch.device("meta")

        def _warmup_forward_vote(self, _, received_acc=None):
            return torch.ones(1, device=self.device), received_acc

        get_fwd_send_ops = get_bwd_send_ops = get_fwd_recv_ops = get_bwd_recv_ops = None
        forward_one_chunk = backward_one_chunk = None

    stage = Stage()
    stage_through_host([stage])
    vote, before = stage._warmup_forward_vote(True, received_acc=7)
    assert (vote.device.type, before) == ("cpu", 7)
    assert stage.device.type == "meta"


def test_receive_buffers_are_found_and_the_models_inputs_have_none():
    buffer = torch.zeros(2)
    infos = {
        0: (SimpleNamespace(buffer=buffer),),
        1: (SimpleNamespace(), SimpleNamespace(buffer=None)),
    }
    assert list(buffers(infos)) == [buffer]


def test_looped_buffers_hold_numbers_before_an_optimizer_sees_what_they_lead_to(monkeypatch):
    done = []
    monkeypatch.setattr(player, "fill", lambda _: done.append("numbers"))
    looped = SimpleNamespace(
        looped=True,
        stages=(),
        modules={},
        gradients_only=lambda: done.append("no optimizer"),
        step=lambda: done.append("step"),
    )
    player.Player.warm_up(looped, 2)
    assert done == ["no optimizer", "numbers", "step", "step"]


@pytest.mark.parametrize(
    ("device", "transfers", "ids"), [("cuda", "direct", [5]), ("cuda", "staged", None)]
)
def test_nccl_is_told_its_gpu_where_ranks_meet(monkeypatch, device, transfers, ids):
    told = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    monkeypatch.setattr(torch.distributed, "barrier", lambda device_ids: told.append(device_ids))
    asked = SimpleNamespace(transfers=transfers)
    Worker._barrier(SimpleNamespace(device=torch.device(device), session=asked))
    assert told == [ids]


def test_a_whole_model_that_finds_no_memory_leaves_gradients_unchecked(monkeypatch):
    said = []

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(numerics, "_whole_gradients", full)
    asked = session(device="cpu")
    found = numerics.reference(
        asked, held_names(asked, 0), torch.device("cpu"), lambda _, text: said.append(text), int
    )
    assert found == {}
    assert said == ["gradients are not checked: no memory for the whole model's step"]


def test_a_gpu_that_cannot_be_used_is_told_by_its_error_and_not_by_the_advice_after_it(tmp_path):
    log = "Traceback (most recent call last):\n  set_device(0)\n"
    log += "torch.AcceleratorError: CUDA error: all CUDA-capable devices are busy or unavailable\n"
    log += "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    (tmp_path / "rank0.log").write_text(log)
    verdict = ended(session(device="cuda"), tmp_path, {0: 1, 1: None})
    assert verdict.rank == 0
    assert verdict.text == (
        "rank 0 ended with code 1: torch.AcceleratorError: CUDA error: "
        "all CUDA-capable devices are busy or unavailable"
    )


def test_a_driver_that_a_container_hides_is_asked_of_nvidia_smi(monkeypatch):
    def hidden(_):
        raise FileNotFoundError

    monkeypatch.setattr(hardware.Path, "read_text", hidden)
    monkeypatch.setattr(hardware, "ASK_DRIVER", ("echo", "580.159.03\n580.159.03"))
    assert hardware._driver() == "580.159.03"
    monkeypatch.setattr(hardware, "ASK_DRIVER", ("no-such-program",))
    assert hardware._driver() == "unknown"


def test_while_compiling_a_rank_may_be_silent_for_longer_and_then_no_more(tmp_path):
    beacon = Beacon(tmp_path / "b", 7)
    with beacon.patient(600.0):
        beacon.start(1, Kind.F, 2)
        place = Beacon.read(tmp_path / "b")
        assert (place.running, place.op, place.spare) == (RUNNING, Op(1, Kind.F, 2), 600.0)
        assert -603.1 < place.overdue(3.0) <= -602.0
    time.sleep(0.05)
    place = Beacon.read(tmp_path / "b")
    assert place.spare == 0.0
    assert place.overdue(0.01) > 0


def test_the_process_group_waits_3_timeouts_so_that_the_watch_names_the_op(monkeypatch, tmp_path):
    found = {}
    monkeypatch.setattr(
        rank.distributed, "init_process_group", lambda name, **more: found.update(more, name=name)
    )
    rank._meet(session(device="cuda", timeout=120.0), 0, str(tmp_path / "store"))
    assert found["name"] == "nccl"
    assert found["timeout"].total_seconds() == 360.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[/a/gloo/pair.cc:547] Connection closed by peer",
            "RuntimeError: Connection closed by peer",
        ),
        ("", "RuntimeError: no message"),
        ("word " * 100, "RuntimeError: word"),
    ],
)
def test_an_error_is_told_in_one_short_line(text, said):
    told = rank.told(RuntimeError(text))
    assert told.startswith(said)
    assert len(told) < 180


def test_cuts_side_by_side_take_16_bytes_a_parameter_and_a_buffer_for_every_receive():
    asked = session(("1f1b", "gpipe"), device="cuda")
    states = 16 * MODEL.num_parameters  # fp32: weight, gradient, two moments; one cut
    for each in range(2):
        receives = sum(op.kind.is_receive for play in asked.plays for op in play.lowered.row(each))
        lone = 4  # microbatches, of one set of lone rows, one end a rank
        expected = states / 2 + (receives + lone) * asked.boundary_bytes
        assert kept_bytes(asked, each) == pytest.approx(expected)


def test_ranks_that_share_a_gpu_take_all_of_it_together():
    apart = session(("1f1b", "zb-v"), device="cuda")
    shared = session(("1f1b", "zb-v"), device="cuda", transfers="staged")
    together = kept_bytes(apart, 0) + kept_bytes(apart, 1)
    assert kept_bytes(shared, 0) == kept_bytes(shared, 1) == pytest.approx(together)


def test_a_rank_expects_gradients_of_the_stages_it_holds_and_of_no_others():
    whole = {n for n, _ in Stage(MODEL, range(8), torch.float32).named_parameters()}
    first, second = (held_names(session(device="cpu"), each) for each in range(2))
    assert first | second == whole
    assert not first & second
    several = held_names(session(("1f1b", "interleaved"), device="cpu"), 0)
    layers = {name.split(".")[1] for name in several if name.startswith("layers")}
    assert layers == set("012345")  # 1f1b's 0 to 3, interleaved's 0, 1 and 4, 5


def test_a_size_without_memory_is_noted_and_the_others_are_timed(monkeypatch):
    real, notes = sweep._timed, []

    def timed(layer, samples, *sizes):
        if samples == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(layer, samples, *sizes)

    monkeypatch.setattr(sweep, "_timed", timed)
    points = sweep.sweep(MODEL, torch.device("cpu"), ("fp32",), (1, 2), (8, 16), note=notes.append)
    assert {(p.samples, p.seq_len) for p in points} == {(1, 8), (1, 16)}
    assert notes == [
        f"one layer, fp32: no memory for 2 x {tokens} tokens; left out" for tokens in (8, 16)
    ]


def test_layers_are_timed_on_random_numbers_forward_and_backward():
    seen = []

    class Spy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, x):
            seen.append(x.detach())
            x.register_hook(seen.append)
            return x * self.weight

    sweep._timed(Spy(), 2, 16, 32, torch.device("cpu"))
    assert len(seen) == 2
    for each in seen:
        assert 0.8 < float(each.std()) < 1.2


@pytest.mark.parametrize(
    ("words", "steps"),
    [(["--gpus", "2"], 3), (["--cpus", "2"], 1), (["--gpus", "2", "--warmup", "5"], 5)],
)
def test_gpus_warm_up_for_3_steps_unless_told(words, steps):
    parser = argparse.ArgumentParser()
    validate.add(parser)
    arguments = parser.parse_args([*words, "--layers", "8"])
    arguments.schedules = "1f1b"
    assert validate._session(arguments, 2)[0].warmup == steps
