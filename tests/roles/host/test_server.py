"""An agent and a front over the in-memory network: joining, orders, reports, and every way to lose each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adamctl import __version__
from adamctl.errors import ConfigurationError, HandshakeError, RemoteError, UnreachableError
from adamctl.launch.hosts.serving import AgentServer
from adamctl.launch.hosts.table import KEEP_S, LOST_AFTER_S, Arrived, HostTable, Lost, Reported
from adamctl.net.handshake import make_hello, refusal
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.faults import LinkFaults
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.net.transport import Request
from adamctl.roles.context import RoleContext
from adamctl.roles.host.core.arguments import Roots
from adamctl.roles.host.core.host_core import HostCore
from adamctl.roles.host.server import HostAgent, run
from adamctl.roles.process import CommonOptions
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ErrorReply,
    HostDraining,
    HostEnded,
    HostJoinRequest,
    HostLines,
    HostPorts,
    HostReading,
    HostServing,
    HostStart,
    HostStop,
    HostTail,
    HostTailRequest,
)
from tests.roles.host.fake_processes import FakeProcesses

FRONT = "memory://front"


@dataclass
class Agent:
    context: RoleContext
    core: HostCore
    processes: FakeProcesses
    task: asyncio.Task[None]


@dataclass
class World:
    """A front without roles, and agents that dial it, over one network."""

    network: MemoryNetwork
    table: HostTable
    server: AgentServer
    events: list[Any] = field(default_factory=list)
    agents: list[Agent] = field(default_factory=list)

    def agent(
        self, name: str, process: int = 1, machine: str = "", version: str = __version__, wait_s: float = 300.0,
        token: str = "", stop_deadline_s: float = 30.0,
    ) -> Agent:  # fmt: skip
        context = RoleContext(
            "host", name, {}, self.network, None, asyncio.Event(), logging.getLogger("adamctl.host"), token=token,
            common=CommonOptions(stop_deadline_s=stop_deadline_s),
        )  # fmt: skip
        core, processes = HostCore(Roots(("/data",))), FakeProcesses()

        def join(run: str) -> HostJoinRequest:
            return HostJoinRequest(name, process, machine or name, 4, 1 << 30, name, run, version)

        agent = HostAgent(context, core, processes, FRONT, join, lambda count: range(1, count + 1), wait_s)
        made = Agent(context, core, processes, asyncio.create_task(agent.run()))
        self.agents.append(made)
        return made

    async def serving_agent(self) -> Agent:
        """Returns the agent of host-1, at which worker-1 serves."""
        agent = self.agent("host-1")
        await self.until(lambda: self.events)
        self.order("host-1", start("worker-1"))
        await self.until(lambda: self.reports(HostServing))
        return agent

    def look(self) -> None:
        self.table.tick(asyncio.get_running_loop().time())
        self.events += self.table.take_events()

    async def until(self, condition: Callable[[], object], wait_s: float = 60.0) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            self.look()
            if condition():
                return
            assert loop.time() < until_s, f"not within {wait_s} s; events: {self.events}"
            await asyncio.sleep(0.05)

    async def look_for(self, wait_s: float) -> None:
        for _ in range(round(wait_s / 0.05)):
            self.look()
            await asyncio.sleep(0.05)

    def order(self, host: str, make: Callable[[int], Any]) -> int:
        number = self.table.order(host, make)
        self.server.wake(host)
        return number

    def reports(self, kind: type[Any]) -> list[Any]:
        return [one.report for one in self.events if isinstance(one, Reported) and isinstance(one.report, kind)]


@asynccontextmanager
async def world(seed: int = 1, faults: LinkFaults | None = None, token: str = "") -> AsyncIterator[World]:
    network = MemoryNetwork(Random(seed), faults or LinkFaults())
    table = HostTable("small/001", __version__)
    hello = make_hello("front", "front-1", 0, token)

    def tail(request: Request, message: HostTailRequest) -> None:
        raise RemoteError(ErrorCode.NOT_READY, "no roles")

    made = World(network, table, AgentServer(network, hello, table, lambda: None, tail))
    await made.server.listen([FRONT])
    try:
        yield made
    finally:
        for agent in made.agents:
            agent.task.cancel()
        await asyncio.gather(*(agent.task for agent in made.agents), return_exceptions=True)
        assert all(agent.processes.closed and not agent.processes.living for agent in made.agents)
        await made.server.close()


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def start(node: str) -> Callable[[int], HostStart]:
    return lambda number: HostStart(number, "worker", node, ())


@virtual
async def test_an_agent_joins_takes_orders_and_reports() -> None:
    async with world() as w:
        agent = w.agent("host-1")
        await w.until(lambda: Arrived("host-1", False) in w.events)
        await w.until(lambda: agent.processes.kept_for == "small/001 0")
        number = w.order("host-1", start("worker-1"))
        await w.until(lambda: w.reports(HostServing))
        assert w.reports(HostServing) == [HostServing("worker-1", number, ("memory://worker-1",), 1)]
        tail = w.order("host-1", lambda order: HostTail(order, "worker-1", 2))
        w.order("host-1", lambda order: HostPorts(order, 2))
        await w.until(lambda: w.reports(HostLines))
        assert w.reports(HostLines) == [HostLines(tail, "/logs/worker-1.log", ("line 0", "line 1"))]
        await w.until(lambda: w.reports(HostReading), 10)
        w.order("host-1", lambda order: HostStop(order, "", 0, 1.0, "the run is over", forget=True))
        await asyncio.wait_for(agent.task, 10)
        assert agent.processes.forgotten
        w.look()
        assert [one.status for one in w.reports(HostEnded)] == [143], "the front hears of it before the agent has ended"


@virtual
async def test_an_agent_may_be_there_before_the_front() -> None:
    async with world() as w:
        await w.server.close()
        w.agent("host-1")
        await asyncio.sleep(100)
        w.server = AgentServer(w.network, make_hello("front", "front-1"), w.table, lambda: None, lambda *_: None)
        await w.server.listen([FRONT])
        await w.until(lambda: Arrived("host-1", False) in w.events)


@virtual
async def test_without_any_front_it_gives_up_and_says_where_it_looked() -> None:
    async with world() as w:
        await w.server.close()
        agent = w.agent("host-1", wait_s=10.0)
        with pytest.raises(UnreachableError, match=r"no front at memory://front took this host in within 10 s"):
            await asyncio.wait_for(agent.task, 30)


@virtual
async def test_a_stranger_and_another_version_are_refused_at_once() -> None:
    async with world(token="secret") as w:
        with pytest.raises(HandshakeError, match=r"another token|not the one"):
            await asyncio.wait_for(w.agent("host-1", token="guess").task, 5)
        with pytest.raises(ConfigurationError, match="install the same on all"):
            await asyncio.wait_for(w.agent("host-2", token="secret", version="0.0.1").task, 5)
        assert w.events == [] and w.table.hosts == {}


@virtual
async def test_a_name_is_one_host() -> None:
    async with world() as w:
        w.agent("host-1", process=1, machine="a")
        await w.until(lambda: w.events)
        with pytest.raises(ConfigurationError, match="start this agent with another --name"):
            await asyncio.wait_for(w.agent("host-1", process=2, machine="b").task, 5)
        again = w.agent("host-1", process=3, machine="a")
        await w.look_for(20)
        assert w.events == [Arrived("host-1", False)], "the first one is there, so the other one waits"
        w.agents[0].task.cancel()
        await w.until(lambda: len(w.events) == 3)
        assert isinstance(w.events[1], Lost) and w.events[2] == Arrived("host-1", False)
        assert not again.task.done() and w.table.hosts["host-1"].process == 3


@virtual
async def test_a_broken_connection_loses_nothing_and_nobody() -> None:
    async with world() as w:
        agent = await w.serving_agent()
        for _ in range(5):
            w.network.crash("host-1")
            agent.processes.end("worker-1", -9)
            w.order("host-1", start("worker-1"))
            await w.look_for(3)
        assert not [one for one in w.events if isinstance(one, Lost)]
        assert [one.attempt for one in w.reports(HostEnded)] == [1, 2, 3, 4, 5]
        assert [one.attempt for one in w.reports(HostServing)] == [1, 2, 3, 4, 5, 6]


@virtual
async def test_a_host_that_is_cut_off_is_lost_for_the_front_and_keeps_its_roles_for_a_minute() -> None:
    async with world() as w:
        agent = await w.serving_agent()
        w.network.partition("host-1", "front-1", both_ways=True)
        await w.until(lambda: any(isinstance(one, Lost) for one in w.events), LOST_AFTER_S + 3)
        await asyncio.sleep(KEEP_S / 2)
        assert agent.processes.living == {"worker-1": 1}
        w.network.heal()
        await w.until(lambda: Arrived("host-1", True) in w.events, 20)
        assert agent.processes.living == {"worker-1": 1} and w.reports(HostEnded) == []


@virtual
async def test_after_a_minute_without_the_front_its_roles_are_ended_and_it_fails() -> None:
    async with world() as w:
        agent = await w.serving_agent()
        await w.server.close()
        await asyncio.sleep(KEEP_S - 5)
        assert agent.processes.living
        with pytest.raises(UnreachableError, match="the front has not been there for 60 s; its roles were ended"):
            await asyncio.wait_for(agent.task, 30)
        assert not agent.processes.living


@virtual
async def test_an_agent_of_a_killed_front_ends_so_that_it_may_come_anew_to_a_front_of_the_same_name() -> None:
    """Whoever starts it again does so after exit code 3, and not after 2, which says that it is wrongly configured."""
    async with world() as w:
        agent = await w.serving_agent()
        await w.server.close()
        w.table, w.events = HostTable("small/001", __version__, process=7), []
        w.server = AgentServer(w.network, make_hello("front", "front-1"), w.table, lambda: None, lambda *_: None)
        await w.server.listen([FRONT])
        with pytest.raises(UnreachableError, match="the front now runs another run"):
            await asyncio.wait_for(agent.task, 30)
        assert not agent.processes.living and not w.table.hosts
        again = w.agent("host-1", process=2)
        await w.until(lambda: Arrived("host-1", False) in w.events)
        await w.until(lambda: again.processes.kept_for == "small/001 7")


@virtual
async def test_a_silent_host_that_comes_back_after_its_name_was_given_away_ends() -> None:
    async with world() as w:
        old = w.agent("host-1", process=1, machine="a")
        await w.until(lambda: w.events)
        w.network.partition("host-1", "front-1", both_ways=True)
        await w.until(lambda: any(isinstance(one, Lost) for one in w.events))
        w.network.heal()
        w.network.crash("host-1", silent=True)
        request = HostJoinRequest("host-1", 2, "b", 4, 0, "b", "", __version__)
        w.table.join(request, 999, asyncio.get_running_loop().time())
        with pytest.raises(ConfigurationError, match="another agent has the name host-1 now; its roles run elsewhere"):
            await asyncio.wait_for(old.task, 30)


@virtual
async def test_a_signal_tells_the_front_and_waits_for_what_it_orders() -> None:
    async with world() as w:
        agent = await w.serving_agent()
        agent.context.stop("received SIGTERM", exit_code=143)
        await w.until(lambda: w.reports(HostDraining))
        (draining,) = w.reports(HostDraining)
        assert (draining.deadline_s, draining.why) == (23.0, "received SIGTERM")
        assert agent.processes.living
        w.order("host-1", lambda order: HostStop(order, "worker-1", 1, 5.0))
        await w.until(lambda: w.reports(HostEnded))
        w.order("host-1", lambda order: HostStop(order, "", 0, 5.0, "everything was moved off it"))
        await asyncio.wait_for(agent.task, 5)


@virtual
async def test_a_front_that_does_nothing_is_not_waited_for_for_ever() -> None:
    async with world() as w:
        agent = await w.serving_agent()
        agent.context.stop("received SIGTERM", exit_code=143)
        await asyncio.wait_for(agent.task, 30)
        assert not agent.processes.living


@virtual
async def test_an_agent_whose_parent_is_gone_ends_at_once() -> None:
    async with world() as w:
        agent = await w.serving_agent()
        agent.context.fail(UnreachableError("the process that started this role is gone"))
        await asyncio.wait_for(agent.task, 1)


@virtual
async def test_what_is_missing_on_a_host_is_said_at_once() -> None:
    async with world() as w:
        w.agent("host-1")
        await w.until(lambda: w.events)
        w.order("host-1", lambda number: HostStart(number, "data", "data-1", (), needs=(("/data/none",),)))
        await w.until(lambda: w.reports(HostEnded), 10)
        (ended,) = w.reports(HostEnded)
        assert (ended.status, ended.error, ended.retry_helps) == (2, "there is no /data", False)


async def _storm(seed: int) -> None:
    """Any faults of the network: each order is carried out once, each report arrives once and in order."""
    random = Random(seed)
    faults = LinkFaults(loss=random.choice([0, 0.02, 0.1]), duplication=0.1, reordering=0.2, reordering_s_max=1.0)
    async with world(seed, faults) as w:
        agents = [w.agent(f"host-{number}", process=number) for number in range(1, 4)]
        await w.until(lambda: len([one for one in w.events if isinstance(one, Arrived)]) >= 3, 200)
        expected: dict[str, list[int]] = {agent.context.node: [] for agent in agents}
        for step in range(30):
            name = f"host-{random.randrange(1, 4)}"
            expected[name].append(w.order(name, start(f"worker-{name}-{step}")))
            if random.random() < 0.2:
                w.network.crash(f"host-{random.randrange(1, 4)}")
            if random.random() < 0.1:
                w.network.partition(name, "front-1", both_ways=random.random() < 0.5)
                await w.look_for(random.uniform(0, 20))
                w.network.heal()
            await w.look_for(random.uniform(0, 1))

        def served() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {name: [] for name in expected}
            for one in w.events:
                if isinstance(one, Reported) and isinstance(one.report, HostServing):
                    found[one.host].append(one.report.attempt)
            return found

        await w.until(lambda: served() == expected, 300)
        for agent in agents:
            assert sorted(agent.processes.living.values()) == expected[agent.context.node], f"seed {seed}"
            assert not agent.task.done()


@pytest.mark.parametrize("seed", range(20))
def test_any_faults_of_the_network(seed: int) -> None:
    run_virtual(_storm(seed))


@pytest.mark.parametrize(
    ("code", "advised"),
    [
        (ErrorCode.WRONG_TOKEN, True),
        (ErrorCode.WRONG_IDENTITY, True),
        (ErrorCode.UNSUPPORTED_VERSION, False),
        (ErrorCode.WRONG_CLUSTER, False),
    ],
)
async def test_advice_about_the_token_comes_where_a_token_or_a_certificate_was_refused(
    code: ErrorCode, advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(agent: HostAgent) -> None:
        raise refusal("tcp://front:1", ErrorReply(int(code), "no"))

    monkeypatch.setattr(HostAgent, "run", refused)
    options = {"front": "127.0.0.1:7000", "root": str(tmp_path), "wait": 1.0, "tls": True}
    log = logging.getLogger("adamctl.host")
    context = RoleContext("host", "host-1", options, StreamTransport(), None, asyncio.Event(), log, token="secret")
    with pytest.raises(HandshakeError, match="refused the connection: no") as caught:
        await run(context)
    assert ("a copy of secrets/token of this very run" in str(caught.value)) == advised
