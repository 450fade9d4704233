"""Flows over shared links: fair, never above capacity, and alone exactly latency + bytes / rate."""

import simpy
from hypothesis import given
from hypothesis import strategies as st

from simulator.network import Network, Route, fair_rates


def arrivals(capacity, messages):
    """When each (start, route, bytes) arrives."""
    env = simpy.Environment()
    network = Network(env, capacity)
    times = [None] * len(messages)

    def start(index, route, nbytes):
        network.send(network.path(route), nbytes, lambda: times.__setitem__(index, env.now))

    for index, (at, route, nbytes) in enumerate(messages):
        env.timeout(at).callbacks.append(lambda _, i=index, r=route, n=nbytes: start(i, r, n))
    env.run()
    return times


def test_one_flow_takes_latency_plus_bytes_over_bandwidth():
    assert arrivals([25e9], [(0.0, Route((0,), (1,), 5e-6), 25e6)]) == [5e-6 + 1e-3]


def test_two_flows_on_one_nic_each_take_twice_as_long():
    nic = Route((0,), (1,), 0.0)
    assert arrivals([10.0], [(0.0, nic, 100.0), (0.0, nic, 100.0)]) == [20.0, 20.0]


def test_a_late_flow_halves_the_rate_of_the_first_from_then_on():
    nic = Route((0,), (1,), 0.0)
    # 0..5 s: 50 bytes alone; 5..15 s: 50 bytes each at half rate; then the second is alone again
    assert arrivals([10.0], [(0.0, nic, 100.0), (5.0, nic, 100.0)]) == [15.0, 20.0]


def test_a_flow_held_up_elsewhere_leaves_its_share_to_the_others():
    both, first = Route((0, 1), (1, 1), 0.0), Route((0,), (1,), 0.0)
    assert arrivals([10.0, 2.0], [(0.0, both, 20.0), (0.0, first, 80.0)]) == [10.0, 10.0]


def test_flows_on_separate_links_do_not_meet():
    assert arrivals(
        [10.0, 10.0], [(0.0, Route((0,), (1,), 0.0), 100.0), (0.0, Route((1,), (1,), 0.0), 100.0)]
    ) == [10.0, 10.0]


def test_copies_of_a_message_share_its_link():
    assert arrivals([10.0], [(0.0, Route((0,), (2,), 0.0), 100.0)]) == [20.0]


def test_no_bytes_take_the_latency_alone():
    assert arrivals([10.0], [(0.0, Route((0,), (1,), 0.5), 0.0)]) == [0.5]


routes = st.lists(
    st.tuples(
        st.sets(st.integers(0, 3), min_size=1, max_size=3), st.floats(0.25, 8.0), st.floats(1, 100)
    ),
    min_size=1,
    max_size=8,
)
capacities = st.lists(st.floats(1.0, 100.0), min_size=4, max_size=4)


def as_routes(drawn):
    return [Route(tuple(sorted(links)), (copies,) * len(links), 0.0) for links, copies, _ in drawn]


@given(routes, capacities)
def test_no_link_carries_more_than_its_capacity(drawn, capacity):
    flows = as_routes(drawn)
    rates = fair_rates(flows, capacity)
    for link in range(4):
        load = sum(
            rate * copies
            for flow, rate in zip(flows, rates, strict=True)
            for used, copies in zip(flow.links, flow.copies, strict=True)
            if used == link
        )
        assert load <= capacity[link] * (1 + 1e-9)


@given(routes, capacities)
def test_every_flow_crosses_a_full_link_on_which_none_is_faster(drawn, capacity):
    """The definition of max-min fairness (Bertsekas and Gallager, section 6.5.2)."""
    flows = as_routes(drawn)
    rates = fair_rates(flows, capacity)
    for flow, rate in zip(flows, rates, strict=True):
        bottlenecks = []
        for link in flow.links:
            users = [(f, r) for f, r in zip(flows, rates, strict=True) if link in f.links]
            load = sum(r * f.copies[f.links.index(link)] for f, r in users)
            full = load >= capacity[link] * (1 - 1e-9)
            bottlenecks.append(full and rate >= max(r for _, r in users) * (1 - 1e-9))
        assert any(bottlenecks)


@given(routes, capacities)
def test_every_byte_arrives_and_not_before_it_could_alone(drawn, capacity):
    flows = as_routes(drawn)
    sizes = [nbytes for *_, nbytes in drawn]
    times = arrivals(capacity, [(0.0, flow, n) for flow, n in zip(flows, sizes, strict=True)])
    for flow, nbytes, time in zip(flows, sizes, times, strict=True):
        assert time >= flow.together(nbytes, capacity) * (1 - 1e-9)
    busiest = max(
        sum(
            f.copies[f.links.index(k)] * n
            for f, n in zip(flows, sizes, strict=True)
            if k in f.links
        )
        / capacity[k]
        for k in range(4)
    )
    assert max(times) >= busiest * (1 - 1e-9)


def test_the_same_messages_arrive_at_the_same_times_bit_for_bit():
    messages = [(0.1 * i, Route((i % 2, 2), (1, 1), 0.01), 10.0 + i) for i in range(20)]
    assert arrivals([7.0, 5.0, 3.0], messages) == arrivals([7.0, 5.0, 3.0], messages)
