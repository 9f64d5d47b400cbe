"""A front's roles on many hosts, over the in-memory network, with agents whose processes are not there.

What must hold, whatever breaks: no role is reported dead that no agent has reaped; at the end, nothing runs.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from adamctl import __version__
from adamctl.config.experiment import ClusterConfig, Experiment
from adamctl.errors import AdamctlError
from adamctl.launch.failure import LastWords
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.commands import Run
from adamctl.launch.hosts.host_roles import HostRoles
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.placement import FRONT
from adamctl.launch.hosts.table import HostTable
from adamctl.launch.places.places import AgentCommand, HostNeeds, Notice
from adamctl.launch.run_certificates import RunCertificates
from adamctl.launch.supervision import Fail, Note, Restart, RoleEnd, Stop, Supervision
from adamctl.model.description import Model, Softmax
from adamctl.net.handshake import make_hello
from adamctl.net.testing.faults import LinkFaults
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.roles.context import RoleContext
from adamctl.roles.host.core.arguments import Roots
from adamctl.roles.host.core.host_core import HostCore
from adamctl.roles.host.core.instructions import StartProcess
from adamctl.roles.host.server import HostAgent
from adamctl.roles.process import CommonOptions
from adamctl.roles.role_process import RoleCommand
from adamctl.wire.messages import HostEnded, HostJoinRequest, HostServing, Report
from tests.launch.hosts.fake_controllers import FakeControllers
from tests.roles.host.fake_processes import FakeProcesses

ADDRESS = "memory://front"


@dataclass
class Processes(FakeProcesses):
    """Remembers which were reaped, as (node, attempt)."""

    reaped: list[tuple[str, int]] = field(default_factory=list)
    controllers: FakeControllers = field(default_factory=lambda: FakeControllers(1))
    before: list[tuple[StartProcess, HostServing]] = field(default_factory=list)
    """Started before the controllers have formed, without which nothing serves."""

    def start(self, what: StartProcess) -> HostEnded | None:
        ended = super().start(what)
        if what.role == "controller":
            self.controllers.started(self, what)
        elif ended is None:
            serving = self.news.pop()
            assert isinstance(serving, HostServing)
            self.before.append((what, serving))
        return ended

    def changes(self) -> list[Report]:
        waiting, self.before = self.before, []
        for what, serving in waiting:
            if self.living.get(what.node) == what.attempt:
                if self.controllers.serve(what.arguments):
                    self.news.append(serving)
                else:
                    self.before.append((what, serving))
        return super().changes()

    def end(self, node: str, status: int) -> None:
        if node in self.living:
            self.reaped.append((node, self.living[node]))
        super().end(node, status)


@dataclass
class Agent:
    name: str
    context: RoleContext
    processes: Processes
    task: asyncio.Task[None]


@dataclass
class FakeLocal:
    """The coordinator and a controller beside the front, which serve at once."""

    running: dict[str, str] = field(default_factory=dict)
    commands: dict[str, RoleCommand] = field(default_factory=dict)
    serving: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    ends: dict[str, RoleEnd] = field(default_factory=dict)
    controllers: FakeControllers = field(default_factory=lambda: FakeControllers(1))

    def add(self, *commands: RoleCommand) -> None:
        self.commands |= {command.node: command for command in commands}

    def start_one(self, node: str) -> None:
        self.running[node] = self.commands[node].role
        self.serving.append((node, (f"memory://{node}",)))

    def newly_serving(self) -> list[tuple[str, tuple[str, ...]]]:
        formed = [one for one in self.serving if self.controllers.serve(self.commands[one[0]].arguments)]
        self.serving = [one for one in self.serving if one not in formed]
        return formed

    def forget(self, node: str) -> None:
        del self.running[node], self.commands[node]
        self.serving = [one for one in self.serving if one[0] != node]

    def newly_ended(self) -> list[RoleEnd]:
        return []

    def failures(self) -> list[RoleEnd]:
        return []

    def pids(self) -> dict[str, int]:
        return dict.fromkeys(self.running, 1)

    def last_words(self, node: str) -> LastWords:
        return LastWords("front", "log", ())

    async def stop(self, ask: Any, grace_s: float, failed: bool, meanwhile: Any) -> list[str]:
        self.running.pop("coordinator", None)
        await meanwhile
        self.kill()
        return []

    def kill(self) -> None:
        self.running.clear()


class FakePlaces:
    """Starts agents on the network; the test says what is noticed of them."""

    def __init__(self, network: MemoryNetwork, controllers: FakeControllers) -> None:
        self._network, self._controllers = network, controllers
        self.agents: list[Agent] = []
        self.said: asyncio.Queue[Notice] = asyncio.Queue()
        self.most = 12
        self.ports: Callable[[int], Sequence[int]] = lambda count: range(7001, 7001 + count)

    async def begin(self, hosts: int, each: HostNeeds, agent: AgentCommand) -> None:
        for _ in range(hosts):
            self.start(f"h{len(self.agents) + 1}")

    async def one_more(self, why: str) -> bool:
        if len(self.agents) >= self.most:
            return False
        self.start(f"h{len(self.agents) + 1}")
        return True

    async def notices(self) -> AsyncIterator[Notice]:
        while True:
            yield await self.said.get()

    async def end(self) -> None:
        for agent in self.agents:
            agent.task.cancel()
        await asyncio.gather(*(agent.task for agent in self.agents), return_exceptions=True)

    def start(self, name: str) -> Agent:
        context = RoleContext(
            "host", name, {}, self._network, None, asyncio.Event(), logging.getLogger("adamctl.host"),
            common=CommonOptions(),
        )  # fmt: skip
        processes, number = Processes(controllers=self._controllers), len(self.agents) + 1

        def join(run: str) -> HostJoinRequest:
            return HostJoinRequest(name, number, name, 8, 1 << 30, name, run, __version__)

        core = HostCore(Roots(("/data",), ("/runs",)))
        agent = HostAgent(context, core, processes, ADDRESS, join, lambda count: self.ports(count), 300.0)
        made = Agent(name, context, processes, asyncio.create_task(agent.run()))
        self.agents.append(made)
        return made

    def living(self) -> list[Agent]:
        return [agent for agent in self.agents if not agent.task.done()]


@dataclass
class World:
    network: MemoryNetwork
    places: FakePlaces
    keeper: HostKeeper
    roles: HostRoles
    local: FakeLocal
    controllers: FakeControllers
    supervision: Supervision
    serving: list[str] = field(default_factory=list)
    ends: list[RoleEnd] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    failed: Fail | None = None

    async def watch(self) -> None:
        """Does what a front does with its roles; an error ends its run."""
        try:
            await self._watch()
        except AdamctlError as error:
            self.failed = Fail("", str(error), error.exit_code)

    async def _watch(self) -> None:
        while self.failed is None:
            for node, addresses in self.roles.newly_serving():
                assert addresses
                self.serving.append(node)
                self.supervision.serves(node)
            ends = self.roles.newly_ended()
            self.ends += ends
            for decision in (*self.roles.news(), *self.supervision.ended(ends)):
                match decision:
                    case Fail():
                        self.failed = decision
                    case Restart(node=node):
                        self.roles.start_one(node)
                    case Note(text=text):
                        self.notes.append(text)
                    case Stop(why=why):
                        self.stopped.append(why)
            await self.roles.changed()

    async def until(self, condition: Any, wait_s: float = 120.0) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while not condition():
            assert self.failed is None, self.failed
            assert loop.time() < until_s, self.notes
            await asyncio.sleep(0.1)

    def reaped(self) -> set[tuple[str, int]]:
        return {one for agent in self.places.agents for one in agent.processes.reaped}

    def running(self) -> dict[str, list[str]]:
        """Returns node -> the agents at which it runs."""
        found: dict[str, list[str]] = {}
        for agent in self.places.living():
            for node in agent.processes.living:
                found.setdefault(node, []).append(agent.name)
        return found

    def expected(self) -> dict[str, list[str]]:
        """Returns the same as the keeper has it, without what may be on a lost host: a controller, or an only copy."""
        lost = {name for name, host in self.keeper.hosts.items() if host.lost}
        return {one.node: [one.host] for one in self.keeper.placed.values() if one.host not in (FRONT, *lost)}


@asynccontextmanager
async def world(
    asked: HostsAsked,
    seed: int = 1,
    faults: LinkFaults | None = None,
    certificates: Callable[[Path], RunCertificates | None] = lambda folder: None,
    **cluster: Any,
) -> AsyncIterator[World]:
    given = ClusterConfig(**{"ps": 2, "replication": 2, **cluster})
    experiment = Experiment(name="small", model=Model((4,), (Softmax(2),)), cluster=given)
    network = MemoryNetwork(Random(seed), faults or LinkFaults())
    controllers = FakeControllers(seed)
    places, local = FakePlaces(network, controllers), FakeLocal(controllers=controllers)
    supervision = Supervision({}, stored=("ps", "controller"))
    keeper = HostKeeper(experiment, asked)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(experiment, Path("/runs/e.toml"), Path("/runs/small/001"), Path(folder), "none", "127.0.0.1", "front")
        roles = HostRoles(
            run, keeper, places, lambda address: AgentCommand((), {}), network, make_hello("front", "front-1"),
            HostTable("small/001", __version__), local, supervision, listen_at=ADDRESS,  # type: ignore[arg-type]
            certificates=certificates(Path(folder)),
        )  # fmt: skip
        roles._seating.open = controllers.open  # type: ignore[assignment]
        made = World(network, places, keeper, roles, local, controllers, supervision)
        network_loses = faults is not None and faults.loss > 0  # as no stream does: answers may be missing for 7 s
        await roles.begin()
        watching = asyncio.create_task(made.watch())
        try:
            yield made
        finally:
            ended = watching.done()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            network.heal()

            async def nobody(addresses: tuple[str, ...]) -> bool:
                return False

            heard = {host.name for host in roles._table.living() if host.connections and not network_loses}
            await roles.stop(nobody, 1.0)
            alive = [agent.name for agent in places.living() if agent.processes.living and agent.name in heard]
            roles.kill()
            await roles.close()
        if ended:
            watching.result()
        assert alive == [], "at the end of a run nothing runs at agents that can be reached"
        assert all(not agent.processes.living for agent in places.agents)
        assert local.running == {}
        assert all(one.host for one in made.ends if one.node not in ("coordinator", "controller"))
