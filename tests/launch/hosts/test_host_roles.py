"""A front's roles on many hosts, over the in-memory network, with agents whose processes are not there: under any seed.

What must hold, whatever breaks: no role is reported dead that no agent has reaped; when all is quiet, every role runs
at one agent, the one that the keeper has put it on; at the end, nothing runs.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adamctl import __version__
from adamctl.config.experiment import ClusterConfig, Experiment
from adamctl.errors import AdamctlError, UnreachableError
from adamctl.launch.failure import LastWords
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.commands import Run
from adamctl.launch.hosts.host_roles import HostRoles
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.placement import FRONT
from adamctl.launch.hosts.table import KEEP_S, HostTable
from adamctl.launch.places.places import AgentCommand, Draining, HostNeeds, Lost, Notice
from adamctl.launch.supervision import Fail, Note, Restart, RoleEnd, Supervision
from adamctl.model.description import Model, Softmax
from adamctl.net.handshake import make_hello
from adamctl.net.testing.faults import LinkFaults
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.context import RoleContext
from adamctl.roles.host.core.arguments import Roots
from adamctl.roles.host.core.host_core import HostCore
from adamctl.roles.host.server import HostAgent
from adamctl.roles.process import CommonOptions
from adamctl.roles.role_process import RoleCommand
from adamctl.wire.messages import HostJoinRequest
from tests.roles.host.fake_processes import FakeProcesses

ADDRESS = "memory://front"


@dataclass
class Processes(FakeProcesses):
    """Remembers which were reaped, as (node, attempt)."""

    reaped: list[tuple[str, int]] = field(default_factory=list)

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

    def add(self, *commands: RoleCommand) -> None:
        self.commands |= {command.node: command for command in commands}

    def start_one(self, node: str) -> None:
        self.running[node] = self.commands[node].role
        self.serving.append((node, (f"memory://{node}",)))

    def newly_serving(self) -> list[tuple[str, tuple[str, ...]]]:
        serving, self.serving = self.serving, []
        return serving

    def newly_ended(self) -> list[RoleEnd]:
        return []

    def failures(self) -> list[RoleEnd]:
        return []

    def pids(self) -> dict[str, int]:
        return {}

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

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self.agents: list[Agent] = []
        self.said: asyncio.Queue[Notice] = asyncio.Queue()
        self.most = 12

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
        processes, number = Processes(), len(self.agents) + 1

        def join(run: str) -> HostJoinRequest:
            return HostJoinRequest(name, number, name, 8, 1 << 30, name, run, __version__)

        core = HostCore(Roots(("/data",), ("/runs",)))
        agent = HostAgent(context, core, processes, ADDRESS, join, lambda count: range(7001, 7001 + count), 300.0)
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
    supervision: Supervision
    serving: list[str] = field(default_factory=list)
    ends: list[RoleEnd] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
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
        """Returns the same as the keeper has it, without what stays on a lost host: a controller, or an only copy."""
        lost = {name for name, host in self.keeper.hosts.items() if host.lost}
        return {one.node: [one.host] for one in self.keeper.placed.values() if one.host not in (FRONT, *lost)}


@asynccontextmanager
async def world(
    asked: HostsAsked, seed: int = 1, faults: LinkFaults | None = None, **cluster: Any
) -> AsyncIterator[World]:
    given = ClusterConfig(**{"ps": 2, "replication": 2, **cluster})
    experiment = Experiment(name="small", model=Model((4,), (Softmax(2),)), cluster=given)
    network = MemoryNetwork(Random(seed), faults or LinkFaults())
    places, local, supervision = FakePlaces(network), FakeLocal(), Supervision({}, stored=("ps", "controller"))
    keeper = HostKeeper(experiment, asked)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(experiment, Path("/runs/e.toml"), Path("/runs/small/001"), Path(folder), "none", "127.0.0.1", "front")
        roles = HostRoles(
            run, keeper, places, lambda address: AgentCommand((), {}), network, make_hello("front", "front-1"),
            HostTable("small/001", __version__), local, supervision, listen_at=ADDRESS,  # type: ignore[arg-type]
        )  # fmt: skip
        made = World(network, places, keeper, roles, local, supervision)
        network_loses = faults is not None and faults.loss > 0  # as no stream does: answers may be missing for 7 s
        await roles.begin()
        watching = asyncio.create_task(made.watch())
        try:
            yield made
        finally:
            if watching.done():
                watching.result()
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
        assert alive == [], "at the end of a run nothing runs at agents that can be reached"
        assert all(not agent.processes.living for agent in places.agents)
        assert local.running == {}
        assert all(one.host for one in made.ends if one.node not in ("coordinator", "controller"))


def test_a_run_begins_serves_and_ends() -> None:
    async def whole() -> None:
        async with world(HostsAsked(2, 2)) as w:
            await w.until(lambda: len(w.serving) == 7)
            assert w.running() == w.expected() and set(w.local.running) == {"controller", "coordinator"}
            assert "2 hosts: h1, h2" in w.notes or "2 hosts: h2, h1" in w.notes

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
            await w.until(lambda: len(w.serving) == 7)
            for number in range(4):
                w.places.said.put_nowait(Lost(f"never-{number}", "its agent has ended with status 2"))
            await asyncio.sleep(5)
            assert len(w.places.agents) == 5
            with pytest.raises(
                UnreachableError, match="4 agents have ended before they dialled the front; the last one"
            ):
                w.roles.news()

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


async def _storm(seed: int) -> None:
    random = Random(seed)
    least = random.randint(1, 3)
    asked = HostsAsked(least, random.randint(least, 5), spares=random.randint(0, 2))
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
