"""The coordinator gives out the files of the checkpoint that its run begins from, and no others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from adamctl.roles.coordinator.checkpoint.serving import ServedCheckpoint
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import CHECKPOINT_PART_BYTES_MAX, ErrorCode
from adamctl.wire.messages import CheckpointReadRequest
from tests.roles.coordinator.checkpoint.test_manifest import finish


class Asked:
    def __init__(self) -> None:
        self.answer: Any = None
        self.body = b""

    def reply(self, message: Any, body: Any = ()) -> None:
        self.answer, self.body = message, b"".join(body)

    def fail(self, code: int, text: str) -> None:
        self.answer = ErrorCode(code)


async def piece(served: ServedCheckpoint, name: str, offset: int = 0, size: int = 1 << 20) -> Any:
    asked: Any = Asked()
    await served.answer(asked, CheckpointReadRequest("job", name, offset, size))
    return asked


async def test_files_are_given_in_pieces(tmp_path: Path) -> None:
    folder = finish(tmp_path, 1)
    served = ServedCheckpoint(folder)
    for name in os.listdir(folder):
        whole = (folder / name).read_bytes()
        for offset, size in ((0, 1 << 20), (3, 5), (len(whole), 10), (0, 0)):
            found = await piece(served, name, offset, size)
            assert found.body == whole[offset : offset + size]
            assert (found.answer.file_bytes, found.answer.checksum) == (len(whole), crc32(found.body))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "secret", "", "shards-ps-9.adam", "manifest.json\0"])
async def test_no_other_file_is_given(tmp_path: Path, name: str) -> None:
    folder = finish(tmp_path, 1)
    (folder / "secret").write_text("1")
    (folder.parent / "secret").write_text("1")
    assert (await piece(ServedCheckpoint(folder), name)).answer == ErrorCode.NOT_ALLOWED


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, -1), (0, CHECKPOINT_PART_BYTES_MAX + 1)])
async def test_pieces_are_bounded(tmp_path: Path, offset: int, size: int) -> None:
    served = ServedCheckpoint(finish(tmp_path, 1))
    assert (await piece(served, "manifest.json", offset, size)).answer == ErrorCode.BAD_MESSAGE


async def test_a_file_that_is_gone_is_an_answer(tmp_path: Path) -> None:
    folder = finish(tmp_path, 1)
    served = ServedCheckpoint(folder)
    (folder / "manifest.json").unlink()
    assert (await piece(served, "manifest.json")).answer == ErrorCode.INTERNAL
