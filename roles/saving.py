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

_PUBLIC_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
"""Disk errors whose text may be sent to the client; other errors would reveal which files exist."""


async def answer_checkpoint(
    request: Request,
    message: CheckpointRequest,
    node: str,
    log: logging.Logger,
    roots: Roots,
    save: Callable[[int], Awaitable[tuple[CheckpointFile, ...]]],
) -> None:
    """Answers, whatever happens.

    Args:
        node: this process.
        roots: where checkpoints may be written.
        save: writes into an open folder; may raise RemoteError or OSError.
    """
    try:
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


def _public_text(error: OSError) -> str:
    return str(error.strerror) if error.errno in _PUBLIC_ERRORS else "the folder cannot be written to; see its log"
