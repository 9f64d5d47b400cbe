"""Changes in etcd are made at most once, and once if they are answered so, whatever happens to requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from random import Random

import pytest

from adamctl.errors import AdamctlError, RemoteError, UnreachableError
from adamctl.roles.controller.etcd import gateway as etcd_gateway
from adamctl.roles.controller.etcd.client import EtcdClient
from adamctl.roles.controller.etcd.gateway import Gateway, Json, _AskAgainError, encoded, number
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges
from tests.roles.controller.etcd_server import EtcdCluster, a_root, etcd_cluster


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """With the limits that etcd has by itself."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), flags=()) as cluster:
        yield cluster


@pytest.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(etcd.url + a_root())
    yield client
    await client.close()


class Deceit:
    """Between a client and etcd: loses requests and answers, and brings requests long after they were given up."""

    def __init__(self, gateway: Gateway, seed: int, *, loss: float, deafness: float, lateness: float) -> None:
        self._honest = gateway._attempt
        self._random = Random(seed)
        self._chances = (loss, loss + deafness, loss + deafness + lateness)
        self._late: list[asyncio.Task[None]] = []
        gateway._attempt = self._attempt  # type: ignore[method-assign]

    async def _attempt(self, path: str, message: Json, deadline_s: float, stream: bool) -> Json:
        drawn = self._random.random()
        if drawn < self._chances[0]:
            raise _AskAgainError("lost on its way", sent=True)
        if drawn < self._chances[1]:
            await self._honest(path, message, deadline_s, stream)
            raise _AskAgainError("its answer was lost", sent=True)
        if drawn < self._chances[2]:
            self._late.append(asyncio.create_task(self._bring(path, message, stream)))
            raise _AskAgainError("still on its way", sent=True)
        return await self._honest(path, message, deadline_s, stream)

    async def _bring(self, path: str, message: Json, stream: bool) -> None:
        await asyncio.sleep(self._random.random() * 0.2)
        with suppress(AdamctlError):
            await self._honest(path, message, 10.0, stream)

    async def settle(self) -> None:
        """Waits until nothing is under way any more."""
        await asyncio.gather(*self._late)


@pytest.mark.parametrize("seed", range(4))
async def test_answers_are_true_over_a_deceitful_network(
    etcd: EtcdCluster, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change puts a key of its own, half of them on a condition that fails and comes true again later."""
    monkeypatch.setattr(etcd_gateway, "_RETRY_MAX_S", 0.05)
    root = a_root()
    clients = [EtcdClient(etcd.url + root) for _ in range(3)]
    deceits = [
        Deceit(client._gateway, 10 * seed + worker, loss=0.1, deafness=0.15, lateness=0.2)
        for worker, client in enumerate(clients)
    ]
    random = Random(seed)
    done: dict[str, int] = {}
    refused: set[str] = set()

    async def work(worker: int) -> None:
        client = clients[worker]
        for round_number in range(10):
            key = f"/t/{worker}-{round_number}"
            conditions = {"/t/flag": 0} if random.random() < 0.5 else {}
            reply = await client.compare_and_set(ConfigChanges(conditions, {key: b"x"}))
            if reply.conflicts:
                refused.add(key)
            else:
                done[key] = reply.revision
            flag = ConfigChanges({}, {"/t/flag": b""}) if random.random() < 0.5 else ConfigChanges({}, {}, ("/t/flag",))
            await client.compare_and_set(flag)

    await asyncio.gather(*(work(worker) for worker in range(3)))
    await asyncio.gather(*(deceit.settle() for deceit in deceits))
    judge = EtcdClient(etcd.url + root)
    pairs = (await judge._gateway.call("kv/range", judge._range("/t/"), 10.0)).get("kvs", [])
    written = {judge._entry(pair).key: (number(pair, "version"), judge._entry(pair).revision) for pair in pairs}
    written.pop("/t/flag", None)
    assert written == {key: (1, revision) for key, revision in done.items()}
    assert refused
    for client in (*clients, judge):
        await client.close()


async def test_the_beginning_of_a_session_that_comes_late_undoes_nothing(client: EtcdClient) -> None:
    """It comes after a change was made whose answer was lost: the change must not be made once more."""
    gateway = client._gateway
    honest = gateway._attempt
    written: list[tuple[str, Json]] = []

    async def attempt(path: str, message: Json, deadline_s: float, stream: bool) -> Json:
        if not path.startswith("kv/"):
            return await honest(path, message, deadline_s, stream)
        written.append((path, message))
        if len(written) == 1:
            raise _AskAgainError("still on its way", sent=True)
        reply = await honest(path, message, deadline_s, stream)
        if len(written) == 3:
            await honest(*written[0], deadline_s, stream)
            raise _AskAgainError("its answer was lost", sent=True)
        return reply

    gateway._attempt = attempt  # type: ignore[method-assign]
    reply = await client.compare_and_set(ConfigChanges({}, {"/t/a": b"1"}))
    gateway._attempt = honest  # type: ignore[method-assign]
    (pair,) = (await gateway.call("kv/range", client._range("/t/"), 10.0))["kvs"]
    assert len(written) > 3
    assert (number(pair, "version"), number(pair, "mod_revision")) == (1, reply.revision)


async def test_a_change_whose_answer_was_lost_is_answered_as_done(client: EtcdClient) -> None:
    await client.compare_and_set(ConfigChanges({}, {"/t/a": b"1"}))
    deceit = Deceit(client._gateway, 0, loss=0.0, deafness=1.0, lateness=0.0)
    asked = asyncio.create_task(client.compare_and_set(ConfigChanges({"/t/b": 0}, {"/t/b": b"1"})))
    await asyncio.sleep(0.3)
    deceit._chances = (0.0, 0.0, 0.0)
    reply = await asked
    assert reply.conflicts == ()
    assert (await client.read("/t/b"))[1][0].revision == reply.revision


async def test_a_change_that_was_answered_as_refused_is_not_made_later(etcd: EtcdCluster, client: EtcdClient) -> None:
    """Its condition comes true after the answer; then the first attempt arrives, which had been given up."""
    await client.compare_and_set(ConfigChanges({}, {"/t/flag": b""}))
    honest = client._gateway._attempt
    held: list[tuple[str, Json]] = []

    async def attempt(path: str, message: Json, deadline_s: float, stream: bool) -> Json:
        if not held:
            held.append((path, message))
            raise _AskAgainError("still on its way", sent=True)
        return await honest(path, message, deadline_s, stream)

    client._gateway._attempt = attempt  # type: ignore[method-assign]
    reply = await client.compare_and_set(ConfigChanges({"/t/flag": 0}, {"/t/a": b"1"}))
    assert reply.conflicts == ("/t/flag",)
    other = EtcdClient(client.addresses[0])
    await other.compare_and_set(ConfigChanges({}, {}, ("/t/flag",)))
    await honest(*held[0], 10.0, False)
    assert (await other.read("/t/"))[1] == []
    await other.close()


async def test_a_session_that_etcd_has_forgotten_is_begun_anew(client: EtcdClient) -> None:
    await client.compare_and_set(ConfigChanges({}, {"/t/a": b"1"}))
    session = client._changer._session
    assert session is not None
    await client._gateway.call("lease/revoke", {"ID": session.lease}, 10.0)
    refused = await client.compare_and_set(ConfigChanges({"/t/a": 0}, {"/t/a": b"2"}))
    assert refused.conflicts == ("/t/a",)
    assert client._changer._session is not session
    assert (await client.compare_and_set(ConfigChanges({"/t/c": 0}, {"/t/c": b"2"}))).conflicts == ()


async def test_a_forgotten_session_and_a_lost_answer_are_told_as_not_known(client: EtcdClient) -> None:
    await client.compare_and_set(ConfigChanges({}, {"/t/a": b"1"}))
    session = client._changer._session
    assert session is not None
    deceit = Deceit(client._gateway, 0, loss=0.0, deafness=1.0, lateness=0.0)
    asked = asyncio.create_task(client.compare_and_set(ConfigChanges({}, {"/t/a": b"2"})))
    await asyncio.sleep(0.1)
    await deceit._honest("lease/revoke", {"ID": session.lease}, 10.0, False)
    deceit._chances = (0.0, 0.0, 0.0)
    with pytest.raises(UnreachableError, match="may have been made or not"):
        await asked
    assert (await client.compare_and_set(ConfigChanges({}, {"/t/a": b"3"}))).conflicts == ()


async def test_a_session_leaves_nothing_behind(etcd: EtcdCluster) -> None:
    client = EtcdClient(etcd.url + a_root())
    await client.compare_and_set(ConfigChanges({}, {"/t/a": b"1"}))
    marker = client._key("#sessions/")
    request = {"key": encoded(marker), "range_end": encoded(marker + "~")}
    assert (await client._gateway.call("kv/range", request, 10.0)).get("count") == "1"
    await client.close()
    assert (await client._gateway.call("kv/range", request, 10.0)).get("count") is None
    await client.close()


async def test_conditions_alone_change_nothing(client: EtcdClient) -> None:
    reply = await client.compare_and_set(ConfigChanges({}, {"/t/a": b"1"}))
    asked = await client.compare_and_set(ConfigChanges({"/t/a": reply.revision}, {}))
    assert (asked.revision, asked.conflicts) == (reply.revision, ())
    assert (await client.compare_and_set(ConfigChanges({"/t/a": 0}, {}))).conflicts == ("/t/a",)


async def test_too_many_keys_name_the_flag_to_raise(client: EtcdClient) -> None:
    puts = {f"/t/{number}": b"" for number in range(200)}
    with pytest.raises(RemoteError, match=r"201 operations at once.*--max-txn-ops=1024") as caught:
        await client.compare_and_set(ConfigChanges({}, puts))
    assert caught.value.code == ErrorCode.OVER_QUOTA
    assert (await client.read("/t/"))[1] == []


async def test_too_many_bytes_name_the_flag_to_raise(client: EtcdClient) -> None:
    puts = {f"/t/{number}": b"x" * 1_000_000 for number in range(5)}
    with pytest.raises(RemoteError, match=r"--max-request-bytes=\d+ or more") as caught:
        await client.compare_and_set(ConfigChanges({}, puts))
    assert caught.value.code == ErrorCode.OVER_QUOTA


async def test_what_is_refused_outright_is_refused_before_it_is_sent(client: EtcdClient) -> None:
    for changes in (
        ConfigChanges({}, {"/t/a": b"x" * ((1 << 20) + 1)}),
        ConfigChanges({}, {"/t/a": b""}, ("/t/a",)),
        ConfigChanges({"no-slash": 0}, {}),
    ):
        with pytest.raises(RemoteError) as caught:
            await client.compare_and_set(changes)
        assert caught.value.code == ErrorCode.BAD_MESSAGE
