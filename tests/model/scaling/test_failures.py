"""What a failure costs, against hand computation and against the simulation of the same failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adamctl.model.scaling.choosing import Planned
from adamctl.model.scaling.cluster import Cluster, DataWork, Outage, ReplicaWork, ServerWork
from adamctl.model.scaling.failures import FailureCost, FailureTimes, failure_costs, slack_s
from adamctl.model.scaling.machines import Size
from adamctl.model.scaling.simulation import simulate
from adamctl.model.scaling.station import StationRates

TIMES = FailureTimes(0.1, 5.0, 0.2, 2.0, 3.0, copies=2)
WORK = ReplicaWork(1, 0.5, 10, push_bytes=1.0, fetch_bytes=1.0)


def planned(replicas: int = 4, servers: int = 3, data_servers: int = 2, **changes: Any) -> Planned:
    data = DataWork(data_servers, example_s=1e-3) if data_servers else None
    cluster = Cluster(replicas, replace(WORK, **changes), ServerWork(StationRates(100.0)), data)
    return Planned(Size(1, replicas, servers, data_servers), cluster, simulate(cluster, warm=6, counted=50))


def costs(one: Planned, times: FailureTimes = TIMES) -> dict[str, FailureCost]:
    return {cost.what: cost for cost in failure_costs(one, times)}


def test_a_worker_costs_its_own_images_and_what_of_a_range_is_trained_again() -> None:
    found = costs(planned())["worker"]
    assert (found.noticed_s, found.whole_s) == (0.1, 2.1)
    assert found.lost_examples == pytest.approx(20.0 * 2.1 + (8 + 1) * 10 / 2)
    assert found.lost_s == pytest.approx(found.lost_examples / 80.0)


def test_in_step_all_wait_until_a_workers_death_is_noticed() -> None:
    one = planned(keeps_to_steps=True)
    rate = one.outcome.examples_per_s
    expected = rate / 4 * 2.1 + (8 + 1) * 10 / 2 + rate * 3 / 4 * 0.1
    assert costs(one)["worker"].lost_examples == pytest.approx(expected)


def test_a_server_with_copies_costs_nothing_that_free_slots_hide() -> None:
    assert slack_s(planned()) == pytest.approx(3.5 * 0.5)
    assert costs(planned())["server"].lost_examples == 0.0
    near = planned(waits_for_fetch=True)
    assert slack_s(near) == pytest.approx(0.5 * 0.5)
    assert costs(near)["server"].lost_examples == pytest.approx(near.outcome.examples_per_s * (0.3 - 0.25))


@pytest.mark.parametrize("silent_s", [5.0, 10.0])
def test_a_silent_servers_cost_is_what_the_simulation_finds(silent_s: float) -> None:
    one = planned(data_servers=0)
    options: dict[str, Any] = {"warm": 0, "counted": 10**6, "until_s": 60.0}
    whole = simulate(one.cluster, **options)
    pause_s = silent_s + TIMES.takeover_s
    held = simulate(one.cluster, outages=[Outage(20.0, 20.0 + pause_s)], **options)
    lost = (len(whole.finished_s) - len(held.finished_s)) * WORK.batch
    cost = costs(one, replace(TIMES, silent_s=silent_s, restart_s=0.0))["machine"]
    of_worker = 20.0 * silent_s + 10 / 2
    assert cost.lost_examples is not None
    assert cost.lost_examples - of_worker == pytest.approx(lost, abs=4 * WORK.batch)


def test_servers_that_are_busy_cannot_take_the_work_of_one_more() -> None:
    one = planned(replicas=40, push_bytes=2.0, fetch_bytes=2.0)
    assert one.outcome.server_in_share > 0.95
    found = costs(one)["server"]
    alone_s = 2.1 - 0.3
    assert found.lost_examples == pytest.approx(one.outcome.examples_per_s * alone_s * (1 - 2 / 3), rel=0.1)


def test_without_copies_a_store_is_waited_for_or_the_run_ends() -> None:
    one = planned()
    stored = costs(one, replace(TIMES, copies=1, has_store=True))["server"]
    assert not stored.ends_run
    assert stored.lost_examples == pytest.approx(80.0 * (2.1 - 1.75))
    ended = costs(one, replace(TIMES, copies=1, checkpoint_examples=1e4))
    assert ended["server"].ends_run
    assert ended["server"].lost_examples == pytest.approx(5000 + 80.0 * 2.1)
    unknown = costs(one, replace(TIMES, copies=1))["machine"]
    assert unknown.ends_run
    assert unknown.lost_examples is None


def test_data_servers_take_each_others_work_and_the_only_one_is_waited_for() -> None:
    assert costs(planned())["data server"].lost_examples == 0.0
    alone = costs(planned(data_servers=1), replace(TIMES, restart_s=10.0))["data server"]
    assert alone.lost_examples == pytest.approx(80.0 * (10.1 - 1.5 * 8 * 0.5))
    assert "data server" not in costs(planned(data_servers=0))


def test_a_machine_costs_what_its_roles_do_once_it_is_given_up() -> None:
    one = planned()
    found = costs(one)["machine"]
    assert (found.noticed_s, found.whole_s) == (5.0, 7.0)
    worker, server = 20.0 * 7.0 + (8 + 1) * 10 / 2, 80.0 * (5.2 - 1.75)
    assert found.lost_examples == pytest.approx(worker + server)
