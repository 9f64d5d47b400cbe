"""The roles of a run on many hosts, as its front sees them: what the keeper decides is carried out by agents.

Two roles stay beside the front: the coordinator and, below three hosts, the only controller. Nothing here is polled but
these two: agents say what happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from adamctl.launch.failure import LastWords
from adamctl.launch.hosts.beside import Beside
from adamctl.launch.hosts.commands import Run
from adamctl.launch.hosts.decisions import (
    BeginAnew,
    Decision,
    Drain,
    End,
    GiveUp,
    OfControllers,
    OneMore,
    Put,
    Release,
    Say,
    StopRun,
)
from adamctl.launch.hosts.draining import Emptying
from adamctl.launch.hosts.ending import Ending, stop
from adamctl.launch.hosts.engine_use import EngineUse
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.placement import FRONT, Offer
from adamctl.launch.hosts.questions import Questions
from adamctl.launch.hosts.roles_there import RolesThere
from adamctl.launch.hosts.seating import Seating
from adamctl.launch.hosts.serving import AgentServer
from adamctl.launch.hosts.starter import Starter, bracketed
from adamctl.launch.hosts.table import Arrived, Event, HostTable, Lost
from adamctl.launch.places.places import AgentCommand, Places
from adamctl.launch.plan import COORDINATOR
from adamctl.launch.roles import POLL_S, Ask, LocalRoles
from adamctl.launch.run_certificates import RunCertificates
from adamctl.launch.supervision import Fail, Note, RoleEnd, Stop, Supervision
from adamctl.live.reading import ProcessReading
from adamctl.net.address import parse_address
from adamctl.net.transport import Request, Transport
from adamctl.wire.messages import (
    Hello,
    HostDraining,
    HostEnded,
    HostFailing,
    HostFreePorts,
    HostLines,
    HostReading,
    HostServing,
    HostTailRequest,
    Report,
)

WAKE_S = 1.0
"""The front looks at the clock at least so often."""
WAITING_EVERY_S = 30.0
"""How often a run that waits for hosts says so."""


class HostRoles:
    """Implements `adamctl.launch.roles.Roles`. Used by the front's event loop only."""

    def __init__(
        self,
        run: Run,
        keeper: HostKeeper,
        engine: Places,
        agent: Callable[[str], AgentCommand],
        transport: Transport,
        hello: Hello,
        table: HostTable,
        local: LocalRoles,
        supervision: Supervision,
        on_listening: Callable[[str], None] = lambda address: None,
        listen_at: str = "",
        meeting_agents: Transport | None = None,
        certificates: RunCertificates | None = None,
    ) -> None:
        """
        Args:
            agent: returns how agents are started that dial this address.
            transport: how to reach roles.
            hello: the front's identity and token.
            local: without roles yet; it starts those beside the front.
            on_listening: told the address at which agents and operators reach the front.
            listen_at: in place of any free port where the roles beside the front listen.
            meeting_agents: how agents reach it, by default as it reaches roles. The rest is as for `Starter`.
        """
        self._run, self._keeper, self._agent, self._listen_at = run, keeper, agent, listen_at
        self._stir, self._told = asyncio.Event(), asyncio.Event()
        self._engine = EngineUse(engine, keeper, table, self._on_draining, self._stir.set, self._say)
        self._transport, self._hello, self._table = transport, hello, table
        self._local, self._supervision, self._on_listening = local, supervision, on_listening
        self._server = AgentServer(meeting_agents or transport, hello, table, self._stir.set, self._tail_asked)
        self._there = RolesThere()
        self._serving: list[tuple[str, tuple[str, ...]]] = []
        self._ended: list[RoleEnd] = []
        self._news: list[Note | Fail | Stop] = []
        self._words: dict[str, LastWords] = {}
        self._questions = Questions(self._order_if_there)
        self._beside = Beside(self._told.set)
        self._spawn = self._beside.spawn
        self._starter = Starter(
            run, local, self._there, self._order, self._questions.free_port,
            lambda host: self._table.hosts[host].address, self._spawn, certificates,
        )  # fmt: skip
        self._seating = Seating(transport, hello, keeper, self._starter, supervision, self._spawn, self._decide)
        self._emptying = Emptying(transport, hello, keeper, self._starter, self._there, self._decide)
        self._ending = Ending(table, self._there, self._order)
        self._stopping = False

    # --- the beginning ----------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Listens and asks the engine for hosts; roles are started when enough of them are there.

        Raises:
            ConfigurationError: the address to listen on is taken.
        """
        (bound,) = await self._server.listen(
            (self._listen_at or f"tcp://{bracketed(self._run.bind)}:{self._run.port}",)
        )
        address = bound if self._listen_at else str(parse_address(bound)._replace(host=self._run.advertise))
        self._on_listening(address)
        self._news.append(Note(self._keeper.waiting))
        for work in (self._engine.use(self._agent(address)), self._drive(), self._watch_local()):
            self._spawn(work)

    # --- what happens -----------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _drive(self) -> None:
        """Passes what the table has seen on to the keeper, and the clock to both; says what it waits for."""
        said_s = self._now_s()
        while True:
            self._stir.clear()
            now_s = self._now_s()
            if now_s - said_s >= WAITING_EVERY_S and self._keeper.waiting:
                said_s = now_s
                self._say(self._keeper.waiting)
            self._table.tick(now_s, WAKE_S)
            for event in self._table.take_events():
                self._on_event(event, now_s)
            self._decide(self._keeper.tick(now_s))
            next_s = min(self._table.next_s(), self._keeper.next_s(), now_s + WAKE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(next_s - now_s, 0.001)):  # unlike wait_for, it loses no cancellation
                    await self._stir.wait()

    async def _watch_local(self) -> None:
        while True:
            serving, ended = self._local.newly_serving(), self._local.newly_ended()
            for node, addresses in serving:
                self._serves(node, addresses)
            self._ended += ended
            if serving or ended:
                self._told.set()
            await asyncio.sleep(POLL_S)

    def _on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, Arrived):
            self._arrived(event, now_s)
        elif isinstance(event, Lost):
            self._lost(event, now_s)
        else:
            self._reported(event.host, event.report, now_s)

    def _arrived(self, event: Arrived, now_s: float) -> None:
        """A host is there: what it still runs of roles that are elsewhere now is ended."""
        host = self._table.hosts[event.host]
        self._engine.came()
        for node, attempt in self._there.arrived(event.host, event.again):
            self._order(event.host, stop(node, attempt, "it runs elsewhere now"))
        offer = Offer(event.host, min(self._keeper.asked.cores or host.cores, host.cores))
        if not self._stopping:
            self._decide(self._keeper.arrived(offer, event.again, now_s))

    def _lost(self, event: Lost, now_s: float) -> None:
        self._questions.lost(event.host)
        if not self._stopping:
            self._decide(self._keeper.lost(event.host, event.why, now_s))

    def _serves(self, node: str, addresses: tuple[str, ...]) -> None:
        self._serving.append((node, addresses))
        self._decide(self._keeper.serves(node))

    def _reported(self, host: str, report: Report, now_s: float) -> None:
        match report:
            case HostLines() | HostFreePorts():
                self._questions.answered(host, report)
            case HostDraining(deadline_s=deadline_s, why=why):
                self._on_draining(host, deadline_s, why)
            case HostReading():
                self._there.reads(report)
            case HostServing(node=node):
                if addresses := self._there.serves(host, report):
                    self._serves(node, addresses)
            case HostFailing():
                self._there.fails(host, report, time.monotonic())
            case HostEnded():
                end = self._there.reaped(host, report, time.monotonic())
                if end is not None:
                    self._reaped(end)
        self._told.set()

    def _reaped(self, end: RoleEnd) -> None:
        """An agent has reaped a role: as it was told to, or supervision decides."""
        self._ending.reaped.set()
        decisions = None if self._stopping else self._keeper.ended(end.node)
        if decisions is None:
            self._ended.append(end)
        else:
            self._supervision.leave(end.node)
            self._decide(decisions)

    # --- what is decided --------------------------------------------------------------------------------------------

    def _decide(self, decisions: Iterable[Decision]) -> None:
        """Carries out what the keeper has decided, then forgets the roles that the run goes on without."""
        for decision in decisions:
            match decision:
                case Put(placed=placed):
                    self._supervision.add(placed.node, placed.role)
                    self._starter.put(placed)
                case End(node=node, why=why):
                    there = self._there.roles.get(node)
                    if there is not None:
                        self._order(there.placed.host, stop(node, there.attempt, why))
                case Drain(node=node):
                    self._spawn(self._emptying.empty(node))
                case Release(host=host, why=why):
                    self._order(host, stop("", 0, why))
                case OneMore(why=why) if not self._keeper.saving:
                    self._spawn(self._engine.one_more(why))
                case Say(text=text):
                    self._news.append(Note(text))
                case StopRun(why=why):
                    self._news.append(Stop(why))
                case OfControllers() if not self._stopping:
                    self._seating.carry_out(decision)
                case BeginAnew(why=why):
                    self._begin_anew(why)
                case GiveUp(reason=reason):
                    self._news.append(Fail("", reason, 1))
            self._told.set()
        for node in self._there.keep_only(self._keeper.placed):
            self._supervision.leave(node)

    def _begin_anew(self, why: str) -> None:
        for node, there in self._there.roles.items():
            self._order(there.placed.host, stop(node, there.attempt, f"{why}, so all begins anew"))
        for node in (*self._there.keep_only(()), *self._local.pids()):
            self._supervision.leave(node)
        self._starter.begin_anew()

    def _say(self, text: str) -> None:
        self._decide([Say(text)])

    def _on_draining(self, host: str, deadline_s: float, why: str) -> None:
        if not self._stopping:
            self._decide(self._keeper.draining(host, deadline_s, why, self._now_s()))

    def _order(self, host: str, make: Callable[[int], Any]) -> int:
        number = self._table.order(host, make)
        self._server.wake(host)
        return number

    def _order_if_there(self, host: str, make: Callable[[int], Any]) -> int:
        """Orders nothing of a lost host: what it is asked again and again would pile up until it is there."""
        return 0 if self._table.hosts[host].lost else self._order(host, make)

    # --- what the front asks ----------------------------------------------------------------------------------------

    @property
    def ends(self) -> Mapping[str, RoleEnd]:
        """Roles that were reaped, by this process or by an agent."""
        return {**self._there.ends, **self._local.ends}

    def start_one(self, node: str) -> None:
        """Starts a reaped role again where it was; if its host is lost meanwhile, the keeper has seen to it."""
        placed = self._keeper.placed.get(node)
        if node == COORDINATOR:
            if not self._starter.resume_coordinator():
                self._news.append(Fail(node, "it ended before the first checkpoint", 1))
                self._told.set()
        elif placed is None:
            self._supervision.leave(node)
        elif placed.host == FRONT:
            self._local.start_one(node)
        elif node not in self._there.roles and not self._table.hosts[placed.host].lost:
            self._supervision.add(node, placed.role)
            self._starter.start(placed)

    def role(self, node: str) -> str:
        """Returns the role of a node, also of one that has ended."""
        placed = self._keeper.placed.get(node)
        return node.rpartition("-")[0] or node if placed is None else placed.role

    def there(self, node: str) -> bool:
        """See `Roles.there`. A controller that waits for a place does not count yet."""
        return node in self._keeper.placed and node != self._keeper.controllers.seats.waiting

    def pids(self) -> Mapping[str, int]:
        """Returns the processes beside the front."""
        return self._local.pids()

    def readings(self) -> Mapping[str, ProcessReading]:
        """Returns what agents have said last of their processes."""
        return self._there.readings

    def where_logs_are(self, node: str) -> str:
        """Returns where the log of a role is, for people."""
        host = self._there.host_of(node)
        return f"the agent's folder on {host}" if host else "the run folder"

    async def ask_for_words(self, node: str) -> None:
        """Fetches the end of a role's log from its host."""
        if host := self._there.host_of(node):
            self._words[node] = await self._questions.last_words(node, host)

    def last_words(self, node: str) -> LastWords:
        """Returns what `ask_for_words` has found, or the end of a log beside the front."""
        return self._words.get(node) or self._local.last_words(node)

    async def changed(self) -> None:
        """Waits until there is something to tell, at most a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAKE_S):
                await self._told.wait()
        self._told.clear()

    def newly_serving(self) -> list[tuple[str, tuple[str, ...]]]:
        """See `Roles.newly_serving`."""
        serving, self._serving = self._serving, []
        return serving

    def newly_ended(self) -> list[RoleEnd]:
        """See `Roles.newly_ended`."""
        ended, self._ended = self._ended, []
        return ended

    def failures(self) -> list[RoleEnd]:
        """See `Roles.failures`. What was told to end is placed nowhere any more, and is no failure."""
        ended = [end for node, end in self._there.ends.items() if node in self._keeper.placed]
        return [*self._local.failures(), *ended, *self._there.failing()]

    def news(self) -> list[Note | Fail | Stop]:
        """Returns what has happened to hosts.

        Raises:
            Exception: the engine failed, mostly with an AdamctlError.
        """
        self._beside.check()
        news, self._news = self._news, []
        return news

    # --- the end ----------------------------------------------------------------------------------------------------

    async def stop(self, ask: Ask, grace_s: float, failed: bool = False) -> list[str]:
        """Ends all roles, controllers last, then the agents; see `Roles.stop`."""
        self._stopping = True
        meanwhile = self._ending.end_roles(grace_s, controllers=False)
        forced = await self._local.stop(ask, grace_s, failed, meanwhile)
        await self._ending.end_roles(grace_s, controllers=True)
        self._ending.end_agents(grace_s, forget=not failed)
        await self._ending.agents_gone()
        return [*forced, *self._ending.forced()]

    def saving(self) -> None:
        """See `Roles.saving`."""
        self._keeper.saving = True

    def kill(self) -> None:
        """Ends everything at once: agents are told to, and end by themselves if they cannot be told."""
        self._local.kill()
        self._stopping = True
        self._ending.end_agents(0.0, forget=False)  # also while `stop` still waits for roles

    async def close(self) -> None:
        """Gives the hosts back, stops listening."""
        await self._beside.close()
        await self._engine.end()
        await self._server.close()

    def _tail_asked(self, request: Request, message: HostTailRequest) -> None:
        self._spawn(self._questions.answer_tails(request, self._there.places(message.node), message.lines))
