"""A faulty or hostile server: what it sends after an answer goes into nobody's buffers; a late request says so."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from adamctl.net.connection import ClientProtocol
from adamctl.net.limits import ClientLimits
from adamctl.net.pool import BufferPool
from adamctl.wire.codec import encode_reply, parse_head
from adamctl.wire.constants import FRAME_HEADER_BYTES
from adamctl.wire.messages import OPCODE_OF_REQUEST, PullReply, PullRequest

PULL = PullRequest("job", {}, (1,))
BODY_BYTES = 100_000


class Sent(asyncio.Transport):
    """Takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


def client() -> tuple[ClientProtocol, Sent]:
    protocol = ClientProtocol(asyncio.get_running_loop(), BufferPool(1 << 20), ClientLimits(), "tcp://there:1")
    sent = Sent()
    protocol.connection_made(sent)
    return protocol, sent


def give(protocol: ClientProtocol, data: bytes) -> None:
    while data:
        window = protocol.get_buffer(-1)
        count = min(len(window), len(data))
        cast(memoryview, window)[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]


async def test_the_rest_of_a_second_answer_does_not_change_what_the_caller_has_got() -> None:
    protocol, _ = client()
    into = bytearray(BODY_BYTES)
    asked = asyncio.ensure_future(protocol.call(PULL, (), 10.0, [memoryview(into)]))
    await asyncio.sleep(0)
    answer = encode_reply(OPCODE_OF_REQUEST[PullRequest], 1, PullReply(()), BODY_BYTES)
    first = answer + b"\1" * BODY_BYTES
    give(protocol, first[:-1])
    give(protocol, first[-1:] + answer + b"\2" * 100)  # its last byte, and the beginning of a second one
    await asked
    taken = bytes(into)
    give(protocol, b"\2" * (BODY_BYTES - 100))
    assert into == taken and into[1000:] == b"\1" * (BODY_BYTES - 1000)


async def test_a_request_that_is_sent_after_its_deadline_does_not_say_that_it_has_none() -> None:
    protocol, sent = client()
    asked = asyncio.ensure_future(protocol.call(PULL, (), 0.0, None))
    await asyncio.sleep(0)
    assert parse_head(memoryview(sent.written)[:FRAME_HEADER_BYTES]).deadline_ms == 1
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
