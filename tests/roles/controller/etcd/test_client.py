"""etcd in the place of the controllers: the same conformance suite, and what only etcd has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.configuration import ConfigurationStore
from adamctl.roles.controller.client import ControllerClient, cluster_client
from adamctl.roles.controller.etcd import client as etcd_module
from adamctl.roles.controller.etcd.client import EtcdClient
from adamctl.roles.controller.etcd.gateway import Json, encoded, revision_of
from adamctl.wire.messages import ConfigChanges
from tests.roles.controller.conformance import Conformance, put
from tests.roles.controller.etcd_server import EtcdCluster, a_root, etcd_cluster

BOUND_S = 60.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    """A client with keys of its own."""
    client = EtcdClient(etcd.url + a_root())
    yield client
    await client.close()


class TestOverEtcd(Conformance):
    @pytest.fixture
    def store(self, client: EtcdClient) -> ConfigurationStore:
        return client


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("three"), 3) as cluster:
        yield cluster


class TestOverThreeMembersOfEtcd(Conformance):
    @pytest.fixture
    async def store(self, three: EtcdCluster) -> AsyncIterator[ConfigurationStore]:
        client = EtcdClient(three.url + a_root())
        yield client
        await client.close()


async def test_a_watch_that_etcd_cancels_logs_in_again_at_another_member() -> None:
    """So etcd answers a watch whose token has expired: by no error. Needs no etcd."""
    client = EtcdClient("etcd://a:1,b:1")
    gateway, asked = client._gateway, list[tuple[str, int]]()
    gateway._login = "expired"
    key = encoded("/adamctl/jobs/j")

    @asynccontextmanager
    async def stream(path: str, message: Json) -> AsyncIterator[AsyncIterator[Json]]:
        async def results() -> AsyncIterator[Json]:
            if len(asked) == 1:
                yield {"created": True, "canceled": True, "cancel_reason": "permission denied"}
            yield {"events": [{"kv": {"key": key, "mod_revision": "7"}}]}

        asked.append((gateway._login, gateway._member))
        yield results()

    gateway.stream = stream  # type: ignore[method-assign]
    async with asyncio.timeout(BOUND_S):
        changes = await client.watch("/jobs/", 3, 30.0)
    assert [entry.key for entry in changes.entries] == ["/jobs/j"]
    assert asked == [("expired", 0), ("", 1)]
    await client.close()


async def test_what_a_cluster_is_reached_by_decides_who_speaks(etcd: EtcdCluster) -> None:
    hello = make_hello("test", "test")
    controllers = cluster_client(StreamTransport(), ["tcp://127.0.0.1:7070"], lambda: hello)
    assert isinstance(controllers, ControllerClient)
    assert isinstance(cluster_client(StreamTransport(), [etcd.url], lambda: hello), EtcdClient)


async def test_clusters_of_one_etcd_do_not_see_each_other(etcd: EtcdCluster, client: EtcdClient) -> None:
    root = a_root()
    others = [EtcdClient(etcd.url + root), EtcdClient(f"{etcd.url}{root}0")]
    for other in others:
        await put(other, a=b"1")
    assert (await client.read(""))[1] == []
    assert [entry.key for entry in (await others[0].read(""))[1]] == ["/t/a"]
    for other in others:
        await other.close()


async def test_reads_are_of_one_revision_however_many_pages_they_take(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "PAGE_KEYS", 3)
    written = await put(client, **{f"k{number}": b"old" for number in range(8)})
    honest = client._gateway.call
    calls = 0

    async def call(path: str, *arguments: object, **more: object) -> dict[str, object]:
        nonlocal calls
        calls += 1
        if calls == 2:
            await put(client, k7=b"new")
        return await honest(path, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(client._gateway, "call", call)
    revision, entries = await client.read("/t/")
    assert revision == written and len(entries) == 8 and {entry.value for entry in entries} == {b"old"}
    assert calls > 3


async def test_a_watch_over_compacted_history_begins_anew(client: EtcdClient) -> None:
    first = await put(client, a=b"1")
    await put(client, a=b"2")
    last = await put(client, a=b"3")
    await client._gateway.call("kv/compaction", {"revision": str(last)}, BOUND_S)
    changes = await client.watch("/t/", first, BOUND_S)
    assert changes.reset and [entry.value for entry in changes.entries] == [b"3"]
    assert not (await client.watch("/t/", last, 0.0)).reset


async def test_a_watch_of_what_is_still_to_come_begins_anew(client: EtcdClient) -> None:
    """Whoever asks knew another store: perhaps one that was put back from a backup."""
    revision = await put(client, a=b"1")
    changes = await client.watch("/t/", revision + 1_000_000, BOUND_S)
    assert changes.reset and changes.revision < revision + 1_000_000
    assert [entry.key for entry in changes.entries] == ["/t/a"]


async def test_a_watch_that_waits_for_nothing_still_tells_what_has_happened(client: EtcdClient) -> None:
    first = await put(client, a=b"1")
    await put(client, b=b"2")
    changes = await client.watch("/t/", first, 0.0)
    assert [entry.key for entry in changes.entries] == ["/t/b"]


async def test_a_watch_goes_on_over_many_pieces(client: EtcdClient) -> None:
    client.watch_s = 0.05
    revision = await put(client, a=b"1")
    watching = asyncio.create_task(client.watch("/t/", revision, BOUND_S))
    await asyncio.sleep(0.4)
    assert not watching.done()
    await put(client, b=b"2")
    assert [entry.key for entry in (await watching).entries] == ["/t/b"]


async def test_a_leader_is_lost_and_work_goes_on(tmp_path_factory: pytest.TempPathFactory) -> None:
    with etcd_cluster(tmp_path_factory.mktemp("lost"), 3) as cluster:
        client = EtcdClient(cluster.url, attempt_s=1.0)
        revision = await put(client, a=b"1")
        status = await client.status()
        assert {member["name"] for member in status["members"]} == {"etcd-0", "etcd-1", "etcd-2"}
        assert all(isinstance(member["lag"], int) for member in status["members"])
        watching = asyncio.create_task(client.watch("/t/", revision, BOUND_S))
        await asyncio.sleep(0.1)
        leader = int(status["leader"].removeprefix("etcd-"))
        cluster.kill(leader)
        await put(client, b=b"2")
        assert [entry.key for entry in (await watching).entries] == ["/t/b"]
        after = await client.status()
        lags = {member["name"]: member["lag"] for member in after["members"]}
        assert lags.pop(f"etcd-{leader}") is None and None not in lags.values()
        assert after["leader"] != status["leader"] and after["revision"] > status["revision"]
        await client.close()


async def test_a_minority_that_is_cut_off_answers_nothing_old(tmp_path_factory: pytest.TempPathFactory) -> None:
    with etcd_cluster(tmp_path_factory.mktemp("minority"), 3) as cluster:
        alone = EtcdClient(f"etcd://{cluster.clients[0]}", attempt_s=1.0, deadline_s=2.0)
        await put(alone, a=b"1")
        cluster.kill(1)
        cluster.kill(2)
        with pytest.raises(UnreachableError, match="did not answer within 2 s"):
            await alone.read("/t/")
        with pytest.raises(UnreachableError):
            await alone.compare_and_set(ConfigChanges({}, {"/t/a": b"2"}))
        cluster.start(1)
        cluster.wait_for(1)
        alone.deadline_s = BOUND_S
        revision, entries = await alone.read("/t/")
        assert entries[0].value in (b"1", b"2") and revision >= entries[0].revision
        await alone.close()


async def test_nobody_there_is_said_with_the_address_and_what_to_do() -> None:
    client = EtcdClient("etcd://127.0.0.1:1", deadline_s=0.3, log=logging.getLogger("test"))
    with pytest.raises(UnreachableError, match=r"etcd://127\.0\.0\.1:1 did not answer .*is it running"):
        await client.read("/")
    await client.close()


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'adamctl\[etcd\]'"):
        EtcdClient("etcd://127.0.0.1:2379")


async def test_the_revision_of_a_reply_is_its_heads() -> None:
    assert revision_of({"header": {"revision": "7"}}) == 7
