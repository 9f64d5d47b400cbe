"""A batch algorithm through real parameter servers and bundles: the same bits, whatever is lost."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.errors import RemoteError, RunFailedError
from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.optimizers.vectors import Program, Round, State, Vectors
from adamctl.roles.controller.core.service.config import lease_config
from adamctl.roles.coordinator import batch_service
from adamctl.roles.coordinator.batch_service import BatchService
from adamctl.roles.coordinator.core import events, state
from adamctl.roles.coordinator.core.batch_job import BatchJob
from adamctl.roles.coordinator.core.bundles import Bundle
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.service import RunService
from adamctl.roles.ps.apply.vector_work import VectorApplier
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BundleReport, NextBundlesRequest
from tests.cluster import memory_cluster
from tests.roles.coordinator.simulation import PLAN
from tests.roles.ps.ps_cluster import TWO, add_job, make_client, start_servers
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.store_cluster import until

JOB, EXAMPLES, BUNDLES = "a", 12, 4
SETTINGS = LBFGSSettings(history=2)


def start(progress: Progress | None, program: Program = lbfgs) -> Execution:
    return Execution(program, SETTINGS, budget=6, committed=progress)


def rule() -> RuleConfig:
    execution = start(None)
    return RuleConfig(VECTORS, kept=execution.kept[1:], scratch=execution.scratch)


class Worker:
    """Finds gradients of the sum of squared distances to a point of each bundle's own."""

    def __init__(self, client: ParameterClient, number: int) -> None:
        self.client, self.number, self.cancelled = client, number, 0
        self.flat = np.zeros(client.layout.flat_size, np.float32)
        self.at = -1

    async def work(self, service: BatchService, *, stops_after: int = 1 << 30) -> None:
        reports: tuple[BundleReport, ...] = ()
        self.lost: set[int] = set()
        while True:
            request = NextBundlesRequest(f"w-{self.number}", 1, 1, 0.2, reports, tuple(self.lost))
            reply = await service.next_bundles(request)
            self.cancelled += len(reply.cancelled)
            if reply.ended or reply.drain:
                return
            reports, self.lost = (), set()
            for task in reply.tasks:
                stops_after -= 1
                if stops_after < 0:
                    return
                name = task.name
                if self.at != name.evaluation:
                    try:
                        await self.client.pull(self.flat, vector=task.at, evaluation=name.evaluation)
                    except RemoteError:
                        reports = (BundleReport(name, ErrorCode.ABANDONED),)
                        continue
                    self.at = name.evaluation
                generator = np.random.default_rng(name.bundle)
                gradient = self.flat - generator.standard_normal(self.flat.size).astype(np.float32)
                loss = float(np.dot(gradient.astype(np.float64), gradient.astype(np.float64))) / 2
                outcome = await self.client.add_bundle(name.evaluation, name.bundle, task.weight, gradient)
                code = max((code for code, _ in outcome.refused.values()), default=0)
                if code not in (0, ErrorCode.NOT_FINITE, ErrorCode.OUT_OF_RANGE):
                    self.lost = {self.client.layout.bucket_of_shard[shard] for shard in outcome.refused}
                    code = ErrorCode.ABANDONED
                reports = (BundleReport(name, code, loss * (task.stop - task.start), task.stop - task.start),)


async def digest(cluster: Any, workers: int, between: Any = None, **stops: int) -> str:
    """Runs a job to its end; returns what its parameters are then."""
    coordinator = await make_client(cluster, JOB, "c-0", role="coordinator", attempt_s=1.0)
    clients = [await make_client(cluster, JOB, f"w-{n}", attempt_s=1.0) for n in range(workers)]
    edges = np.linspace(0, EXAMPLES, BUNDLES + 1).astype(int)
    bundles = [Bundle(n, int(edges[n]), int(edges[n + 1])) for n in range(BUNDLES)]
    batch = BatchJob("lbfgs", start, bundles, len(coordinator.layout.buckets))
    run = batch.run
    service = BatchService(batch, coordinator.vectors)
    tasks = [
        asyncio.create_task(Worker(one, n).work(service, **stops if n == 0 else {})) for n, one in enumerate(clients)
    ]
    if between is not None:
        tasks.append(asyncio.create_task(between(service)))
    try:
        assert await service.carry_out() in ("budget", "gradient", "change", "precision")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert run.restarts == 0
    flat = np.zeros(coordinator.layout.flat_size, np.float32)
    await clients[-1].pull(flat)
    for client in (coordinator, *clients):
        await client.close()
    return hashlib.sha256(flat.tobytes()).hexdigest()


async def test_the_bits_depend_neither_on_servers_nor_on_workers() -> None:
    found = set()
    for names, workers in ((TWO[:1], 1), (TWO, 1), (TWO, 3)):
        async with memory_cluster(30) as cluster:
            await start_servers(cluster, *names)
            await add_job(cluster, JOB, names, rule(), coordinator="c-0")
            found.add(await digest(cluster, workers))
    assert len(found) == 1


async def test_a_worker_that_stops_in_the_middle_costs_no_bit() -> None:
    found = []
    for stops in ({}, {"stops_after": 3}):
        async with memory_cluster(31) as cluster:
            await start_servers(cluster, "ps-0")
            await add_job(cluster, JOB, ["ps-0"], rule(), coordinator="c-0")

            async def lose(service: BatchService) -> None:
                await asyncio.sleep(0.5)
                service.lose(("w-0", 1))

            found.append(await digest(cluster, 2, lose if stops else None, **stops))
    assert found[0] == found[1]


@pytest.mark.parametrize(("evaluation", "after_s"), [(1, 0.0), (2, 0.01), (3, 0.0), (4, 0.02)])
async def test_a_primary_that_dies_costs_no_bit(evaluation: int, after_s: float) -> None:
    found = []
    for dies in (False, True):
        async with memory_cluster(31, config=lease_config(1.0, None)) as cluster:
            world = ReplicatedCluster(cluster)
            await world.start("ps-0", "ps-1", "ps-2")
            await world.add_job(("ps-0", "ps-1", "ps-2"), rule())
            primary = (await world.records())[0].primary

            async def kill(service: BatchService, world: ReplicatedCluster = world, primary: str = primary) -> None:
                await until(lambda: service.run.evaluations >= evaluation, f"evaluation {evaluation}")
                await asyncio.sleep(after_s)
                assert service.run.execution.stop_reason is None
                await world.kill(primary)

            found.append(await digest(cluster, 2, kill if dies else None))
    assert found[0] == found[1]


async def test_a_program_that_asks_for_what_cannot_be_ends_the_run_with_the_reason() -> None:
    def wrong(v: Vectors, settings: Any, state: State) -> Any:
        yield Round((v.x.set(2.0 * v.x),))
        return "never"

    async with memory_cluster(32) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, JOB, ["ps-0"], rule(), coordinator="c-0")
        coordinator = await make_client(cluster, JOB, "c-0", role="coordinator")

        def late(v: Vectors, settings: Any, state: State) -> Any:
            yield v.evaluate(at=v.x, into=v.scratch("h"))
            yield from wrong(v, settings, state)

        batch = BatchJob("lbfgs", lambda p: Execution(late, None), [Bundle(0, 0, 1)], len(coordinator.layout.buckets))
        service = BatchService(batch, coordinator.vectors)
        ended = asyncio.create_task(service.carry_out())
        task = (await service.next_bundles(NextBundlesRequest("w", 1, 1, 5.0))).tasks[0]
        report = BundleReport(task.name, ErrorCode.NOT_FINITE)
        waiting = asyncio.create_task(service.next_bundles(NextBundlesRequest("w", 1, 1, 5.0, (report,))))
        with pytest.raises(RunFailedError, match="writes 'x'"):
            await ended
        assert not (await waiting).ended and (await waiting).drain
        await coordinator.close()


@pytest.mark.parametrize("times", [3, 1 << 30])
async def test_servers_may_fail_for_a_while_and_if_they_go_on_the_run_ends_with_the_reason(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, make = iter(range(times)), VectorApplier._open

    def fail(*given: Any) -> None:
        if next(failures, None) is not None:
            raise MemoryError("planted")
        make(*given)

    async with memory_cluster(36) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, JOB, ["ps-0"], rule(), coordinator="c-0")
        monkeypatch.setattr(batch_service, "FAILED_PAUSE_S", 0.01)
        monkeypatch.setattr(VectorApplier, "_open", fail)
        if times == 3:
            assert await asyncio.wait_for(digest(cluster, 1), 20)
        else:
            with pytest.raises(
                RunFailedError, match=r"6 times since the last commit, last at bucket \d+: the server failed"
            ):
                await asyncio.wait_for(digest(cluster, 1), 20)


async def test_bundles_of_an_evaluation_that_is_over_are_cancelled() -> None:
    async with memory_cluster(33) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, JOB, ["ps-0"], rule(), coordinator="c-0")
        coordinator = await make_client(cluster, JOB, "c-0", role="coordinator")
        bundles = [Bundle(0, 0, 1), Bundle(1, 1, 2)]
        batch = BatchJob("lbfgs", start, bundles, len(coordinator.layout.buckets))
        service = BatchService(batch, coordinator.vectors)
        ended = asyncio.create_task(service.carry_out())
        one = (await service.next_bundles(NextBundlesRequest("one", 1, 1, 5.0))).tasks[0]
        two = (await service.next_bundles(NextBundlesRequest("two", 1, 1, 5.0))).tasks[0]
        refused = (BundleReport(one.name, ErrorCode.NOT_FINITE),)
        first = asyncio.create_task(service.next_bundles(NextBundlesRequest("one", 1, 0, 0.1, refused)))
        told = await service.next_bundles(NextBundlesRequest("two", 1, 0, 5.0))
        assert told.cancelled == (two.name,) and not (await first).cancelled
        with pytest.raises(RunFailedError, match="the loss at the start is not finite"):
            await ended
        await coordinator.close()


async def test_who_is_gone_is_handed_nothing_although_its_request_still_waits() -> None:
    async with memory_cluster(35) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, JOB, ["ps-0"], rule(), coordinator="c-0")
        coordinator = await make_client(cluster, JOB, "c-0", role="coordinator")
        batch = BatchJob("lbfgs", start, [Bundle(0, 0, 1)], len(coordinator.layout.buckets))
        service = BatchService(batch, coordinator.vectors)
        ended = asyncio.create_task(service.carry_out())
        for node in ("one", "two"):  # two copies at most
            assert (await service.next_bundles(NextBundlesRequest(node, 1, 1, 5.0))).tasks
        waiting = asyncio.create_task(service.next_bundles(NextBundlesRequest("three", 1, 1, 5.0)))
        await asyncio.sleep(0)
        service.lose(("three", 1))
        service.lose(("one", 1))
        assert not (await asyncio.wait_for(waiting, 5)).tasks
        assert service.run.book.outstanding() == {0: (("two", 1),)}
        assert (await service.next_bundles(NextBundlesRequest("four", 1, 1, 5.0))).tasks
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        await coordinator.close()


async def test_who_is_lost_right_after_it_has_asked_does_not_join_again() -> None:
    core = RunCore(PLAN, 0.0)
    core.run.workers["lead", 1] = state.Worker(("lead", 1), ranges_max=1, heard_s=0.0)
    joined, failed = list[Any](), list[Any]()

    async def next_bundles(message: Any) -> Any:
        joined.append(message)

    service = RunService(core, SimpleNamespace(), logging.getLogger())  # type: ignore[arg-type]
    service.batch = SimpleNamespace(next_bundles=next_bundles, hold=lambda *_, **given: None)  # type: ignore[assignment]
    request: Any = SimpleNamespace(
        message=NextBundlesRequest("lead", 1, 1, 5.0), connection_id=1, fail=lambda *why: failed.append(why)
    )
    service.handle(request)
    service.step(events.WorkerLost("lead", 1, "its connection closed"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not joined and failed[0][0] == ErrorCode.STALE_INCARNATION
    service.close()


async def test_an_observer_that_fails_ends_the_run_with_the_reason() -> None:
    async with memory_cluster(34) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, JOB, ["ps-0"], rule(), coordinator="c-0")
        coordinator = await make_client(cluster, JOB, "c-0", role="coordinator")
        client = await make_client(cluster, JOB, "w-0")

        def observe(progress: Progress) -> None:
            raise OSError("a full disk")

        batch = BatchJob("lbfgs", start, [Bundle(0, 0, 1)], len(coordinator.layout.buckets))
        service = BatchService(batch, coordinator.vectors, observe)
        working = asyncio.create_task(Worker(client, 0).work(service))
        with pytest.raises(RunFailedError, match="a full disk"):
            await service.carry_out()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await client.close()
        await coordinator.close()
