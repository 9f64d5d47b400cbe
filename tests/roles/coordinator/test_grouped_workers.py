"""The coordinator's process with replicas of several partitions: real controller and servers, played workers."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from adamctl.config.records import NodeRecord
from adamctl.errors import ConfigurationError, RemoteError, UnreachableError
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.coordinator import job, plan, room, server
from adamctl.roles.coordinator.client import CoordinatorClient, Joined
from adamctl.roles.coordinator.service import WAIT_S_MAX, _bounded
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import GroupWatchReply, GroupWatchRequest, NextTaskRequest, TaskReport
from tests.roles.coordinator.played_run import EXAMPLES, PlayedWorker, World, make_experiment, until, world

PARTITIONS = 2
WATCH_S, LOBBY_S = 20.0, 20.0


@pytest.fixture(autouse=True)
def partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (job, plan, room, server):
        monkeypatch.setattr(module, "partitions_of", lambda experiment: PARTITIONS)


class PlayedMember(PlayedWorker):
    """A worker that joins through the lobby; `epoch` and `partition` are those of its group."""

    epoch = partition = 0

    async def join(self, wait_s: float = LOBBY_S) -> Joined:
        address = f"memory://{self.node}"
        self.joined = await self.client.join(
            self.node, self.incarnation, 2, host="h1", addresses=(address,), wait_s=wait_s
        )
        self.epoch, self.partition = self.joined.reply.group_epoch, self.joined.reply.partition
        return self.joined

    async def watch(self, wait_s: float = WATCH_S, **more: str) -> GroupWatchReply:
        return await self.client.watch(GroupWatchRequest(self.node, self.incarnation, self.epoch, wait_s, **more))

    async def ask(self, reports: tuple[TaskReport, ...] = (), wanted: int = 3, wait_s: float = 5.0) -> object:
        return await self.client.next_tasks(
            NextTaskRequest(self.node, self.incarnation, reports, wanted, wait_s, group_epoch=self.epoch)
        )


async def member(w: World, name: str) -> PlayedMember:
    """A worker that is connected to the coordinator and has not joined."""
    context = await w.cluster.context("worker", name)
    context.incarnation = 1000 + len(w.clients)
    client = CoordinatorClient(await context.connect("coordinator", 10.0))
    w.clients.append(client)
    return PlayedMember(client, name, context.incarnation)


async def start(w: World, folder: Path, workers: int, **train: object) -> tuple[CoordinatorClient, Path]:
    await w.start_servers()
    path = await w.start_run(make_experiment(folder, train=train, workers=workers))
    front = await w.client()
    await until(front, lambda progress: progress.state != "starting")
    return front, path


async def group(w: World, *members: PlayedMember) -> None:
    """They join in this order, which is that of their partitions."""
    joining = []
    for one in members:
        joining.append(asyncio.ensure_future(one.join()))
        await there(w, one.node)
    await asyncio.gather(*joining)


async def there(w: World, node: str) -> None:
    """Waits until the coordinator has a worker in its lobby or in a group."""
    async with asyncio.timeout(60):
        while True:
            status = w.cluster.contexts["coordinator"].status()
            seated = [one["node"] for row in status["replicas"] for one in row["members"]]
            if node in (*status["lobby"], *seated):
                return
            await asyncio.sleep(0.005)


async def test_a_whole_run_of_one_replica_with_a_spare(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        front, folder = await start(w, tmp_path, workers=2)
        first, second, spare = [await member(w, name) for name in ("w1", "w2", "w3")]
        alone = await first.join(wait_s=0.0)
        assert alone.in_lobby and alone.reply.lobby == "1 of 2 workers of a replica are there"
        assert alone.reply.partitions == PARTITIONS and alone.experiment.model.input == (8,)
        await until(front, lambda progress: any("1 of 2 workers of a replica" in text for text in progress.messages))
        await group(w, first, second)
        assert (first.partition, second.partition) == (0, 1) and first.epoch == second.epoch > 0
        assert first.joined.members == second.joined.members
        assert [one.addresses for one in first.joined.members] == [("memory://w1",), ("memory://w2",)]
        waiting = asyncio.ensure_future(spare.join())
        with pytest.raises(RemoteError, match=r"partition 1 \(w2\) takes no ranges") as refused:
            await second.ask()
        assert refused.value.code == ErrorCode.STALE_GROUP
        watching = asyncio.ensure_future(second.watch(state="ready"))
        await there(w, "w3")
        progress = await until(front, lambda progress: progress.replicas[0].members[1].state == "ready")
        (row,) = progress.replicas
        assert [(one.node, one.state) for one in row.members] == [("w1", "starting"), ("w2", "ready")]
        status = w.cluster.contexts["coordinator"].status()
        assert list(status["lobby"]) == ["w3"] and status["replicas"][0]["members"][1]["node"] == "w2"
        assert await first.work() == "ended"
        assert (await watching).state == "ended"
        with pytest.raises(RemoteError) as refused:
            await waiting
        assert refused.value.code == ErrorCode.RUN_ENDED
        await w.ended()
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["examples"] == 2 * EXAMPLES and summary["roles"]["worker"] == 2


async def test_a_member_that_dies_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        _, folder = await start(w, tmp_path, workers=2)
        lead, other, spare = [await member(w, name) for name in ("w1", "w2", "w3")]
        await group(w, lead, other)
        reply = await lead.ask()
        watching, waiting = asyncio.ensure_future(lead.watch()), asyncio.ensure_future(spare.join())
        await there(w, "w3")
        await other.client.close()
        told = await watching
        assert (told.state, told.cause) == ("dissolved", "partition 1 (w2): its connection closed")
        with pytest.raises(RemoteError, match="group 1 is dissolved") as refused:
            await lead.ask(tuple(lead._report(task) for task in reply.train[:1]))  # type: ignore[attr-defined]
        assert refused.value.code == ErrorCode.STALE_GROUP
        await lead.join()
        await waiting
        leads = {one.partition: one for one in (lead, spare)}
        assert lead.epoch == spare.epoch > 1
        assert await leads[0].work() == "ended"
        assert (await leads[1].watch()).state == "ended"
        await w.ended()
        assert json.loads((folder / "summary.json").read_text())["examples"] == 2 * EXAMPLES
        assert len({*lead.ranges, *spare.ranges}) == 2 * EXAMPLES // 8, "every range of both passes, and none twice"
        assert len(lead.ranges) + len(spare.ranges) == 2 * EXAMPLES // 8


async def test_what_a_former_session_says_on_its_old_connection_does_not_end_the_new_group(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await start(w, tmp_path, workers=2)
        lead, other = [await member(w, name) for name in ("w1", "w2")]
        await group(w, lead, other)
        old, epoch = lead.client, lead.epoch
        await lead.client.drop("w1", lead.incarnation, epoch, 1, "it cannot be reached")
        lead.client = CoordinatorClient(await w.cluster.contexts["w1"].connect("coordinator", 10.0))
        w.clients.append(lead.client)
        await group(w, lead, other)
        late = NextTaskRequest("w1", lead.incarnation, (), 1, 0.0, group_epoch=epoch)
        with pytest.raises(RemoteError, match="it cannot be reached"):
            await old.next_tasks(late)
        told = await old.watch(GroupWatchRequest("w1", lead.incarnation, epoch, 0.0))
        assert told.state == "dissolved"
        await old.close()
        assert (await other.watch(wait_s=0.2)).state == "alive"
        assert await lead.work() == "ended"


async def test_a_lead_leaves_with_its_reports(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        front, _ = await start(w, tmp_path, workers=2)
        lead, other = [await member(w, name) for name in ("w1", "w2")]
        await group(w, lead, other)
        reply = await lead.ask(wanted=1)
        reports = [lead._report(task) for task in reply.train]  # type: ignore[attr-defined]
        watching = asyncio.ensure_future(other.watch())
        await lead.client.leave("w1", lead.incarnation, reports, group_epoch=lead.epoch)
        assert (await watching).cause == "partition 0 (w1): it left"
        assert (await front.status()).examples == 8
        await front.stop("the test is over", checkpoint=False)
        await until(front, lambda progress: progress.final)


async def test_a_run_that_never_has_a_whole_replica_says_how_many_workers_came(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.start_servers()
        await w.start_run(make_experiment(tmp_path, workers=2), wait=1.0)
        await until(await w.client(), lambda progress: progress.state != "starting")
        alone = await member(w, "w1")
        with pytest.raises(RemoteError):
            await alone.join()
        with pytest.raises(UnreachableError, match="no replica for 1 s: 1 of 2 workers of a replica are there"):
            await w.ended()


@pytest.mark.parametrize("workers", [2, 4])
def test_replicas_are_counted_and_not_workers(tmp_path: Path, workers: int) -> None:
    experiment = make_experiment(tmp_path, train={"consistency": "sync"}, workers=workers)
    made = plan.run_plan(experiment, "j", 1.0, tended=False)
    assert (made.workers, made.partitions) == (workers // PARTITIONS, PARTITIONS)
    assert job.replicas_of(experiment) == workers // PARTITIONS


def test_a_server_needs_room_for_one_part_of_each_replica_in_step(tmp_path: Path) -> None:
    """By default there is room for 1 GiB: both partitions may have sent all of theirs, 104 MB together."""
    server_record = NodeRecord("ps-0", "ps", 1, (), "h", 1)
    for workers, fits in ((20, True), (22, False)):
        experiment = make_experiment(tmp_path, train={"consistency": "sync"}, workers=workers)
        layout = build_layout(Model((8,), (Dense(2_000_000), Softmax(4))), 1)
        expected = pytest.raises(ConfigurationError, match="expected at most 20 for this model; found 22")
        with nullcontext() if fits else expected:
            room.check_room(experiment, layout, [server_record])


@pytest.mark.parametrize(("asked_s", "given_s"), [(5.0, 5.0), (1e9, WAIT_S_MAX), (-1.0, 0.0), (float("nan"), 0.0)])
def test_no_request_waits_for_ever(asked_s: float, given_s: float) -> None:
    assert _bounded(GroupWatchRequest("w1", 1, 1, asked_s)).wait_s == given_s


def test_workers_are_a_multiple_of_partitions(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="3 workers, 2 partitions"):
        job.replicas_of(make_experiment(tmp_path, workers=3))
