"""Without servers the members of the replica write checkpoints; all of them, or there is none."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.coordinator.checkpoint.members import MemberCheckpoints
from adamctl.roles.ps.checkpoint_files import file_name, partial_name
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointPartReply, CheckpointPartRequest, CheckpointReply


class Cluster:
    """Nodes, and what each answers: shards that it writes, or an error."""

    def __init__(self, **nodes: Any) -> None:
        self.nodes = nodes
        self.folder = "/runs/1"
        self.closed = 0

    async def connect(self, node: str, deadline_s: float) -> Any:
        if node not in self.nodes:
            raise UnreachableError(f"there is no living node {node}")

        async def request(message: Any, deadline_s: float) -> Any:
            assert message.job == "small" and getattr(message, "folder", self.folder) == self.folder
            found = self.nodes[node]
            if isinstance(message, CheckpointPartRequest):
                part, whole = found, blake2b(found, digest_size=16).hexdigest()
                file = CheckpointFile("any", "any", len(part), whole, (2, 3))
                reply = CheckpointPartReply(crc32(part), True, (file,))
                return SimpleNamespace(message=reply, body=memoryview(part), release=lambda: None)
            if isinstance(found, bytes):
                return SimpleNamespace(message=CheckpointReply((), 5 if message.nonce else 0))
            if isinstance(found, Exception):
                raise found
            files = (CheckpointFile("any", "any", 100, "0" * 32, found),) if found else ()
            return SimpleNamespace(message=CheckpointReply(files))

        async def close() -> None:
            self.closed += 1

        return SimpleNamespace(request=request, close=close)


def checkpoints(cluster: Cluster, *members: str) -> MemberCheckpoints:
    context: Any = SimpleNamespace(connect=cluster.connect)
    return MemberCheckpoints(context, 4, lambda: "small", lambda: members)


async def test_files_of_all_members_are_the_checkpoint() -> None:
    cluster = Cluster(b=(0, 1), a=(2, 3), c=())
    files = await checkpoints(cluster, "b", "a", "c").checkpoint("/runs/1")
    assert [file.name for file in files] == [file_name("a"), file_name("b")], "names are not taken from the answer"
    assert cluster.closed == 3


@pytest.mark.parametrize("members", [("a",), (), ("a", "b", "twice")])
async def test_shards_that_are_written_by_nobody_or_twice_are_no_checkpoint(members: tuple[str, ...]) -> None:
    with pytest.raises(RemoteError, match="shards were not written"):
        await checkpoints(Cluster(a=(2, 3), b=(0, 1), twice=(0,)), *members).checkpoint("/runs/1")


async def test_a_member_that_cannot_write_is_named() -> None:
    cluster = Cluster(a=RemoteError(ErrorCode.INTERNAL, "the disk is full"))
    with pytest.raises(RemoteError, match="worker a: the disk is full"):
        await checkpoints(cluster, "a").checkpoint("/runs/1")
    assert cluster.closed == 1


async def test_a_member_that_is_gone_is_named() -> None:
    with pytest.raises(UnreachableError, match="no living node gone"):
        await checkpoints(Cluster(), "gone").checkpoint("/runs/1")


async def test_what_a_member_cannot_write_is_fetched(tmp_path: Path) -> None:
    cluster = Cluster(a=b"the file of a", b=(0, 1))
    cluster.folder = str(tmp_path)
    files = await checkpoints(cluster, "a", "b").checkpoint(str(tmp_path), nonce="n")
    assert [(file.name, file.shards) for file in files] == [(file_name("a"), (2, 3)), (file_name("b"), (0, 1))]
    assert (tmp_path / partial_name(file_name("a"))).read_bytes() == b"the file of a" and cluster.closed == 2
