"""A server's file that is fetched in parts: whoever fetches sets the pace, and gets every byte once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from adamctl.errors import RemoteError
from adamctl.roles import outgoing_file
from adamctl.roles.outgoing_file import OutgoingFile, Streams
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointPartReply, CheckpointPartRequest

FILE = CheckpointFile("a", "b", 30, "0" * 32, (0, 1, 2))


class Part:
    """A request for a part, and its answer."""

    def __init__(self, stream: int, offset: int, job: str = "job", connection: int = 7) -> None:
        self.connection_id = connection
        self.message = CheckpointPartRequest(job, stream, offset)
        self.answer: Any = None
        self.body = b""

    def reply(self, message: CheckpointPartReply, body: Any = ()) -> None:
        self.answer, self.body = message, b"".join(body)

    def fail(self, code: int, text: str) -> None:
        self.answer = ErrorCode(code), text


async def asked(streams: Streams, *arguments: Any) -> Any:
    part: Any = Part(*arguments)
    await streams.part(part, part.message)
    return part


def streams() -> Streams:
    return Streams(logging.getLogger("test"))


async def test_every_byte_comes_once_and_the_last_part_says_what_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_file, "CHECKPOINT_PART_BYTES_MAX", 4)
    portions: list[int] = []

    async def save(file: OutgoingFile) -> tuple[CheckpointFile, ...]:
        for portion in range(3):
            portions.append(portion)
            for piece in range(2):
                file.write(bytes([portion, piece] * 3)[:5])
            await file.offer()
        file.write(b"end")
        return (FILE,)

    open_ones = streams()
    number, fetched, parts = open_ones.begin(7, "job", save), b"", 0
    while True:
        part = await asked(open_ones, number, len(fetched))
        assert len(part.body) <= 4 and crc32(part.body) == part.answer.checksum
        fetched, parts = fetched + part.body, parts + 1
        assert len(portions) <= len(fetched) // 10 + 1, "a portion was encoded before the one before was fetched"
        if part.answer.last:
            break
    whole = b"".join(bytes([portion, piece] * 3)[:5] for portion in range(3) for piece in range(2)) + b"end"
    assert fetched == whole and part.answer.files == (FILE,) and parts >= 9
    assert (await asked(open_ones, number, len(fetched))).answer[0] == ErrorCode.NOT_READY


async def never(file: OutgoingFile) -> tuple[CheckpointFile, ...]:
    file.write(b"a portion")
    await file.offer()
    await asyncio.sleep(1000)
    return ()


async def test_only_the_next_byte_is_given_and_only_to_who_asked() -> None:
    open_ones = streams()
    number = open_ones.begin(7, "job", never)
    for wrong in ((number, 0, "job", 8), (number + 1, 0), (number, 0, "another")):
        assert (await asked(open_ones, *wrong)).answer[0] == ErrorCode.NOT_READY
    assert (await asked(open_ones, number, 1)).answer[0] == ErrorCode.BAD_MESSAGE
    open_ones.close()


async def test_a_stream_ends_with_its_connection_and_with_the_next_one_of_the_job() -> None:
    open_ones, ended = streams(), []

    def begun(connection: int) -> int:
        async def save(file: OutgoingFile) -> tuple[CheckpointFile, ...]:
            try:
                return await never(file)
            finally:
                ended.append(connection)

        return open_ones.begin(connection, "job", save)

    first = begun(1)
    await asyncio.sleep(0)
    second = begun(2)
    await asyncio.sleep(0.01)
    assert ended == [1] and (await asked(open_ones, first, 0, "job", 1)).answer[0] == ErrorCode.NOT_READY
    assert (await asked(open_ones, second, 0, "job", 2)).body == b"a portion"
    open_ones.disconnected(2)
    await asyncio.sleep(0.01)
    assert ended == [1, 2]


async def test_no_stream_begins_for_who_has_gone_while_its_folder_was_looked_for() -> None:
    open_ones = streams()
    for connection in (1, 1, 2):
        open_ones.expect(connection)
    open_ones.disconnected(1)
    open_ones.disconnected(3)
    with pytest.raises(RemoteError, match="whoever asked for it is gone"):
        open_ones.begin(1, "job", never)
    assert len(open_ones) == 0
    open_ones.begin(2, "job", never)
    assert len(open_ones) == 1
    for connection in (1, 1, 2):
        open_ones.settle(connection)
    open_ones.disconnected(2)
    assert len(open_ones) == 0 and not open_ones._expected and not open_ones._gone
    open_ones.begin(3, "job", never)
    open_ones.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RemoteError(ErrorCode.SEQUENCE_GAP, "at another commit"), ErrorCode.SEQUENCE_GAP),
        (OSError(), ErrorCode.INTERNAL),
    ],
)
async def test_who_waits_for_a_part_is_told_why_there_is_none(error: Exception, code: ErrorCode) -> None:
    async def save(file: OutgoingFile) -> tuple[CheckpointFile, ...]:
        file.write(b"begun")
        await asyncio.sleep(0.01)
        raise error

    open_ones = streams()
    assert (await asked(open_ones, open_ones.begin(7, "job", save), 0)).answer[0] == code


async def test_who_waits_is_told_when_another_checkpoint_begins() -> None:
    async def save(file: OutgoingFile) -> tuple[CheckpointFile, ...]:
        await asyncio.sleep(1000)
        return ()

    open_ones = streams()
    waiting = asyncio.ensure_future(asked(open_ones, open_ones.begin(7, "job", save), 0))
    await asyncio.sleep(0.01)
    open_ones.begin(7, "job", save)
    assert (await waiting).answer[0] == ErrorCode.NOT_READY
    open_ones.close()
    await asyncio.sleep(0)
