"""What runs where while hosts come, drain and go."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.decisions import Decision, Drain, End, GiveUp, OneMore, Put, Release, Say, StopRun, Substitute
from adamctl.launch.hosts.keeper import END_MARGIN_S, HOLD_S, SETTLE_S, HostKeeper
from adamctl.launch.hosts.placement import FRONT, partitions_of, workers_on
from adamctl.launch.places.engines import BY_HAND
from tests.launch.hosts.keepers import arrive, begun, homes, keeper, puts, texts


def test_a_run_says_what_it_waits_for_and_begins_when_it_is_there() -> None:
    made = keeper(HostsAsked(2, 2))
    assert made.waiting == "waiting for 2 of 2 hosts (none is there yet)"
    assert texts(arrive(made, "h1")) == ["waiting for 1 of 2 hosts (h1 is there)"]
    found = arrive(made, "h2")
    assert texts(found) == ["2 hosts: h1, h2"] and made.waiting == ""
    assert puts(found)["worker-1"] == "h1" and puts(found)["worker-2"] == "h2" and puts(found)["coordinator"] == FRONT


def test_too_few_hosts_for_the_copies_are_said() -> None:
    made = keeper(HostsAsked(1, 1), replication=2)
    assert texts(arrive(made, "h1")) == ["1 host: h1; 2 copies of each part of the model share 1"]


def test_a_range_begins_with_the_least_after_a_moment_and_takes_what_comes() -> None:
    made = keeper(HostsAsked(2, 4))
    arrive(made, "h1", "h2", now_s=10.0)
    assert not made.begun and made.next_s() == 10.0 + SETTLE_S and made.tick(11.0) == []
    assert len([one for one in puts(made.tick(12.0)) if one.startswith("worker")]) == 2
    assert made.waiting_for_more == "2 of 4 hosts are there, and more are taken as they come"
    assert puts(arrive(made, "h3", now_s=60.0)) == {"worker-3": "h3"}
    assert puts(arrive(made, "h4", now_s=70.0)) == {"worker-4": "h4"}
    found = arrive(made, "h5", now_s=80.0)
    assert puts(found) == {} and texts(found) == ["h5 has come: it waits as a spare"]


def test_all_that_may_come_are_not_waited_for_when_they_are_there() -> None:
    made = keeper(HostsAsked(2, 3))
    arrive(made, "h1", "h2", "h3")
    assert made.begun


def test_partitions_come_in_whole_replicas() -> None:
    made = keeper(HostsAsked(2, 6), workers=2, partitions=2)
    arrive(made, "h1", "h2")
    made.tick(SETTLE_S)
    assert puts(arrive(made, "h3")) == {}
    assert puts(arrive(made, "h4")) == {"worker-3": "h3", "worker-4": "h4"}


def test_a_replica_that_lacks_a_worker_gets_it_from_the_next_host() -> None:
    made = begun(hosts=4, workers=2, partitions=2)
    assert texts(made.lost("h4", "gone", 1.0))[0].endswith("continuing without worker-4")
    assert puts(arrive(made, "h5", now_s=2.0)) == {"worker-4": "h5"}
    assert puts(arrive(made, "h6", now_s=3.0)) == {}, "all replicas are whole"


def test_a_lost_host_is_one_cause_and_its_roles_start_elsewhere_under_their_names() -> None:
    made = begun(spares=1)
    arrive(made, "spare")
    found = made.lost("h2", "nothing was heard from it for 5 s", 100.0)
    assert puts(found) == {"worker-2": "spare", "ps-2": "spare", "data-1": "h1"}
    (text,) = texts(found)
    assert text.startswith("h2 is lost: nothing was heard from it for 5 s; worker-2 starts again on spare, ")
    assert OneMore("h2 is lost") in found
    assert made.lost("h2", "and again", 101.0) == []


def test_without_a_spare_the_run_goes_on_with_one_worker_less() -> None:
    made = begun()
    found = made.lost("h2", "gone", 100.0)
    assert puts(found) == {"ps-2": "h1", "data-1": "h1"}
    assert texts(found)[0].endswith("continuing without worker-2")
    assert puts(arrive(made, "h3", now_s=110.0)) == {"worker-2": "h3"}, "until another host comes"


def test_the_last_worker_starts_where_there_is_room() -> None:
    made = begun(workers=2, partitions=2)
    assert puts(made.lost("h2", "gone", 1.0))["worker-2"] == "h1", "half a replica trains nothing"


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [
        ({"replication": 1, "store": "none"}, "the only copy of a part of the model was there (ps-2)"),
        ({"ps": 0, "replication": 1}, "the parameters were there; continue from the last checkpoint with --resume"),
    ],
)
def test_what_was_only_there_ends_the_run_once(cluster: dict[str, Any], reason: str) -> None:
    made = begun(**cluster)
    lost = "h1" if cluster["replication"] == 1 and cluster.get("ps") == 0 else "h2"
    found = made.lost(lost, "gone", 1.0)
    assert len(found) == 1 and isinstance(found[0], GiveUp)
    assert found[0].host == lost and reason in found[0].reason and f"{lost} is lost: gone" in found[0].reason


def test_no_host_is_left() -> None:
    made = begun(hosts=1)
    (found,) = made.lost("h1", "gone", 1.0)
    assert isinstance(found, GiveUp) and "no host is left" in found.reason


def test_a_host_with_the_only_copy_on_its_disk_is_waited_for() -> None:
    made = begun(replication=1)
    found = made.lost("h2", "gone", 100.0)
    assert puts(found) == {} and "waiting 60 s for it to come back" in texts(found)[0]
    assert made.next_s() == 100.0 + HOLD_S and made.tick(150.0) == []
    assert texts(arrive(made, "h2", now_s=155.0, again=True)) == ["h2 is there again"]
    assert made.tick(500.0) == []
    made.lost("h2", "gone", 600.0)
    found = arrive(made, "h2", now_s=610.0)
    assert puts(found) == {"worker-2": "h2", "ps-2": "h2", "data-1": "h2"}, "a new agent of its name finds the store"
    made.lost("h2", "gone", 700.0)
    (given_up,) = made.tick(700.0 + HOLD_S)
    assert isinstance(given_up, GiveUp) and "h2 did not come back within 60 s" in given_up.reason


def test_the_only_host_is_waited_for_as_any_other_with_an_only_copy() -> None:
    made = begun(hosts=1, replication=1)
    assert "waiting 60 s for it to come back" in texts(made.lost("h1", "gone", 100.0))[0]
    assert set(puts(arrive(made, "h1", now_s=110.0))) == {"worker-1", "ps-1", "ps-2", "data-1"}


def test_a_draining_host_is_emptied_then_let_go() -> None:
    made = begun(spares=1)
    arrive(made, "spare")
    found = made.draining("h2", 100.0, "preempted", 10.0)
    assert [one for one in found if isinstance(one, End)] == [
        End("worker-2", "h2 is taken away"),
        End("data-1", "h2 is taken away"),
    ]
    assert Drain("ps-2") in found and puts(found) == {"ps-3": "spare"}
    assert made.draining("h2", 90.0, "again", 11.0) == []
    found = made.ended("worker-2") or []
    assert puts(found) == {"worker-2": "spare"} and not any(isinstance(one, Release) for one in found)
    assert puts(made.ended("data-1") or []) != {}
    assert made.drained("ps-2") == [End("ps-2", "everything was moved off it")]
    found = made.ended("ps-2") or []
    assert found[-1] == Release("h2", "everything was moved off it")
    assert made.lost("h2", "its agent has ended", 50.0) == [], "that was expected"


def test_a_run_that_writes_its_last_checkpoint_moves_nothing() -> None:
    """A queue ends the whole job at once: all hosts say that they will be taken away."""
    made = begun(spares=1)
    arrive(made, "spare")
    made.saving = True
    assert made.draining("h2", 20.0, "received SIGTERM", 10.0) == [
        Say("h2 will be taken away in 20 s: received SIGTERM")
    ]
    assert End("ps-2", "its host is taken away") in made.tick(30.0), "as any other, when its time is over"


def test_a_loss_asks_for_one_host() -> None:
    made = begun(spares=1)
    arrive(made, "spare")
    found = made.draining("h2", 20.0, "preempted", 0.0) + made.tick(17.5)
    assert [one for one in found if isinstance(one, OneMore)] == [OneMore("h2 is taken away")]
    arrive(made, "h2", now_s=30.0)
    assert OneMore("h2 is lost") in made.lost("h2", "gone", 40.0), "another loss"


def test_a_host_that_an_engine_has_given_beyond_what_is_wanted_is_given_back() -> None:
    made = begun(spares=1, engine="slurm")
    arrive(made, "spare")
    assert puts(made.lost("h2", "nothing was heard from it for 5 s", 10.0))["worker-2"] == "spare"
    assert texts(arrive(made, "h2", now_s=20.0, again=True)) == ["h2 is there again: it waits as a spare"]
    found = arrive(made, "instead", now_s=30.0)
    assert texts(found) == ["instead has come: instead is needed no more and is let go"]
    assert found[-1] == Release("instead", "the run has all the hosts that it wants")
    assert made.lost("instead", "its agent has ended", 31.0) == [], "that was expected"
    made.lost("h1", "gone", 40.0)
    arrive(made, "late", now_s=50.0)
    assert made.hosts["h2"].usable and made.hosts["late"].usable


def test_what_is_not_moved_in_time_ends_and_the_host_is_lost() -> None:
    made = begun(spares=1)
    arrive(made, "spare")
    made.draining("h2", 30.0, "preempted", 10.0)
    made.ended("worker-2")
    assert made.next_s() == 40.0 - END_MARGIN_S
    found = made.tick(40.0 - END_MARGIN_S)
    assert End("ps-2", "its host is taken away") in found
    assert puts(found)["ps-2"] == "h1"
    assert "its time was over before" in texts(found)[0]


def test_a_host_whose_agent_ends_is_lost_at_once() -> None:
    made = begun(spares=1)
    arrive(made, "spare")
    found = made.draining("h2", 0.0, "its agent ends: received SIGTERM", 10.0)
    assert puts(found) == {"worker-2": "spare", "ps-2": "spare", "data-1": "h1"}
    (text,) = texts(found)
    assert text.startswith("h2 is lost: its agent ends: received SIGTERM; worker-2 starts again on spare")
    assert made.lost("h2", "nothing was heard from it for 5 s", 15.0) == [], "one cause"
    drained = begun(spares=1)
    arrive(drained, "spare")
    drained.draining("h2", 20.0, "preempted", 10.0)
    assert "ps-2" in puts(drained.draining("h2", 0.0, "its agent ends", 12.0)), "before its time"


def test_what_ends_on_a_host_that_is_waited_for_is_no_failure() -> None:
    made = begun(replication=1)
    assert "waiting 60 s" in texts(made.draining("h2", 0.0, "its agent ends", 10.0))[0]
    assert made.ended("ps-2") == [] and made.ended("worker-2") == []
    assert puts(arrive(made, "h2", now_s=20.0)) == {"worker-2": "h2", "ps-2": "h2", "data-1": "h2"}


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_a_run_whose_last_host_is_taken_away_stops_with_a_checkpoint(hosts: int) -> None:
    made = begun(hosts=hosts)
    for number in range(1, hosts):
        found = made.draining(f"h{number}", 120.0, "its job is over", 0.0)
        assert not any(isinstance(one, StopRun) for one in found)
    found = made.draining(f"h{hosts}", 120.0, "its job is over", 0.0)
    assert found[-1] == StopRun("no host is left that will not be taken away")
    assert not any(isinstance(one, (End, Drain, OneMore)) for one in found)


def test_a_role_whose_new_host_is_lost_before_it_has_moved_goes_to_another_one() -> None:
    made = begun(spares=1)
    arrive(made, "spare", "late")
    made.draining("h2", 100.0, "preempted", 10.0)
    lost = next(placed.host for node, placed in made._ending.items() if placed is not None and node == "worker-2")
    made.lost(lost, "gone", 11.0)
    assert puts(made.ended("worker-2") or []) == {"worker-2": "late" if lost == "spare" else "spare"}


def test_a_role_that_no_host_is_left_for_is_said_to_be_missing() -> None:
    made = begun(spares=1)
    arrive(made, "spare")
    made.draining("h2", 100.0, "preempted", 10.0)
    made.lost("spare", "gone", 11.0)
    found = made.ended("worker-2") or []
    assert puts(found) == {} and "continuing without it" in texts(found)[0]


def test_a_draining_host_that_was_silent_for_a_while_gets_nothing_new() -> None:
    made = begun(spares=1)
    arrive(made, "spare")
    made.draining("h2", 100.0, "preempted", 10.0)
    made.lost("h2", "nothing was heard from it for 5 s", 20.0)
    found = arrive(made, "h2", now_s=30.0, again=True)
    assert puts(found) == {} and found[-1] == Release("h2", "everything was moved off it")


def test_a_host_that_is_announced_to_be_taken_away_before_it_has_dialled_gets_nothing() -> None:
    made = keeper(HostsAsked(2, 2, "slurm"))
    assert made.draining("h1", 120.0, "Slurm drains node h1", 0.0) == []
    found = arrive(made, "h1", "h2", now_s=20.0)
    assert found[:3] == [
        Say("h1 will be taken away in 100 s: Slurm drains node h1"),
        OneMore("h1 is taken away"),
        Say("h1 is empty and is let go"),
    ]
    assert texts(found)[-1] == "waiting for 1 of 2 hosts (h2 is there)" and not made.begun


@pytest.mark.parametrize("again", [True, False])
def test_a_host_that_is_announced_to_be_taken_away_while_it_is_cut_off_is_emptied_when_it_is_back(again: bool) -> None:
    made = begun(spares=1, replication=1, store="disk")
    arrive(made, "spare")
    made.lost("h2", "nothing was heard from it for 5 s", 10.0)
    assert made.draining("h2", 100.0, "preempted", 20.0) == []
    found = arrive(made, "h2", now_s=30.0, again=again)
    assert "h2 will be taken away in 90 s: preempted" in texts(found)
    assert Drain("ps-2") in found and End("worker-2", "h2 is taken away") in found
    assert again or found.index(Drain("ps-2")) > [isinstance(one, Put) for one in found].index(True)


def test_a_host_that_comes_after_it_should_have_been_taken_away_is_another() -> None:
    made = begun()
    made.draining("h3", 100.0, "preempted", 20.0)
    arrive(made, "h3", now_s=121.0)
    assert made.hosts["h3"].usable


def test_a_run_whose_only_parameters_are_taken_away_stops_with_a_checkpoint() -> None:
    made = begun(ps=0, replication=1)
    found = made.draining("h1", 100.0, "preempted", 10.0)
    assert StopRun("worker-1 has the only parameters, and h1 is taken away") in found
    assert not any(isinstance(one, End) and one.node == "worker-1" for one in found)
    assert any(isinstance(one, GiveUp) and "--resume" in one.reason for one in made.tick(110.0))


def test_an_end_that_nobody_asked_for_is_for_supervision() -> None:
    made = begun()
    assert made.ended("worker-1") is None and "worker-1" in made.placed


def check_seats(made: HostKeeper, found: list[Decision], where: str) -> None:
    seats = made.controllers.seats
    assert len(seats.members) in (0, 3) and seats.waiting not in seats.members, where
    assert len([one for one in found if isinstance(one, Substitute)]) <= 1, where
    there = [homes(made)[node] for node in (*seats.living, seats.waiting) if node in homes(made)]
    assert len(there) == len(set(there)), f"{where}: a host with two controllers"
    for one in found:
        if isinstance(one, Substitute) and one.placed.node == seats.waiting:
            assert made.hosts[one.placed.host].usable and len(one.living) == 2, where
    if made.vacant and not seats.waiting and made.controllers._failed == 0:
        free = [name for name, host in made.hosts.items() if host.usable and name not in there]
        assert not free, f"{where}: {made.vacant} is lost, and {free} could have another"


@pytest.mark.parametrize("seed", range(200))
def test_any_history(seed: int) -> None:
    """No name twice, nothing on a host that is not there, whole replicas, one cause for each loss."""
    random = Random(seed)
    partitions = random.choice([1, 1, 2])
    least = random.randint(1, 3)
    asked = HostsAsked(least, random.randint(least, 6), spares=random.randint(0, 2))
    asked = replace(asked, engine="ray" if seed % 2 else BY_HAND)
    made = keeper(
        asked, workers=partitions, partitions=partitions, ps=random.randint(1, 4), replication=random.choice([1, 2]),
        store=random.choice(["disk", "none"]),
    )  # fmt: skip
    now_s, names, given_up = 0.0, 0, False
    running: dict[str, str] = {}
    for _ in range(60):
        now_s += random.uniform(0.0, 30.0)
        here = [name for name, host in made.hosts.items() if not host.lost]
        choice = random.random()
        came = made.begun and (choice < 0.35 or not here)
        if choice < 0.35 or not here:
            gone = [name for name, host in made.hosts.items() if host.lost]
            if gone and random.random() < 0.4:
                found = arrive(made, random.choice(gone), now_s=now_s, again=random.random() < 0.5)
            else:
                names += 1
                found = arrive(made, f"h{names}", now_s=now_s)
        elif choice < 0.5:
            lost = random.choice(here)
            found = made.lost(lost, "gone", now_s)
            assert len([text for text in texts(found) if f"{lost} is lost" in text]) <= 1
        elif choice < 0.6:
            found = made.draining(random.choice(here), random.uniform(0, 60), "preempted", now_s)
        elif choice < 0.8 and running:
            node = random.choice(sorted(running))
            found = made.drained(node) if node.startswith("ps") and random.random() < 0.3 else made.ended(node) or []
        elif choice < 0.9 and made.begun:
            seats = made.controllers.seats
            found = made.serves(random.choice(["worker-1", seats.waiting or "ps-1"]))
            if made.vacant and seats.waiting:
                found += made.seated([seats.waiting, *(one for one in seats.members if one != made.vacant)])
        else:
            found = made.tick(now_s)
        if any(isinstance(one, GiveUp) for one in found):
            given_up = True
            break
        for one in found:
            if isinstance(one, Put):
                running[one.placed.node] = one.placed.host
                assert one.placed.host == FRONT or made.hosts[one.placed.host].usable, f"seed {seed}"
                assert one.placed.threads > 0 or one.placed.role in ("controller", "coordinator")
        check_seats(made, found, f"seed {seed}")
        running = {node: host for node, host in running.items() if node in made.placed}
        workers = [one for one in made.placed.values() if one.role == "worker"]
        assert len(workers) <= asked.most * partitions, f"seed {seed}"
        assert len({one.node for one in workers}) == len(workers)
        lacking = partitions - len(workers) % partitions
        if came and len(workers) < workers_on(made.experiment, asked.most):
            assert len(made.homes.idle()) < lacking, f"seed {seed}: hosts wait, and a replica could be whole"
        if came and asked.engine != BY_HAND and not made._ending:
            beyond = len(made.homes.usable()) - asked.most - asked.spares
            assert beyond <= 0 or not set(made.homes.idle()) - {one.host for one in made.placed.values()}, (
                f"seed {seed}"
            )
        if made.begun and partitions_of(made.experiment) == 1 and not made._held:
            usable = [name for name, host in made.hosts.items() if host.usable]
            busy = [one.host for one in workers if one.host in usable]
            assert len(busy) == len(set(busy)) or len(busy) <= 2, f"seed {seed}: one worker on each host"
    assert given_up or made.next_s() >= 0.0
