"""How a front decides that its run is over: a coordinator that is silent though it runs, signals when all is done."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from adamctl.errors import RunFailedError, UnreachableError
from adamctl.launch.roles import Ask, LocalRoles
from adamctl.roles.coordinator.client import CoordinatorClient
from tests.launch.test_front import folder, running

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adamctl.launch.front.FAILED_GRACE_S", 0.1)


async def test_a_coordinator_that_is_silent_for_a_while_is_asked_again(folder: Path) -> None:
    async with running(folder) as run:
        await run.until_training()
        run.tell("coordinator.away")
        await run.until(lambda: sum("coordinator does not answer: " in note for note in run.reporter.notes) >= 2)
        (folder / "coordinator.away").unlink()
        shown = len(run.reporter.shown)
        await run.until(lambda: len(run.reporter.shown) > shown)
        run.tell("finish")
        assert (await run.outcome()).exit_code == 0


async def test_a_coordinator_that_stays_silent_ends_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adamctl.launch.front.SILENT_S", 1.0)
    async with running(folder) as run:
        await run.until_training()
        run.tell("coordinator.away")
        with pytest.raises(RunFailedError, match="the coordinator coordinator no longer answers: "):
            await run.outcome()


@pytest.mark.parametrize(("file", "exit_code"), [("finish", 0), ("fail", 143)])
async def test_a_signal_while_a_run_is_closed_makes_no_failure_of_a_success(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, exit_code: int
) -> None:
    stop = LocalRoles.stop

    async def signalled(roles: LocalRoles, ask: Ask, grace_s: float, failed: bool = False) -> list[str]:
        os.kill(os.getpid(), signal.SIGTERM)
        return await stop(roles, ask, grace_s, failed)

    monkeypatch.setattr(LocalRoles, "stop", signalled)
    async with running(folder) as run:
        await run.until_training()
        run.tell(file)
        outcome = await run.outcome()
    assert (outcome.exit_code, outcome.signal) == (exit_code, signal.SIGTERM if exit_code else 0)


async def test_a_second_signal_waits_for_no_coordinator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is still being told to it when the second ends it."""

    async def unheard(client: CoordinatorClient, reason: str, checkpoint: bool) -> None:
        raise UnreachableError("it has just been ended")

    monkeypatch.setattr(CoordinatorClient, "stop", unheard)
    monkeypatch.setattr("adamctl.launch.front.STOP_DEADLINE_S", 600.0)
    monkeypatch.setattr("adamctl.launch.front.SILENT_S", 600.0)
    async with running(folder) as run:
        await run.until_training()
        os.kill(os.getpid(), signal.SIGINT)
        await run.until(lambda: run.reporter.notes)
        os.kill(os.getpid(), signal.SIGINT)
        assert (await run.outcome()).exit_code == 130
