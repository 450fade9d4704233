"""Transfers one at a time, and those that stall: what nanotron's pipelines do."""

import numpy as np
import pytest

from simulator.blocking import block
from simulator.costs.host import transfer_stall
from simulator.frameworks import load_framework
from simulator.load import job_from_options
from simulator.lower import lower
from simulator.plan import Plan
from simulator.schedule import Kind, Schedule
from simulator.simulate import simulate, simulate_uniform
from simulator.turns import take_turns

FORWARD, BACKWARD, LATENCY = 1.0, 2.0, 0.25
STALL = load_framework("nanotron").transfer_stall


def pace(p2p, pp):
    """Time that one more microbatch takes, with equal stages of 3 s and messages of 0.25 s. [s]"""
    few, many = (
        simulate_uniform(
            Plan(pp=pp, num_microbatches=m, p2p=p2p), FORWARD, BACKWARD, latency=LATENCY
        ).report.step_time
        for m in (32, 64)
    )
    return (many - few) / 32


def rows_1f1b(pp, num_microbatches):
    return simulate_uniform(Plan(pp=pp, num_microbatches=num_microbatches), 1.0, 2.0).schedule


@pytest.mark.parametrize("pp", [3, 4, 8, 16])
def test_a_stage_between_two_neighbours_does_4_transfers_a_microbatch_in_turn_and_2_together(pp):
    assert pace("in_turn", pp) == pytest.approx(FORWARD + BACKWARD + 4 * LATENCY)
    assert pace("blocking", pp) == pytest.approx(FORWARD + BACKWARD + 2 * LATENCY)


def test_two_stages_do_2_transfers_a_microbatch_in_turn_and_1_together():
    assert pace("in_turn", 2) == pytest.approx(FORWARD + BACKWARD + 2 * LATENCY)
    assert pace("blocking", 2) == pytest.approx(FORWARD + BACKWARD + LATENCY)


@pytest.mark.parametrize("pp", [2, 3, 8])
def test_every_transfer_is_waited_for_by_itself_and_none_is_lost(pp):
    lowered = lower(rows_1f1b(pp, 16))
    turns = take_turns(lowered)
    without_waits = np.sort(turns.kind[turns.kind != Kind.WAIT])
    np.testing.assert_array_equal(without_waits, np.sort(lowered.kind))
    transfers = np.flatnonzero((turns.kind >= Kind.SEND_F) & (turns.kind <= Kind.RECV_B))
    assert (turns.kind[transfers + 1] == Kind.WAIT).all()
    assert (turns.kind == Kind.WAIT).sum() == len(transfers)
    assert (block(lowered).kind == Kind.WAIT).sum() < len(transfers)


def test_an_activation_is_received_before_a_gradient_is_sent():
    rows = take_turns(lower(Schedule.parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")))
    last = str(rows).splitlines()[1].split(",")
    assert last[:8] == ["1RECV_F0", "1WAIT", "1F0", "1B0", "1RECV_F1", "1WAIT", "1SEND_B0", "1WAIT"]


def nanotron(**plan):
    base = {"model": "llama2-7b", "cluster": "aws-p5", "framework": "nanotron"}
    return job_from_options(base | {"num_nodes": 64} | plan)


@pytest.mark.parametrize(
    ("plan", "stalls"),
    [
        ({"tp": 8, "pp": 4, "dp": 16}, True),  # 64 nodes
        ({"tp": 8, "pp": 4, "dp": 8}, False),  # 32 nodes
        ({"tp": 32, "pp": 2, "dp": 1}, True),  # 8 nodes, groups over 4
        ({"tp": 16, "pp": 4, "dp": 1}, False),  # 8 nodes, groups over 2
    ],
)
def test_transfers_stall_on_64_nodes_and_with_tensor_parallelism_over_4(plan, stalls):
    job = nanotron(**plan, num_microbatches=8)
    assert transfer_stall(job) == (STALL if stalls else 0.0)
    plain = job.model_copy(update={"plan": job.plan.model_copy(update={"framework": None})})
    assert transfer_stall(plain) == 0.0


def test_16_more_microbatches_on_64_nodes_cost_64_stalls_more_than_layers():
    few, many = (
        simulate(nanotron(tp=8, pp=4, dp=16, num_microbatches=m)).report.step_time for m in (16, 32)
    )
    near = [
        simulate(nanotron(tp=8, pp=4, dp=8, num_microbatches=m)).report.step_time for m in (16, 32)
    ]
    assert (many - few) - (near[1] - near[0]) == pytest.approx(16 * 4 * STALL, rel=0.02)
