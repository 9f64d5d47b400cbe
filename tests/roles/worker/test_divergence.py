"""A replica whose loss is not finite any more joins its run anew, from the servers' parameters; not for ever."""

from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from adamctl.roles.worker import server
from adamctl.roles.worker.divergence import DivergedError
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.session import SessionRunner
from tests.roles.worker.test_server import EXAMPLES, World, check, make_experiment, world

ENOUGH_S = 20
PASSES = 6
NO_HELP_FROM_SERVERS = 10**6
"""Fetch so rarely that only joining anew brings good weights."""


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_KERNELS", "numpy")


@pytest.fixture(autouse=True)
def no_fetch_after_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would bring good weights, too."""

    async def nothing(downpour: Downpour) -> None:
        return

    monkeypatch.setattr(Downpour, "freshen", nothing)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[SessionRunner]:
    """Every session that a worker begins from now on."""
    begun: list[SessionRunner] = []

    class Noted(SessionRunner):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            begun.append(self)

    monkeypatch.setattr(server, "SessionRunner", Noted)
    return begun


def rejoins(log: pytest.LogCaptureFixture) -> int:
    return sum("the loss is no longer finite" in text and "joining again" in text for text in log.messages)


async def until_session(sessions: list[SessionRunner], number: int, batches: int) -> SessionRunner:
    """Waits until the session of this number, from 1, has done so many batches."""
    async with asyncio.timeout(ENOUGH_S):
        while len(sessions) < number or sessions[number - 1].batches_done < batches:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    return sessions[number - 1]


async def end_of_worker(w: World, worker: str) -> BaseException | None:
    """Waits until a worker's process has ended; returns what it ended with, which is what the test expects."""
    task = w.cluster.tasks.pop(worker)
    async with asyncio.timeout(ENOUGH_S):
        await asyncio.wait({task})
    return task.exception()


async def test_a_diverged_replica_joins_again_from_the_servers_parameters(
    tmp_path: Path, sessions: list[SessionRunner], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "adamctl")
    async with world(tmp_path) as w:
        train = {"passes": PASSES, "n_fetch": NO_HELP_FROM_SERVERS}
        node = await w.start_run(make_experiment(tmp_path, train=train))
        poisoned = await until_session(sessions, 1, EXAMPLES // 8)
        poisoned._replica.weights.fill(math.nan)
        again = await until_session(sessions, 2, 1)
        assert again is not poisoned
        names = [one._session.parameters._session.hello().node for one in (poisoned, again)]
        assert names == ["worker-0", "worker-0.session-1"], (
            "what is under way of one must not take the numbers of the other"
        )
        check(await w.summary(node), passes=PASSES)
        assert not w.cluster.tasks["worker-0"].done(), "it waits for the next run"
    assert rejoins(caplog) == 1
    assert len(sessions) == 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, about what is not finite
async def test_a_run_that_diverges_whatever_a_worker_does_ends_it_with_the_cause(
    tmp_path: Path, sessions: list[SessionRunner], caplog: pytest.LogCaptureFixture
) -> None:
    """The second step of every life of this replica meets weights that its own rate has blown up."""
    caplog.set_level(logging.WARNING, "adamctl")
    async with world(tmp_path) as w:
        train = {"passes": PASSES, "n_fetch": NO_HELP_FROM_SERVERS, "n_push": 1000, "local_lr": 1e38}
        node = await w.start_run(make_experiment(tmp_path, train=train))
        failure = await end_of_worker(w, "worker-0")
        assert isinstance(failure, DivergedError)
        assert "the loss is no longer finite" in str(failure) and "try a lower optimizer.lr" in str(failure)
        assert failure.exit_code == 1
        assert rejoins(caplog) == server.REJOINS_MAX == 5
        assert len(sessions) == 1 + server.REJOINS_MAX
        await (await w.watch(node)).stop("the test is over", checkpoint=False)
        await w.cluster.tasks[node]
