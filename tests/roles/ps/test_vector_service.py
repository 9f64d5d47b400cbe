"""A batch algorithm's requests to real servers: iterations, who may send what, memory, checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import fsum
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

from adamctl.config.records import BucketRecord, decode
from adamctl.errors import RemoteError
from adamctl.model.commands import Command, Reduce, Set
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.net.transport import Connection
from adamctl.wire.codec import encode_commands
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    AccumulateRequest,
    AttachRequest,
    CommitRequest,
    EvaluateRequest,
    PullRequest,
    RoundRequest,
    VectorsReply,
)
from tests.cluster import ClusterInMemory, memory_cluster
from tests.roles.manifests_for_tests import finish
from tests.roles.ps.ps_cluster import TWO, add_job, checkpoint, make_client, pulled, start_servers
from tests.roles.ps.store_cluster import crash, start
from tests.roles.ps.vector_harness import COMMIT, READ_SUM, RULE, dot

JOB = "job"


class Peer:
    """A worker or a coordinator with a connection to each server of a job."""

    def __init__(self, layout: ParameterLayout, of_server: dict[str, tuple[Connection, dict[int, int]]]) -> None:
        self.layout, self.of_server = layout, of_server

    @classmethod
    async def open(
        cls, cluster: ClusterInMemory, layout: ParameterLayout, role: str, node: str, says: str = ""
    ) -> Peer:
        """`says`: what it calls itself, if not `node`: a coordinator that was started again."""
        context = await cluster.context(role, node)
        context.node = says or node
        context.incarnation = 1000 + len(cluster.contexts)
        _, entries = await cluster.client.read(f"/jobs/{JOB}/buckets/")
        found = {}
        for name in sorted({decode(entry.value, BucketRecord).primary for entry in entries}):
            connection = await context.connect(name, deadline_s=60)
            found[name] = (connection, await attached(connection, layout))
        return cls(layout, found)

    async def ask(self, make: Any, body: bytes = b"") -> list[Any]:
        """Sends `make(epochs)` to each server; returns the answers with copies of their bodies."""
        out = []
        for connection, epochs in self.of_server.values():
            answer = await connection.request(make(epochs), [body] if body else [], deadline_s=60)
            out.append((answer.message, bytes(answer.body)))
            answer.release()
        return out

    async def round(self, number: int, commands: Sequence[Command], evaluation: int = 0) -> list[float]:
        """Returns the number of each reduction."""
        answers = await self.ask(lambda e: RoundRequest(JOB, e, number, evaluation), encode_commands(commands))
        parts: list[list[float]] = [[] for one in commands if isinstance(one, Reduce)]
        for message, body in answers:
            good(message)
            numbers = np.frombuffer(body, "<f8").tolist()
            for place, length in enumerate(message.lengths):
                parts[place] += numbers[:length]
                del numbers[:length]
        return [fsum(part) for part in parts]

    async def add(self, evaluation: int, bundle: int, flat: np.ndarray, weight: float) -> None:
        for name, (connection, epochs) in self.of_server.items():
            shards = [s for s in self.layout.shards if self.layout.bucket_of_shard[s.index] in epochs]
            pieces = [flat[s.offset : s.offset + s.size] for s in shards]
            offsets = tuple(int(o) for o in np.cumsum([0, *(4 * s.size for s in shards)])[:-1])
            indices = tuple(s.index for s in shards)
            message = AccumulateRequest(JOB, epochs, evaluation, bundle, weight, indices, offsets)
            answer = await connection.request(message, [np.concatenate(pieces)], deadline_s=60)
            assert {result.code for result in answer.message.results} == {0}, name
            answer.release()

    async def pull(self, vector: str, evaluation: int) -> np.ndarray:
        flat = np.zeros(self.layout.flat_size, np.float32)
        for connection, epochs in self.of_server.values():
            shards = [s for s in self.layout.shards if self.layout.bucket_of_shard[s.index] in epochs]
            message = PullRequest(JOB, epochs, tuple(s.index for s in shards), vector=vector, evaluation=evaluation)
            answer = await connection.request(message, deadline_s=60)
            values = np.frombuffer(answer.body, "<f4")
            for part, shard in zip(answer.message.parts, shards, strict=True):
                assert not part.code, part
                flat[shard.offset : shard.offset + shard.size] = values[part.offset // 4 :][: part.size]
            answer.release()
        return flat


async def attached(connection: Connection, layout: ParameterLayout) -> dict[int, int]:
    """Returns the epochs of the server's buckets, once they are there."""
    while True:
        try:
            reply = await connection.request(AttachRequest(JOB, layout.hash), deadline_s=60)
            return reply.message.epochs  # type: ignore[attr-defined, no-any-return]
        except RemoteError as error:
            assert error.code == ErrorCode.NOT_READY
            await asyncio.sleep(0.01)


def good(message: VectorsReply) -> None:
    assert {result.code for result in message.results} == {0}, message


async def iterate(coordinator: Peer, worker: Peer, number: int, rounds: int = 0) -> None:
    """One iteration of gradient descent on |x|^2 / 2, from two bundles of different weight, after so many rounds."""
    rounds += 2 * number - 2
    good_of = [*await coordinator.ask(lambda e: EvaluateRequest(JOB, e, 2 * number - 1, "x", 40, 1))]
    for message, _ in good_of:
        good(message)
    x = await worker.pull("x", 2 * number - 1)
    await worker.add(2 * number - 1, 0, x, 1.0)
    await coordinator.round(rounds + 1, [READ_SUM, Set("t", ((1.0, "x"), (-0.5, "h")))], 2 * number - 1)
    await coordinator.ask(lambda e: EvaluateRequest(JOB, e, 2 * number, "t", 40, 2))
    t = await worker.pull("t", 2 * number)
    await worker.add(2 * number, 0, t, 0.75)
    await worker.add(2 * number, 1, t, 0.25)
    (square,) = await coordinator.round(rounds + 2, [READ_SUM, dot("t", "t")], 2 * number)
    assert square == pytest.approx(float(np.dot(t.astype(float), t.astype(float))))
    for _ in "twice":
        for message, _body in await coordinator.ask(lambda e: CommitRequest(JOB, e, number), encode_commands(COMMIT)):
            good(message)
            assert {result.commit for result in message.results} == {number}


async def flat_of(cluster: ClusterInMemory, node: str) -> np.ndarray:
    """The parameters as any client sees them."""
    reader = await make_client(cluster, JOB, node)
    flat = np.concatenate([one.reshape(-1) for one in await pulled(reader)])
    await reader.close()
    return flat


ALL = [dot("x", "x"), dot("g", "g"), dot("s0", "s0"), dot("y0", "y0"), dot("x", "g"), dot("x", "s0"), dot("x", "y0")]


async def test_iterations_over_two_servers_halve_the_parameters_and_a_checkpoint_keeps_their_history(
    tmp_path: Path,
) -> None:
    async with memory_cluster(21) as cluster:
        await start_servers(cluster, *TWO)
        layout = await add_job(cluster, JOB, TWO, RULE)
        before = await flat_of(cluster, "r-0")
        coordinator = await Peer.open(cluster, layout, "coordinator", "c-0")
        worker = await Peer.open(cluster, layout, "worker", "w-0")
        await iterate(coordinator, worker, 1)
        await iterate(coordinator, worker, 2)
        after = await flat_of(cluster, "r-1")
        np.testing.assert_allclose(after, before / 4, rtol=1e-5)
        square = float(np.dot(after, after))
        found = await coordinator.round(9, ALL)
        assert found == pytest.approx([square, square, square, square, square, -square, -square], rel=1e-4)
        files = await checkpoint(cluster, JOB, tmp_path)
    finish(tmp_path, files, layout.hash)
    async with memory_cluster(22) as cluster:  # on one server, where all shards are cut otherwise
        await start_servers(cluster, "ps-0")
        other = await add_job(cluster, JOB, ["ps-0"], RULE, restore=str(tmp_path))
        coordinator = await Peer.open(cluster, other, "coordinator", "c-1", says="c-0")
        assert await coordinator.round(1, ALL) == found, "to the last bit"
        await iterate(coordinator, await Peer.open(cluster, other, "worker", "w-1"), 1, 1)
        np.testing.assert_allclose(await flat_of(cluster, "r-2"), before / 8, rtol=1e-5)


async def test_a_coordinator_neither_pulls_nor_pushes_and_nobody_else_commands() -> None:
    async with memory_cluster(23) as cluster:
        await start_servers(cluster, "ps-0")
        layout = await add_job(cluster, JOB, ["ps-0"], RULE, coordinator="c-0")
        mine = await Peer.open(cluster, layout, "coordinator", "c-0")
        others = await Peer.open(cluster, layout, "coordinator", "c-1")
        worker = await Peer.open(cluster, layout, "worker", "w-0")
        pushing = await Peer.open(cluster, layout, "client", "p-0")
        commands = encode_commands([Set("t")])
        add = AccumulateRequest(JOB, {0: 1}, 1, 0, 1.0, (0,), (0,))
        for peer, message, body in (
            (mine, PullRequest(JOB, {0: 1}, (0,)), b""),
            (mine, add, bytes(4 * layout.shards[0].size)),
            (pushing, add, bytes(4 * layout.shards[0].size)),
            (worker, RoundRequest(JOB, {0: 1}, 1), commands),
            (worker, CommitRequest(JOB, {0: 1}, 1), commands),
            (worker, EvaluateRequest(JOB, {0: 1}, 1, "x", 40, 1), b""),
            (others, RoundRequest(JOB, {0: 1}, 1), commands),
            (others, CommitRequest(JOB, {0: 1}, 1), commands),
            (others, EvaluateRequest(JOB, {0: 1}, 1, "x", 40, 1), b""),
        ):
            with pytest.raises(RemoteError) as caught:
                await peer.ask(lambda _, message=message: message, body)
            assert caught.value.code == ErrorCode.NOT_ALLOWED, message
        assert await mine.round(1, [Set("t"), dot("t", "t")]) == [0.0]


async def test_vectors_that_do_not_fit_are_refused_with_what_to_do() -> None:
    """SMALL has 173 parameters; with 4 (1 + 3 + 3) + 8 bytes for each of them they take 6,228."""
    for memory, fits in (("6300B", True), ("6200B", False)):
        async with memory_cluster(24) as cluster:
            await start_servers(cluster, "ps-0", memory=memory)
            await add_job(cluster, JOB, ["ps-0"], RULE)
            if fits:
                await (await make_client(cluster, JOB, "w")).close()
                assert cluster.contexts["ps-0"].status()["jobs"][JOB]["bytes"] == 173 * 36
                continue
            with pytest.raises(RemoteError, match="--memory") as caught:
                await make_client(cluster, JOB, "w")
            assert caught.value.code == ErrorCode.OVER_QUOTA


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["durable", "applied"])
async def test_a_server_that_crashes_comes_back_with_whole_iterations_and_without_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: Literal["durable", "applied"]
) -> None:
    """What was acknowledged as durable is there; else shards may be back at an earlier commit each, and say so."""
    async with memory_cluster(25) as cluster:
        await start(cluster, tmp_path, loss_window_s="3600")
        layout = await add_job(cluster, JOB, ["ps-0"], RULE, acks=acks)
        coordinator = await Peer.open(cluster, layout, "coordinator", "c-0")
        worker = await Peer.open(cluster, layout, "worker", "w-0")
        for number in (1, 2):
            await iterate(coordinator, worker, number)
        found = await coordinator.round(9, ALL)
        await crash(cluster, "ps-0", monkeypatch)
        await start(cluster, tmp_path, loss_window_s="3600")
        coordinator = await Peer.open(cluster, layout, "coordinator", "c-1", says="c-0")
        ((message, _),) = await coordinator.ask(lambda e: RoundRequest(JOB, e, 1), encode_commands([]))
        good(message)
        commits = {(result.commit, result.commit_most) for result in message.results}
        assert all(result.evaluation == 0 and not result.scratch for result in message.results)
        if acks == "durable":
            assert commits == {(2, 2)} and await coordinator.round(2, ALL) == found
            ((again, _),) = await coordinator.ask(lambda e: CommitRequest(JOB, e, 2), encode_commands(COMMIT))
            good(again)
            assert await coordinator.round(3, ALL) == found, "done before: nothing is changed"
        else:
            assert commits == {(0, 0)}, "nothing was on disk: each shard is as the job began, with its zeros"
            ((gap, _),) = await coordinator.ask(lambda e: CommitRequest(JOB, e, 3), encode_commands(COMMIT))
            assert {result.code for result in gap.results} == {ErrorCode.SEQUENCE_GAP}


@pytest.mark.parametrize("crashes", [1, pytest.param(3, marks=pytest.mark.slow)])
async def test_the_store_is_written_what_a_commit_has_changed_and_has_all_of_it_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: int
) -> None:
    """Commits of 1 of 12 vectors: records are mostly changes, and nothing of them is lost."""
    names = tuple(f"v{number}" for number in range(11))
    rule = RuleConfig(VECTORS, kept=names, scratch=("t",))
    async with memory_cluster(26) as cluster:
        context = await start(cluster, tmp_path)
        layout = await add_job(cluster, JOB, ["ps-0"], rule, acks="durable", shapes=((64, 64), (64,)))
        coordinator = await Peer.open(cluster, layout, "coordinator", "c-0")
        size_bytes = 4 * sum(shard.size for shard in layout.shards)
        random, written, number = Random(7), [], 0
        for restarts in range(crashes):
            for _ in range(9):
                number += 1
                await coordinator.round(number, [Set("t", ((random.random(), "x"), (random.random(), "v3")))])
                before = context.status()["store"]["record_bytes"]
                commands = encode_commands([Set(random.choice(names), ((1.0, "t"),))])
                ((message, _),) = await coordinator.ask(lambda e: CommitRequest(JOB, e, number), commands)  # noqa: B023
                good(message)
                written.append((context.status()["store"]["record_bytes"] - before) / size_bytes)
            sums = [Reduce("sum", ((name,),)) for name in ("x", *names)]
            found = await coordinator.round(number + 1, sums)
            await crash(cluster, "ps-0", monkeypatch)
            context = await start(cluster, tmp_path)
            coordinator = await Peer.open(cluster, layout, "coordinator", f"c-{1 + restarts}", says="c-0")
            assert await coordinator.round(1, sums) == found
        assert sum(share > 11 for share in written) <= 2 * crashes, "the first after a start is whole, and few others"
        assert sum(share < 3 for share in written) >= 6 * crashes
