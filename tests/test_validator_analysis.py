"""Events of a made-up machine, whose times are known, come out as those times."""

import numpy as np
import pytest

from simulator.cli import main
from simulator.job import Plan
from simulator.schedule import Kind
from validator.analysis import analyse, bubble_of
from validator.asked import SMALL, scaled, session_of
from validator.calibration import calibration_of
from validator.events import Measured, is_events, load, save
from validator.page import page
from validator.replay import analyse_ranks
from validator.steps import quiet, steps_of
from validator.table import passes, report

LAUNCH, POST, LATENCY, BANDWIDTH = 1e-4, 5e-5, 2e-5, 1e9
SECONDS = {Kind.F: 0.010, Kind.B: 0.021, Kind.I: 0.012, Kind.W: 0.009, Kind.OPTIMIZER: 0.002}


def session(names=("1f1b", "gpipe", "zb-h1"), pp=2, m=4, **more):
    model = scaled(SMALL, 1.0, {"num_hidden_layers": 4})
    options = {"device": "cpu", "dtype": "fp32", "rounds": 3, **more}
    return session_of(model, Plan(num_microbatches=m), names, pp, **options)


def far(play, stage, step):
    home = {s: rank for rank, held in enumerate(play.held) for s in held}
    return stage + step in home and home[stage + step] != home[stage]


def machine(rows, play, slow=1.0, wait=True):
    """Events of each rank by a clock that nothing else decides: an executor of its own."""
    nbytes = 4 * 256 * 192
    now, at = [0.0] * len(rows), [0] * len(rows)
    sent, events = {}, [[] for _ in rows]
    while any(at[r] < len(row) for r, row in enumerate(rows)):
        for rank, row in enumerate(rows):
            if at[rank] == len(row):
                continue
            op = row[at[rank]]
            if not op.kind.is_compute:
                events[rank].append(
                    [int(op.kind), op.stage, op.microbatch, now[rank], now[rank], 0.0]
                )
                if op.kind.is_send:
                    step = 1 if op.kind is Kind.SEND_F else -1
                    sent[op.kind, op.stage + step, op.microbatch] = now[rank]
                now[rank] += POST + LAUNCH
                at[rank] += 1
                continue
            need = {Kind.F: (Kind.SEND_F, -1), Kind.B: (Kind.SEND_B, 1), Kind.I: (Kind.SEND_B, 1)}
            begin = now[rank]
            if wait and op.kind in need and far(play, op.stage, need[op.kind][1]):
                key = (need[op.kind][0], op.stage, op.microbatch)
                if key not in sent:
                    continue
                begin = max(begin, sent[key] + LATENCY + nbytes / BANDWIDTH)
            length = SECONDS[op.kind] * slow
            events[rank].append(
                [int(op.kind), op.stage, op.microbatch, begin, begin + length, length]
            )
            now[rank] = begin + length + (LAUNCH if op.kind in (Kind.W,) else 0.0)
            after = row[at[rank] + 1] if at[rank] + 1 < len(row) else None
            if op.kind is not Kind.W and after is not None:
                now[rank] += LAUNCH
            at[rank] += 1
    return events


def made_up(asked, slow=(1.0, 1.0, 1.0), own=True, wait=True):
    from simulator.lower import step_optimizer
    from validator.lone import lone_rows

    records = [{"part": "about", "rank": rank, "cpu": "a made-up CPU"} for rank in range(2)]
    for size in (1e4, 1e5, 2e5, 4e5):
        samples = [[size, LATENCY + size / BANDWIDTH]] * 5
        records.append({"part": "link", "rank": 0, "samples": samples, "source": 0, "target": 1})
    for turn, factor in enumerate(slow):
        for play in asked.plays:
            rows = [list(row) for row in step_optimizer(play.lowered).rows]
            for rank, events in enumerate(machine(rows, play, factor, wait)):
                kept = [[*e[:5], e[5] / factor if own else None] for e in events]
                records.append(
                    {"part": "step", "rank": rank, "play": play.name, "round": turn, "step": 0}
                    | {"events": kept}
                )
            lone = lone_rows(play.held, 4, split=play.splits_backward)
            lone = [list(row) for row in step_optimizer(lone).rows]
            for rank, events in enumerate(machine(lone, play, wait=False)):
                records.append(
                    {"part": "lone", "rank": rank, "plays": [play.name], "round": turn}
                    | {"split": play.splits_backward, "events": events}
                )
    return Measured(asked, tuple(records))


def with_alike_lone(measured):
    """Lone records name every play of their cut, as the workers write them."""
    names = [play.name for play in measured.session.plays]
    records = [r | {"plays": names} if r["part"] == "lone" else r for r in measured.records]
    return Measured(measured.session, tuple(records))


@pytest.fixture(scope="module")
def known():
    return with_alike_lone(made_up(session()))


def test_op_times_of_a_known_machine_are_found_to_a_nanosecond(known):
    found = calibration_of(known, known.session.plays[2])
    for op in found.ops:
        posts = 0 if op.kind in ("W", "OPTIMIZER") else 1  # two ranks: one neighbour
        expected = SECONDS[Kind[op.kind]] + LAUNCH + posts * POST
        assert op.seconds == pytest.approx(expected, abs=1e-9), op
    assert found.bandwidth == pytest.approx(BANDWIDTH)
    assert found.launch_overhead == pytest.approx(LAUNCH)
    assert found.post_overhead == pytest.approx(POST)


def test_every_step_of_a_known_machine_is_predicted_within_2_percent(known):
    runs = analyse(known)
    assert [run.name for run in runs] == ["1f1b", "gpipe", "zb-h1"]
    for run in runs:
        assert abs(run.error) < 0.02, run.name
        assert abs(run.predicted_bubble - run.bubble) < 0.02
        assert all(abs(op.error) < 1e-6 for op in run.ops)


def test_a_round_three_times_as_slow_is_left_out_by_what_the_threads_worked():
    calm = with_alike_lone(made_up(session(), slow=(1.0,) * 5))
    rough = with_alike_lone(made_up(session(), slow=(1.0, 3.0, 1.0, 3.0, 1.0)))
    assert [r.step.median for r in analyse(rough)] == [r.step.median for r in analyse(calm)]
    steps = list(steps_of(rough, "step", rough.session.plays[0]))
    assert (len(steps), len(quiet(steps))) == (5, 3)


def test_on_a_gpu_where_no_thread_tells_the_median_stands_against_one_slow_round():
    asked = session(device="cuda")
    calm = with_alike_lone(made_up(asked, slow=(1.0,) * 5, own=False))
    rough = with_alike_lone(made_up(asked, slow=(1.0, 3.0, 1.0, 1.0, 1.0), own=False))
    found = [[run.step.median for run in analyse(each)] for each in (calm, rough)]
    assert found[0] == pytest.approx(found[1])


def test_measured_rows_run_in_the_order_that_was_asked(known):
    for run, play in zip(analyse(known), known.session.plays, strict=True):
        compute = run.measured.of(Kind.F, Kind.B, Kind.I, Kind.W)
        for rank in range(2):
            mine = compute.where(compute.rank == rank)
            row = list(play.schedule.row(rank))
            assert list(zip(mine.stage, mine.kind, mine.microbatch, strict=True)) == row


def test_transfers_of_the_measured_timeline_last_latency_and_bytes_over_bandwidth(known):
    gpipe = analyse(known)[1].measured
    received = gpipe.of(Kind.RECV_F)
    first = received.where(received.microbatch == 0)
    expected = LATENCY + 4 * 256 * 192 / BANDWIDTH
    assert np.allclose(first.end - first.start, expected)


def test_the_bubble_of_1f1b_pp4_m8_is_3_of_11_and_overlapped_pairs_count_once():
    from simulator.simulate import simulate_uniform

    plain = simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0)
    assert bubble_of(plain.timeline) == pytest.approx(3 / 11)
    paired = simulate_uniform(
        Plan(schedule="dualpipe-v", pp=2, vpp=2, num_microbatches=8), 1.0, 2.0
    )
    assert paired.timeline.pairs().size
    assert bubble_of(paired.timeline) == pytest.approx(paired.report.bubble_fraction)


def test_clocks_of_two_hosts_that_drift_are_set_right_in_every_round(known):
    drift = [0.5, 0.5 + 2e-3, 0.5 + 5e-3]  # what the other host's clock is behind, by round [s]
    records = [
        {"part": "offset", "rank": 0, "peer": 1, "round": r, "seconds": late, "residual": 0.0}
        for r, late in enumerate(drift)
    ]
    for record in known.records:
        late = drift[record["round"]] if record["rank"] == 1 and "round" in record else 0.0
        events = [[*e[:3], e[3] - late, e[4] - late, e[5]] for e in record.get("events", ())]
        timed = record["part"] in ("step", "lone")
        records.append(record | {"events": events} if timed else record)
    wanted, found = analyse(known), analyse(Measured(known.session, tuple(records)))
    for one, other in zip(wanted, found, strict=True):
        assert other.step.median == pytest.approx(one.step.median, rel=1e-9)
        assert other.bubble == pytest.approx(one.bubble, rel=1e-9)


def test_gradients_past_their_tolerance_fail_the_run(known):
    records = [
        {"part": "numerics", "rank": rank, "play": "gpipe", "error": error, "parameter": "x"}
        for rank, error in ((0, 1e-7), (1, 1e-3))
    ]
    wrong = Measured(known.session, known.records + tuple(records))
    runs = analyse(wrong)
    assert not passes(runs, 0.5)
    assert "FAILED: gradients of gpipe differ" in report(wrong, runs, 0.5)
    assert passes(analyse(known), 0.05)
    assert not passes(analyse(known), 1e-9)


def test_events_are_analysed_again_from_their_file(known, tmp_path, capsys):
    path = tmp_path / "events.json.gz"
    save(known, path)
    assert is_events(path)
    assert load(path) == known
    html = tmp_path / "page.html"
    assert main(["validate", "--events", str(path), "-o", str(html)]) == 0
    printed = capsys.readouterr().out
    assert "gloo, not a GPU result" in printed
    assert "zb-h1" in printed
    text = html.read_text()
    assert text.count("<svg") == 3
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # self-contained
    assert text == page(known, analyse(known), 0.10)


def test_a_tolerance_that_is_missed_is_exit_code_1(known, tmp_path):
    path = tmp_path / "events.json.gz"
    save(known, path)
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--events", str(path), "--tolerance", "0.000001"])
    assert ended.value.code == 1


def test_the_command_calibrates_on_raw_events(known, tmp_path, capsys):
    path = tmp_path / "events.json.gz"
    save(known, path)
    assert main(["calibrate", str(path), "--schedules", "1f1b,zb-h1"]) == 0
    assert "1W" in capsys.readouterr().out


def test_rows_played_alone_take_what_their_ops_take():
    asked = session(transfers="looped")
    alone = with_alike_lone(made_up(asked, wait=False))
    replays = analyse_ranks(Measured(asked, alone.records))
    assert {(r.schedule, r.rank) for r in replays} == {
        (play.name, rank) for play in asked.plays for rank in range(2)
    }
    for replay in replays:
        assert abs(replay.error) < 0.02, replay


@pytest.mark.parametrize(("data", "said"), [(b"{}", "no events"), (b"\x1f\x8b", "no events")])
def test_another_file_is_no_events(tmp_path, data, said):
    path = tmp_path / "x.json.gz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=said):
        load(path)


def test_events_without_a_step_are_refused():
    with pytest.raises(ValueError, match="no step of 1f1b was timed"):
        analyse(Measured(session(), ()))
