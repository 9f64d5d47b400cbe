"""One front and many agents: how long until every role is placed, and what the front then needs of a core."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from adamctl import __version__
from adamctl.config.experiment import ClusterConfig, Experiment
from adamctl.errors import RunFailedError
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.commands import Run
from adamctl.launch.hosts.host_roles import HostRoles
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.placement import FRONT
from adamctl.launch.hosts.table import HostTable
from adamctl.launch.places.places import AgentCommand, HostNeeds, Notice
from adamctl.launch.roles import LocalRoles
from adamctl.launch.supervision import Supervision
from adamctl.model.description import Model, Softmax
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport

PROCESSES = 4
PLACED_S, FRONT_SHARE = 30.0, 0.10
"""The bars: seconds until all is placed, and processor time of the front by wall time, once it is."""


class NothingBeside(LocalRoles):
    """Starts nothing beside the front: only what agents cost it is measured."""

    def start_one(self, node: str) -> None:
        """Does nothing."""


class FakeAgents:
    """An engine (`adamctl.launch.places.places.Places`) of agents without roles, in a few processes."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    async def begin(self, hosts: int, each: HostNeeds, agent: AgentCommand) -> None:
        """Starts the agents."""
        self._start(hosts, agent)

    def _start(self, hosts: int, agent: AgentCommand) -> None:
        front, share = agent.line[0], -(-hosts // PROCESSES)
        for first in range(0, hosts, share):
            count = min(share, hosts - first)
            line = (sys.executable, "-m", "adamctl.bench.hosts.fake_agents", front, str(first), str(count))
            self._processes.append(subprocess.Popen(line, env={**os.environ, **agent.environment}))

    async def one_more(self, why: str) -> bool:
        """Has no more."""
        return False

    async def notices(self) -> AsyncIterator[Notice]:
        """Yields nothing."""
        await asyncio.Event().wait()
        return
        yield

    async def end(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.wait()


async def measure(hosts: int, watch_s: float, wait_s: float = 4 * PLACED_S) -> dict[str, Any]:
    """Returns `placed_s`, from the start of the agents' processes on, `front_share`, `roles` and `hosts`.

    Raises:
        RunFailedError: not all roles are placed in time.
    """
    token = secrets.token_hex(16)
    cluster = ClusterConfig(ps=max(hosts // 10, 1), data=max(hosts // 10, 1), workers=hosts, replication=1)
    experiment = Experiment(name="many", model=Model((4,), (Softmax(2),)), cluster=cluster)
    keeper, supervision = HostKeeper(experiment, HostsAsked(hosts, hosts)), Supervision({})
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as place:
        folder = Path(place)
        run = Run(experiment, folder / "e.toml", folder / "many" / "001", folder, "none", "127.0.0.1", "127.0.0.1")
        roles = HostRoles(
            run, keeper, FakeAgents(), lambda address: AgentCommand((address,), {"ADAMCTL_TOKEN": token}),
            StreamTransport(tls=None), make_hello("front", "front-many", 0, token), HostTable("many/001", __version__),
            NothingBeside((), folder, {}), supervision,
        )  # fmt: skip
        began_s, served = time.perf_counter(), set[str]()
        await roles.begin()
        try:
            while True:
                served |= {node for node, _ in roles.newly_serving()}
                roles.news()
                wanted = {one.node for one in keeper.placed.values() if one.host != FRONT}
                if keeper.begun and wanted <= served:
                    break
                if time.perf_counter() - began_s > wait_s:
                    raise RunFailedError(
                        f"{len(wanted - served)} of {len(wanted)} roles are not placed in {wait_s:g} s"
                    )
                await roles.changed()
            placed_s = time.perf_counter() - began_s
            used_s, began_s = time.process_time(), time.perf_counter()
            while time.perf_counter() - began_s < watch_s:
                roles.newly_serving(), roles.newly_ended(), roles.news()
                await roles.changed()
            share = (time.process_time() - used_s) / (time.perf_counter() - began_s)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(30):
                    await roles.stop(_nobody, 1.0)
            roles.kill()
            await roles.close()
    return {"placed_s": placed_s, "front_share": share, "roles": len(served), "hosts": hosts}


async def _nobody(addresses: tuple[str, ...]) -> bool:
    return False
