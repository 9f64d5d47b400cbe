"""Watches a run that another process started on this machine, until it ends or the user quits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from adamctl.errors import AdamctlError, UnreachableError
from adamctl.launch.live_runs import LiveRun, live_runs
from adamctl.launch.readings import Readings
from adamctl.live.reading import ProcessReading
from adamctl.live.reporter import Reporter
from adamctl.net.transport import Transport
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.wire.messages import Hello

LOOK_EVERY_S = 0.25
GONE_S = 10.0
"""Seconds that the coordinator of a run noted as live may be unreachable."""


async def follow(
    run: LiveRun, state: Path, transport: Transport, hello: Hello, reporter: Reporter
) -> RunProgress | None:
    """Shows a run's progress until it is over; returns the last progress seen, None if there was none.

    Args:
        state: folder of notes, in which the run is looked up until its coordinator is known.
        hello: identity to connect with.

    Raises:
        UnreachableError: the coordinator does not answer although the run is live.
    """
    progress: RunProgress | None = None
    loop = asyncio.get_running_loop()
    heard_s = loop.time()
    client: CoordinatorClient | None = None
    processes = Processes(run.pid)
    try:
        while True:
            found = next((one for one in live_runs(state) if one.folder == run.folder), None)
            try:
                if client is None and found is not None and found.coordinator:
                    client = await CoordinatorClient.connect(transport, found.coordinator, hello, deadline_s=2.0)
                if client is not None:
                    progress = await client.status()
                    heard_s = loop.time()
                    reporter.show(progress, processes.read())
                    if progress.final:
                        return progress
            except UnreachableError as error:
                if client is not None:
                    with suppress(AdamctlError):
                        await client.close()
                client = None
                if found is not None and loop.time() - heard_s > GONE_S:
                    raise UnreachableError(f"the coordinator of {run.name} does not answer: {error}") from error
            if found is None:
                return progress
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        if client is not None:
            with suppress(AdamctlError):
                await client.close()


class Processes:
    """Processor time and memory of the roles that a run's front started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._readings = Readings({})
        self._roles: dict[str, str] = {}

    def read(self) -> Mapping[str, ProcessReading]:
        """Returns node -> reading of the live processes."""
        roles, pids = _started_by(self._pid)
        if roles.keys() - self._roles.keys():
            self._roles |= roles
            self._readings = Readings(self._roles)
        return self._readings.read(pids, time.monotonic())


def _started_by(pid: int) -> tuple[dict[str, str], dict[str, int]]:
    """Returns node -> role and node -> process of the roles that a front started, found by their command lines."""
    roles: dict[str, str] = {}
    pids: dict[str, int] = {}
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with suppress(psutil.Error):
                line = child.cmdline()
                if "start" in line[1:] and "--name" in line[:-1]:
                    node = line[line.index("--name") + 1]
                    roles[node], pids[node] = line[line.index("start") - 1], child.pid
    return roles, pids
