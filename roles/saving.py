"""Answers a request for one process's part of a checkpoint: a server's, or a worker's where there are no servers."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable

from adamctl.errors import RemoteError
from adamctl.net.transport import Request
from adamctl.roles.rooted import Roots
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointReply, CheckpointRequest

NONCE_NAME = ".nonce"
"""The file by which a server knows a checkpoint's folder as the coordinator's."""
_PUBLIC_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
"""Disk errors whose text may be sent to the client; other errors would reveal which files exist."""


async def answer_checkpoint(
    request: Request,
    message: CheckpointRequest,
    node: str,
    log: logging.Logger,
    roots: Roots,
    save: Callable[[int], Awaitable[tuple[CheckpointFile, ...]]],
    stream: Callable[[], int] | None = None,
) -> None:
    """Answers, whatever happens.

    Args:
        node: this process.
        roots: where checkpoints may be written.
        save: writes into an open folder; may raise RemoteError or OSError.
        stream: begins to hold the part ready to be fetched, and returns the stream's number; None: it cannot be.
    """
    try:
        if stream is not None and message.nonce:
            folder = await asyncio.to_thread(_shared_folder, roots, message.folder, message.nonce)
            if folder < 0:
                request.reply(CheckpointReply((), stream()))
                return
        else:
            folder = await asyncio.to_thread(roots.open_folder, message.folder, create=True)
        try:
            files = await save(folder)
        finally:
            os.close(folder)
    except OSError as error:
        log.error("checkpoint of job %s: %s", message.job, error)
        request.fail(ErrorCode.INTERNAL, f"{node} cannot write its part: {_public_text(error)}")
    except RemoteError as error:
        request.fail(error.code, str(error))
    except asyncio.CancelledError:
        request.fail(ErrorCode.SHUTTING_DOWN, f"{node} is closing")
        raise
    except Exception:
        log.exception("checkpoint of job %s", message.job)
        request.fail(ErrorCode.INTERNAL, f"{node} cannot write its part; see its log")
    else:
        request.reply(CheckpointReply(files))


def _shared_folder(roots: Roots, path: str, nonce: str) -> int:
    """Returns a descriptor of the folder if it is the one that the coordinator wrote the nonce into, else -1."""
    try:
        folder = roots.open_folder(path)
    except (OSError, RemoteError):
        return -1
    try:
        found = os.open(NONCE_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(found, "rb") as file:
            if file.read(len(nonce) + 1) == nonce.encode():
                return folder
    except OSError:
        pass
    os.close(folder)
    return -1


def _public_text(error: OSError) -> str:
    return str(error.strerror) if error.errno in _PUBLIC_ERRORS else "the folder cannot be written to; see its log"
