"""A compute thread that hangs while its worker is heard from: the others go on without it, where they wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import AdamctlError
from adamctl.roles.coordinator import server as coordinator_server
from adamctl.roles.coordinator.core import hanging as core_hanging
from adamctl.roles.worker import lockstep, pace, session
from adamctl.roles.worker.compute import ComputeThreads
from tests.roles.coordinator.played_run import heard
from tests.roles.worker.test_server import EXAMPLES, make_experiment, world

PASSES = 3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of minutes take a second or two."""
    monkeypatch.setenv("ADAMCTL_KERNELS", "numpy")
    run_plan: Callable[..., Any] = coordinator_server.run_plan
    monkeypatch.setattr(coordinator_server, "run_plan", lambda *given: replace(run_plan(*given), silent_after_s=2.0))
    monkeypatch.setattr(core_hanging, "FIRST_STEP", 1)
    monkeypatch.setattr(lockstep, "STUCK_S", 0.1)
    for module in (lockstep, pace, session):
        monkeypatch.setattr(module, "POLL_S", 0.5)


@pytest.mark.parametrize("train", [{"consistency": "sync"}, {"max_staleness": 2}], ids=str)
async def test_one_thread_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None, train: dict[str, Any]
) -> None:
    work, go_on = ComputeThreads._step, threading.Event()
    batches: dict[ComputeThreads, int] = {}

    def hang_once(self: ComputeThreads, *given: Any) -> Any:
        batches[self] = batches.get(self, 0) + 1
        if self is next(iter(batches)) and batches[self] == 8:
            assert go_on.wait(60)
        return work(self, *given)

    monkeypatch.setattr(ComputeThreads, "_step", hang_once)
    try:
        async with world(tmp_path, workers=0) as w:
            for name in "ab":
                await w.start_worker(name, threads=2)
            node = await w.start_run(make_experiment(tmp_path, train={"passes": PASSES} | train, workers=2))
            client = await w.watch(node)
            async with asyncio.timeout(60):
                while not heard(await client.status(), "finished neither a step nor a range"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            go_on.set()
            assert (await w.summary(node))["examples"] == PASSES * EXAMPLES
    finally:
        go_on.set()


async def test_a_range_that_takes_long_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """Nothing is asked for and nothing reported while it lasts; its batches are what shows that the worker lives."""
    work = ComputeThreads._step
    monkeypatch.setattr(session, "SIGN_OF_LIFE_S", 0.4)

    def slowly(self: ComputeThreads, *given: Any) -> Any:
        time.sleep(0.3)
        return work(self, *given)

    monkeypatch.setattr(ComputeThreads, "_step", slowly)
    async with world(tmp_path) as w:
        train = {"passes": 1, "range_batches": EXAMPLES // 24}
        node = await w.start_run(make_experiment(tmp_path, train=train, workers=1))
        client, lost = await w.watch(node), 0
        with suppress(AdamctlError):
            while not w.cluster.tasks[node].done():
                lost = max(lost, heard(await client.status(), "no message from it"))
                await asyncio.sleep(0.1)
        assert (await w.summary(node))["examples"] == EXAMPLES
        assert not lost
