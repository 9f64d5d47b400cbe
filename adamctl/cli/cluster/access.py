"""How a command reaches a cluster: its configuration service, and the coordinator of one of its jobs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from adamctl.config.records import JobRecord, NodeRecord, node_key
from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.launch.live_runs import live_runs, state_folder
from adamctl.launch.run_certificates import transport_for
from adamctl.launch.run_token import token_for
from adamctl.net.address import DEFAULT_CONTROLLER, parse_address, prefer
from adamctl.net.handshake import make_hello
from adamctl.roles.configuration import ConfigurationStore, read_record, readable
from adamctl.roles.controller.client import cluster_client
from adamctl.roles.coordinator.client import CoordinatorClient

CONTROLLER_DEADLINE_S = 5.0
LISTENS_DEADLINE_S = 1.0


class ClusterAccess:
    """The configuration service of a cluster, for one command. An async context manager.

    Attributes:
        addresses: of the controllers, or an etcd URL.
        store: the configuration service.
        transport, hello: for connections to other members of the cluster.
    """

    def __init__(self, addresses: Sequence[str], token: str, *, deadline_s: float = CONTROLLER_DEADLINE_S) -> None:
        """`token`: if empty, the token of this user's live run that one of the addresses belongs to. Its certificate is
        used in any case, if it has one.

        `deadline_s`: after this long without an answer a call of `store` raises UnreachableError."""
        self.addresses = tuple(addresses)
        state = state_folder(os.environ)
        token = token or token_for(self.addresses, state)
        self.hello = make_hello("front", f"front-{os.getpid()}", 0, token)
        self.transport = transport_for(self.addresses, state)
        self.store = cluster_client(self.transport, addresses, lambda: self.hello, deadline_s=deadline_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An error says, too, if this command came here only because no run is in progress."""
        await self.store.close()
        by_default = self.addresses == (DEFAULT_CONTROLLER,)
        if isinstance(value, UnreachableError) and by_default and not live_runs(state_folder(os.environ)):
            raise UnreachableError(f"{value}; no run is in progress on this machine") from value

    async def coordinator_of(self, job: JobRecord) -> CoordinatorClient | None:
        """Returns a client of a job's coordinator, which the caller closes; None if the job has no live coordinator."""
        found = await read_record(self.store, node_key(job.coordinator), NodeRecord) if job.coordinator else None
        if found is None or found[0].role != "coordinator":
            return None
        where = (prefer(found[0].addresses, found[0].host),)
        return await CoordinatorClient.connect(self.transport, where, self.hello)


def default_listens() -> bool:
    """Returns whether anything listens at the default address of a controller."""
    address = parse_address(DEFAULT_CONTROLLER)
    try:
        socket.create_connection((address.host, address.port), LISTENS_DEADLINE_S).close()
    except OSError:
        return False
    return True


async def running_job(store: ConfigurationStore, job: str | None, what: str = "JOB") -> tuple[str, JobRecord]:
    """Returns the job of this name, or the only running one. Raises ConfigurationError if there is no such one job.

    `what` tells the message where the name was given.
    """
    _, entries = await store.read("/jobs/")
    found = {e.key.rpartition("/")[2]: readable(e, JobRecord) for e in entries if e.key.count("/") == 2}
    running = {name: record for name, record in found.items() if record is not None and record.state == "running"}
    known = f"running: {', '.join(sorted(running)) or 'none'}"
    if job is None:
        if len(running) != 1:
            raise ConfigurationError(f"{what}: expected a name, since not exactly one job runs ({known})")
        return next(iter(running.items()))
    if job not in running:
        raise ConfigurationError(f"{what}: expected a running job; found {job!r} ({known})")
    return job, running[job]
