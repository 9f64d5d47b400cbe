"""What a session has begun ends with it, and what it reports last is with the servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.errors import UnreachableError
from adamctl.roles.coordinator.checkpoint.writer import CheckpointWriter
from adamctl.roles.coordinator.core.events import RunSnapshot
from adamctl.roles.worker import downpour
from adamctl.roles.worker.core.slots import Slot
from adamctl.roles.worker.session import SessionRunner
from adamctl.wire.messages import NextTaskReply, TaskReport, TrainTask
from tests.roles.worker.test_server import EXAMPLES, make_experiment, until, world


class Downpour:
    """Pulls only after all pushes are answered; those are given up when it is closed."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.pulled = False

    async def settled(self) -> None:
        await self.answered.wait()

    async def snapshot(self, into: object) -> None:
        self.pulled = True

    async def close(self) -> None:
        self.answered.set()
        await asyncio.sleep(0)


def session_of(downpour: Downpour, **given: Any) -> Any:
    async def halt() -> None:
        pass

    replica = SimpleNamespace(flush=list, snapshot=None, stop=lambda: None, memory=SimpleNamespace(close=lambda: None))
    engine = SimpleNamespace(replica=replica, downpour=downpour, halt=halt)
    lead = SimpleNamespace(engine=engine, takes=lambda done: None, flush=downpour.settled)
    train = SimpleNamespace(in_step=False, max_staleness=None, local_lr=0.0, range_batches=1)
    experiment = SimpleNamespace(train=train, local_learning_rate_factor=lambda: None)
    return SimpleNamespace(lead=lead, experiment=experiment, threads=1, shares=1, **given)


async def test_parameters_of_an_evaluation_are_not_pulled_when_the_session_has_ended() -> None:
    downpour = Downpour()
    runner = SessionRunner(session_of(downpour))
    pulling = asyncio.create_task(runner._snapshot(1))
    await asyncio.sleep(0)
    await runner._close()
    await asyncio.gather(pulling, return_exceptions=True)
    await asyncio.sleep(0)
    assert not downpour.pulled


async def test_a_range_whose_gradients_could_not_be_pushed_is_not_reported() -> None:
    downpour = Downpour()
    coordinator = SimpleNamespace(next_tasks=None)  # nobody may ask it
    runner = SessionRunner(session_of(downpour, coordinator=coordinator))
    task = TrainTask(1, 0, 0, 8, 0.0, 0.5)
    runner._examples[task.id] = SimpleNamespace(release=lambda: None)  # type: ignore[assignment]
    runner._accepted = runner._accepted_training = 1
    runner._finish(task, TaskReport(task.id, 8, 4.0, 0))
    asking = asyncio.create_task(runner._ask(0, 0.0))
    await asyncio.sleep(0)
    runner.fail(UnreachableError("a server is gone"))
    downpour.answered.set()
    assert await asking == NextTaskReply()
    with pytest.raises(UnreachableError, match="a server is gone"):
        await runner._work(asyncio.create_task(asyncio.sleep(0, True)))


@pytest.mark.parametrize("ends", ["with its passes", "stopped"])
async def test_the_last_checkpoint_has_the_gradients_of_all_ranges_that_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Gradients are pushed in the end alone, and slowly; there is nothing to evaluate that would be waited for."""
    pushed: list[int] = []
    saved: list[tuple[int, int]] = []
    push, write = downpour.Downpour._push, CheckpointWriter.write

    async def slowly(self: downpour.Downpour, slot: Slot, *others: Any) -> None:
        await asyncio.sleep(0.1)
        examples = slot.examples
        await push(self, slot, *others)
        pushed.append(examples)

    async def note(self: CheckpointWriter, number: int, snapshot: RunSnapshot, complete: bool) -> Path:
        saved.append((snapshot.examples, sum(pushed)))
        return await write(self, number, snapshot, complete)

    monkeypatch.setattr(downpour.Downpour, "_push", slowly)
    monkeypatch.setattr(CheckpointWriter, "write", note)
    train = {"n_push": 1000, "passes": 2 if ends == "with its passes" else 200, "checkpoint_every": 0.0}
    experiment = make_experiment(tmp_path, train=train, workers=2)
    with np.load(experiment.data.source) as data:
        arrays = {name: data[name] for name in ("x_train", "y_train")}
    np.savez(experiment.data.source, **arrays)
    async with world(tmp_path, workers=2) as w:
        node = await w.start_run(experiment)
        if ends == "stopped":
            client = await w.watch(node)
            await until(client, 2 * EXAMPLES)
            await client.stop("enough")
        await w.summary(node)
    (found,) = saved
    assert found[0] == found[1] >= 2 * EXAMPLES
