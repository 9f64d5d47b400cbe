"""Controllers at hosts: how lost ones are replaced, and what is done before they have formed."""

from __future__ import annotations

from dataclasses import replace

from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.controller_keeper import FAILED_MAX
from adamctl.launch.hosts.decisions import BeginAnew, End, GiveUp, OneMore, Release, Say, Seat, Seated, Substitute
from adamctl.launch.hosts.keeper import SETTLE_S
from adamctl.launch.hosts.placement import FRONT, Offer
from tests.launch.hosts.keepers import arrive, homes, keeper, on_hosts, puts, substitutes, texts


def test_a_lost_controller_is_replaced_on_a_host_without_one() -> None:
    made = on_hosts("h1", "h2", "h3", "h4")
    found = made.lost("h2", "gone", 1.0)
    assert substitutes(found) == {"controller-4": "h4"}
    assert Say("controller-4 starts on h4, to take the place of controller-2 as a controller") in found
    (substitute,) = [one for one in found if isinstance(one, Substitute)]
    assert substitute.living == ("controller-1", "controller-3") and "without controller" not in texts(found)[0]
    assert made.serves("controller-4") == [Seat("controller-4")] and made.vacant == "controller-2"
    found = made.seated(("controller-1", "controller-3", "controller-4"))
    assert found == [
        Seated(("controller-1", "controller-3", "controller-4")),
        Say("controller-4 on h4 has taken the place of controller-2 as a controller"),
    ]
    assert homes(made) == {"controller-1": "h1", "controller-3": "h3", "controller-4": "h4"} and made.vacant == ""
    assert arrive(made, "h2", now_s=9.0, again=True) and homes(made).get("controller-2") is None
    assert substitutes(made.lost("h1", "gone", 10.0)) == {"controller-5": "h2"}, "the next loss is one of three again"


def test_a_lost_controller_waits_for_a_host_to_come() -> None:
    made = on_hosts("h1", "h2", "h3")
    found = made.lost("h3", "gone", 1.0)
    assert substitutes(found) == {} and "controller-3" in texts(found)[0].partition("continuing without ")[2]
    assert substitutes(arrive(made, "h4", now_s=2.0)) == {"controller-4": "h4"}


def test_one_controller_is_replaced_at_a_time_and_none_without_a_majority() -> None:
    made = on_hosts("h1", "h2", "h3", "h4", "h5")
    lost = homes(made)["controller-1"], homes(made)["controller-2"]
    made.lost(lost[0], "gone", 1.0)
    found = made.lost(lost[1], "gone", 2.0)
    assert len(found) == 1 and isinstance(found[0], GiveUp) and "most of the controllers are lost" in found[0].reason
    assert made.vacant == "" and made.seated(()) == []


def test_a_controller_that_is_there_again_keeps_its_place_and_the_other_waits_for_the_next_loss() -> None:
    made = on_hosts("h1", "h2", "h3", "h4", "h5")
    first, second = homes(made)["controller-1"], homes(made)["controller-2"]
    (waiting,) = substitutes(made.lost(first, "gone", 1.0))
    assert substitutes(arrive(made, first, now_s=2.0, again=True)) == {} and made.vacant == ""
    assert substitutes(made.lost(first, "gone", 3.0)) == {} and made.vacant == "controller-1", "it waits already"
    arrive(made, first, now_s=4.0, again=True)
    found = made.lost(second, "gone", 5.0)
    assert End(waiting, "another one is started for the place of controller-2") in found, "it knows controller-2"
    assert len(substitutes(found)) == 1 and made.controllers.seats.waiting in substitutes(found)


def test_a_request_that_was_carried_out_without_an_answer_is_seen_later() -> None:
    made = on_hosts("h1", "h2", "h3", "h4")
    first = homes(made)["controller-1"]
    (waiting,) = substitutes(made.lost(first, "gone", 1.0))
    arrive(made, first, now_s=2.0, again=True)
    found = made.seated(("controller-2", "controller-3", waiting))
    assert End("controller-1", "another controller has its place") in found
    assert made.ended("controller-1") == [] and set(homes(made)) == {"controller-2", "controller-3", waiting}
    assert made.seated(("controller-1", "controller-2", "controller-3")) == [], "told by one that does not know better"
    assert made.controllers.seats.members == ("controller-2", "controller-3", waiting)


def test_an_agent_that_starts_anew_has_lost_the_folder_of_its_controller() -> None:
    made = on_hosts("h1", "h2", "h3")
    made.lost("h2", "gone", 1.0)
    found = arrive(made, "h2", now_s=2.0)
    assert "controller-2" not in puts(found) and substitutes(found) == {"controller-4": "h2"}
    found = made.lost("h1", "gone", 3.0)
    assert isinstance(found[0], GiveUp), "the one that waits is no member yet"


def test_a_controller_that_ends_while_it_waits_is_tried_again_a_few_times() -> None:
    made = on_hosts("h1", "h2", "h3", "h4")
    (waiting,) = substitutes(made.lost("h2", "gone", 1.0))
    for number in range(5, 5 + FAILED_MAX - 1):
        found = made.ended(waiting) or []
        assert texts(found)[0] == f"{waiting} ended before it was a member of the controllers"
        assert substitutes(found) == {f"controller-{number}": "h4"}
        waiting = f"controller-{number}"
    assert substitutes(made.not_seated("h4 names no free port")) == {} and homes(made).keys() & {waiting} == set()
    assert len(substitutes(arrive(made, "h5", now_s=9.0))) == 1, "on a host that comes it may have more luck"


def test_one_that_gets_its_place_makes_up_for_those_that_have_ended() -> None:
    made = on_hosts("h1", "h2", "h3", "h4")
    (waiting,) = substitutes(made.lost("h2", "gone", 1.0))
    for _ in range(FAILED_MAX - 1):
        (waiting,) = substitutes(made.ended(waiting) or [])
    made.seated(("controller-1", "controller-3", waiting))
    made.hosts["h5"] = replace(made.hosts["h4"], offer=Offer("h5", 8))
    (waiting,) = substitutes(made.lost("h1", "gone", 2.0))
    assert len(substitutes(made.ended(waiting) or [])) == 1


def test_the_end_of_a_controller_on_a_host_that_was_let_go_is_no_failure() -> None:
    made = on_hosts("h1", "h2", "h3", "h4", ps=1, replication=1, data=1)
    assert made.placed["ps-1"].host == "h1" and made.placed["data-1"].host == "h4"
    found = made.draining("h2", 100.0, "preempted", 1.0) + (made.ended("worker-2") or [])
    assert Release("h2", "everything was moved off it") in found and len(substitutes(found)) == 1
    assert made.ended("controller-2") == []
    assert made.ended("controller-1") is None, "supervision starts it again"


def test_the_host_of_a_controller_that_waits_is_lost() -> None:
    made = on_hosts("h1", "h2", "h3", "h4", "h5")
    (host,) = substitutes(made.lost("h2", "gone", 1.0)).values()
    (other,) = {"h1", "h3", "h4", "h5"} - set(homes(made).values())
    assert substitutes(made.lost(host, "gone", 2.0)) == {"controller-5": other}
    assert "controller-4" not in made.placed


def test_a_host_that_is_waited_for_keeps_its_controller_meanwhile() -> None:
    made = on_hosts("h1", "h2", "h3", "h4", replication=1)
    assert substitutes(made.lost("h2", "gone", 1.0)) == {} and made.vacant == ""
    assert substitutes(arrive(made, "h2", now_s=3.0)) != {}, "it came back without its controller's folder"


def test_hosts_with_controllers_are_let_go_one_after_the_other() -> None:
    made = on_hosts("h1", "h2", "h3", "h4", "h5", ps=1, replication=1, data=1)
    empty = [host for host in ("h1", "h2", "h3", "h4", "h5") if not any(
        one.host == host and one.role in ("ps", "data") for one in made.placed.values()
    )]  # fmt: skip
    first, second = [host for host in homes(made).values() if host in empty][:2]
    waiting = ""
    for host in (first, second):
        (worker,) = [one.node for one in made.placed.values() if one.host == host and one.role == "worker"]
        found = made.draining(host, 100.0, "preempted", 1.0)
        found += made.ended(worker) or []
        assert (Release(host, "everything was moved off it") in found) is (host == first), texts(found)
        waiting = waiting or next(iter(substitutes(found)))
    found = made.seated((*made.controllers.seats.living, waiting))
    assert Release(second, "everything was moved off it") in found and len(substitutes(found)) == 1


def test_a_host_lost_before_the_controllers_have_formed_has_all_begin_anew() -> None:
    made = on_hosts("h1", "h2", "h3", serves=False)
    found = made.lost("h2", "gone", 1.0)
    assert [type(one) for one in found] == [Say, BeginAnew, OneMore, Say] and not made.begun and made.placed == {}
    assert "nothing is trained yet" in texts(found)[0]
    assert texts(found)[1] == "waiting for 1 of 3 hosts (h1, h3 are there)"
    found = arrive(made, "h4", now_s=9.0)
    assert texts(found)[0] == "3 hosts: h1, h3, h4"
    assert homes(made) == {"controller-4": "h1", "controller-5": "h3", "controller-6": "h4"}, "their folders are empty"
    made.serves("controller-5")
    assert any(isinstance(one, BeginAnew) for one in made.lost("h1", "gone", 10.0)), "a controller alone is no cluster"


def test_all_begins_anew_at_once_with_the_hosts_that_live_if_they_are_enough() -> None:
    made = keeper(HostsAsked(2, 3), ps=3, replication=3)
    arrive(made, "h1", "h2", "h3")
    found = made.lost("h3", "gone", 1.0) + made.tick(1.0 + SETTLE_S)
    assert puts(found)["controller"] == FRONT and puts(found)["worker-2"] == "h2"
    made = on_hosts("h1", "h2", "h3", serves=False, spares=1)
    arrive(made, "spare")
    found = made.lost("h1", "gone", 1.0)
    assert set(puts(found).values()) == {FRONT, "h2", "h3", "spare"} and "controller-4" in puts(found)
