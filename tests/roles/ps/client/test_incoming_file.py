"""What a server cannot write into a checkpoint's folder is fetched, checked and written under the name of its node."""

from __future__ import annotations

import asyncio
import os
import threading
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adamctl.errors import DamagedDataError, RemoteError, UnreachableError
from adamctl.roles.ps.client.incoming_file import IncomingFile, fetch
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointPartReply, CheckpointPartRequest

PARTS = (b"first", b"", b"second")
WHOLE = b"".join(PARTS)


class Server:
    """Sends parts; `changed` may be another last answer, `dies` the number of the request that finds it dead."""

    def __init__(self, *, file: CheckpointFile | None = None, damaged: bool = False, dies: int = -1) -> None:
        self.file = file or CheckpointFile("../x", "../y", len(WHOLE), blake2b(WHOLE, digest_size=16).hexdigest(), (0,))
        self.damaged, self.dies = damaged, dies
        self.asked: list[int] = []
        self.released = 0

    async def request(self, message: CheckpointPartRequest, *, deadline_s: float) -> Any:
        number = len(self.asked)
        self.asked.append(message.offset)
        assert (message.job, message.stream) == ("job", 3) and deadline_s > 0
        if number == self.dies:
            raise UnreachableError("it is gone")
        last = number == len(PARTS) - 1
        checksum = crc32(PARTS[number]) ^ (self.damaged and last)
        reply = CheckpointPartReply(checksum, last, (self.file,) if last else ())
        return SimpleNamespace(message=reply, body=memoryview(PARTS[number]), release=self._release)

    def _release(self) -> None:
        self.released += 1


async def fetched(server: Server, folder: Path) -> tuple[CheckpointFile, ...]:
    until_s = asyncio.get_running_loop().time() + 10.0
    return await fetch(server, "job", 3, "ps/1", folder, until_s)  # type: ignore[arg-type]


async def test_a_file_is_written_under_the_name_of_its_node(tmp_path: Path) -> None:
    server = Server()
    assert await fetched(server, tmp_path) == (server.file,)
    (name,) = os.listdir(tmp_path)
    assert name.startswith(".shards-ps_1-") and name.endswith(".adam.partial")
    assert (tmp_path / name).read_bytes() == WHOLE and server.asked == [0, 5, 5] and server.released == 2


@pytest.mark.parametrize("dies", range(3))
async def test_nothing_is_left_of_a_file_whose_server_dies_on_the_way(tmp_path: Path, dies: int) -> None:
    with pytest.raises(UnreachableError):
        await fetched(Server(dies=dies), tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "server",
    [
        Server(damaged=True),
        Server(file=CheckpointFile("a", "b", len(WHOLE), "0" * 32, (0,))),
        Server(file=CheckpointFile("a", "b", len(WHOLE) + 1, blake2b(WHOLE, digest_size=16).hexdigest(), (0,))),
    ],
)
async def test_nothing_is_left_of_a_damaged_file(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DamagedDataError, match="ps/1"):
        await fetched(server, tmp_path)
    assert not os.listdir(tmp_path)


async def test_a_file_without_a_description_is_refused(tmp_path: Path) -> None:
    class Silent(Server):
        async def request(self, message: CheckpointPartRequest, *, deadline_s: float) -> Any:
            reply = await super().request(message, deadline_s=deadline_s)
            last = reply.message.last
            return SimpleNamespace(
                message=CheckpointPartReply(reply.message.checksum, last), body=reply.body, release=reply.release
            )

    with pytest.raises(RemoteError) as caught:
        await fetched(Silent(), tmp_path)
    assert caught.value.code == ErrorCode.BAD_MESSAGE and not os.listdir(tmp_path)


@pytest.mark.parametrize("where", ["open", "add", "finish", "abandon"])
async def test_who_is_cancelled_while_a_thread_has_the_file_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Beside that thread it would close descriptors that by then belong to somebody else, and free what is written."""
    begun, go_on, order = threading.Event(), threading.Event(), list[str]()
    at_once = getattr(IncomingFile, where)

    def slowly(writer: IncomingFile, *given: Any) -> None:
        if not begun.is_set():
            begun.set()
            go_on.wait()
            order.append(where)
        at_once(writer, *given)

    class Noted(Server):
        def _release(self) -> None:
            order.append("released")

    monkeypatch.setattr(IncomingFile, where, slowly)
    before = len(os.listdir("/dev/fd"))
    fetching = asyncio.create_task(fetched(Noted(dies=1 if where == "abandon" else -1), tmp_path))
    await asyncio.to_thread(begun.wait)
    for _ in range(2):
        fetching.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
    order.append("cancelled")
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert [one for one in order if one != "released"] == ["cancelled", where]
    assert where != "add" or order == ["cancelled", "add", "released"]
    assert len(os.listdir("/dev/fd")) == before and not os.listdir(tmp_path)


async def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "of-the-owner").write_text("12345")
    await fetched(Server(), tmp_path)
    (name,) = [name for name in os.listdir(tmp_path) if name.startswith(".")]
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(tmp_path / "of-the-owner")
    await fetched(Server(), tmp_path)
    assert (tmp_path / "of-the-owner").read_text() == "12345" and (tmp_path / name).read_bytes() == WHOLE
