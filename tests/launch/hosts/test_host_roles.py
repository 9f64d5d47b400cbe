"""A front's roles on many hosts, over the in-memory network, with agents whose processes are not there: under any seed.

What must hold, whatever breaks: no role is reported dead that no agent has reaped; when all is quiet, every role runs
at one agent, the one that the keeper has put it on; at the end, nothing runs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from adamctl.errors import UnreachableError
from adamctl.launch.hosts import draining
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.table import KEEP_S
from adamctl.launch.places.engines import BY_HAND
from adamctl.launch.places.places import Draining, Lost
from adamctl.launch.run_certificates import RunCertificates
from adamctl.net.testing.faults import LinkFaults
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.net.tls.authority import describe
from adamctl.net.tls.credentials import load
from adamctl.roles.process import CommonOptions
from adamctl.wire.messages import HostEnded
from tests.launch.hosts.hosts_under_test import world


def test_a_run_begins_serves_and_ends() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            await w.until(lambda: len(w.serving) == 7)
            assert w.running() == w.expected() and set(w.local.running) == {"controller", "coordinator"}
            assert "2 hosts: h1, h2" in w.notes or "2 hosts: h2, h1" in w.notes

    run_virtual(whole())


def test_each_role_gets_a_certificate_of_its_own_each_time_it_starts() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2), certificates=lambda folder: RunCertificates("small/001", folder)) as w:
            await w.until(lambda: len(w.serving) == 7)
            home = next(one for one in w.places.agents if one.name == w.keeper.placed["worker-1"].host)
            handed = {node: own for one in w.places.agents for node, own in one.processes.credentials.items()}
            for node, own in handed.items():
                assert own is not None
                (said,) = describe(own.certificate)
                assert said.uri == f"adam://small_001/{w.keeper.placed[node].role}/{node}"
            assert len({own.key for own in handed.values() if own}) == len(handed) == 5
            for node, command in w.local.commands.items():
                folder = Path(command.arguments[command.arguments.index("--tls-dir") + 1])
                assert load(folder).identity[1:] == (command.role, node)
            home.processes.end("worker-1", -9)
            await w.until(lambda: w.serving.count("worker-1") == 2)
            again = home.processes.credentials["worker-1"]
            assert again is not None and handed["worker-1"] is not None and again.key != handed["worker-1"].key

    run_virtual(whole())


def test_three_controllers_know_each_other() -> None:
    async def whole() -> None:
        async with world(HostsAsked(3, 3), ps=3) as w:
            await w.until(lambda: len(w.serving) == 11)
            assert len(w.roles._starter.controllers) == 3 and set(w.local.running) == {"coordinator"}
            assert len({address.rpartition(":")[0] for address in w.roles._starter.controllers}) == 3

    run_virtual(whole())


def test_a_reaped_role_starts_again_where_it_was() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            await w.until(lambda: len(w.serving) == 7)
            home = w.keeper.placed["worker-1"].host
            next(agent for agent in w.places.agents if agent.name == home).processes.end("worker-1", -9)
            await w.until(lambda: w.serving.count("worker-1") == 2)
            assert w.running() == w.expected()
            (end,) = w.ends
            assert (end.node, end.status, end.host, end.incarnation) == ("worker-1", -9, home, 1)
            assert w.roles.failures() == []

    run_virtual(whole())


def test_a_dead_agent_is_one_cause_and_reports_nobody_dead() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2, spares=1)) as w:
            await w.until(lambda: len(w.serving) == 7)
            lost = w.keeper.placed["worker-1"].host
            agent = next(agent for agent in w.places.agents if agent.name == lost)
            agent.task.cancel()
            w.network.crash(lost)
            await w.until(lambda: w.keeper.placed["worker-1"].host != lost)
            await w.until(lambda: w.running() == w.expected())
            (said,) = [note for note in w.notes if f"{lost} is lost" in note]
            assert said.startswith(f"{lost} is lost: nothing was heard from it for 5 s; ")
            assert w.ends == [], "no agent has reaped them"

    run_virtual(whole())


@pytest.mark.parametrize("how", ["its lifeline is gone", "no time for a drain", "no time, and the only copy"])
def test_an_agent_that_ends_by_itself_is_one_lost_host(how: str) -> None:
    only = "only copy" in how

    async def whole() -> None:
        cluster = {"replication": 1, "store": "disk"} if only else {"ps": 3, "replication": 3}
        async with world(HostsAsked(3, 3, spares=1), **cluster) as w:
            await w.until(lambda: len(w.serving) >= 7 and not w.supervision.waiting_for)
            home = w.keeper.placed["ps-1"].host
            agent = next(agent for agent in w.places.agents if agent.name == home)
            if how == "its lifeline is gone":
                agent.context.fail(UnreachableError("the process that started this role is gone"))
            else:
                agent.context.common = CommonOptions(stop_deadline_s=5.0)
                agent.context.stop("received SIGTERM", exit_code=143)
            await w.until(lambda: any(note.startswith(f"{home} is lost: its agent ends: ") for note in w.notes))
            await asyncio.sleep(10)
            if only:
                w.places.start(home)
            await w.until(lambda: w.running() == w.expected() and "ps-1" in w.running())
            assert w.ends == [] and len([note for note in w.notes if f"{home} is lost" in note]) == 1

    run_virtual(whole())


def test_what_runs_elsewhere_ends_on_a_host_that_comes_back() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2, spares=1)) as w:
            await w.until(lambda: len(w.serving) == 7)
            lost = w.keeper.placed["worker-1"].host
            w.network.partition(lost, "front-1", both_ways=True)
            await w.until(lambda: w.keeper.placed["worker-1"].host != lost)
            await asyncio.sleep(KEEP_S / 2)
            assert "worker-1" in next(agent for agent in w.places.agents if agent.name == lost).processes.living
            w.network.heal()
            await w.until(lambda: w.running() == w.expected())
            assert w.ends == [], "what ends on a host that was given up is nobody's any more"

    run_virtual(whole())


def test_an_engine_that_loses_a_host_is_believed_for_replacing_only() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2, spares=1)) as w:
            await w.until(lambda: len(w.serving) == 7)
            lost = w.keeper.placed["ps-1"].host
            w.places.said.put_nowait(Lost(lost, "its node is dead"))
            await w.until(lambda: any("its node is dead" in note for note in w.notes))
            await w.until(lambda: w.running() == w.expected())
            assert w.ends == []

    run_virtual(whole())


def test_agents_that_never_dial_are_replaced_a_few_times() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            for number in range(4):
                w.places.said.put_nowait(Lost(f"never-{number}", "its agent has ended with status 2"))
            await asyncio.sleep(5)
            with pytest.raises(
                UnreachableError, match="4 agents have ended before they dialled the front; the last one"
            ):
                w.roles.news()

    run_virtual(whole())


def test_agents_that_never_dial_end_no_run_that_has_begun() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            await w.until(lambda: len(w.serving) == 7)
            for number in range(4):
                w.places.said.put_nowait(Lost(f"never-{number}", "its agent has ended with status 2"))
            await w.until(lambda: any(note.endswith("the run goes on with the hosts that it has") for note in w.notes))
            assert len(w.places.agents) == 5
            for number in range(4, 7):
                w.places.start(f"late-{number}")
                w.places.said.put_nowait(Lost(f"never-{number}", "its agent has ended with status 2"))
                await asyncio.sleep(5)
            assert w.failed is None and len(w.places.agents) == 5 + 6, "what came since is asked for again"

    run_virtual(whole())


def test_the_end_of_an_engine_ends_the_run_with_its_error() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:

            async def refuse(why: str) -> bool:
                raise UnreachableError("there are 2 nodes, expected 3")

            await w.until(lambda: len(w.serving) == 7)
            w.places.one_more = refuse  # type: ignore[method-assign]
            w.places.said.put_nowait(Lost("h1", "gone"))
            for _ in range(100):
                await asyncio.sleep(0.1)
            with pytest.raises(UnreachableError, match="there are 2 nodes"):
                w.roles.news()

    run_virtual(whole())


def test_an_engine_that_breaks_in_its_own_way_ends_the_run_too() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:

            async def breaks(why: str) -> bool:
                raise RuntimeError("the engine is broken")

            await w.until(lambda: len(w.serving) == 7)
            w.places.one_more = breaks  # type: ignore[method-assign]
            w.places.said.put_nowait(Lost("h1", "gone"))
            await asyncio.sleep(10)

    with pytest.raises(RuntimeError, match="the engine is broken"):
        run_virtual(whole())


def test_a_second_signal_ends_roles_that_take_their_time() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            await w.until(lambda: len(w.serving) == 7)
            for agent in w.places.agents:
                agent.processes.deaf = True

            async def nobody(addresses: tuple[str, ...]) -> bool:
                return False

            stopping = asyncio.create_task(w.roles.stop(nobody, 30.0))
            await asyncio.sleep(1.0)
            assert w.running()
            w.roles.kill()
            await asyncio.sleep(1.0)
            assert not w.running()
            await stopping

    run_virtual(whole())


def test_a_lost_host_is_asked_nothing() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2, spares=1), replication=1, store="disk") as w:
            await w.until(lambda: len(w.serving) == 7)
            lost = w.keeper.placed["ps-1"].host
            w.network.partition(lost, "front-1", both_ways=True)
            await w.until(lambda: any(f"{lost} is lost" in note for note in w.notes))
            before = len(w.roles._table.hosts[lost].orders)
            for _ in range(10):
                log = await w.roles._questions.log("ps-1", lost, 5)
                assert log.problem == "its host does not answer"
            assert len(w.roles._table.hosts[lost].orders) == before

    run_virtual(whole())


def test_what_would_fail_on_each_host_ends_the_run() -> None:
    """A layer of the user's own that raises: without it, one worker after the other would end."""

    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            await w.until(lambda: len(w.serving) == 7)
            home = next(one.processes for one in w.places.agents if one.name == w.keeper.placed["worker-1"].host)
            attempt = home.living.pop("worker-1")
            why = "mine1, upward: ValueError"
            home.news.append(HostEnded("worker-1", attempt, 1, 1, why, 1, retry_helps=False, ends_run=True))
            async with asyncio.timeout(30):
                while w.failed is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert (w.failed.node, w.failed.reason) == ("worker-1", why)

    run_virtual(whole())


def test_a_run_whose_hosts_are_all_taken_away_is_stopped() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            await w.until(lambda: len(w.serving) == 7)
            for agent in w.places.agents:
                w.places.said.put_nowait(Draining(agent.name, 120.0, "its job is over"))
            await w.until(lambda: w.stopped)
            assert w.stopped == ["no host is left that will not be taken away"] and len(w.places.agents) <= 3

    run_virtual(whole())


def test_what_was_told_to_end_is_no_cause_of_a_later_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def emptied(*arguments: object) -> str:
        return ""

    monkeypatch.setattr(draining, "drain", emptied)

    async def whole() -> None:
        async with world(HostsAsked(2, 2, spares=1)) as w:
            await w.until(lambda: len(w.serving) == 7)
            home = w.keeper.placed["ps-1"].host
            w.places.said.put_nowait(Draining(home, 60.0, "preempted"))
            await w.until(lambda: "ps-1" in w.roles.ends and "ps-1" not in w.keeper.placed)
            assert w.roles.failures() == []

    run_virtual(whole())


async def _storm(seed: int) -> None:
    random = Random(seed)
    least = random.randint(1, 3)
    asked = HostsAsked(least, random.randint(least, 5), "ray" if seed % 2 else BY_HAND, spares=random.randint(0, 2))
    faults = LinkFaults(loss=random.choice([0, 0.02]), duplication=0.05, reordering=0.1, reordering_s_max=0.5)
    async with world(asked, seed, faults, ps=random.randint(1, 3), store=random.choice(["none", "disk"])) as w:
        for _ in range(25):
            if w.failed is not None:
                break
            living = w.places.living()
            what = random.random()
            if what < 0.2 and living:
                processes = random.choice(living).processes
                if processes.living:
                    processes.end(random.choice(sorted(processes.living)), random.choice([-9, 1, 0]))
            elif what < 0.35 and living:
                w.network.crash(random.choice(living).name)
            elif what < 0.5 and living:
                name = random.choice(living).name
                w.network.partition(name, "front-1", both_ways=random.random() < 0.7)
                await asyncio.sleep(random.choice([1.0, 8.0, 30.0, 75.0]))
                w.network.heal()
            elif what < 0.6 and len(living) > 1:
                agent = random.choice(living)
                agent.task.cancel()
                w.network.crash(agent.name)
                if random.random() < 0.5:
                    await asyncio.sleep(random.uniform(0, 10))
                    w.places.start(agent.name)
            elif what < 0.7 and living:
                name = random.choice(living).name
                w.places.said.put_nowait(random.choice([Lost(name, "dead"), Draining(name, 20.0, "preempted")]))
            elif what < 0.75 and living:
                random.choice(living).context.stop("received SIGTERM", exit_code=143)
            await asyncio.sleep(random.uniform(0, 8))
        assert {(one.node) for one in w.ends} <= {node for node, _ in w.reaped()} | {
            one.node for one in w.ends if one.status == 2
        }, f"seed {seed}: only what was reaped is reported"
        if w.failed is None:
            w.network.set_faults(LinkFaults())
            await asyncio.sleep(KEEP_S + 20)
        if w.failed is None:
            members = w.keeper.controllers.seats.members
            if members and w.keeper.formed:
                assert sorted(members) == w.controllers.clusters[-1].names(), f"seed {seed}: {w.notes[-12:]}"
                assert not w.keeper.vacant or not w.keeper.controllers.seats.waiting, f"seed {seed}: nobody replaces it"
            running = w.running()
            assert running == {node: one for node, one in w.expected().items() if node in running}, f"seed {seed}"
            missing = w.expected().keys() - running.keys()
            assert all(node in w.supervision._gone for node in missing), (
                f"seed {seed}: {missing} are nowhere: {w.expected()} {w.notes[-12:]}"
            )


@pytest.mark.parametrize("seed", range(6))
def test_any_faults(seed: int) -> None:
    run_virtual(_storm(seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_seeds(part: int) -> None:
    for seed in range(1000 + part * 25, 1025 + part * 25):
        run_virtual(_storm(seed))
