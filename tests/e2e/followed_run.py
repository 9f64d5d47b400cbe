"""A run in real processes that a test disturbs and follows to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.roles.coordinator.core.progress import RunProgress
from tests.e2e.conftest import Command

LOOK_EVERY_S = 0.02


class FollowedRun:
    """What tests of kills have in common.

    Attributes:
        seed: of its faults; `told`: each of them, for whoever looks for its cause.
        address: of the coordinator, whose process is `coordinator`.
    """

    seed: int
    told: list[str]
    address: str
    coordinator: Command
    client: CoordinatorClient | None = None

    async def restart_the_dead(self) -> None:
        """Starts again what has died."""
        raise NotImplementedError

    async def status(self) -> RunProgress | None:
        """Returns the run's progress; None when its coordinator is gone, as after the end."""
        while self.coordinator.process.poll() is None:
            try:
                if self.client is None:
                    hello = make_hello("operator", "kills")
                    self.client = await CoordinatorClient.connect(StreamTransport(), [self.address], hello)
                return await self.client.status()
            except Exception:  # it does not listen yet, or not any more
                self.client = None
                await asyncio.sleep(0.05)
        return None

    async def reaches(self, condition: Callable[[RunProgress], bool], what: str, seconds: float) -> RunProgress | None:
        """Waits; returns the progress in which the condition holds, None if the run ends before."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        while True:
            progress = await self.status()
            if progress is None or progress.final or condition(progress):
                return None if progress is None or progress.final else progress
            await self.restart_the_dead()
            if loop.time() > until_s:
                pytest.fail(f"seed {self.seed}: {what}, not within {seconds:g} s; {self.told}\n{progress}")
            await asyncio.sleep(LOOK_EVERY_S)
