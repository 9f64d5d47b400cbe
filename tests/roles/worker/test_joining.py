"""A worker waits in the lobbies of all runs at once, so that none of them keeps it from another."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adamctl.config.experiment import OptimizerConfig
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.context import RoleContext
from adamctl.roles.worker import joining
from adamctl.roles.worker.joining import RunFinder, Taken
from tests.cluster import memory_cluster
from tests.roles.worker.test_server import World, make_experiment, plain_kernels, world

__all__ = ["plain_kernels"]
SOON_S = 60.0


async def start(w: World, folder: Path, run: str, partitions: int) -> None:
    experiment = make_experiment(folder, workers=partitions, partitions=partitions, ps=1)
    await w.start_run(experiment, run)


async def look(w: World, name: str, done: Collection[str] = (), wanted: str | None = None) -> asyncio.Task[Taken]:
    """A worker that looks for a run."""
    context = w.cluster.contexts.get(name)
    if context is None:
        context = await w.cluster.context("worker", name)
        await context.serve(lambda request: request.fail(0, "nothing is asked of it"))
    return asyncio.create_task(RunFinder(context, 1, wanted, done).find())


def lobby(w: World, run: str) -> list[str]:
    """The workers in a run's lobby."""
    status: Any = coordinator(w, run).status()
    return sorted(status["lobby"])


def coordinator(w: World, run: str) -> RoleContext:
    return w.cluster.contexts[f"coordinator-{run}"]


async def until_lobby(w: World, run: str, *nodes: str) -> None:
    async with asyncio.timeout(SOON_S):
        while "lobby" not in coordinator(w, run).status() or lobby(w, run) != sorted(nodes):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def leave(*looking: asyncio.Task[Taken]) -> None:
    for one in looking:
        if not one.done():
            one.cancel()
        for found in await asyncio.gather(one, return_exceptions=True):
            if isinstance(found, tuple):
                await found.coordinator.close()


async def test_a_run_that_lacks_more_workers_than_there_are_does_not_keep_those_another_one_needs(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, workers=0) as w:
        await start(w, tmp_path, "aa", partitions=3)
        looking = [await look(w, name) for name in ("w1", "w2")]
        await until_lobby(w, "aa", "w1", "w2")
        await start(w, tmp_path, "bb", partitions=2)
        async with asyncio.timeout(SOON_S):
            taken = await asyncio.gather(*looking)
        assert {one.job.rpartition("-")[2] for one in taken} == {taken[0].job.rpartition("-")[2]}
        assert sorted(one.joined.reply.partition for one in taken) == [0, 1]
        assert {one.joined.reply.partitions for one in taken} == {2}
        await until_lobby(w, "aa")
        await leave(*looking)


def test_a_worker_without_a_run_waits_for_controllers_as_long_as_it_is_a_member() -> None:
    async def scenario() -> None:
        async with memory_cluster() as cluster:
            context = await cluster.context("worker", "w")
            await context.serve(lambda request: request.fail(0, "nothing is asked of it"))
            finding = asyncio.create_task(RunFinder(context, 1, None, ()).find())
            await asyncio.sleep(1.0)
            cluster.network.partition("controller-0", "w")
            await asyncio.sleep(50.0)
            assert not finding.done() and not context.stopping.is_set()
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)
            cluster.network.heal()

    run_virtual(scenario())


async def test_a_lobby_forgets_a_worker_that_another_run_has_taken_or_that_stops_looking(tmp_path: Path) -> None:
    async with world(tmp_path, workers=0) as w:
        await start(w, tmp_path, "aa", partitions=2)
        first = await look(w, "w1")
        await until_lobby(w, "aa", "w1")
        first.cancel()
        await until_lobby(w, "aa")
        again = await look(w, "w1")
        await until_lobby(w, "aa", "w1")
        await w.start_run(make_experiment(tmp_path, workers=1), "bb")
        async with asyncio.timeout(SOON_S):
            assert (await again).joined.reply.partitions == 1
        await until_lobby(w, "aa")
        await leave(again)


async def test_two_workers_meet_wherever_they_begin_to_look(tmp_path: Path) -> None:
    """Three runs of two partitions each: all six find their place, and nobody has two."""
    async with world(tmp_path, workers=0) as w:
        for run in ("aa", "bb", "cc"):
            await start(w, tmp_path, run, partitions=2)
        looking = []
        for number in range(6):
            looking.append(await look(w, f"w{number}"))
            await asyncio.sleep(0.05 * number)
        async with asyncio.timeout(SOON_S):
            taken = await asyncio.gather(*looking)
        assert sorted((one.job, one.joined.reply.partition) for one in taken) == sorted(
            (job, partition) for job in {one.job for one in taken} for partition in (0, 1)
        )
        assert len({one.job for one in taken}) == 3
        await leave(*looking)


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_run_that_ends_is_left_for_the_next_one(tmp_path: Path, end: str) -> None:
    async with world(tmp_path, workers=0) as w:
        await start(w, tmp_path, "aa", partitions=2)
        looking = await look(w, "w1")
        await until_lobby(w, "aa", "w1")
        if end == "kill":
            await w.cluster.kill("coordinator-aa")
        else:
            await w.cluster.stop("coordinator-aa")
        await start(w, tmp_path, "bb", partitions=2)
        other = await look(w, "w2")
        async with asyncio.timeout(SOON_S):
            taken = await asyncio.gather(looking, other)
        assert len({one.job for one in taken}) == 1
        await leave(looking, other)


async def test_a_batch_algorithm_takes_workers_that_compute_alike_and_others_when_those_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, workers=0) as w:
        monkeypatch.setattr(joining, "implementation", lambda: {"BLAS": "one"})
        heaps = make_experiment(tmp_path, workers=2, ps=1)
        await w.start_run(msgspec.structs.replace(heaps, optimizer=OptimizerConfig(type="lbfgs")), "aa")
        first = await look(w, "w1")
        taken = await asyncio.wait_for(first, SOON_S)
        monkeypatch.setattr(joining, "implementation", lambda: {"BLAS": "other"})
        second = await look(w, "w2")
        assert not (await asyncio.wait((second,), timeout=1.5))[0], "it waits until it can be used"
        await taken.coordinator.close()
        await asyncio.wait_for(second, SOON_S)
        await leave(second)
