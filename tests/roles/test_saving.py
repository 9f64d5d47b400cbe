"""Who is asked for a checkpoint answers, whatever happens, and tells nothing of other folders."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import RemoteError
from adamctl.roles.rooted import Roots
from adamctl.roles.saving import answer_checkpoint
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointReply, CheckpointRequest

FILE = CheckpointFile("a", "b", 1, "0" * 32, (0,))


class Asked:
    def __init__(self) -> None:
        self.answer: Any = None

    def reply(self, message: CheckpointReply) -> None:
        self.answer = message

    def fail(self, code: int, message: str) -> None:
        self.answer = ErrorCode(code), message


async def answered(folder: Path, save: Any, root: Path | None = None) -> Any:
    asked: Any = Asked()
    roots = Roots([folder if root is None else root], "--checkpoint-root")
    message = CheckpointRequest("job", str(folder))
    await answer_checkpoint(asked, message, "ps-1", logging.getLogger("test"), roots, save)
    return asked.answer


def failing(error: BaseException) -> Any:
    async def save(folder: int) -> tuple[CheckpointFile, ...]:
        raise error

    return save


async def test_files_are_the_answer_and_the_folder_is_made(tmp_path: Path) -> None:
    async def save(folder: int) -> tuple[CheckpointFile, ...]:
        assert (tmp_path / "1").is_dir()
        return (FILE,)

    assert await answered(tmp_path / "1", save, tmp_path) == CheckpointReply((FILE,))


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ErrorCode.INTERNAL, "No space left on device"),
        (OSError(errno.EACCES, "secret"), ErrorCode.INTERNAL, "the folder cannot be written to; see its log"),
        (RemoteError(ErrorCode.NOT_READY, "later"), ErrorCode.NOT_READY, "later"),
        (RuntimeError("secret"), ErrorCode.INTERNAL, "ps-1 cannot write its part; see its log"),
    ],
)
async def test_failures_are_answers(tmp_path: Path, error: Exception, code: ErrorCode, text: str) -> None:
    found, message = await answered(tmp_path, failing(error))
    assert found == code and text in message and "secret" not in message


async def test_a_folder_that_is_not_allowed_is_not_made(tmp_path: Path) -> None:
    found, message = await answered(tmp_path / "else", failing(AssertionError()), tmp_path / "runs")
    assert found == ErrorCode.NOT_ALLOWED and "--checkpoint-root" in message and not (tmp_path / "else").exists()


async def test_who_closes_says_so(tmp_path: Path) -> None:
    asked: Any = Asked()
    roots = Roots([tmp_path], "--checkpoint-root")
    with pytest.raises(asyncio.CancelledError):
        await answer_checkpoint(
            asked, CheckpointRequest("job", str(tmp_path)), "ps-1", logging.getLogger("test"), roots,
            failing(asyncio.CancelledError()),
        )  # fmt: skip
    assert asked.answer == (ErrorCode.SHUTTING_DOWN, "ps-1 is closing")
