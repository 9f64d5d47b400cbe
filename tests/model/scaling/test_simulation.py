"""Many replicas, followed: against closed forms; what is monotone, what is conserved, and what a fault costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from adamctl.model.scaling.cluster import Cluster, DataWork, Outage, Outcome, ReplicaWork, ServerWork
from adamctl.model.scaling.simulation import WAIT_SHARE, simulate
from adamctl.model.scaling.station import StationRates
from adamctl.roles.worker.core.following import SHARE_MAX

BATCH = 10
LINK = 100.0


def work(**changes: Any) -> ReplicaWork:
    return replace(ReplicaWork(1, 1.0, BATCH, push_bytes=10.0, fetch_bytes=10.0), **changes)


def server(**rates: float) -> ServerWork:
    return ServerWork(StationRates(LINK, **rates))


def follow(cluster: Cluster, counted: int = 40, **options: Any) -> Outcome:
    return simulate(cluster, warm=10, counted=counted, **options)


def test_one_replica_that_waits_for_nothing_is_as_fast_as_it_computes() -> None:
    found = follow(Cluster(1, work(), server(), latency_s=0.1))
    assert found.examples_per_s == pytest.approx(BATCH / 1.0)
    assert found.compute_share == pytest.approx(1.0)
    assert found.fetch_age_s == pytest.approx(0.1 + 0.2 + 0.1 + 0.2)


def test_a_step_in_step_is_compute_push_apply_and_fetch() -> None:
    one = ServerWork(StationRates(LINK), first_s=0.5, more_s=0.25)
    found = follow(Cluster(4, work(keeps_to_steps=True), one, latency_s=0.1))
    step_s = 1.0 + 4 * 10 / LINK + (0.5 + 3 * 0.25) + 0.2 + 4 * 10 / LINK + 0.2
    assert found.examples_per_s == pytest.approx(4 * BATCH / step_s)
    assert found.batches_together == 4


def test_a_thread_waits_for_its_fetch_only_where_that_is_near() -> None:
    assert WAIT_SHARE == SHARE_MAX
    near, far = (follow(Cluster(1, work(waits_for_fetch=True), server(), latency_s=s)) for s in (0.005, 0.05))
    assert near.examples_per_s == pytest.approx(BATCH / (1.0 + 0.2 + 4 * 0.005))
    assert far.examples_per_s == pytest.approx(BATCH / 1.0, rel=0.02)  # a trip of 0.4 s: it found out at the first


@pytest.mark.parametrize("replicas", [20, 40])
def test_a_servers_link_that_is_full_binds_all_replicas(replicas: int) -> None:
    found = follow(Cluster(replicas, work(), server()))
    assert found.examples_per_s == pytest.approx(LINK / 10.0 * BATCH, rel=0.01)
    assert found.server_in_share == pytest.approx(1.0, rel=0.02)
    assert found.waited_shares["servers"] == pytest.approx(1 - 10 / replicas, rel=0.05)


def test_a_workers_own_link_binds_it_alone() -> None:
    found = follow(Cluster(3, work(push_bytes=20.0), server(in_each_bytes_per_s=8.0)))
    assert found.examples_per_s == pytest.approx(3 * 8.0 / 20.0 * BATCH, rel=0.01)


def test_a_servers_loop_is_one_thread_and_binds_before_its_link() -> None:
    found = follow(Cluster(20, work(), server(receive_s_per_byte=0.01, send_s_per_byte=0.01, cores=8.0)))
    assert found.examples_per_s == pytest.approx(LINK / 10.0 * BATCH / 2, rel=0.02)
    assert found.server_loop_share == pytest.approx(1.0, rel=0.02)
    assert found.server_in_share == pytest.approx(0.5, rel=0.03)


def test_one_fetch_after_another_serves_all_that_asked_meanwhile() -> None:
    found = follow(Cluster(1, work(contexts=2, batch_s=0.2, push_bytes=0.1, fetch_bytes=30.0), server()), counted=100)
    assert found.examples_per_s == pytest.approx(2 * BATCH / 0.2, rel=0.02)  # nobody waits for them
    assert found.server_out_share == pytest.approx(1.0, rel=0.03)


def test_apply_threads_bind_and_what_waits_is_applied_together() -> None:
    alone = ServerWork(StationRates(LINK), first_s=0.2, more_s=0.2)
    assert follow(Cluster(20, work(), alone)).examples_per_s == pytest.approx(BATCH / 0.2, rel=0.02)
    together = follow(Cluster(40, work(push_bytes=0.1, fetch_bytes=0.1), replace(alone, more_s=0.05)))
    expected = together.batches_together / (0.2 + (together.batches_together - 1) * 0.05) * BATCH
    assert together.examples_per_s == pytest.approx(expected, rel=0.03)
    assert together.batches_together > 5


@pytest.mark.parametrize("servers", [1, 3])
def test_data_servers_bind_by_decoding_or_by_their_links(servers: int) -> None:
    for data in (DataWork(servers, example_s=0.05), DataWork(servers, example_bytes_s=0.05)):
        found = follow(Cluster(12, work(), server(), data), counted=100)
        assert found.examples_per_s == pytest.approx(servers / 0.05, rel=0.02)
        assert max(found.data_decode_share, found.data_link_share) == pytest.approx(1.0, rel=0.02)


def test_copies_go_through_the_links_too_and_one_round_carries_many_pushes() -> None:
    copied = replace(server(), copied_bytes=20.0)
    few, many = (follow(Cluster(replicas, work(push_bytes=5.0, fetch_bytes=0.0), copied)) for replicas in (1, 8))
    assert few.fetch_age_s == pytest.approx(0.05 + 0.2)
    assert few.server_out_share == pytest.approx(0.2, rel=0.05)
    assert many.examples_per_s > 0.97 * 8 * BATCH  # 8 rounds of 0.2 s each second would not fit


@pytest.mark.parametrize("in_step", [False, True])
def test_more_of_anything_is_never_slower(in_step: bool) -> None:
    def rate(bytes_per_s: float, parts: int, batch_s: float) -> float:
        one = work(keeps_to_steps=in_step, push_bytes=40.0 / parts, fetch_bytes=40.0 / parts, batch_s=batch_s)
        cluster = Cluster(6, one, ServerWork(StationRates(bytes_per_s), 0.1, 0.1), spread=0.2)
        return follow(cluster, seed=3).examples_per_s

    links = [rate(bytes_per_s, 1, 1.0) for bytes_per_s in (20.0, 50.0, 100.0, 1000.0)]
    servers = [rate(50.0, parts, 1.0) for parts in (1, 2, 4, 8)]
    compute = [rate(50.0, 2, batch_s) for batch_s in (4.0, 2.0, 1.0, 0.5)]
    for rates in (links, servers, compute):
        assert all(later >= earlier * (1 - 0.02) for earlier, later in pairwise(rates)), rates


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fetch_follows": False},
        {"contexts": 3, "waits_for_fetch": True},
        {"keeps_to_steps": True},
        {"staleness_most": 2},
        {"pushes_per_fetch": 3},
    ],
)
@pytest.mark.parametrize("copied_bytes", [0.0, 15.0])
def test_every_push_is_applied_once_and_answered_once(changes: dict[str, Any], copied_bytes: float) -> None:
    one = ServerWork(StationRates(LINK), 0.02, 0.01, copied_bytes)
    data = DataWork(2, 0.001, pass_examples=470, pass_fraction=0.75, range_batches=2)
    cluster = Cluster(5, work(**changes), one, data, 0.01, spread=0.3, jitter=0.1)
    ends = [Outage(50.0, 1e9, replica) for replica in range(5)]  # all stop, and what was under way comes to an end
    found = simulate(cluster, warm=0, counted=10**6, outages=ends, until_s=1000.0)
    assert found.pushes > 100
    assert found.pushes == len(found.finished_s)
    if "keeps_to_steps" not in changes:
        assert found.pushes == found.applied == found.answered
    else:  # the last step lacks the parts of those that stopped before they had computed theirs
        assert 0 <= found.pushes - found.applied < 5
        assert found.applied == found.answered


def test_the_same_seed_gives_the_same_and_another_one_does_not() -> None:
    cluster = Cluster(7, work(contexts=2), server(), DataWork(), spread=0.2, jitter=0.2)
    once, again, other = (follow(cluster, seed=seed) for seed in (5, 5, 6))
    assert once == again
    assert once.finished_s != other.finished_s


def test_slow_replicas_hold_up_all_in_step_some_under_a_bound_and_nobody_without() -> None:
    rates = [
        follow(Cluster(10, work(**changes), server(), spread=0.4), counted=100, seed=2).examples_per_s
        for changes in ({}, {"staleness_most": 4}, {"staleness_most": 1}, {"keeps_to_steps": True})
    ]
    assert rates[0] > rates[1] * 1.2
    assert rates[1] >= rates[2] * 0.99
    assert rates[2] > rates[3]


def test_a_pass_that_ends_with_a_fraction_does_not_wait_for_the_slowest() -> None:
    """Adam 3.2.5: up to 20% faster with 0.75 of a pass."""

    def rate(fraction: float, spread: float) -> float:
        data = DataWork(range_batches=4, pass_examples=1600, pass_fraction=fraction)
        return follow(Cluster(8, work(), server(), data, spread=spread), counted=100, seed=4).examples_per_s

    assert rate(1.0, 0.0) == pytest.approx(rate(0.75, 0.0), rel=0.05)
    assert rate(0.75, 0.4) > 1.1 * rate(1.0, 0.4)


@pytest.mark.parametrize(("slots", "pause_s", "lost_batches"), [(1, 5.0, 4.0), (4, 10.0, 6.0), (4, 3.0, 0.0)])
def test_a_servers_death_costs_its_pause_but_for_what_free_slots_hide(
    slots: int, pause_s: float, lost_batches: float
) -> None:
    """Each context computes until its slots are full: `slots` batches, of which one was under way."""
    cluster = Cluster(2, work(slots=slots, push_bytes=0.01, fetch_bytes=0.01), server())
    options: dict[str, Any] = {"warm": 0, "counted": 10**6, "until_s": 60.0}
    whole = simulate(cluster, **options)
    held = simulate(cluster, outages=[Outage(20.5, 20.5 + pause_s)], **options)
    lost = (len(whole.finished_s) - len(held.finished_s)) / 2
    assert lost == pytest.approx(lost_batches, abs=1.0)


def test_a_workers_death_costs_its_own_time_and_what_it_had_begun() -> None:
    cluster = Cluster(4, work(), server())
    options: dict[str, Any] = {"warm": 0, "counted": 10**6, "until_s": 100.0}
    whole = simulate(cluster, **options)
    held = simulate(cluster, outages=[Outage(30.0, 50.0, 2)], **options)
    assert len(whole.finished_s) - len(held.finished_s) == pytest.approx(20, abs=1)


def test_what_a_dead_worker_had_begun_is_never_finished() -> None:
    cluster = Cluster(1, work(batch_s=10.0), server())
    options: dict[str, Any] = {"warm": 0, "counted": 10**6, "until_s": 100.0}
    first_s = simulate(cluster, **options).finished_s[0]
    held = simulate(cluster, outages=[Outage(first_s + 2, first_s + 3)], **options)
    died = simulate(cluster, outages=[Outage(first_s + 2, first_s + 3, 0)], **options)
    assert held.finished_s[1] == pytest.approx(first_s + 10)  # a server's pause stops no worker that has free slots
    assert died.finished_s[1] == pytest.approx(first_s + 3 + 10)


def test_in_step_the_others_wait_no_longer_than_until_a_death_is_noticed() -> None:
    cluster = Cluster(4, work(keeps_to_steps=True, push_bytes=0.01, fetch_bytes=0.01), server())
    found = simulate(cluster, warm=0, counted=10**6, until_s=40.0, outages=[Outage(10.5, 1e9, 1)])
    assert len(found.finished_s) == pytest.approx(4 * 10 + 3 * 29, abs=4)


def test_a_server_that_is_missing_leaves_larger_parts_to_the_others() -> None:
    cluster = Cluster(20, work(), server())
    found = simulate(cluster, warm=0, counted=10**6, until_s=60.0, outages=[Outage(20.0, 20.1, load_after=2.0)])
    before = sum(at_s < 20 for at_s in found.finished_s) / 20
    after = sum(at_s >= 30 for at_s in found.finished_s) / 30
    assert after == pytest.approx(before / 2, rel=0.25)


@pytest.mark.parametrize(
    ("push_bytes", "first_s", "more_s"),
    [(0.01, 0.0, 0.0), (0.35, 0.0, 0.0), (0.5, 0.0, 0.0), (0.01, 3.5e-3, 3.5e-3), (0.01, 5e-3, 2e-3)],
    ids=["compute", "link nearly full", "link full", "threads nearly full", "threads, pushes together"],
)
def test_groups_of_replicas_are_as_fast_as_these_within_1_percent(
    push_bytes: float, first_s: float, more_s: float
) -> None:
    cluster = Cluster(
        240, work(push_bytes=push_bytes, fetch_bytes=push_bytes),
        ServerWork(StationRates(LINK, 1.0, 1.0), first_s, more_s), DataWork(3, example_s=5e-4), 0.01, 0.1, 0.1,
    )  # fmt: skip
    alone, grouped = (simulate(one, warm=6, counted=20, seed=1) for one in (cluster, cluster.grouped(60)))
    assert grouped.examples_per_s == pytest.approx(alone.examples_per_s, rel=0.01)
    assert grouped.server_in_share == pytest.approx(alone.server_in_share, rel=0.03)
    if first_s == more_s:
        assert grouped.server_cores_share == pytest.approx(alone.server_cores_share, rel=0.03)
