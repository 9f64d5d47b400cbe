"""Three controllers with real sockets, disks and processes: they form, lose members, take them back, replace them."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from adamctl.errors import RemoteError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.configuration import ConfigurationStore
from adamctl.roles.controller.client import ControllerClient
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, NodeRegisterRequest, StatusReply, StatusRequest
from tests.roles.controller.conformance import Conformance
from tests.roles.controller.members import (
    BOUND_S,
    MemberInProcess,
    MemberProcess,
    client_of,
    free_addresses,
    members_on,
)


async def put(client: ControllerClient, key: str, value: bytes = b"") -> int:
    reply = await client.compare_and_set(ConfigChanges({}, {key: value}))
    assert reply.conflicts == ()
    return reply.revision


async def until(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not predicate():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def leader_among(members: dict[str, MemberInProcess]) -> str:
    return next((name for name, member in members.items() if member.core.paxos.leading), "")


async def leader_of(members: dict[str, MemberInProcess]) -> str:
    await until(lambda: bool(leader_among(members)))
    return leader_among(members)


async def all_at(members: dict[str, MemberInProcess], slot: int) -> None:
    await until(lambda: all(member.core.paxos.acceptor.chosen_to >= slot for member in members.values()))


async def replace(client: ControllerClient, old: str, name: str, address: str) -> None:
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                return await client.replace_controller(old, name, address)
            except RemoteError as error:  # the leader has not heard of it yet, or has heard the old one just now
                assert error.code == ErrorCode.BAD_CONFIGURATION
                assert "has introduced itself" in str(error) or "only one that has ended" in str(error)
                await asyncio.sleep(0.1)


class TestThreeMembers(Conformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ConfigurationStore]:
        async with members_on(tmp_path) as members:
            client = client_of([members[name].peers[name] for name in members])
            yield client
            await client.close()


async def test_any_minority_may_stop_and_come_back(tmp_path: Path) -> None:
    async with members_on(tmp_path) as members:
        client = client_of(members["a"].peers.values())
        await put(client, "/jobs/t/0")
        for number in range(1, 4):
            name = await leader_of(members)
            member = members.pop(name)
            await member.stop()
            await put(client, f"/jobs/t/{number}")  # by another leader
            members[name] = MemberInProcess(member.folder, name, member.peers, 999)
            await all_at(members, members[await leader_of(members)].core.paxos.acceptor.chosen_to)
        assert [entry.key for entry in (await client.read("/"))[1]] == [f"/jobs/t/{number}" for number in range(4)]
        states = {member.core.encode_state() for member in members.values()}
        assert len(states) == 1
        await client.close()


async def test_without_a_majority_nothing_is_granted_and_with_it_all_goes_on(tmp_path: Path) -> None:
    async with members_on(tmp_path) as members:
        client = client_of(members["a"].peers.values())
        revision = await put(client, "/jobs/t/a")
        server = client_of(members["a"].peers.values(), hello=make_hello("ps", "ps-0"))
        registered = await server.register(NodeRegisterRequest("ps-0", "ps", (), "h", 1))
        gone = [members.pop(name) for name in list(members)[:2]]
        await asyncio.gather(*(member.stop() for member in gone))
        client.deadline_s = server.deadline_s = 2.0
        with pytest.raises(UnreachableError):
            await client.read("/")
        with pytest.raises(UnreachableError):
            await server.beacon("ps-0", registered.incarnation)
        with pytest.raises(UnreachableError):
            await put(client, "/jobs/t/b")
        client.deadline_s = server.deadline_s = BOUND_S
        members |= {one.name: MemberInProcess(one.folder, one.name, one.peers, 9) for one in gone}
        seen, entries = await client.read("/")
        assert seen > revision and entries[0].key == "/jobs/t/a"
        await server.beacon("ps-0", registered.incarnation)
        await client.close()
        await server.close()


async def test_a_lost_folder_is_never_taken_for_the_old_one_until_it_is_put_in_its_place(tmp_path: Path) -> None:
    async with members_on(tmp_path) as members:
        client = client_of(members["a"].peers.values())
        for number in range(5):
            await put(client, f"/jobs/t/{number}", b"x" * 1000)
        lost = members.pop("c")
        await lost.stop()
        shutil.rmtree(lost.folder)
        members["c"] = MemberInProcess(lost.folder, "c", lost.peers, 555)
        await put(client, "/jobs/t/5")
        stranger = ("c", lost.peers["c"])
        await until(lambda: any(stranger in one.core.paxos.forming.strangers for one in members.values()))
        assert members["c"].core.paxos.role == "forming"
        with pytest.raises(RemoteError, match="expected one of the controllers a, b, c to replace, found 'd'"):
            await client.replace_controller("d", "c", lost.peers["c"])
        await replace(client, "c", "c", lost.peers["c"])
        await put(client, "/jobs/t/6")
        await all_at(members, members[await leader_of(members)].core.paxos.acceptor.chosen_to)
        assert members["c"].core.encode_state() == members["a"].core.encode_state()
        assert 555 in [member.identity for member in members["c"].core.members]
        stopped = members.pop("a")
        await stopped.stop()
        await put(client, "/jobs/t/7")  # the new one counts
        await client.close()


async def test_a_member_finds_the_controllers_when_all_that_it_was_given_are_replaced(tmp_path: Path) -> None:
    async with members_on(tmp_path) as members:
        first = list(members["a"].peers.values())
        server, operator = client_of(first, hello=make_hello("ps", "ps-0")), client_of(first)
        told = await server.register(NodeRegisterRequest("ps-0", "ps", (), "h", 1))
        for old, new, address in zip("abc", "def", free_addresses(3), strict=True):
            await members.pop(old).stop()
            peers = {**{name: member.peers[name] for name, member in members.items()}, new: address}
            members[new] = MemberInProcess(tmp_path / new, new, peers, ord(new))
            await replace(operator, old, new, address)
            await server.beacon("ps-0", told.incarnation)
            operator.known.learn(server.known.now[:3])
        present = {member.peers[name] for name, member in members.items()}
        assert set(server.addresses[:3]) == present and present.isdisjoint(first)
        await server.close()  # as if every connection were lost
        await put(server, "/jobs/t/buckets/0")
        await server.close()
        await operator.close()


async def test_a_status_names_leader_members_and_lag(tmp_path: Path) -> None:
    async with members_on(tmp_path) as members:
        client = client_of(members["a"].peers.values())
        await put(client, "/jobs/t/a")
        name = await leader_of(members)
        connection = await StreamTransport().connect(
            members[name].peers[name], make_hello("front", "test"), deadline_s=BOUND_S
        )
        await asyncio.sleep(0.5)
        reply = await connection.request(StatusRequest(), deadline_s=BOUND_S)
        assert isinstance(reply.message, StatusReply)
        status = reply.message.status
        assert status["leader"] == name and status["state"] == "leader" and status["revision"] == 1
        assert [member["name"] for member in status["members"]] == ["a", "b", "c"]
        assert all(member["lag"] == 0 for member in status["members"])
        await connection.close()
        await client.close()


async def test_processes_elect_another_leader_when_theirs_is_killed_or_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = dict(zip("abc", free_addresses(3), strict=True))
    processes = {name: MemberProcess(tmp_path / name, name, peers) for name in peers}
    client = client_of(peers.values(), hello=make_hello("ps", "ps-0"))
    try:
        await put(client, "/jobs/t/buckets/0")
        spent_s = []
        for number, how in ((1, signal.SIGKILL), (2, signal.SIGSTOP)):
            name = await _leader_by_status(client)
            processes[name].kill(how)
            began_s = time.monotonic()
            await put(client, f"/jobs/t/buckets/{number}")
            spent_s.append(time.monotonic() - began_s)
            if how == signal.SIGKILL:
                processes[name].close()
                processes[name] = MemberProcess(tmp_path / name, name, peers)
            else:
                processes[name].kill(signal.SIGCONT)
        assert [entry.key for entry in (await client.read("/"))[1]] == [
            f"/jobs/t/buckets/{number}" for number in range(3)
        ]
        with capsys.disabled():
            print(f"\n  commits went on {spent_s[0]:.2f} s after kill -9, {spent_s[1]:.2f} s after SIGSTOP")
    finally:
        await client.close()
        for process in processes.values():
            process.close()


async def test_a_controller_with_other_limits_does_not_join(tmp_path: Path) -> None:
    peers = dict(zip("abc", free_addresses(3), strict=True))
    processes = {name: MemberProcess(tmp_path / name, name, peers) for name in "ab"}
    processes["c"] = MemberProcess(tmp_path / "c", "c", peers, "--lost-after", "9")
    client = client_of(peers.values(), hello=make_hello("ps", "ps-0"))
    try:
        assert await asyncio.to_thread(processes["c"].process.wait, BOUND_S) == 2
        told = (tmp_path / "c.log").read_text()
        assert "2 of the other 2 controllers have different limits" in told and "found lease_s=4 lost_after_s=5" in told
        processes["c"].close()
        processes["c"] = MemberProcess(tmp_path / "c", "c", peers)
        await put(client, "/jobs/t/buckets/0")
    finally:
        await client.close()
        for process in processes.values():
            process.close()


async def _leader_by_status(client: ControllerClient) -> str:
    await client.read("/")
    assert client._connection is not None
    return client._connection.peer.node
