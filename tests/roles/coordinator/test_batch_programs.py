"""Programs that ask for nonsense, through the coordinator and a real server: an error each, nothing changed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from adamctl.errors import AdamctlError, ProgramError, RunFailedError
from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.vectors import State, Vector, Vectors
from adamctl.roles.coordinator.batch_service import BatchService
from adamctl.roles.coordinator.core.batch_job import BatchJob
from adamctl.roles.coordinator.core.batch_run import BatchRun
from adamctl.roles.coordinator.core.bundles import Bundle
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BundleReport, NextBundlesReply, NextBundlesRequest
from tests.cluster import memory_cluster
from tests.optimizers.test_execution import nonsense
from tests.roles.ps.ps_cluster import add_job, make_client, start_servers

JOB, SEEDS = "a", 150
BUNDLES = [Bundle(0, 0, 1)]
RULE = RuleConfig(VECTORS, kept=("g",), scratch=("t",))


class Desk:
    """Carries programs out, one after the other, on the same vectors."""

    def __init__(self, client: ParameterClient, worker: ParameterClient) -> None:
        self.client, self.worker = client, worker
        self.numbers = {"commit": 0, "evaluations": 0, "rounds": 0}

    async def carry_out(self, program: Callable[..., Any]) -> str:
        """Returns why a program stopped. Every gradient is said not to be finite."""

        def start(committed: Progress | None) -> Execution:
            return Execution(program, None, committed=committed)

        buckets = len(self.client.layout.buckets)
        job = BatchJob("fuzzed", start, BUNDLES, buckets)
        job.run = run = BatchRun(start, None, BUNDLES, buckets, **self.numbers)
        service = BatchService(job, self.client.vectors)
        working = asyncio.create_task(self._refuse_all(service))
        try:
            return await asyncio.wait_for(service.carry_out(), 20)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            assert run.commit is not None, "no commit is half done"
            self.numbers = {"commit": run.commit, "evaluations": run.evaluations, "rounds": run.rounds}

    async def _refuse_all(self, service: BatchService) -> None:
        reports: tuple[BundleReport, ...] = ()
        reply = NextBundlesReply()
        while not (reply.ended or reply.drain):
            reply = await service.next_bundles(NextBundlesRequest("w", 1, 1, 5.0, reports))
            reports = tuple(BundleReport(task.name, ErrorCode.NOT_FINITE) for task in reply.tasks)

    async def parameters(self) -> bytes:
        flat = np.zeros(self.client.layout.flat_size, np.float32)
        await self.worker.pull(flat)
        return flat.tobytes()


async def test_fuzzed_programs_end_with_an_error_each_and_nothing_changed() -> None:
    refused, carried = 0, 0
    async with memory_cluster(40) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, JOB, ["ps-0"], RULE, coordinator="c-0")
        client = await make_client(cluster, JOB, "c-0", role="coordinator")
        worker = await make_client(cluster, JOB, "w-0")
        desk = Desk(client, worker)
        for seed in range(SEEDS):
            request = nonsense(random.Random(seed))

            def program(v: Vectors, _: Any, __: State, request: Any = request, seed: int = seed) -> Iterator[Any]:
                v.kept("g"), v.scratch("t")
                if seed % 2:
                    yield v.round(Vector("t").set(v.x))
                yield request
                return "done"

            before = await desk.parameters()
            try:
                assert await desk.carry_out(program) == "done"
            except (ProgramError, RunFailedError) as error:
                refused += 1
                assert isinstance(error, ProgramError) or isinstance(error.__cause__, AdamctlError), (seed, error)
                assert await desk.parameters() == before, (seed, request)
            else:
                carried += 1
        await client.close()
        await worker.close()
    assert refused > 80 and carried > 8, (refused, carried)
