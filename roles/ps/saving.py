"""Writes a server's shards of a job to a checkpoint while pushes go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from adamctl.roles.ps.checkpoint import CheckpointWriter, FileDescriptor, ShardImage, ShardRecord, file_name
from adamctl.roles.ps.core_instructions import Image
from adamctl.roles.ps.core_job import Job
from adamctl.roles.ps.core_shard import Shard
from adamctl.wire.messages import CheckpointFile

AHEAD_BYTES_MAX = 32 << 20
"""Shards held for writing at once: bounds the memory that writing beside pushes takes (their copies)."""


async def save_shards(
    job: Job, node: str, folder: Path, image: Callable[[Shard], Awaitable[Image]]
) -> tuple[CheckpointFile, ...]:
    """Writes all shards we hold, each at one version; `image` holds a shard's state until it is released.

    Raises:
        OSError: the folder cannot be written to, or the disk is full; nothing is left behind.
    """
    shards = [job.shards[index] for index in sorted(job.shards)]
    if not shards:
        return ()
    descriptor = FileDescriptor(
        job.name, node, job.layout_hash, job.rule.name, tuple(job.rule.state_names), job.layout.tensors
    )
    writer = await asyncio.to_thread(CheckpointWriter, folder, file_name(node), descriptor)
    try:
        for start, stop in _portions(shards):
            images = await asyncio.gather(*(image(shard) for shard in shards[start:stop]))
            try:
                await asyncio.to_thread(_write, writer, images)
            finally:
                for held in images:
                    held.release()
        return (await asyncio.to_thread(writer.finish),)
    except BaseException:
        writer.abandon()
        raise


def _write(writer: CheckpointWriter, images: list[Image]) -> None:
    for held in images:
        shard = held.shard
        record = ShardRecord(
            shard.index,
            shard.tensor,
            shard.row_start,
            shard.row_stop,
            held.epoch,
            held.counter,
            held.pushes,
            held.memory,
        )
        writer.add(ShardImage(record, held.values.array, held.state.arrays))


def _portions(shards: list[Shard]) -> list[tuple[int, int]]:
    portions: list[tuple[int, int]] = []
    start, filled_bytes = 0, 0
    for index, shard in enumerate(shards):
        size_bytes = 4 * shard.size * (1 + len(shard.state.arrays))
        if index > start and filled_bytes + size_bytes > AHEAD_BYTES_MAX:
            portions.append((start, index))
            start, filled_bytes = index, 0
        filled_bytes += size_bytes
    portions.append((start, len(shards)))
    return portions
