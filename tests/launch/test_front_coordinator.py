"""A front and its run's coordinator: one that is silent for a while, or for good, though its process lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.errors import RunFailedError
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
