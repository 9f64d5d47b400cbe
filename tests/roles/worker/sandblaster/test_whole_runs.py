"""L-BFGS on a small network, coordinator and workers real: the same parameters to the last bit whoever does what."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.roles.coordinator.batch_service import BatchService
from adamctl.roles.coordinator.core.batch_job import BatchJob
from tests.roles.worker.sandblaster.evaluating import BUNDLES, ENOUGH_S, Coordinator, World, world

EVALUATIONS = 12


def start(progress: Progress | None) -> Execution:
    return Execution(lbfgs, LBFGSSettings(history=3), budget=EVALUATIONS, committed=progress)


def rule() -> RuleConfig:
    execution = start(None)
    return RuleConfig(VECTORS, kept=execution.kept[1:], scratch=execution.scratch)


class Both:
    """The batch from its service, the test part and the end of the run from the test's coordinator."""

    def __init__(self, service: BatchService, other: Coordinator) -> None:
        self.next_bundles, self.next_tasks, self.leave = service.next_bundles, other.next_tasks, other.leave
        self.tell = other.tell


async def train(w: World, threads: Sequence[int], between: Any = None) -> tuple[str, list[float]]:
    """Returns what the parameters are at the end, and the losses of all iterations."""
    desk, vectors, losses = w.coordinator, w.coordinator.vectors, list[float]()
    batch = BatchJob("lbfgs", start, BUNDLES, len(vectors._session.layout.buckets))
    run = batch.run
    service = BatchService(batch, vectors, lambda progress: losses.append(float(progress.state["loss"])))
    w.coordinator = Both(service, desk)  # type: ignore[assignment]
    runners = [await w.start_worker(f"w-{number}", threads=count) for number, count in enumerate(threads)]
    if between is not None:
        other = asyncio.create_task(between(service))
    async with asyncio.timeout(ENOUGH_S):
        assert await service.carry_out() in ("budget", "gradient", "change", "precision")
        if between is not None:
            await other
        desk.ended = True
        await desk.tell()
        for name, running in w.running.items():
            if not w.stops[name].is_set():
                assert await running
    assert run.restarts == 0
    flat = np.zeros(vectors._session.layout.flat_size, np.float32)
    await w.clients[-1].pull(flat)
    assert sum(runner.bundles for runner in runners) >= len(BUNDLES) * run.evaluations or between is not None
    return hashlib.sha256(flat.tobytes()).hexdigest(), losses


async def test_the_bits_depend_neither_on_workers_nor_on_threads_nor_on_servers(tmp_path: Path) -> None:
    found = []
    for servers, threads in ((1, [1]), (2, [2]), (2, [1, 3])):
        async with world(tmp_path, servers=servers, rule=rule()) as w:
            found.append(await train(w, threads))
    assert found[0] == found[1] == found[2]
    losses = found[0][1]
    assert losses[-1] < losses[0], "it has learnt"


@pytest.mark.slow
async def test_a_worker_that_leaves_and_a_primary_that_dies_cost_no_bit(tmp_path: Path) -> None:
    found = []
    for what in ("nothing", "worker", "primary"):
        async with world(tmp_path, servers=3, copies=3, rule=rule()) as w:

            async def disturb(service: BatchService, w: World = w, what: str = what) -> None:
                while service.run.evaluations < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                if what == "worker":
                    w.stops["w-0"].set()
                elif what == "primary":
                    await w.servers.kill((await w.servers.records())[0].primary)

            found.append(await train(w, [1, 1], disturb))
    assert found[0] == found[1] == found[2]
