"""A checkpoint of a server is of what it serves: buckets that leave it while it is written end it, without a file."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adamctl.errors import RemoteError
from adamctl.roles.ps import checkpoint_writer
from adamctl.roles.ps.checkpoint_encoder import ShardEncoder
from adamctl.roles.ps.checkpoint_writer import save_shards
from adamctl.roles.ps.core.shard import Image, Shard
from adamctl.wire.constants import ErrorCode
from tests.roles.ps.core_harness import Harness


def imaged(before: Callable[[], None]) -> Callable[[Shard], Awaitable[Image]]:
    """Returns what gives a shard's image at once, after `before`."""

    async def image(shard: Shard) -> Image:
        before()
        await asyncio.sleep(0)
        return shard.image()

    return image


@pytest.mark.parametrize("late", [False, True])
async def test_a_bucket_that_leaves_while_it_is_written_ends_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Whoever has it next may overwrite in place what this server's own shards still point to."""
    harness, loop = Harness(), asyncio.get_running_loop()
    write = checkpoint_writer._write

    def leaving(writer: ShardEncoder, images: list[Image]) -> None:
        """In its thread."""
        moved = threading.Event()
        loop.call_soon_threadsafe(lambda: (harness.move(2, 0), moved.set()))
        assert moved.wait(60)
        write(writer, images)

    if late:
        monkeypatch.setattr(checkpoint_writer, "_write", leaving)
    before = (lambda: None) if late else (lambda: harness.move(2, 0))
    with pytest.raises(RemoteError, match="bucket 0 has left this server while the checkpoint was written") as refused:
        await save_shards(harness.job, "ps-0", tmp_path, imaged(before))
    assert refused.value.code == ErrorCode.NOT_READY and not os.listdir(tmp_path)


async def test_all_that_is_served_is_written(tmp_path: Path) -> None:
    harness = Harness()
    harness.move(2, 0)  # before
    (file,) = await save_shards(harness.job, "ps-0", tmp_path, imaged(lambda: None))
    assert set(file.shards) == set(harness.job.shards) and (tmp_path / file.temporary_name).stat().st_size


async def test_a_checkpoint_that_is_abandoned_while_it_waits_for_a_shard_holds_no_other(tmp_path: Path) -> None:
    """Else a batch algorithm's shard would copy its state at each commit from then on."""
    harness, waiting = Harness(), asyncio.get_running_loop().create_future()
    first, *rest = [harness.job.shards[index] for index in sorted(harness.job.shards)]

    def image(shard: Shard) -> Awaitable[Image]:
        if shard is first:
            return waiting
        held: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        held.set_result(shard.image())
        return held

    saving = asyncio.ensure_future(save_shards(harness.job, "ps-0", tmp_path, image))
    await asyncio.sleep(0.2)
    assert all(shard.state.readers for shard in rest)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert not any(shard.state.readers for shard in rest)
