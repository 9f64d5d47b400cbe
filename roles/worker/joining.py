"""A worker looks for a run: it offers itself to every run that needs workers, and takes part in the first that has it.

Where replicas have several partitions it waits in the lobby until others are there, too. It waits in the lobbies of all
runs at once: otherwise two workers could each wait where the other one does not, and a run whose replicas need more
workers than there are would keep those that another one needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from adamctl.config.records import JobRecord
from adamctl.errors import RemoteError, UnreachableError
from adamctl.kernels.implementation import implementation
from adamctl.model.rule import VECTORS
from adamctl.net.address import host_id
from adamctl.roles.configuration import ConfigurationStore, follow_on, readable
from adamctl.roles.context import RoleContext
from adamctl.roles.coordinator.client import CoordinatorClient, Joined
from adamctl.wire.changes import Changes
from adamctl.wire.constants import ErrorCode

RETRY_S = 0.5
LOBBY_S = 5.0
CONNECT_S = 5.0
TRY_LATER = frozenset(
    {ErrorCode.OVER_QUOTA, ErrorCode.NOT_READY, ErrorCode.SHUTTING_DOWN, ErrorCode.IMPLEMENTATION_MISMATCH}
)
MISFIT = frozenset({ErrorCode.PLAN_MISMATCH, ErrorCode.NEIGHBOUR_UNREACHABLE, ErrorCode.IMPLEMENTATION_MISMATCH})

_LOG = logging.getLogger(__name__)


class Taken(NamedTuple):
    """A run that has this worker."""

    job: str
    coordinator: CoordinatorClient
    joined: Joined


class RunFinder:
    """Looks for one run; used once. Runs on the event loop."""

    def __init__(self, context: RoleContext, threads: int, wanted: str | None, done: Collection[str]) -> None:
        """`wanted`: the only job to take part in, None: any but those in `done`."""
        self._context, self._threads = context, threads
        self._wanted, self._done = wanted, done
        self._jobs: dict[str, JobRecord] = {}
        self._lobbies: dict[str, asyncio.Task[Taken]] = {}
        self._told: set[str] = set()

    async def find(self) -> Taken:
        """Waits for a running job that takes this worker; for its group, where replicas have several partitions."""
        away = partial(_LOG.warning, "the configuration service cannot be reached, so new runs are not found: %s")
        changes = aiter(follow_on(store_of(self._context), "/jobs/", away, wait_s=RETRY_S * 4))
        changing = asyncio.ensure_future(anext(changes))
        taken: Taken | None = None
        retry = False
        try:
            while True:
                waiting = {changing, *self._lobbies.values()}
                await asyncio.wait(waiting, timeout=RETRY_S if retry else None, return_when=asyncio.FIRST_COMPLETED)
                if changing.done():
                    apply_changes(self._jobs, changing.result())
                    changing = asyncio.ensure_future(anext(changes))
                taken, retry = await self._look()
                if taken is not None:
                    return taken
        finally:
            changing.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await changing
            await changes.aclose()  # type: ignore[attr-defined]
            await self._leave_lobbies(taken)

    async def _look(self) -> tuple[Taken | None, bool]:
        """Returns the run that has taken this worker, and whether trying again soon makes sense."""
        retry = False
        for job, waiting in sorted(self._lobbies.items()):
            if waiting.done():
                del self._lobbies[job]
                if not waiting.exception():
                    return waiting.result(), False
                retry = True
        for job, record in sorted(self._jobs.items()):
            open_ = record.state == "running" and job not in self._done and self._wanted in (None, job)
            if not open_ or job in self._lobbies:
                continue
            try:
                found = await self._offer(job, record)
            except UnreachableError as failure:
                text = "run %s: its coordinator %s does not answer: %s"
                self._context.log.warning(text, job, record.coordinator, failure)
                retry = True
            except RemoteError as refusal:
                retry = retry or refusal.code in TRY_LATER
                if refusal.code in MISFIT and job not in self._told:
                    self._told.add(job)
                    self._context.log.warning("run %s cannot use this worker: %s", job, refusal)
            else:
                if not found.joined.in_lobby:
                    return found, False
                self._lobbies[job] = asyncio.create_task(self._wait(found, record))
        return None, retry

    async def _offer(self, job: str, record: JobRecord) -> Taken:
        """Offers this worker to a run, without waiting in its lobby."""
        coordinator = CoordinatorClient(await self._context.connect(record.coordinator, deadline_s=CONNECT_S))
        try:
            return Taken(job, coordinator, await self._join(coordinator, record, 0.0))
        except BaseException:
            await coordinator.close()
            raise

    async def _wait(self, found: Taken, record: JobRecord) -> Taken:
        """Waits in a run's lobby until this worker has a group. A lobby that is left forgets it at once."""
        try:
            while True:
                joined = await self._join(found.coordinator, record, LOBBY_S)
                if not joined.in_lobby:
                    return found._replace(joined=joined)
        except BaseException:
            await found.coordinator.close()
            raise

    async def _join(self, coordinator: CoordinatorClient, record: JobRecord, wait_s: float) -> Joined:
        context, found = self._context, None
        if record.rule.name == VECTORS:
            found = await asyncio.to_thread(implementation)  # it may load the compiler
        return await coordinator.join(
            context.node, context.incarnation, self._threads, host=host_id(), addresses=context.addresses,
            wait_s=wait_s, implementation=found,
        )  # fmt: skip

    async def _leave_lobbies(self, taken: Taken | None) -> None:
        """Leaves all runs but one. A run that has given this worker a seat meanwhile finds the connection closed."""
        for waiting in self._lobbies.values():
            waiting.cancel()
            with suppress(asyncio.CancelledError, RemoteError, UnreachableError):
                late = await waiting
                if late is not taken:
                    await late.coordinator.close()
        self._lobbies.clear()


def apply_changes(jobs: dict[str, JobRecord], update: Changes) -> None:
    """Takes changes of the records below `/jobs/`."""
    if update.reset:
        jobs.clear()
    for entry in update.entries:
        name = entry.key.removeprefix("/jobs/")
        if "/" not in name:
            record = readable(entry, JobRecord)
            if record is None:
                _LOG.warning("job %s: its record cannot be read; skipped", name)
                jobs.pop(name, None)
            else:
                jobs[name] = record
    for key in update.deleted:
        jobs.pop(key.removeprefix("/jobs/"), None)


def store_of(context: RoleContext) -> ConfigurationStore:
    assert context.controller is not None
    return context.controller
