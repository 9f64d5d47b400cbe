"""Who pushes and pulls: process after process under one name, each with an incarnation and numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

from adamctl.model.layout import ParameterLayout
from adamctl.roles.controller.core.service.events import Disconnected
from adamctl.roles.lease import Lease
from tests.sim.controllers.clients import Caller
from tests.sim.controllers.controller import SimController
from tests.sim.engine import Clock, World
from tests.sim.processes.process import Member, SessionView, SimProcess
from tests.sim.servers.clients.lanes import Served
from tests.sim.servers.clients.push_client import SimPushClient
from tests.sim.servers.ledger import Ledger

CONNECTION_LIVES_ON = 0.3
"""How often a server does not hear that a process has ended, as when its host has."""


class SimWorker(SimProcess):
    """One name; a process that dies loses its pushes that are under way, and the next begins with number 1.

    Attributes:
        client: of the process that is there; None: it is not registered.
        goes_on: whether new pushes are begun.
        lost_for_good: called when a server says that the job has failed.
        down_s: how long until a process that has died is followed by another.
        names_sessions: if not, a planted fault: a session goes on with the numbers of the one before.
    """

    client_type = SimPushClient

    def __init__(
        self,
        world: World,
        name: str,
        layout: ParameterLayout,
        job: str,
        servers: Mapping[str, Served],
        hosts: Mapping[str, SimController],
        ledger: Ledger,
        lease_s: float,
    ) -> None:
        super().__init__(world, name, Clock(world, 1.0))
        self.layout, self.job, self.servers, self.hosts, self.ledger = layout, job, servers, hosts, ledger
        self.lease_s = lease_s
        self.client: SimPushClient | None = None
        self.member: Member
        self.goes_on, self.pause_s_max = True, 0.05
        self.lost_for_good: Callable[[], None] = lambda: None
        self.down_s: Callable[[], float] = lambda: 0.1
        self.names_sessions = True
        self._sessions = 0
        self._session: SessionView
        self._ended: list[SimPushClient] = []

    @property
    def incarnation(self) -> int:
        return self.member.incarnation if self.run else 0

    @property
    def acknowledged(self) -> int:
        return sum(client.acknowledged for client in self._clients())

    @property
    def pulled(self) -> int:
        return sum(client.pulled for client in self._clients())

    @property
    def gave_up(self) -> bool:
        return any(client.gave_up for client in self._clients())

    def _clients(self) -> list[SimPushClient]:
        return self._ended if self.client is None else [*self._ended, self.client]

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins a process, which registers, and then works."""
        if self.alive:
            return
        view = self.begin()
        self.world.note(self.name, "starts", "run", self.run)
        self.member = member = Member(
            view,
            self.hosts,
            Lease(self.lease_s, self.clock.now),
            role="worker",
            registered=lambda: self._work(member),
            renewed=lambda _: None,
            lost=self.crash,
        )
        member.join()

    def _work(self, member: Member) -> None:
        self._sessions = 0
        self._connections = count(member.incarnation * 100_000)
        self._begin_session(member)

    def _begin_session(self, member: Member) -> None:
        """As a worker does that joins its run again: in one process, whose name and incarnation stay."""
        self._sessions += 1
        name = self.name if self._sessions == 1 or not self.names_sessions else f"{self.name}~{self._sessions}"
        key = (name, member.incarnation)
        self.ledger.dead.discard(key)
        self._session = SessionView(member.view)
        self.client = client = self.client_type(
            self._session,
            key,
            Caller(self._session, self.name, self.hosts),  # type: ignore[arg-type]
            self.layout,
            self.job,
            self.servers,
            self.ledger,
            self._connections,
        )
        client.goes_on, client.pause_s_max, client.lost_for_good = self.goes_on, self.pause_s_max, self.lost_for_good
        client.evicted = self.crash  # only another process has another incarnation
        client.begin()

    def restart(self) -> None:
        """The process gives up what is under way, as when its coordinator is gone, and begins a new session."""
        if not self.alive or self.paused or self.client is None:
            return
        self.world.note(self.name, "restart", "with", len(self.client.open), "pushes under way")
        self._give_up()
        self._begin_session(self.member)

    def bury(self) -> None:
        """The seed is over."""

    def stop_pushing(self) -> None:
        """What is under way is to be finished, and nothing begun."""
        self.goes_on = False
        if self.client is not None:
            self.client.goes_on = False

    def crash(self) -> None:
        """The process is gone. Of what was under way nobody knows whether it comes to be done."""
        if not self.alive:
            return
        self.end()
        under_way = len(self.client.open) if self.client is not None else 0
        self.world.note(self.name, "CRASHES", "with", under_way, "pushes under way")
        self._give_up()
        gone = Disconnected(self.member.connection)
        for host in self.hosts.values():
            self.world.after(self.world.random.random() * 0.05, partial(host.take, gone))
        self.world.after(self.down_s(), self.start)

    def _give_up(self) -> None:
        """Nobody listens to answers any more; the servers hear of it, or not."""
        client, self.client = self.client, None
        if client is None:
            return
        self._session.closed = True
        self._ended.append(client)
        self.ledger.dead.add(client.key)
        for lane in client.lanes.all():
            if lane.connection and not self.world.chance(CONNECTION_LIVES_ON):
                server = self.servers[lane.server]
                self.world.send(self.name, server.name, partial(server.disconnect, lane.connection))
