"""Workers evaluate a batch through real servers: the same bits whoever does it, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.errors import UnreachableError
from adamctl.kernels.step.network import Network
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.worker.sandblaster.executor import WholeExecutor
from adamctl.roles.worker.sandblaster.session import SandblasterRunner
from adamctl.roles.worker.sandblaster.threads import GRADIENTS_PER_THREAD, BundleThreads
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BundleName
from tests.roles.worker.sandblaster.evaluating import (
    BUNDLES,
    ENOUGH_S,
    EXAMPLES,
    MODEL,
    PER_BUNDLE,
    World,
    world,
)

EXAMPLE_BYTES = 4 * (8 + 1)


async def until(what: Any) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def threads_of(runner: SandblasterRunner) -> BundleThreads:
    assert isinstance(runner._executor, WholeExecutor)
    return runner._executor.threads


async def evaluations(w: World, *numbers: int) -> list[tuple[float, ...]]:
    return [await w.coordinator.evaluate(number) for number in numbers]


async def test_an_evaluation_is_the_loss_and_the_gradient_over_the_batch(tmp_path: Path) -> None:
    async with world(tmp_path, servers=2) as w:
        runner = await w.start_worker("w-0", threads=2)
        [(loss_sum, squares, total, largest, _)] = await evaluations(w, 1)
        at = threads_of(runner).parameters.copy()
        await w.coordinator.end()
        assert await w.running["w-0"] == "enough" and runner.over
        points = np.load(w.source)
    network = Network(MODEL, EXAMPLES, backend="numpy")
    context = network.context()
    result = network.step(context, at, points["x_train"], points["y_train"].astype(np.int32))
    gradient = context.gradient.astype(np.float64)
    assert loss_sum / EXAMPLES == pytest.approx(result.loss, rel=1e-5)
    assert squares == pytest.approx(gradient @ gradient, rel=1e-4)
    assert total == pytest.approx(gradient.sum(), abs=1e-6)
    assert largest == pytest.approx(np.abs(gradient).max(), rel=1e-4)


async def test_bits_do_not_depend_on_workers_threads_or_servers(tmp_path: Path) -> None:
    found = []
    for servers, threads in ((1, [1]), (2, [3]), (1, [1, 2])):
        async with world(tmp_path, servers=servers) as w:
            for number, count in enumerate(threads):
                await w.start_worker(f"w-{number}", threads=count)
            found.append(await evaluations(w, 1, 2, 3))
            counted = Counter(report.name for report in w.coordinator.reports if report.code == ErrorCode.OK)
            assert {(name.evaluation, name.bundle) for name in counted} == {
                (evaluation, bundle.number) for evaluation in (1, 2, 3) for bundle in BUNDLES
            }
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 3, "each at a point of its own"


async def test_parameters_are_pulled_once_and_examples_read_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        runner = await w.start_worker("w-0", threads=2)
        await evaluations(w, 1, 2, 3)
        assert runner.pulls == 3
        assert sorted(w.reads) == [(bundle.start, bundle.stop) for bundle in BUNDLES]
        assert runner.status()["example_bytes"] == EXAMPLES * EXAMPLE_BYTES
        asked = len(w.coordinator.requests)
        assert asked <= 3 * len(w.coordinator.reports) + 10
        await asyncio.sleep(0.1)
        assert len(w.coordinator.requests) <= asked + 2, "a worker without work waits for an answer"


async def test_examples_that_find_no_room_are_read_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        room = 3 * PER_BUNDLE * EXAMPLE_BYTES
        runner = await w.start_worker("w-0", examples_bytes_max=room)
        first = await evaluations(w, 1)
        assert len(w.reads) == len(BUNDLES)
        await evaluations(w, 2)
        assert len(w.reads) < 2 * len(BUNDLES)
        await until(lambda: runner.status()["example_bytes"] <= room)  # type: ignore[operator]
        assert first
        assert len(runner._examples) <= 3


async def test_examples_are_read_ahead_of_an_evaluation(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.coordinator.ahead = True
        runner = await w.start_worker("w-0")
        await until(lambda: w.coordinator.requests)
        w.coordinator._news["w-0", runner._session.incarnation].append(BundleName(0, 0, 0))  # has it answered
        await w.coordinator.tell()
        await until(lambda: len(runner._examples) == 2)
        await evaluations(w, 1)
        assert len(w.reads) == len(BUNDLES)


@pytest.mark.parametrize(("bits", "code"), [(40, ErrorCode.OUT_OF_RANGE), (20, ErrorCode.OK)])
async def test_a_gradient_that_does_not_fit_is_reported(tmp_path: Path, bits: int, code: ErrorCode) -> None:
    async with world(tmp_path) as w:
        runner = await w.start_worker("w-0")
        add = runner._session.parameters.add_bundle

        async def larger(evaluation: int, bundle: int, weight: float, gradient: Any) -> Any:
            return await add(evaluation, bundle, weight * 1e9, gradient)

        runner._session.parameters.add_bundle = larger  # type: ignore[method-assign, assignment]
        await w.coordinator.begin(1, bits)
        await until(lambda: len(w.coordinator.reports) == len(BUNDLES))
        assert {report.code for report in w.coordinator.reports} == {code}


async def test_a_cancelled_bundle_is_not_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose first portion lasts until another has done its bundle."""
    pushed: list[tuple[str, int]] = []
    add = ParameterClient.add_bundle

    async def note(self: ParameterClient, evaluation: int, bundle: int, *others: Any, **named: Any) -> Any:
        pushed.append((self._session.hello().node, bundle))
        return await add(self, evaluation, bundle, *others, **named)

    monkeypatch.setattr(ParameterClient, "add_bundle", note)
    async with world(tmp_path) as w:
        slow = await w.start_worker("w-0")
        held = threading.Event()
        losses = threads_of(slow)._losses

        def wait(*arguments: Any) -> list[float]:
            held.wait(ENOUGH_S)
            return losses(*arguments)

        threads_of(slow)._losses = wait  # type: ignore[method-assign]
        await w.coordinator.begin(1)
        await until(lambda: len(w.coordinator.book.outstanding()) == 2)
        await w.start_worker("w-1", threads=2)
        await w.coordinator.complete()
        expected = await w.coordinator.found(1)
        await until(lambda: all(one.given_up for one in slow._work._held))
        held.set()
        await until(lambda: not slow._work.busy and not slow._work.has_news)
        await until(lambda: sum(report.code == ErrorCode.ABANDONED for report in w.coordinator.reports) == 2)
        assert Counter(report.name.bundle for report in w.coordinator.reports).most_common(1)[0][1] == 2
        assert ("w-0", 0) not in pushed and ("w-0", 1) not in pushed
        again = await w.coordinator.evaluate(2)
        assert again != expected
        await until(lambda: not slow._work.busy)
        assert threads_of(slow)._free[0].qsize() == GRADIENTS_PER_THREAD, "each is given back once"
        assert slow.bundles


async def test_an_evaluation_that_servers_have_lost_is_reported_with_its_buckets(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        runner = await w.start_worker("w-0")
        w.coordinator.book.begin(7, [])  # servers do not know of it
        w.coordinator.open = True
        await w.coordinator.tell()
        await w.coordinator.complete()
        assert set(w.coordinator.lost) == set(range(len(runner._session.parameters.layout.buckets)))
        codes = {report.name.attempt: report.code for report in w.coordinator.reports}
        assert codes == {0: ErrorCode.ABANDONED, 1: ErrorCode.OK}
        found = await w.coordinator.found(7)
    async with world(tmp_path) as w:
        await w.start_worker("w-0")
        assert await w.coordinator.evaluate(7) == found


async def test_a_primary_that_dies_in_an_evaluation_costs_no_bit(tmp_path: Path) -> None:
    """It dies after some bundles were counted and in the middle of another one."""
    found = []
    for dies in (False, True):
        async with world(tmp_path, servers=3, copies=3) as w:
            runner = await w.start_worker("w-0")
            first = await w.coordinator.evaluate(1)
            steps, losses = threading.Semaphore(5), threads_of(runner)._losses

            def wait(*arguments: Any, of: Any = losses, steps: threading.Semaphore = steps) -> list[float]:
                assert steps.acquire(timeout=ENOUGH_S)
                return list(of(*arguments))

            threads_of(runner)._losses = wait  # type: ignore[method-assign, assignment]
            await w.coordinator.begin(2)
            await until(lambda w=w: len(w.coordinator.reports) == len(BUNDLES) + 2)  # type: ignore[misc]
            if dies:
                await w.servers.kill((await w.servers.records())[0].primary)
            steps.release(1000)
            await w.coordinator.complete()
            found.append((first, await w.coordinator.found(2)))
            assert bool(w.coordinator.lost) == dies
    assert found[0] == found[1]


async def test_who_is_told_to_stop_ends_its_pushes_and_leaves(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_worker("w-0")
        await w.start_worker("w-1")
        await w.coordinator.begin(1)
        await until(lambda: w.coordinator.reports)
        w.stops["w-0"].set()
        assert await w.running["w-0"] == "stopped"
        await w.coordinator.complete()
        first = await w.coordinator.found(1)
        assert any(request.leaving and request.node == "w-0" for request in w.coordinator.requests)
        found = [first, *await evaluations(w, 2)]
    async with world(tmp_path) as w:
        await w.start_worker("w-0")
        assert await evaluations(w, 1, 2) == found


async def test_a_lost_coordinator_ends_the_session(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_worker("w-0")
        await w.coordinator.begin(1)
        w.coordinator.gone = True
        await w.coordinator.tell()
        with pytest.raises(UnreachableError, match="the coordinator is gone"):
            await w.running["w-0"]


async def test_a_thread_that_fails_ends_the_session(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        runner = await w.start_worker("w-0")

        def fail(*arguments: Any) -> list[float]:
            raise MemoryError("none is left")

        threads_of(runner)._losses = fail  # type: ignore[method-assign]
        await w.coordinator.begin(1)
        with pytest.raises(MemoryError, match="none is left"):
            await w.running["w-0"]
