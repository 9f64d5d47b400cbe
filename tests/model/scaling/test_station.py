"""A server's links and cores are shared as in fluid: every flow ends when arithmetic says."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.model.scaling.station import APPLY, IN, OUT, Station, StationRates


def ends(station: Station) -> list[tuple[float, int, int]]:
    """Returns (time, lane, what) of all that is under way, in order."""
    found = []
    while station.next_s < inf:
        at_s = station.next_s
        found.append((pytest.approx(at_s), *station.end()))
    return found


def test_flows_of_one_direction_share_its_link() -> None:
    station = Station(StationRates(100.0))
    station.add(0.0, IN, 300.0, 1)
    station.add(1.0, IN, 100.0, 2)  # 200 are left of the first: 50 each, so the second ends after 2 s
    station.add(1.0, OUT, 100.0, 3)
    assert ends(station) == [(2.0, OUT, 3), (3.0, IN, 2), (4.0, IN, 1)]


def test_no_flow_is_faster_than_its_workers_link() -> None:
    station = Station(StationRates(100.0, in_each_bytes_per_s=40.0, out_each_bytes_per_s=20.0))
    station.add(0.0, IN, 40.0, 1)
    station.add(0.0, OUT, 40.0, 2)
    assert ends(station) == [(1.0, IN, 1), (2.0, OUT, 2)]


def test_the_loop_is_one_thread_for_both_directions() -> None:
    station = Station(StationRates(100.0, receive_s_per_byte=0.01, send_s_per_byte=0.01, cores=8.0))
    station.add(0.0, IN, 100.0, 1)
    station.add(0.0, OUT, 100.0, 2)  # each alone would keep the thread busy
    assert ends(station) == [(2.0, IN, 1), (2.0, OUT, 2)]
    assert station.busy_s == pytest.approx(2.0)


@pytest.mark.parametrize(("cores", "ends_s"), [(2.0, 1.0), (1.0, 2.0), (0.5, 4.0)])
def test_updates_and_the_loop_share_cores(cores: float, ends_s: float) -> None:
    station = Station(StationRates(100.0, receive_s_per_byte=0.01, cores=cores))
    station.add(0.0, IN, 100.0, 1)
    station.add(0.0, APPLY, 1.0, 2)
    assert [at_s for at_s, *_ in ends(station)] == [ends_s, ends_s]
    assert station.busy_s == pytest.approx(2.0)


def test_nothing_moves_while_it_is_stopped() -> None:
    station = Station(StationRates(100.0))
    station.add(0.0, IN, 100.0, 1)
    station.stop(0.5)
    assert station.next_s == inf
    station.resume(3.0)
    assert ends(station) == [(3.5, IN, 1)]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.sampled_from([IN, OUT, APPLY]), st.floats(1, 500)), min_size=1, max_size=30)
)
@settings(max_examples=60, deadline=None)
def test_every_flow_ends_once_and_no_link_carries_more_than_it_can(flows: list[tuple[float, int, float]]) -> None:
    station = Station(StationRates(100.0, in_each_bytes_per_s=60.0, receive_s_per_byte=0.004, cores=1.2))
    seen, last_s = [], 0.0
    for what, (at_s, lane, size) in enumerate(sorted(flows)):
        while station.next_s <= at_s:
            last_s = station.next_s
            seen.append(station.end()[1])
        station.add(at_s, lane, size if lane != APPLY else size / 100, what)
    while station.next_s < inf:
        last_s = station.next_s
        seen.append(station.end()[1])
    assert sorted(seen) == list(range(len(flows)))
    for lane in (IN, OUT):
        assert station.moved(lane) <= 100.0 * last_s * (1 + 1e-9)
    assert station.busy_s <= 1.2 * last_s * (1 + 1e-9)
