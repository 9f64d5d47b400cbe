"""A coordinator's commands and a worker's bundles through real servers: a minimum is found, and a primary may die."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.errors import DeadlineError, RemoteError
from adamctl.model.commands import Reduce, Set
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.controller.core.service.config import lease_config
from adamctl.roles.ps.client import vector_client
from adamctl.roles.ps.client.parameter_client import ParameterClient, numbers_of
from adamctl.roles.ps.client.vector_client import VectorClient
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BucketVectors, VectorsReply
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import TWO, add_job, make_client, start_servers
from tests.roles.ps.replicated import ReplicatedCluster
from tests.roles.ps.sharing_world import sharing_world
from tests.roles.ps.vector_harness import COMMIT, READ_SUM, RULE, dot

JOB = "a"
TRIAL = (Set("d", ((-1.0, "g"),)), Set("t", ((1.0, "x"), (0.25, "d"))), dot("g", "g"), Reduce("max_abs", (("t",),)))


class Run:
    """A coordinator and a worker that minimise |x - 1|^2 / 2 in the simplest way."""

    def __init__(self, coordinator: ParameterClient, worker: ParameterClient) -> None:
        self.coordinator, self.worker = coordinator, worker
        self.number = self.evaluation = self.commits = 0
        self.flat = np.zeros(worker.layout.flat_size, np.float32)

    @classmethod
    async def begin(cls, cluster: Any) -> Run:
        coordinator = await make_client(cluster, JOB, "c-0", role="coordinator", attempt_s=1.0)
        return cls(coordinator, await make_client(cluster, JOB, "w-0", attempt_s=1.0))

    async def round(self, commands: Any, evaluation: int = 0, after: int = -1, **options: Any) -> Any:
        self.number += 1
        return await self.coordinator.vectors.round(
            self.number, commands, evaluation=evaluation, after=after, **options
        )

    async def open(self, buckets: Any = None) -> None:
        """Makes the trial point and opens the evaluation; where the commit is done already, the point is x."""
        answer = await self.round(TRIAL, after=self.commits, buckets=buckets)
        assert {result.code for result in answer.refused.values()} <= {ErrorCode.SEQUENCE_GAP}
        if answer.refused:
            again = await self.round([Set("t", ((1.0, "x"),))], after=self.commits + 1, buckets=answer.refused)
            assert {result.code for result in again.refused.values()} <= {ErrorCode.SEQUENCE_GAP}
        opened = await self.coordinator.vectors.evaluate(self.evaluation, "t", 40, 2, buckets=buckets)
        assert not opened.refused

    async def gradient(self) -> None:
        """Two bundles of different weight, at the point that is evaluated."""
        await self.worker.pull(self.flat, vector="t", evaluation=self.evaluation)
        for bundle, weight in enumerate((0.25, 0.75)):
            outcome = await self.worker.add_bundle(self.evaluation, bundle, weight, self.flat - np.float32(1))
            assert not outcome.refused

    async def iterate(self, between: Any = None) -> None:
        """One iteration; what a takeover has cost is made again, on the buckets that say so."""
        self.evaluation += 1
        await self.open()
        while True:
            await self.gradient()
            if between is not None:
                await between()
                between = None
            lost = (await self.round([READ_SUM, dot("h", "h")], self.evaluation)).refused
            lost = lost or (await self.coordinator.vectors.commit(self.commits + 1, COMMIT)).refused
            if not lost:
                break
            assert {result.code for result in lost.values()} == {ErrorCode.NO_VECTOR}
            await self.open(lost)
        self.commits += 1

    async def found(self) -> list[float]:
        commands = [dot("x", "x"), dot("g", "g"), dot("s0", "s0"), Reduce("max_abs", (("y0",),))]
        return numbers_of(commands, await self.round(commands))

    async def close(self) -> None:
        await self.coordinator.close()
        await self.worker.close()


async def test_a_minimum_is_found_by_commands_and_bundles_over_two_servers_as_over_one() -> None:
    found = []
    for names in (TWO, TWO[:1]):
        async with memory_cluster(30) as cluster:
            await start_servers(cluster, *names)
            await add_job(cluster, JOB, names, RULE, coordinator="c-0")
            run = await Run.begin(cluster)
            for _ in range(3):
                await run.iterate()
            answer = await run.round(TRIAL)
            before = numbers_of(TRIAL, answer)[0]
            for _ in range(3):
                await run.iterate()
            assert (await run.found())[1] < before / 4
            found.append(await run.found())
            await run.close()
    assert found[0] == found[1], "to the last bit"


async def test_many_buckets_are_asked_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_client, "BUCKETS_MAX", 5)
    async with memory_cluster(34) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, JOB, ["ps-0"], RULE)
        run = await Run.begin(cluster)
        await run.iterate()
        answer = await run.round([dot("g", "g")])
        assert len(answer.results) == len(run.worker.layout.buckets) > 5 and len(answer.parts[0]) > 1
        await run.close()


async def test_a_primary_that_dies_in_an_evaluation_costs_no_bit() -> None:
    found = []
    for dies in (False, True):
        async with memory_cluster(31, config=lease_config(1.0, None)) as cluster:
            world = ReplicatedCluster(cluster)
            await world.start("ps-0", "ps-1", "ps-2")
            await world.add_job(("ps-0", "ps-1", "ps-2"), RULE)
            run = await Run.begin(cluster)
            await run.iterate()
            kill = partial(world.kill, (await world.records())[0].primary)
            await run.iterate(kill if dies else None)
            await run.iterate()
            found.append(await run.found())
            await run.close()
    assert found[0] == found[1]


async def test_a_gradient_that_does_not_fit_is_said_to_whoever_sent_it_and_to_the_coordinator() -> None:
    async with memory_cluster(32) as cluster:
        await start_servers(cluster, "ps-0")
        await add_job(cluster, JOB, ["ps-0"], RULE)
        run = await Run.begin(cluster)
        await run.round([Set("t")])
        await run.coordinator.vectors.evaluate(1, "t", 40, 1)
        for value, code in ((np.nan, ErrorCode.NOT_FINITE), (1e30, ErrorCode.OUT_OF_RANGE)):
            run.flat[:] = value
            outcome = await run.worker.add_bundle(1, 0, 1.0, run.flat)
            assert {refused[0] for refused in outcome.refused.values()} == {code}
            assert len(outcome.refused) == len(run.worker.layout.shards)
        refused = (await run.round([READ_SUM], 1)).refused
        assert {result.code for result in refused.values()} == {ErrorCode.NOT_FINITE}, "the first that was refused"
        with pytest.raises(RemoteError, match="STALE_EVALUATION"):
            await run.worker.pull(run.flat, vector="h", evaluation=1)
        run.flat[:] = 0
        with pytest.raises(DeadlineError, match="bundle 0 lacks"):
            await run.worker.add_bundle(1, 0, 1.0, run.flat, deadline_s=0.0)
        unknown = await run.worker.add_bundle(7, 0, 1.0, run.flat)
        assert {refused[0] for refused in unknown.refused.values()} == {ErrorCode.NO_VECTOR}
        with pytest.raises(RemoteError, match="NO_VECTOR") as lost:
            await run.worker.pull(run.flat, vector="t", evaluation=7)
        assert lost.value.details == {"buckets": list(range(len(run.worker.layout.buckets)))}
        with pytest.raises(RemoteError) as caught:
            await run.round([Set("x")])
        assert caught.value.code == ErrorCode.BAD_CONFIGURATION
        with pytest.raises(ValueError, match="expected a C-contiguous float32 vector"):
            await run.worker.add_bundle(1, 0, 1.0, run.flat[:-1])
        await run.close()


@pytest.mark.parametrize("repeated", [False, True])
async def test_a_bundle_in_parts_counts_once_on_each_shard_whoever_pushes_which_part_again(repeated: bool) -> None:
    """A group that dies has pushed some shards; another one pushes all, in parts of its own."""
    async with memory_cluster(34) as cluster:
        await start_servers(cluster, *TWO)
        await add_job(cluster, JOB, TWO, RULE)
        run = await Run.begin(cluster)
        await run.round([Set("t")])
        await run.coordinator.vectors.evaluate(1, "t", 40, 2)
        run.flat[:] = np.random.default_rng(5).standard_normal(run.flat.size)
        shards = range(len(run.worker.layout.shards))
        for bundle, weight in enumerate((0.25, 0.75)):
            if repeated:
                assert not (await run.worker.add_bundle(1, bundle, weight, run.flat, shards=shards[3:7])).refused
            for part in (shards[5:], *([shards[6:]] if repeated else []), shards[:5]):
                lacking = (await run.round([READ_SUM], 1)).refused
                assert set(run.worker.layout.bucket_of_shard[:3]) <= set(lacking), "only what was pushed is there"
                assert not (await run.worker.add_bundle(1, bundle, weight, run.flat, shards=part)).refused
        commands = [READ_SUM, dot("h", "h"), Reduce("sum", (("h",),))]
        found = numbers_of(commands, await run.round(commands, 1))
        whole = np.concatenate([run.flat[s.offset : s.offset + s.size] for s in run.worker.layout.shards])
        assert found == pytest.approx([float(whole @ whole), float(whole.sum())], rel=1e-5)
        await run.close()


def test_a_command_whose_bucket_has_moved_outlasts_a_configuration_service_that_does_not_answer() -> None:
    codes = [ErrorCode.STALE_EPOCH, ErrorCode.UNKNOWN_SHARD, ErrorCode.OK]

    async def answer(channel: Any, request: Any, shards: Any) -> Any:
        return SimpleNamespace(message=VectorsReply((BucketVectors(0, codes.pop(0), 1),)), body=memoryview(b""))

    async def reread() -> None:
        await asyncio.sleep(25.0)
        raise DeadlineError("no controller has answered within 25 s")

    channel = SimpleNamespace(request=lambda *_, **given: None)
    session: Any = SimpleNamespace(
        job=JOB, layout=SimpleNamespace(buckets=[SimpleNamespace(shard_start=0)]), attempt_s=1.0,
        routing=SimpleNamespace(primary=["ps-0"], epochs=[1]), answer=answer, reread=reread,
        pause=lambda attempt: asyncio.sleep(0.1), channel=lambda node: channel,
    )  # fmt: skip

    async def go() -> None:
        answer = await VectorClient(session).evaluate(1, "t", 40, 1)
        assert not answer.refused and answer.results.keys() == {0} and not codes

    run_virtual(go())


async def test_gradients_in_shared_memory_are_read_from_there(tmp_path: Path) -> None:
    async with sharing_world(tmp_path, rule=RULE) as world:
        worker = await world.client("auto")
        flat = worker.shared.new_array(worker.layout.flat_size)
        coordinator = await world.client("auto", "coordinator")
        vectors = coordinator.vectors
        await vectors.round(1, [Set("t")])
        await vectors.evaluate(1, "t", 40, 1)
        flat[:] = 3
        assert not (await worker.add_bundle(1, 0, 0.5, flat)).refused
        assert world.region_bytes, "the server has mapped it"
        commands = [READ_SUM, Reduce("sum", (("h",),))]
        assert numbers_of(commands, await vectors.round(2, commands, evaluation=1)) == [1.5 * flat.size]


async def test_a_checkpoint_is_of_the_commit_that_was_asked_for_on_every_shard_or_is_refused(tmp_path: Path) -> None:
    async with memory_cluster(33) as cluster:
        await start_servers(cluster, *TWO)
        await add_job(cluster, JOB, TWO, RULE)
        run = await Run.begin(cluster)
        await run.iterate()
        bucket = next(iter(run.coordinator.routing.layout.buckets)).index
        await run.round([Set("t"), Set("h")])
        await run.coordinator.vectors.commit(2, COMMIT, buckets=[bucket])
        for commit in (1, 2):
            with pytest.raises(RemoteError, match=f"expected commit {commit}") as caught:
                await run.coordinator.checkpoint(str(tmp_path / str(commit)), commit=commit)
            assert caught.value.code == ErrorCode.SEQUENCE_GAP
        assert not (await run.coordinator.vectors.commit(2, COMMIT)).refused
        files = await run.coordinator.checkpoint(str(tmp_path / "3"), commit=2)
        assert {shard for file in files for shard in file.shards} == set(range(len(run.worker.layout.shards)))
        await run.close()
