"""Writes a server's shards of a job to a checkpoint while pushes continue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from adamctl.errors import RemoteError
from adamctl.net.transport import Request
from adamctl.roles.durable_file import to_its_end
from adamctl.roles.outgoing_file import OutgoingFile, Streams
from adamctl.roles.ps.checkpoint_encoder import CheckpointWriter, ShardEncoder
from adamctl.roles.ps.checkpoint_files import FileDescriptor, ShardImage, ShardRecord, file_name
from adamctl.roles.ps.core.admission import save_refusal
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Image, Shard
from adamctl.roles.rooted import Roots
from adamctl.roles.saving import answer_checkpoint
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointRequest

AHEAD_BYTES_MAX = 32 << 20
"""Bytes of shards held for writing at once; limits the memory for copies that concurrent pushes need."""


class Saver:
    """Writes checkpoints on request."""

    def __init__(
        self,
        core: ServerCore,
        node: str,
        log: logging.Logger,
        roots: Roots,
        coordinator: Callable[[str], str],
    ) -> None:
        """`roots`: where checkpoints may be written; `coordinator`: returns a job's coordinator, "" if none."""
        self._core, self._node, self._log = core, node, log
        self._roots, self._coordinator = roots, coordinator
        self.streams = Streams(log)

    async def save(self, request: Request, message: CheckpointRequest) -> None:
        """Answers one request, which `streams` expects."""
        try:
            await self._save(request, message)
        finally:
            self.streams.settle(request.connection_id)

    async def _save(self, request: Request, message: CheckpointRequest) -> None:
        job = self._core.jobs.get(message.job)
        if job is None or not job.ready:
            code = ErrorCode.UNKNOWN_JOB if job is None else ErrorCode.NOT_READY
            request.fail(code, f"job {message.job!r} is not served here")
            return
        coordinator = self._coordinator(message.job)
        if coordinator != request.peer.node:
            text = f"job {message.job!r} is coordinated by {coordinator or 'nobody'}, not by {request.peer.node}"
            request.fail(ErrorCode.NOT_ALLOWED, text)
            return
        leased = job.leased
        refusal = save_refusal(request, job, leased, self._core.lease_holds())
        if refusal is not None:
            request.fail(refusal.code, refusal.message)
            return

        async def save(target: int | OutgoingFile) -> tuple[CheckpointFile, ...]:
            files = await save_shards(job, self._node, target, self._hold, message.commit)
            refusal = save_refusal(request, job, leased or job.leased, self._core.lease_holds())
            if refusal is not None:
                raise RemoteError(refusal.code, refusal.message)
            return files

        def stream() -> int:
            return self.streams.begin(request.connection_id, message.job, save)

        await answer_checkpoint(request, message, self._node, self._log, self._roots, save, stream)

    def _hold(self, shard: Shard) -> Awaitable[Image]:
        waiting: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        image = self._core.image(shard, partial(_give, waiting))
        if image is not None:
            waiting.set_result(image)
        return waiting


def _give(waiting: asyncio.Future[Image], image: Image) -> None:
    if waiting.done():  # the checkpoint was abandoned
        image.release()
    else:
        waiting.set_result(image)


async def save_shards(
    job: Job, node: str, target: Path | int | OutgoingFile, image: Callable[[Shard], Awaitable[Image]], commit: int = -1
) -> tuple[CheckpointFile, ...]:
    """Writes all shards held here, each at one version; `image` holds a shard's state until it is released.

    Args:
        target: a folder, or the file that somebody fetches.
        commit: of a batch algorithm, which all shards must be at; -1: any.

    Raises:
        OSError: the folder cannot be written to, or the disk is full; no file is left behind.
        RemoteError: SEQUENCE_GAP, a shard is at another commit; NOT_READY, a bucket has left this server; no file is
            left behind.
    """
    shards = [job.shards[index] for index in sorted(job.shards)]
    if not shards:
        return ()
    descriptor = FileDescriptor(
        job.name, node, job.layout_hash, job.rule.name, tuple(job.rule.state_names), job.layout.tensors
    )
    if isinstance(target, OutgoingFile):
        return (await _encode(shards, ShardEncoder(file_name(node), descriptor, target.write), target, image, commit),)
    writer = await asyncio.to_thread(CheckpointWriter, target, file_name(node), descriptor)
    try:
        for start, stop in _portions(shards):
            await _write_portion(shards[start:stop], writer, image, commit)
        return (await to_its_end(writer.finish),)
    except BaseException:
        writer.abandon()
        raise


async def _encode(
    shards: list[Shard],
    encoder: ShardEncoder,
    target: OutgoingFile,
    image: Callable[[Shard], Awaitable[Image]],
    commit: int,
) -> CheckpointFile:
    """Encodes each portion when the one before was fetched."""
    for start, stop in _portions(shards):
        await _write_portion(shards[start:stop], encoder, image, commit)
        await target.offer()
    return encoder.end()


async def _write_portion(
    shards: list[Shard], writer: ShardEncoder, image: Callable[[Shard], Awaitable[Image]], commit: int
) -> None:
    taking = [asyncio.ensure_future(image(shard)) for shard in shards]
    try:
        images = await asyncio.gather(*taking)
        _check_commit(images, commit)
        _check_held(shards)
        await to_its_end(partial(_write, writer, images))
        _check_held(shards)
    finally:
        for one in taking:
            if one.done() and not one.cancelled() and one.exception() is None:
                one.result().release()


def _check_commit(images: list[Image], commit: int) -> None:
    """A checkpoint must not be of several iterations."""
    for held in images if commit >= 0 else ():
        if held.memory.commit != commit:
            what = f"shard {held.shard.index}: expected commit {commit}; found {held.memory.commit}"
            raise RemoteError(ErrorCode.SEQUENCE_GAP, f"{what}; finish the commit, then write the checkpoint")


def _check_held(shards: list[Shard]) -> None:
    """What a bucket has once it was given away may be overwritten in place, by whoever has it now."""
    for shard in shards:
        if shard.bucket.dropped:
            text = f"bucket {shard.bucket.index} has left this server while the checkpoint was written; order it again"
            raise RemoteError(ErrorCode.NOT_READY, text)


def _write(writer: ShardEncoder, images: list[Image]) -> None:
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
