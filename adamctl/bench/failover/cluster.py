"""Parameter servers as processes that a benchmark kills, stops, cuts off and restarts.

A controller is started for them, unless an etcd cluster keeps the configuration.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adamctl.bench.namespaces import HUB, Namespaces, is_inside, namespaces
from adamctl.bench.role_processes import CONTROLLER, POLL_S, RoleProcesses, connect_store
from adamctl.config.records import BucketRecord, decode
from adamctl.errors import RunFailedError
from adamctl.roles.configuration import ConfigurationStore
from adamctl.roles.controller.core.service.config import GRANT_FACTOR
from adamctl.roles.controller.etcd.url import LOST_AFTER_S_MIN, etcd_url_inside, is_etcd
from adamctl.roles.role_process import RoleCommand
from adamctl.wire.messages import ConfigEntry

if TYPE_CHECKING:
    from adamctl.roles.controller.client import ControllerClient
    from adamctl.roles.controller.etcd.client import EtcdClient

REAP_S = 10.0
RETIRE_AFTER_S = 86_400.0
"""Clients here have no node, so the controller would have their pushes refused ten minutes after it begins to lead."""
TOO_LONG_FOR_A_SOCKET = "x" * 100  # no Unix sockets, so that everything goes through the links that can be cut


@dataclass(frozen=True)
class RoleInside(RoleCommand):
    """A role that runs in a network namespace."""

    prefix: tuple[str, ...] = ()

    def line(self) -> tuple[str, ...]:
        return (*self.prefix, *super().line())


class FailoverCluster(RoleProcesses):
    """Parameter servers, some of which may be started later.

    Attributes:
        servers: names of the parameter servers that are started with it.
        lease_s: D; an etcd cluster rounds it up to a length that it grants.
        links: to cut servers off; None unless each runs in its own network namespace.
    """

    def __init__(self, servers: int, lease_s: float, spare: int = 0, config_store: str = "") -> None:
        """
        Args:
            spare: additional servers, to be started later with `start`.
            config_store: the URL of a running etcd cluster; the benchmark uses its own prefix.
        """
        super().__init__()
        self._names = tuple(f"ps-{number}" for number in range(1, servers + spare + 1))
        self.servers = self._names[:servers]
        self.lease_s = lease_s
        self.links: Namespaces | None = None
        self._config_store = ""
        if config_store:
            lost_after_s = max(math.ceil(round(lease_s * GRANT_FACTOR, 6)), LOST_AFTER_S_MIN)
            self._config_store = etcd_url_inside(config_store, f"failover-{secrets.token_hex(4)}", lost_after_s)
            self.lease_s = lost_after_s / GRANT_FACTOR

    @property
    def keeper(self) -> str:
        """Where the configuration is kept: the controller's address, or the URL of a part of an etcd cluster."""
        return self._config_store or self.addresses[CONTROLLER]

    def _start(self, stack: ExitStack) -> None:
        if not self._config_store:
            if is_inside():
                self.links = stack.enter_context(namespaces(self._names))
                stack.callback(self.roles.kill)
            self.roles.add(self._command(CONTROLLER))
            self.roles.start_one(CONTROLLER)
            self.wait_serving(CONTROLLER)
        self.roles.add(*(self._command(name) for name in self._names))
        for name in self.servers:
            self.roles.start_one(name)
        self.wait_serving(*self.servers)

    def _command(self, name: str) -> RoleCommand:
        sockets = self.folder / TOO_LONG_FOR_A_SOCKET / name
        common = ("--socket-folder", str(sockets), "--log-level", "info", "--port", "0")
        if name == CONTROLLER:
            bind = ("--bind", HUB) if self.links is not None else ()
            times = ("--lease", f"{self.lease_s:g}", "--retire-after", f"{RETIRE_AFTER_S:g}")
            return RoleCommand(CONTROLLER, name, (*times, "--dir", str(self.folder / CONTROLLER), *bind, *common))
        member = (*common, *self._keeper_flag(), "--apply-threads", "1")
        if self.links is None:
            return RoleCommand("ps", name, member)
        return RoleInside("ps", name, ("--bind", self.links.address(name), *member), self.links.prefix(name))

    def _keeper_flag(self) -> tuple[str, str]:
        return ("--config-store" if is_etcd(self.keeper) else "--controller", self.keeper)

    # --- faults of servers --------------------------------------------------------------------------------------------

    def _signal(self, node: str, number: signal.Signals) -> None:
        os.kill(self.roles.pids()[node], number)

    def kill(self, node: str) -> None:
        self._signal(node, signal.SIGKILL)

    def stop(self, node: str) -> None:
        self._signal(node, signal.SIGSTOP)

    def go_on(self, node: str) -> None:
        self._signal(node, signal.SIGCONT)

    def has_ended(self, node: str) -> bool:
        self.roles.newly_ended()
        return node not in self.roles.pids()

    def start(self, node: str) -> None:
        """Starts a server, or restarts it if it has ended; does not wait for it."""
        until_s = time.monotonic() + REAP_S
        while node in self.addresses and not self.has_ended(node):
            if time.monotonic() > until_s:
                raise RunFailedError(f"{node} has not ended:\n{self.log_end(node)}")
            time.sleep(POLL_S)
        self.addresses.pop(node, None)
        self.roles.start_one(node)

    # --- the configuration --------------------------------------------------------------------------------------------

    def connect(self) -> ControllerClient | EtcdClient:
        """Returns a client of the configuration service, for the running loop."""
        return connect_store(self.keeper)

    def url(self, job: str) -> str:
        """Returns the URL at which a `ParameterClient` finds a job."""
        if not is_etcd(self.keeper):
            return f"adam://{self.keeper.removeprefix('tcp://')}/{job}"
        address, mark, query = self.keeper.partition("?")
        return f"{address}/{job}{mark}{query}"


async def buckets_of(store: ConfigurationStore, job: str) -> dict[int, BucketRecord]:
    """Returns the records of a job's buckets."""
    _, entries = await store.read(f"/jobs/{job}/buckets/")
    return {int(entry.key.rpartition("/")[2]): decode(entry.value, BucketRecord) for entry in entries}


async def wait_whole(store: ConfigurationStore, job: str, copies: int, deadline_s: float) -> float:
    """Waits until every bucket has `copies` copies in sync, on registered processes; returns after how many seconds.

    A process that died a moment ago and whose death is not detected yet counts: first wait until it serves again.

    Raises:
        RunFailedError: not within the deadline.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while True:
        _, nodes = await store.read("/nodes/")
        registered = {entry.key.removeprefix("/nodes/"): entry.revision for entry in nodes}
        _, buckets = await store.read(f"/jobs/{job}/buckets/")
        short = [entry for entry in buckets if not _is_whole(entry, registered, copies)]
        if not short:
            return loop.time() - began_s
        if loop.time() - began_s > deadline_s:
            what = f"{short[0].key} is {decode(short[0].value, BucketRecord)}, live nodes are {sorted(registered)}"
            raise RunFailedError(f"{len(short)} buckets had fewer than {copies} copies after {deadline_s:g} s: {what}")
        await asyncio.sleep(POLL_S)


def _is_whole(entry: ConfigEntry, registered: dict[str, int], copies: int) -> bool:
    """Returns whether a bucket has its copies; a process that registered after the record named it holds nothing."""
    record = decode(entry.value, BucketRecord)
    there = [node for node in record.in_sync if node in registered and registered[node] <= entry.revision]
    return len(there) >= copies and record.primary in there
