"""A process's file of a checkpoint that is fetched in parts, where it cannot write into the checkpoint's folder.

It is encoded portion by portion, each when all of the one before was fetched: so whoever fetches sets the pace, and a
server holds one portion, whatever the size of its shards. On the event loop, but for `OutgoingFile.write`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from adamctl.errors import RemoteError
from adamctl.net.transport import Request
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import CHECKPOINT_PART_BYTES_MAX, ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointPartReply, CheckpointPartRequest


class OutgoingFile:
    """The bytes that are encoded and not fetched yet.

    Attributes:
        position: how many bytes have been fetched.
    """

    def __init__(self) -> None:
        self.position = 0
        self._pieces: deque[memoryview] = deque()
        self._changed = asyncio.Event()
        self._offered = self._ended = False
        self._files: tuple[CheckpointFile, ...] = ()
        self._failure: RemoteError | None = None

    def write(self, piece: bytes | memoryview) -> None:
        """Takes a copy of bytes, in any thread; they may be fetched once `offer` was called."""
        self._pieces.append(memoryview(bytes(piece)))

    async def offer(self) -> None:
        """Returns when everything written was fetched."""
        self._offered = True
        self._changed.set()
        while self._pieces:
            await self._wait()
        self._offered = False

    def end(self, files: tuple[CheckpointFile, ...]) -> None:
        """Notes that what is written now is the rest."""
        self._files, self._ended = files, True
        self._changed.set()

    def fail(self, failure: RemoteError) -> None:
        """Notes that the file cannot be finished; `take` raises it."""
        self._failure = failure
        self._changed.set()

    async def take(self, offset: int) -> tuple[list[memoryview], bool, tuple[CheckpointFile, ...]]:
        """Returns the next part, whether it is the last, and then the description of the file.

        Raises:
            RemoteError: BAD_MESSAGE, it begins elsewhere; or why the file cannot be finished.
        """
        while self._failure is None and not self._ended and not (self._offered and self._pieces):
            await self._wait()
        if self._failure is not None:
            raise self._failure
        if offset != self.position:
            raise RemoteError(ErrorCode.BAD_MESSAGE, f"expected offset {self.position}; found {offset}")
        part: list[memoryview] = []
        room = CHECKPOINT_PART_BYTES_MAX
        while self._pieces and room:
            piece = self._pieces.popleft()
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
                piece = piece[:room]
            part.append(piece)
            room -= len(piece)
        self.position += CHECKPOINT_PART_BYTES_MAX - room
        self._changed.set()
        last = self._ended and not self._pieces
        return part, last, self._files if last else ()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


Save = Callable[[OutgoingFile], Awaitable[tuple[CheckpointFile, ...]]]


class Streams:
    """The files that are being fetched: at most one of each job."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._numbers = count(1)
        self._open: dict[tuple[int, int], tuple[str, OutgoingFile, asyncio.Task[None]]] = {}
        self._expected: Counter[int] = Counter()
        self._gone: set[int] = set()  # of the expected ones

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, connection: int) -> None:
        """A request came over this connection for which a stream may begin; to be called before anything is awaited."""
        self._expected[connection] += 1

    def settle(self, connection: int) -> None:
        """That request has been answered."""
        self._expected[connection] -= 1
        if self._expected[connection] <= 0:
            del self._expected[connection]
            self._gone.discard(connection)

    def begin(self, connection: int, job: str, save: Save) -> int:
        """Starts a stream, in place of an earlier one of the job, and returns its number. `save` writes the file.

        Raises:
            RemoteError: NOT_READY, the connection is gone, so that nobody would ever end the stream.
        """
        if connection in self._gone:
            raise RemoteError(ErrorCode.NOT_READY, "whoever asked for it is gone")
        self._end(lambda place, other: other == job)
        number, file = next(self._numbers), OutgoingFile()
        task = asyncio.create_task(self._run(job, file, save))
        self._open[connection, number] = (job, file, task)
        return number

    def disconnected(self, connection: int) -> None:
        """Ends what was fetched over a connection, and what would be."""
        if connection in self._expected:
            self._gone.add(connection)
        self._end(lambda place, job: place[0] == connection)

    def close(self) -> None:
        self._end(lambda place, job: True)

    async def part(self, request: Request, message: CheckpointPartRequest) -> None:
        """Answers a request for a part."""
        place = request.connection_id, message.stream
        job, file, _ = self._open.get(place, ("", None, None))
        if file is None or job != message.job:
            request.fail(ErrorCode.NOT_READY, f"there is no stream {message.stream} of job {message.job!a}")
            return
        try:
            part, last, files = await file.take(message.offset)
            checksum = await asyncio.to_thread(_checksum, part)
        except RemoteError as error:
            self._end(lambda other, job: other == place)
            request.fail(error.code, str(error))
            return
        except asyncio.CancelledError:
            request.fail(ErrorCode.SHUTTING_DOWN, "the server is closing")
            raise
        if last:
            self._end(lambda other, job: other == place)
        request.reply(CheckpointPartReply(checksum, last, files), part)

    async def _run(self, job: str, file: OutgoingFile, save: Save) -> None:
        try:
            file.end(await save(file))
        except RemoteError as error:
            file.fail(error)
        except Exception:
            self._log.exception("checkpoint of job %s", job)
            file.fail(RemoteError(ErrorCode.INTERNAL, "its part cannot be made; see its log"))
        except BaseException:
            file.fail(RemoteError(ErrorCode.NOT_READY, "another checkpoint of the job was begun"))
            raise

    def _end(self, chosen: Callable[[tuple[int, int], str], bool]) -> None:
        for place in [place for place, (job, _, _) in self._open.items() if chosen(place, job)]:
            _, _, task = self._open.pop(place)
            task.cancel()


def _checksum(part: list[Any]) -> int:
    checksum = 0
    for piece in part:
        checksum = crc32(piece, checksum)
    return checksum
