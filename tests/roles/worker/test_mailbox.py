"""Reports of threads: gathered until somebody waits for one, none lost, in order, whoever races whom."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from adamctl.roles.worker import mailbox
from adamctl.roles.worker.compute import Batch, BatchDone
from adamctl.roles.worker.core.slots import Slot, StepActions
from adamctl.roles.worker.mailbox import Mailbox, Siblings
from adamctl.wire.messages import TrainTask

QUIET = StepActions(None, False)


def report(
    number: int, siblings: Siblings, actions: StepActions | None = QUIET, failure: Exception | None = None
) -> BatchDone:
    batch = Batch(TrainTask(number, 0, 0, 1, 0.0, 0.0), np.zeros(1, np.float32), np.zeros(1, np.int32), 0, 0, siblings)
    return BatchDone(batch, 0.0, 0, 0.0, 0.0, actions, failure)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "DELAY_S", 1e9)


async def test_reports_wait_for_one_that_somebody_waits_for() -> None:
    taken: list[int] = []
    box = Mailbox(asyncio.get_running_loop(), lambda done: taken.append(done.batch.task.id))
    siblings = Siblings(100)
    for number in range(3):
        box.put(report(number, siblings))
    await asyncio.sleep(0.01)
    assert taken == []
    box.put(report(3, siblings, StepActions(Slot(0, 0), False)))
    await asyncio.sleep(0.01)
    assert taken == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("actions", "failure"),
    [(StepActions(None, True), None), (StepActions(Slot(0, 0), False), None), (None, None), (QUIET, ValueError())],
)
async def test_pushes_fetches_evaluations_and_failures_do_not_wait(
    actions: StepActions | None, failure: Exception | None
) -> None:
    taken: list[BatchDone] = []
    Mailbox(asyncio.get_running_loop(), taken.append).put(report(1, Siblings(9), actions, failure))
    await asyncio.sleep(0.01)
    assert len(taken) == 1


async def test_the_last_batch_of_a_task_does_not_wait_whichever_that_is() -> None:
    taken: list[int] = []
    box = Mailbox(asyncio.get_running_loop(), lambda done: taken.append(done.batch.task.id))
    first, second = Siblings(2), Siblings(2)
    for number, siblings in ((10, first), (20, second), (21, second)):
        box.put(report(number, siblings))
    await asyncio.sleep(0.01)
    assert taken == [10, 20, 21]
    box.put(report(11, first))
    await asyncio.sleep(0.01)
    assert taken == [10, 20, 21, 11]


async def test_reports_that_have_lain_long_wake_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "DELAY_S", -1.0)
    taken: list[BatchDone] = []
    Mailbox(asyncio.get_running_loop(), taken.append).put(report(1, Siblings(9)))
    await asyncio.sleep(0.01)
    assert len(taken) == 1


async def test_many_threads_lose_nothing() -> None:
    """Four threads, 2,000 reports of one task each way: when the last has come, all have."""
    taken: list[BatchDone] = []
    arrived = asyncio.Event()

    def take(done: BatchDone) -> None:
        taken.append(done)
        if len(taken) == 8000:
            arrived.set()

    box, siblings = Mailbox(asyncio.get_running_loop(), take), Siblings(8000)

    def work() -> None:
        for number in range(2000):
            box.put(report(number, siblings, StepActions(None, number % 7 == 0)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(arrived.wait(), 30)
    for thread in threads:
        thread.join(20)
    assert len(taken) == 8000


def test_a_report_after_the_loop_has_closed_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    box = Mailbox(loop, lambda done: None)
    loop.close()
    box.put(report(1, Siblings(1)))
