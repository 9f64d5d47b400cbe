"""Processes whose clients are the real `ParameterClient`, on event loops of the simulator's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any, cast

from adamctl.roles.ps.client import parameter_client as client_module
from adamctl.roles.ps.client import reroute as rerouting
from tests.sim.engine import ViolationError, World
from tests.sim.processes.loop import SimLoop, start
from tests.sim.processes.process import Member
from tests.sim.servers.clients.push_client import WINDOW
from tests.sim.servers.clients.real_client import RealClient
from tests.sim.servers.clients.worker import CONNECTION_LIVES_ON, SimWorker

REAL_CLIENTS = 0.25
"""Of the seeds."""
QUIET = logging.Logger("quiet", logging.CRITICAL + 1)
"""A client that is buried with its process says that its pushes were given up."""


def has_real_clients(seed: int) -> bool:
    """Says whether the clients of a seed's cluster are real ones. What else a seed decides does not depend on it."""
    return Random(f"{seed} clients").random() < REAL_CLIENTS


@contextmanager
def real_clients(world: World) -> Iterator[None]:
    """What they leave to chance is decided by the seed meanwhile; what they log, their callers get as well."""
    before = rerouting.random, client_module.log
    rerouting.random, client_module.log = world.random.random, QUIET  # type: ignore[assignment]
    try:
        yield
    finally:
        rerouting.random, client_module.log = before


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set is the same whenever a seed is run."""

    def __init__(self, work: Any, number: int, loop: SimLoop) -> None:
        self._number = number
        super().__init__(work, loop=loop)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number


class ClientLoop(SimLoop):
    """The event loop of one process."""

    _tasks = 0

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:  # type: ignore[override]
        self._tasks += 1
        return NumberedTask(coro, self._tasks, self)


class RealWorker(SimWorker):
    """See `SimWorker`.

    Attributes:
        loop: of the process that is there.
        connection_numbers: of those that the process makes.
        window: calls of each of its clients that may be under way.
    """

    window = WINDOW
    loop: ClientLoop
    connection_numbers: Iterator[int]

    def _work(self, member: Member) -> None:
        self._sessions = 0
        self._violation: BaseException | None = None
        self.connection_numbers = count(member.incarnation * 100_000)
        self._of_process: list[RealClient] = []
        self.loop = ClientLoop(member.view, self._stepped, self.failed)
        self._begin_session(member)

    def _begin_session(self, member: Member) -> None:
        session = self._sessions if self.names_sessions else 0
        self._sessions += 1
        client = RealClient(self, session)
        self.client = cast(Any, client)
        self._of_process.append(client)
        self.ledger.dead.difference_update(client.keys)
        self.loop.do(client.begin)

    def restart(self) -> None:
        """The process closes its clients, as when its coordinator is gone, and begins a new session."""
        if not self.alive or self.paused or self.client is None:
            return
        client = self._leave()
        self.world.note(self.name, "restart", "with", len(client.open), "calls under way")
        start(self.loop, self._close_and_begin(client))

    async def _close_and_begin(self, client: RealClient) -> None:
        await client.close()
        self._begin_session(self.member)

    def _leave(self) -> RealClient:
        """Nobody waits for answers any more."""
        client = cast(RealClient, self.client)
        self.client = None
        self._ended.append(cast(Any, client))
        self.ledger.dead.update(client.keys)
        return client

    def _give_up(self) -> None:
        """The process has ended; the servers hear of it, or not."""
        if self.client is not None:
            self._leave()
        if self.run == self.member.view.run and self.member.incarnation:
            for connection in (one for client in self._of_process for one in client.transport.connections):
                connection.end(tells=not self.world.chance(CONNECTION_LIVES_ON))
            self.world.after(0.0, self.loop.bury)

    def bury(self) -> None:
        if self.run and self.member.incarnation:
            if self.alive:
                self.end()
            self.loop.bury()

    # --- what must hold ---------------------------------------------------------------------------------------------

    def violated(self, text: str) -> None:
        """Something that must hold does not: it is told when the step is over, since clients catch much."""
        self._violation = self._violation or ViolationError(text)

    def holds_good(self, check: Any) -> None:
        try:
            check()
        except ViolationError as error:
            self._violation = self._violation or error

    def failed(self, error: BaseException, what: str) -> None:
        """The client has let an error out."""
        if isinstance(error, (ViolationError, AssertionError)):
            self._violation = self._violation or error
            return
        failure = ViolationError(f"a client has failed: {self.name}, {what}: {type(error).__name__}: {error}")
        failure.__cause__ = error
        self._violation = self._violation or failure

    def _stepped(self) -> None:
        if self._violation is not None:
            raise self._violation
