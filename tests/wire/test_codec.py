"""The codec byte by byte."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from adamctl.errors import ConfigurationError, ProtocolError
from adamctl.model.commands import Apply, Reduce, Set
from adamctl.wire import codec
from adamctl.wire.codec import decode_commands, encode_commands
from adamctl.wire.constants import TYPED_HEADER_BYTES_MAX, Flag, Opcode
from adamctl.wire.messages import (
    MESSAGES,
    BenchBlockRequest,
    Empty,
    ErrorReply,
    Hello,
    NextTaskRequest,
    PushRequest,
    ShutdownRequest,
    StatusReply,
    StatusRequest,
)
from tests.wire.frames import raw_frame


def test_a_request_byte_by_byte() -> None:
    head = codec.encode_request(BenchBlockRequest(5), 7, deadline_s=1.0, body_bytes=3)
    assert head == raw_frame(body=b"abc")[:-3]
    assert head[:4] == b"ADMC"
    assert head[4:8] == bytes([1, 0, 96, 0])
    assert head[8:16] == bytes([7, 0, 0, 0, 0, 0, 0, 0])
    assert head[16:20] == (1000).to_bytes(4, "little")
    assert head[20:24] == (3).to_bytes(4, "little")
    assert head[24:28] == (3).to_bytes(4, "little")
    assert head[36:] == bytes([0x92, 5, 0xC2])  # MessagePack: array of two, 5, false


def test_a_frame_is_read_as_it_was_written() -> None:
    head = codec.parse_head(codec.encode_reply(Opcode.PS_PUSH, 9, msgspec.convert([[]], MESSAGES[Opcode.PS_PUSH][1])))
    assert (head.opcode, head.flags, head.request_id, head.deadline_ms) == (Opcode.PS_PUSH, Flag.REPLY, 9, 0)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"magic": b"HTTP"}, "is the peer adamctl"),
        ({"version": 0}, "version"),
        ({"version": 2}, "version"),
        ({"flags": 8}, "flags"),
        ({"flags": Flag.ERROR}, "flags"),
        ({"flags": Flag.ONE_WAY | Flag.REPLY}, "flags"),
        ({"opcode": 0}, "unknown opcode 0"),
        ({"opcode": 65535}, "unknown opcode 65535"),
        ({"header_bytes": TYPED_HEADER_BYTES_MAX + 1}, "typed header of 65537 bytes"),
        ({"body_bytes": (32 << 20) + 1}, "may carry 33554432"),
        ({"body_bytes": 0xFFFFFFFF}, "body of 4294967295"),
        ({"opcode": Opcode.HELLO, "body_bytes": 1}, "may carry 0"),
        ({"checksum": 1}, "damaged"),
    ],
)
def test_a_wrong_head_is_refused_with_its_reason(wrong: dict[str, object], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        codec.parse_head(raw_frame(**wrong))  # type: ignore[arg-type]


def test_what_we_may_not_send_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="HELLO"):
        codec.encode_frame(Opcode.HELLO, 1, b"", 1)
    with pytest.raises(ValueError, match="into the body"):
        codec.encode_message(ShutdownRequest("x" * TYPED_HEADER_BYTES_MAX))
    with pytest.raises(TypeError, match="StatusReply"):
        codec.encode_reply(Opcode.STATUS, 1, Empty())


def test_a_long_error_is_shortened_not_lost() -> None:
    frame = codec.encode_error(Opcode.STATUS, 1, 1, "x" * 100_000, {"much": "y" * 100_000})
    head = codec.parse_head(frame)
    message = codec.decode_message(head.opcode, head.flags, frame[36:])
    assert isinstance(message, ErrorReply)
    assert message.message == "x" * 8192
    assert message.details == {}


def test_deadlines_are_never_rounded_to_endless() -> None:
    assert codec.parse_head(codec.encode_request(StatusRequest(), 1, deadline_s=1e-6)).deadline_ms == 1
    assert codec.parse_head(codec.encode_request(StatusRequest(), 1, deadline_s=1e12)).deadline_ms == 0xFFFFFFFF
    assert codec.parse_head(codec.encode_request(StatusRequest(), 1)).deadline_ms == 0


def test_fields_that_a_newer_peer_appended_are_ignored() -> None:
    encoded = msgspec.msgpack.encode([1, 2, ["a"], "ps", "ps-0", 3, "", b"n", "c", "a field of tomorrow", {"b": 1}])
    assert codec.decode_message(Opcode.HELLO, 0, encoded) == Hello(1, 2, ("a",), "ps", "ps-0", 3, "", b"n", "c")


def test_fields_that_an_older_peer_lacks_get_their_defaults() -> None:
    encoded = msgspec.msgpack.encode([1, 2, [], "ps", "ps-0", 3])
    assert codec.decode_message(Opcode.HELLO, 0, encoded) == Hello(1, 2, (), "ps", "ps-0", 3, "")


@pytest.mark.parametrize("opcode", Opcode)
@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        b"\xc0",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode([[[1]], {}, "x", -1, None, 2.5, b""] * 2),
        b"\xdd\xff\xff\xff\xff",  # an array that claims four billion elements
        b"\x91" * 5000 + b"\xc0",
        b"\x96\x01\x01\xdd\xff\xff\xff\xff\x01",
    ],
    ids=["empty", "reserved", "nil", "map", "wrong_types", "huge_array", "deep", "huge_inner_array"],
)
def test_a_typed_header_of_another_type_is_a_protocol_error(opcode: Opcode, encoded: bytes) -> None:
    for flags in (0, Flag.REPLY, Flag.REPLY | Flag.ERROR):
        try:
            message = codec.decode_message(opcode, flags, encoded)
        except ProtocolError as error:
            assert opcode.name in str(error)
        else:  # only messages without obligatory fields may be read from any array
            assert not type(message).__struct_fields__ or encoded[0] & 0xF0 in (0x90, 0xD0)


@pytest.mark.parametrize("updates", [-1, (1 << 44) + 1, 1 << 63])
def test_counts_whose_sum_would_be_no_number_of_the_wire_are_a_protocol_error(updates: int) -> None:
    """Else a coordinator that has added them up can answer no STATUS any more."""
    for staleness in ((), (0, updates)):
        wrong = NextTaskRequest("w", 1, (), 1, 0.0, 1 if staleness else updates, staleness)
        with pytest.raises(ProtocolError, match="RUN_NEXT_TASK"):
            codec.decode_message(Opcode.RUN_NEXT_TASK, 0, codec.encode_message(wrong))


def test_deep_values_inside_a_free_field_are_a_protocol_error() -> None:
    encoded = b"\x91\x81\xa1a" + b"\x91" * 60_000 + b"\xc0"
    with pytest.raises(ProtocolError):
        codec.decode_message(Opcode.STATUS, Flag.REPLY, encoded)


def test_messages_survive_the_way() -> None:
    push = PushRequest("job", {1: 2}, 0.5, 1, 32, (), ())
    assert codec.decode_message(Opcode.PS_PUSH, 0, codec.encode_message(push)) == push
    status = StatusReply({"role": "ps", "uptime_s": 1.5})
    assert codec.decode_message(Opcode.STATUS, Flag.REPLY, codec.encode_message(status)) == status


def test_commands_come_back_from_a_body_and_nothing_else_does() -> None:
    commands = (Set("t", ((0.5, "x"), (1.0, "g"))), Apply("t", "abs", (("t",),)), Reduce("dot", (("t",), ("t", "x"))))
    assert decode_commands(encode_commands(commands)) == commands
    random = Random(3)
    for _ in range(300):
        body = bytearray(encode_commands(commands))
        body[random.randrange(len(body))] = random.randrange(256)
        cut = body[: random.randrange(len(body) + 1)]
        try:
            assert all(isinstance(one, Set | Apply | Reduce) for one in decode_commands(bytes(cut)))
        except ConfigurationError as error:
            assert "list of commands" in str(error)
