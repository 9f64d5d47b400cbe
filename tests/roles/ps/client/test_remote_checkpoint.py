"""Servers that do not have the folder of the checkpoint that a job begins from read it from the coordinator."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.config.records import JobRecord
from adamctl.errors import DamagedDataError, RemoteError, UnreachableError
from adamctl.kernels.rules.make import make_rule
from adamctl.model.layout import cut_layout
from adamctl.model.rule import RuleConfig
from adamctl.roles.manifest_bytes import content_checksum
from adamctl.roles.ps.checkpoint_files import CheckpointPlace
from adamctl.roles.ps.client import remote_checkpoint
from adamctl.roles.ps.client.remote_checkpoint import RemoteCheckpoint, checkpoint_place
from adamctl.roles.ps.initial_values import build_buckets
from adamctl.roles.rooted import Roots
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointReadReply, CheckpointReadRequest
from tests.roles.ps.test_checkpoint_files import TENSORS, write


class Coordinator:
    """Gives pieces of files, as many bytes at a time as it likes; `fails`: how many requests find it unreachable."""

    def __init__(self, folder: Path, *, fails: int = 0, damaged: bool = False, most: int = 1 << 30) -> None:
        self.folder, self.fails, self.damaged, self.most = folder, fails, damaged, most
        self.asked: list[CheckpointReadRequest] = []
        self.connections = 0

    async def connect(self, node: str, deadline_s: float) -> Any:
        assert node == "coordinator-1"
        self.connections += 1

        async def close() -> None:
            self.connections -= 1

        return SimpleNamespace(request=self.request, close=close)

    async def request(self, message: CheckpointReadRequest, *, deadline_s: float) -> Any:
        self.asked.append(message)
        if self.fails:
            self.fails -= 1
            raise UnreachableError("cut off")
        path = self.folder / message.name
        if not path.exists():
            raise RemoteError(ErrorCode.NOT_ALLOWED, "no such file")
        whole = path.read_bytes()
        piece = whole[message.offset : message.offset + min(message.size, self.most)]
        reply = CheckpointReadReply(len(whole), crc32(piece) ^ (self.damaged and len(piece) > 0))
        return SimpleNamespace(message=reply, body=memoryview(piece), release=lambda: None)


def record_of(folder: Path, *, coordinator: str = "coordinator-1", checksum: str | None = None) -> JobRecord:
    found = content_checksum((folder / "manifest.json").read_bytes()) if checksum is None else checksum
    rule = RuleConfig("momentum")
    return JobRecord("running", "hash", rule, 7, coordinator, str(folder), restore_checksum=found)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("most", [1 << 30, 1000])
async def test_what_is_read_from_the_coordinator_is_what_is_in_the_folder(
    tmp_path: Path, servers: int, most: int
) -> None:
    write(tmp_path / "theirs")
    layout, rule = cut_layout(TENSORS, servers), make_rule(RuleConfig("momentum"))
    coordinator: Any = Coordinator(tmp_path / "theirs", most=most)
    record = record_of(tmp_path / "theirs")
    start, remote = await checkpoint_place(coordinator, "job", record, Roots([tmp_path / "ours"], "--checkpoint-root"))
    assert isinstance(start, CheckpointPlace) and remote is not None
    buckets = range(len(layout.buckets))
    read = await asyncio.to_thread(build_buckets, layout, buckets, rule, 7, start)
    await remote.close()
    assert coordinator.connections == 0 and {message.job for message in coordinator.asked} == {"job"}
    for bucket, contents in build_buckets(layout, buckets, rule, 7, str(tmp_path / "theirs")).items():
        for content, other in zip(contents, read[bucket], strict=True):
            np.testing.assert_array_equal(content.values, other.values)
            assert (content.counter, content.pushes) == (other.counter, other.pushes)
            for array, same in zip(content.state, other.state, strict=True):
                np.testing.assert_array_equal(array, same)


async def test_the_folder_is_read_where_it_is_here_and_the_same(tmp_path: Path) -> None:
    write(tmp_path / "a")
    roots, nobody = Roots([tmp_path], "--checkpoint-root"), Coordinator(tmp_path)
    record = record_of(tmp_path / "a")
    assert await checkpoint_place(nobody, "job", record, roots) == (str(tmp_path / "a"), None)
    place, _ = await checkpoint_place(nobody, "job", record_of(tmp_path / "a", checksum="0" * 32), roots)
    assert isinstance(place, CheckpointPlace), "it is another checkpoint at the same place"
    shutil.rmtree(tmp_path / "a")
    place, _ = await checkpoint_place(nobody, "job", record, roots)
    assert isinstance(place, CheckpointPlace)
    assert nobody.asked == []


async def test_without_a_coordinator_the_folder_must_be_here(tmp_path: Path) -> None:
    write(tmp_path / "a")
    elsewhere, nobody = Roots([tmp_path / "b"], "--checkpoint-root"), Coordinator(tmp_path)
    for record in (record_of(tmp_path / "a", coordinator=""), record_of(tmp_path / "a", checksum="")):
        with pytest.raises(RemoteError) as caught:
            await checkpoint_place(nobody, "job", record, elsewhere)
        assert caught.value.code == ErrorCode.NOT_ALLOWED
    nothing = JobRecord("running", "hash", RuleConfig("momentum"), 7, "coordinator-1")
    assert await checkpoint_place(nobody, "job", nothing, elsewhere) == ("", None)


async def read_all(coordinator: Any) -> bytes:
    remote = RemoteCheckpoint(coordinator, "job", "coordinator-1")

    def read() -> bytes:
        with remote.open("manifest.json") as file:
            return file.read()

    try:
        return await asyncio.to_thread(read)
    finally:
        await remote.close()


async def test_a_coordinator_that_is_cut_off_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_checkpoint, "PAUSE_S", 0.001)
    write(tmp_path)
    assert await read_all(Coordinator(tmp_path, fails=2)) == (tmp_path / "manifest.json").read_bytes()
    gone = Coordinator(tmp_path, fails=100)
    with pytest.raises(UnreachableError):
        await read_all(gone)
    assert gone.fails == 97 and gone.connections == 0


async def test_damage_on_the_way_is_found(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DamagedDataError, match=r"manifest\.json of coordinator-1"):
        await read_all(Coordinator(tmp_path, damaged=True))
