"""The processes of a soak: controllers, servers with stores, and a metrics server, behind links that can be cut."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from adamctl.bench.failover.cluster import TOO_LONG_FOR_A_SOCKET
from adamctl.bench.role_processes import POLL_S, READY_S, role_hello
from adamctl.bench.soak.links import Links
from adamctl.bench.soak.plan import CONTROLLERS, SERVERS
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.launch.roles import LocalRoles
from adamctl.net.stream import StreamTransport
from adamctl.roles.controller.client import cluster_client
from adamctl.roles.role_logs import last_lines
from adamctl.roles.role_process import RoleCommand

if TYPE_CHECKING:
    from adamctl.roles.controller.client import ControllerClient
    from adamctl.roles.controller.etcd.client import EtcdClient

METRICS: Final = "metrics"
HOST: Final = "127.0.0.2"
"""Where the proxies listen, at the ports of the processes behind them."""
PORTS: Final = (20_000, 32_000)
TEND_S: Final = 0.2
TWO_PAGES_BYTES: Final = 8192
"""What a store may still write where its disk is full: the two pages that say which part of the file counts."""


@dataclass(frozen=True)
class _MetricsServer(RoleCommand):
    """`adamctl metrics serve`, which is no role."""

    def line(self) -> tuple[str, ...]:
        return (sys.executable, "-m", "adamctl", "metrics", "serve", *self.arguments)


class SoakCluster:
    """An async context manager: all that it starts has ended when the block is left.

    Attributes:
        links: between the processes.
        ends: node -> how often it ended, killed or not.
    """

    def __init__(self, folder: Path, ports: dict[str, int], lease_s: float) -> None:
        self.links = Links()
        self.ends: Counter[str] = Counter()
        self._folder, self._ports, self._lease_s = folder, ports, lease_s
        self.addresses = {node: f"tcp://{HOST}:{ports[node]}" for node in (*CONTROLLERS, *SERVERS)}
        logs = folder / "logs"
        logs.mkdir(exist_ok=True)
        self._roles = LocalRoles([self._command(node) for node in (*CONTROLLERS, *SERVERS, METRICS)], logs, os.environ)
        self._tending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SoakCluster:
        await self.links.__aenter__()
        try:
            for node in (*CONTROLLERS, *SERVERS):
                await self._link(node)
            for group in (CONTROLLERS, SERVERS, (METRICS,)):
                for node in group:
                    self._roles.start_one(node)
                await self._wait_serving(group)
        except BaseException:
            await self.__aexit__()
            raise
        self._tending = asyncio.create_task(self._tend())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        self._roles.kill()
        await self.links.__aexit__()

    async def _link(self, node: str) -> None:
        try:
            await self.links.before(node, self._ports[node], HOST, self._ports[node])
        except OSError as error:
            what = f"port {self._ports[node]} of {HOST}, which {node} had before, cannot be used: {error.strerror}"
            raise ConfigurationError(f"{what}; end what uses it, or give another --folder") from error

    def _command(self, node: str) -> RoleCommand:
        port = str(self._ports[node])
        controllers = [part for one in CONTROLLERS for part in ("--controller", self.addresses[one])]
        if node == METRICS:
            return _MetricsServer("metrics", node, (*controllers, "--port", port))
        sockets = self._folder / TOO_LONG_FOR_A_SOCKET / node
        common = ("--bind", "127.0.0.1", "--port", port, "--advertise", HOST, "--socket-folder", str(sockets))
        if node in CONTROLLERS:
            peers = ",".join(f"{one}={self.addresses[one].removeprefix('tcp://')}" for one in CONTROLLERS)
            own = ("--dir", str(self._folder / node), "--peers", peers, "--lease", f"{self._lease_s:g}")
            return RoleCommand("controller", node, (*own, *common))
        own = ("--store", str(self._folder / node), "--apply-threads", "1", "--memory", "256MB")
        return RoleCommand("ps", node, (*own, *controllers, *common))

    # --- life ---------------------------------------------------------------------------------------------------------

    async def _wait_serving(self, nodes: Sequence[str]) -> None:
        waiting, until_s = set(nodes), time.monotonic() + READY_S
        while waiting:
            waiting -= {node for node, _ in self._roles.newly_serving()}
            self._roles.newly_ended()
            ended = [end.node for end in self._roles.failures() if end.node in waiting]
            if ended or (waiting and time.monotonic() > until_s):
                node = ended[0] if ended else min(waiting)
                text = "\n".join(last_lines(self._roles.log(node)))
                raise RunFailedError(f"{node} did not come up:\n{text}")
            await asyncio.sleep(POLL_S)

    async def _tend(self) -> None:
        """Starts again what has ended, as whoever runs a cluster does."""
        while True:
            self._roles.newly_serving()
            for end in self._roles.newly_ended():
                self.ends[end.node] += 1
                self._roles.start_one(end.node)
            await asyncio.sleep(TEND_S)

    def pids(self) -> dict[str, int]:
        """Returns the running processes."""
        return self._roles.pids()

    def signal(self, node: str, number: signal.Signals) -> None:
        """Sends a signal to a process, if it runs."""
        pid = self._roles.pids().get(node)
        if pid is not None:
            os.kill(pid, number)

    def fill_disk(self, node: str, full: bool) -> None:
        """Makes a process's files unable to grow, as on a full disk, or able to again."""
        pid = self._roles.pids().get(node)
        if pid is not None:
            soft = TWO_PAGES_BYTES if full else resource.RLIM_INFINITY
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

    # --- for clients --------------------------------------------------------------------------------------------------

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[METRICS]}/metrics"

    def url(self, job: str) -> str:
        """Returns the URL at which a `ParameterClient` finds a job."""
        return f"adam://{','.join(self.addresses[one].removeprefix('tcp://') for one in CONTROLLERS)}/{job}"

    def connect(self) -> ControllerClient | EtcdClient:
        """Returns a client of the controllers, for the running loop."""
        hello = role_hello("operator", "bench")
        return cluster_client(StreamTransport(), [self.addresses[one] for one in CONTROLLERS], lambda: hello)


def free_ports() -> dict[str, int]:
    """Returns a port for each process that is free on both addresses now, below those that systems hand out."""
    found: dict[str, int] = {}
    chance = random.SystemRandom()
    with ExitStack() as held:
        for node in (*CONTROLLERS, *SERVERS, METRICS):
            while node not in found:
                port = chance.randint(*PORTS)
                with suppress(OSError):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
                    held.enter_context(socket.create_server((HOST, port)))
                    found[node] = port
    return found
