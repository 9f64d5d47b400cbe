"""Controllers of a run on hosts, over the in-memory network: lost ones are replaced, by the cluster's own decision."""

from __future__ import annotations

import asyncio

from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.places.places import Lost
from adamctl.net.testing.virtual_clock import run_virtual
from tests.launch.hosts.hosts_under_test import World, world


def seats(w: World) -> list[str]:
    return sorted(w.keeper.controllers.seats.members)


async def lose(w: World, node: str) -> str:
    """Crashes the host of a role and returns its name when the front has given it up."""
    home = w.keeper.placed[node].host
    (agent,) = [agent for agent in w.places.living() if agent.name == home]
    agent.task.cancel()
    w.network.crash(home)
    await w.until(lambda: w.keeper.hosts[home].lost)
    return home


def test_lost_controllers_are_replaced_one_after_the_other() -> None:
    async def whole() -> None:
        async with world(HostsAsked(3, 3, spares=1), ps=3, replication=3) as w:
            await w.until(lambda: len(w.serving) == 11)
            first = set(w.roles._starter.controllers)
            for number in (1, 2, 3):
                home = await lose(w, f"controller-{number}")
                await w.until(lambda number=number: f"controller-{number + 3}" in seats(w))
                assert any(note.startswith(f"{home} is lost") for note in w.notes)
                assert f"has taken the place of controller-{number} as a controller" in w.notes[-1]
                assert not w.roles.there(f"controller-{number}") and w.roles.there(f"controller-{number + 3}")
            assert seats(w) == w.controllers.clusters[0].names() == ["controller-4", "controller-5", "controller-6"]
            assert len(w.roles._starter.controllers) == 3 and first.isdisjoint(w.roles._starter.controllers)
            await w.until(lambda: w.running() == w.expected())
            assert w.ends == [] and "controller-4" in w.serving

    run_virtual(whole())


def test_a_controller_that_still_runs_behind_a_cut_is_not_replaced() -> None:
    async def whole() -> None:
        async with world(HostsAsked(3, 3, spares=1), ps=3, replication=3) as w:
            await w.until(lambda: len(w.serving) == 11)
            cut = w.keeper.placed["controller-2"].host
            w.network.partition(cut, "front-1", both_ways=True)
            await w.until(lambda: any("controller-4 waits to become a controller: " in note for note in w.notes))
            assert w.controllers.clusters[0].replaced == [] and seats(w) == [f"controller-{n}" for n in (1, 2, 3)]
            assert not w.roles.there("controller-4"), "it is no member"
            w.network.heal()
            await w.until(lambda: not w.keeper.hosts[cut].lost and w.running() == w.expected())
            assert w.running()["controller-2"] == [cut] and w.keeper.vacant == ""
            assert [note for note in w.notes if "has taken the place" in note] == []

    run_virtual(whole())


def test_a_controller_whose_agent_starts_anew_is_replaced() -> None:
    async def whole() -> None:
        async with world(HostsAsked(3, 3), ps=3, replication=3) as w:
            await w.until(lambda: len(w.serving) == 11)
            w.places.most = 3
            home = await lose(w, "controller-2")
            w.network.heal()
            w.places.start(home)
            await w.until(lambda: not w.keeper.hosts[home].lost)
            assert "controller-2" not in w.roles._there.roles, "its folder is gone"
            await w.until(lambda: seats(w) == ["controller-1", "controller-3", "controller-4"])
            await w.until(lambda: w.running() == w.expected())
            assert w.running()["controller-4"] == [home]

    run_virtual(whole())


def test_a_former_controller_ends_when_its_host_is_back() -> None:
    async def whole() -> None:
        async with world(HostsAsked(3, 3, spares=1), ps=3, replication=3) as w:
            await w.until(lambda: len(w.serving) == 11)
            cut = w.keeper.placed["controller-2"].host
            (agent,) = [agent for agent in w.places.agents if agent.name == cut]
            w.network.partition(cut, "front-1", both_ways=True)
            attempt = agent.processes.living.pop("controller-2")  # as if the others did not hear it, either
            await w.until(lambda: "controller-4" in seats(w))
            agent.processes.living["controller-2"] = attempt
            w.network.heal()
            await w.until(lambda: w.running() == w.expected())
            assert "controller-2" not in w.running() and len(seats(w)) == 3

    run_virtual(whole())


def test_a_host_lost_before_the_controllers_have_formed_has_all_begin_anew() -> None:
    async def whole() -> None:
        async with world(HostsAsked(3, 3), ps=3, replication=3) as w:
            w.controllers.may_form = False
            await w.until(lambda: "controller-3" in w.running() and "coordinator" in w.local.running)
            await lose(w, "controller-1")
            await w.until(lambda: "controller-6" in w.running())
            assert not w.keeper.formed
            w.controllers.may_form = True
            await w.until(lambda: w.keeper.formed and w.running() == w.expected())
            await w.until(lambda: {"coordinator", "worker-3", "ps-3", "data-1"} <= set(w.serving))
            assert seats(w) == ["controller-4", "controller-5", "controller-6"] and w.ends == []
            assert len(w.controllers.clusters) == 1 and w.supervision.waiting_for == ()

    run_virtual(whole())


def test_a_host_lost_before_it_has_named_a_port_has_all_begin_anew() -> None:
    async def whole() -> None:
        async with world(HostsAsked(3, 3), ps=3, replication=3) as w:
            w.places.ports = lambda count: ()
            await w.until(lambda: "controller-1" in w.keeper.placed)
            w.places.said.put_nowait(Lost(w.keeper.placed["controller-1"].host, "its node is dead"))
            await w.until(lambda: any("all begins anew" in note for note in w.notes))
            w.places.ports = lambda count: range(7001, 7001 + count)
            await w.until(lambda: {"coordinator", "worker-3", "ps-3"} <= set(w.serving))
            await asyncio.sleep(10.0)  # whoever asked for the ports of the first controllers has stopped to ask
            assert w.failed is None and len(w.roles._starter.controllers) == 3
            assert w.running() == w.expected() and len(w.controllers.clusters) == 1

    run_virtual(whole())
