"""Workers of a batch algorithm evaluate the test part, too: at the accepted parameters, beside bundles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.kernels.step.network import Network
from adamctl.roles.worker.sandblaster import held_out
from adamctl.roles.worker.sandblaster.held_out import HeldOutWork
from adamctl.wire.messages import EvaluateTask, NextTaskReply, NextTaskRequest
from tests.roles.worker.sandblaster.evaluating import BATCH, ENOUGH_S, MODEL, World, world

TEST_EXAMPLES = 9


async def until(what: Any) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def expected(w: World) -> tuple[float, int]:
    """Returns the summed loss of the test part at the servers' parameters, and how many are classified correctly."""
    network, flat = Network(MODEL, BATCH, backend="numpy"), w.clients[-1]
    parameters = np.empty(network.flat_size, np.float32)
    await flat.pull(parameters)
    with np.load(w.source) as data:
        images, labels = data["x_test"], data["y_test"].astype(np.int32)
    return network.evaluate(network.context(), parameters, images, labels)


async def test_ranges_of_the_test_part_are_evaluated_at_the_accepted_parameters(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        desk = w.coordinator
        await w.start_worker("w-0", threads=2)
        await desk.begin(1)  # bundles are about another point than x
        desk.to_evaluate = [EvaluateTask(7, 1, "test", 0, 5), EvaluateTask(8, 1, "test", 5, TEST_EXAMPLES)]
        await desk.tell()
        await until(lambda: len(desk.evaluated) == 2)
        await desk.complete()
        loss_sum, correct = await expected(w)
        assert [report.id for report in desk.evaluated] == [7, 8]
        assert [report.examples for report in desk.evaluated] == [5, 4]
        assert sum(report.loss_sum for report in desk.evaluated) == pytest.approx(loss_sum, rel=1e-5)
        assert sum(report.correct for report in desk.evaluated) == correct


async def test_progress_in_an_evaluation_that_takes_long_is_told_and_a_thread_that_hangs_gives_no_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_out, "SIGN_OF_LIFE_S", 0.001)
    asked: list[NextTaskRequest] = []
    evaluating = asyncio.Event()

    async def next_tasks(request: NextTaskRequest) -> NextTaskReply:
        asked.append(request)
        return NextTaskReply(evaluate=(EvaluateTask(7, 1, "test", 0, 5),) if request.wanted else ())

    async def evaluate(*given: Any) -> Any:
        evaluating.set()
        await asyncio.Event().wait()

    async def nothing(*given: Any) -> None: ...

    form = SimpleNamespace(answers=lambda images, labels: labels)
    dataset = SimpleNamespace(input_shape=(1,), form=form)
    monkeypatch.setattr(held_out, "new_arrays", lambda *given: (None, None))
    session: Any = SimpleNamespace(
        node="w-0", incarnation=1, group_epoch=0, dataset=dataset, data=SimpleNamespace(read=nothing),
        coordinator=SimpleNamespace(next_tasks=next_tasks),
    )  # fmt: skip
    executor: Any = SimpleNamespace(portions_done=0, snapshot=nothing, evaluate=evaluate)
    work = HeldOutWork(session, executor, dict)
    running = [asyncio.create_task(work.run()), asyncio.create_task(work.give_signs())]
    await evaluating.wait()
    for portions in (1, 5):
        executor.portions_done, before = portions, len(asked)
        await until(lambda before=before: len(asked) > before)
        assert (asked[-1].wanted, asked[-1].wait_s, asked[-1].reports) == (0, 0.0, ())
        await asyncio.sleep(0.02)
        assert len(asked) == before + 1, "once for what is done since"
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_parts_of_the_test_part_count_as_progress(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        runner = await w.start_worker("w-0")
        w.coordinator.to_evaluate = [EvaluateTask(7, 1, "test", 0, TEST_EXAMPLES)]
        await w.coordinator.tell()
        await until(lambda: w.coordinator.evaluated)
        assert runner.status()["batches"] == -(-TEST_EXAMPLES // BATCH)


async def test_each_evaluation_is_at_the_parameters_of_its_time(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        desk = w.coordinator
        await w.start_worker("w-0")
        losses = []
        for number in (1, 2):
            desk.to_evaluate = [EvaluateTask(number, number, "test", 0, TEST_EXAMPLES)]
            await desk.tell()
            await until(lambda number=number: len(desk.evaluated) == number)
            losses.append((desk.evaluated[-1].loss_sum, (await expected(w))[0]))
            await desk.commit_half()
        assert losses[0][0] == pytest.approx(losses[0][1], rel=1e-5)
        assert losses[1][0] == pytest.approx(losses[1][1], rel=1e-5)
        assert abs(losses[0][0] - losses[1][0]) > 1e-3, "the parameters have changed"


async def test_the_session_ends_with_the_run_and_a_worker_that_stops_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        desk = w.coordinator
        await w.start_worker("w-0")
        await w.start_worker("w-1")
        await until(lambda: desk.requests)
        w.stops["w-1"].set()
        assert await asyncio.wait_for(w.running["w-1"], ENOUGH_S) == "stopped"
        assert desk.left == ["w-1"]
        desk.ended = True
        await desk.tell()
        assert await asyncio.wait_for(w.running["w-0"], ENOUGH_S) == "enough"
        assert desk.left == ["w-1"]
