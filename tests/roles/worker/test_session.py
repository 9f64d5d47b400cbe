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
from adamctl.roles.worker.compute import Batch, BatchDone
from adamctl.roles.worker.core.slots import Slot, SlotCore
from adamctl.roles.worker.session import SessionRunner
from adamctl.wire.messages import NextTaskReply, TaskReport, TrainTask
from tests.roles.worker.test_server import EXAMPLES, make_experiment, until, world

EMPTY = np.zeros(0, np.float32)


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
    experiment = SimpleNamespace(train=train, steps_per_update=1, local_learning_rate_factor=lambda: None)
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


async def test_a_range_is_not_reported_before_its_gradients_are_answered_though_others_train() -> None:
    """A stopped run waits 5 s for the others, and a worker that leaves for none: what is not pushed then is dropped."""
    downpour, left = Downpour(), list[tuple[TaskReport, ...]]()
    downpour.answered.set()

    async def leave(node: str, incarnation: int, reports: Any, *, group_epoch: int) -> None:
        left.append(tuple(reports))

    coordinator = SimpleNamespace(leave=leave)
    session = session_of(downpour, coordinator=coordinator, node="worker-1", incarnation=1, group_epoch=0)
    session.experiment.steps_per_update = 3
    core = session.lead.engine.replica.core = SlotCore(1, 4, n_push=3, n_fetch=100, keeps=False)
    runner = SessionRunner(session)
    first, second = TrainTask(1, 0, 0, 16, 0.0, 0.5), TrainTask(2, 0, 16, 80, 0.5, 1.0)
    runner._examples[first.id] = SimpleNamespace(release=lambda: None)  # type: ignore[assignment]
    runner._accepted = runner._accepted_training = 2
    for task, batches in ((first, 2), (second, 8)):
        runner._ledger.begin(task, batches)

    def train(task: TrainTask) -> Slot | None:
        assert core.begin_step(0) is not None
        pushed = core.end_step(0, 8, 0.1, 0.0).push
        runner._account(BatchDone(Batch(task, EMPTY, np.zeros(8, np.int32)), 1.0, 0, 0.0, 0.0))
        return pushed

    assert train(first) is None and train(first) is None
    await runner._leave()
    slot = train(second)
    assert slot is not None, "it has both steps of the first range"
    await runner._leave()
    core.acknowledged(slot)
    assert train(second) is None
    await runner._leave()
    assert [[report.id for report in reports] for reports in left] == [[], [], [first.id]]


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
