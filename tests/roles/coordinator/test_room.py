"""Room on parameter servers for replicas that go in step, of one job and of several."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from adamctl.config.experiment import Experiment
from adamctl.config.records import NodeRecord
from adamctl.errors import ConfigurationError
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.net.limits import ServerLimits
from adamctl.roles.configuration import ConfigurationStore
from adamctl.roles.coordinator import server
from adamctl.roles.coordinator.room import InStep, check_room, jobs_in_step
from adamctl.roles.ps import server as ps_server
from tests.roles.coordinator.played_run import make_experiment, until, world

PART_BYTES = 4 << 20
"""What a server must hold of each replica of `in_step`: all of the model, which is less than a connection's credit."""


def in_step(folder: Path, workers: int) -> Experiment:
    experiment = make_experiment(folder, train={"consistency": "sync"}, workers=workers)
    return msgspec.structs.replace(experiment, model=Model((8,), (Dense((PART_BYTES // 4 - 4) // 13), Softmax(4))))


async def test_replicas_in_step_must_have_room_on_the_smallest_server(tmp_path: Path) -> None:
    """As it was started, which is not how servers usually are."""
    async with world(tmp_path) as w:
        await w.start_servers()
        w.cluster.network.server_limits = ServerLimits(memory_bytes_max=64 << 20)
        await w.cluster.start("ps", "ps-small", ps_server.run, {"apply_threads": "1"})
        w.cluster.network.server_limits = ServerLimits()
        experiment = make_experiment(tmp_path, train={"consistency": "sync"}, workers=2, ps=2)
        model = Model((8,), (Dense(1_000_000), Softmax(4)))
        await w.start_run(msgspec.structs.replace(experiment, model=model))
        with pytest.raises(ConfigurationError, match=r"expected at most 1 .* found 2: parameter server ps-small"):
            await w.ended()


@pytest.mark.parametrize(
    ("bodies_bytes_max", "credit_bytes", "fits"), [(0, 0, 16), (256 << 20, 0, 4), (0, 32 << 20, 32)]
)
def test_a_server_that_says_nothing_has_the_usual_room(
    tmp_path: Path, bodies_bytes_max: int, credit_bytes: int, fits: int
) -> None:
    record = NodeRecord("ps-0", "ps", 1, (), "h", 1, bodies_bytes_max=bodies_bytes_max, credit_bytes=credit_bytes)
    for workers in (fits, fits + 1):
        experiment = make_experiment(tmp_path, train={"consistency": "sync"}, workers=workers)
        model = Model((8,), (Dense(2_000_000), Softmax(4)))
        with pytest.raises(ConfigurationError) if workers > fits else nullcontext():
            check_room(experiment, build_layout(model, 1), [record])


def test_replicas_of_other_jobs_take_their_part(tmp_path: Path) -> None:
    record = NodeRecord("ps-0", "ps", 1, (), "h", 1, bodies_bytes_max=4 * PART_BYTES)
    experiment = in_step(tmp_path, 2)
    layout = build_layout(experiment.model, 1)
    check_room(experiment, layout, [record], [InStep("other", 2, PART_BYTES, 7)])
    check_room(experiment, layout, [record], [InStep("small", 200, 1 << 10, 7)])
    for others in ([InStep("other", 3, PART_BYTES, 7)], [InStep("a", 2, 1 << 40, 7), InStep("b", 1, PART_BYTES, 8)]):
        with pytest.raises(ConfigurationError, match=r"found 2: .* ps-0 .* other jobs in step: ") as refused:
            check_room(experiment, layout, [record], others)
        assert all(f"{other.job} ({other.replicas})" in str(refused.value) for other in others)


async def test_two_jobs_in_step_share_what_a_server_can_hold(tmp_path: Path) -> None:
    """Each fits alone; together, a step of either might wait for ever. Whoever began first stays."""
    async with world(tmp_path) as w:
        await w.start_servers(parameter=0)
        w.cluster.network.server_limits = ServerLimits(memory_bytes_max=8 * PART_BYTES)
        await w.cluster.start("ps", "ps-small", ps_server.run, {"apply_threads": "1"})
        w.cluster.network.server_limits = ServerLimits()
        await w.start_run(in_step(tmp_path, 5), "001", "coordinator-a")
        await until(await w.client("coordinator-a"), lambda p: any("a worker" in text for text in p.messages))
        await w.start_run(in_step(tmp_path, 5), "002", "coordinator-b")
        with pytest.raises(ConfigurationError, match=r"expected at most 3 .* other jobs in step: small \(5\)"):
            await w.ended("coordinator-b")
        assert [one.job for one in await jobs_in_step(w.cluster.client, "")] == ["small"]


async def test_of_two_jobs_that_begin_together_the_first_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before their jobs are made neither sees the other."""
    seen: list[str] = []

    async def late(store: ConfigurationStore, own: str) -> list[InStep]:
        found = await jobs_in_step(store, own)
        first = own not in seen
        seen.append(own)
        return [] if first else found

    monkeypatch.setattr(server, "jobs_in_step", late)
    async with world(tmp_path) as w:
        await w.start_servers(parameter=0)
        w.cluster.network.server_limits = ServerLimits(memory_bytes_max=8 * PART_BYTES)
        await w.cluster.start("ps", "ps-small", ps_server.run, {"apply_threads": "1"})
        w.cluster.network.server_limits = ServerLimits()
        await w.start_run(in_step(tmp_path, 5), "001", "coordinator-a", job="a")
        await w.start_run(in_step(tmp_path, 5), "002", "coordinator-b", job="b")
        await until(await w.client("coordinator-a"), lambda p: any("a worker" in text for text in p.messages))
        with pytest.raises(ConfigurationError, match=r"other jobs in step: a \(5\)"):
            await w.ended("coordinator-b")


@pytest.mark.parametrize(("partitions", "model_bytes", "needed"), [(1, 90, 2 * 64), (2, 90, 2 * 90), (2, 900, 2 * 128)])
def test_each_partition_of_a_replica_has_a_credit_of_its_own(partitions: int, model_bytes: int, needed: int) -> None:
    assert InStep("job", 2, model_bytes, 1, partitions).needs_bytes(64) == needed
