"""Encodes frames and decodes messages, without any I/O. The format is docs/formats/wire.md.

`adamctl.wire.decoder` splits a stream of bytes into frames with the functions of this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from adamctl.errors import ConfigurationError, ProtocolError, RemoteError
from adamctl.model.commands import Command
from adamctl.wire.checksum import crc32
from adamctl.wire.constants import (
    BODY_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_HEADER_CHECKSUM,
    MAGIC,
    TLS_START,
    TYPED_HEADER_BYTES_MAX,
    VERSION_HIGHEST,
    VERSION_LOWEST,
    ErrorCode,
    Flag,
    Opcode,
    body_bytes_max,
)
from adamctl.wire.messages import MESSAGES, OPCODE_OF_REQUEST, ErrorReply, Message
from adamctl.wire.unreadable import UNREADABLE

DEADLINE_MS_MAX = 0xFFFFFFFF
_REQUEST_ID_MAX = 0xFFFFFFFFFFFFFFFF
# Plain integers: an operation on an enumeration costs a microsecond, and every frame needs several.
_REPLY = int(Flag.REPLY)
_ERROR = int(Flag.ERROR)
_FLAG_SETS_ALLOWED = frozenset(int(flags) for flags in (Flag.NONE, Flag.ONE_WAY, Flag.REPLY, Flag.REPLY | Flag.ERROR))
_BODY_BYTES_MAX: dict[int, int] = {int(opcode): body_bytes_max(opcode) for opcode in Opcode}
_ENCODER = msgspec.msgpack.Encoder()
_REQUEST_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    int(opcode): msgspec.msgpack.Decoder(pair[0]) for opcode, pair in MESSAGES.items()
}
_REPLY_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    int(opcode): msgspec.msgpack.Decoder(pair[1]) for opcode, pair in MESSAGES.items()
}
_ERROR_DECODER = msgspec.msgpack.Decoder(ErrorReply)
_COMMANDS_DECODER = msgspec.msgpack.Decoder(tuple[Command, ...])


class FrameHead(NamedTuple):
    """The checked fixed header of a frame. `flags` and `opcode` are plain integers; `deadline_ms` 0 means none."""

    version: int
    flags: int
    opcode: int
    request_id: int
    deadline_ms: int
    header_bytes: int
    body_bytes: int
    header_checksum: int


def encode_message(message: Message) -> bytes:
    """Returns the typed header of a message.

    Raises:
        ValueError: it is longer than 64 KiB; content that may grow belongs in the body.
    """
    encoded = _ENCODER.encode(message)
    if len(encoded) > TYPED_HEADER_BYTES_MAX:
        raise ValueError(
            f"the header of a {type(message).__name__}: expected at most {TYPED_HEADER_BYTES_MAX} bytes, "
            f"found {len(encoded)}; put content that may grow into the body"
        )
    return encoded


def encode_frame(
    opcode: int,
    request_id: int,
    typed_header: bytes,
    body_bytes: int = 0,
    *,
    flags: int = 0,
    deadline_ms: int = 0,
    version: int = VERSION_LOWEST,
) -> bytes:
    """Returns the fixed and the typed header, joined; `body_bytes` bytes of body must be sent after them.

    Raises:
        ValueError: a field is out of range (a bug of ours, never the peer's fault).
    """
    if body_bytes and body_bytes > _BODY_BYTES_MAX[opcode]:
        raise ValueError(
            f"the body of a {Opcode(opcode).name}: expected at most {_BODY_BYTES_MAX[opcode]} bytes, found {body_bytes}"
        )
    if len(typed_header) > TYPED_HEADER_BYTES_MAX or int(flags) not in _FLAG_SETS_ALLOWED:
        raise ValueError(f"cannot frame {len(typed_header)} header bytes with flags {flags}")
    fixed = FRAME_HEADER.pack(
        MAGIC,
        version,
        flags,
        opcode,
        request_id & _REQUEST_ID_MAX,
        min(deadline_ms, DEADLINE_MS_MAX),
        len(typed_header),
        body_bytes,
        crc32(typed_header),
    )
    return b"".join((fixed, FRAME_HEADER_CHECKSUM.pack(crc32(fixed)), typed_header))


def encode_request(
    message: Message, request_id: int, *, deadline_s: float = 0.0, body_bytes: int = 0, one_way: bool = False
) -> bytes:
    """Returns the head of a request's frame. `deadline_s` is its remaining time, 0 means unlimited."""
    deadline_ms = max(1, round(deadline_s * 1000)) if deadline_s > 0 else 0
    flags = Flag.ONE_WAY if one_way else Flag.NONE
    opcode = OPCODE_OF_REQUEST[type(message)]
    return encode_frame(opcode, request_id, encode_message(message), body_bytes, flags=flags, deadline_ms=deadline_ms)


def encode_reply(opcode: int, request_id: int, message: Message, body_bytes: int = 0) -> bytes:
    """Returns the head of a reply's frame.

    Raises:
        TypeError: the message is not the reply of that opcode.
    """
    expected = MESSAGES[Opcode(opcode)][1]
    if type(message) is not expected:
        raise TypeError(f"the reply of {Opcode(opcode).name} is {expected.__name__}, found {type(message).__name__}")
    return encode_frame(opcode, request_id, encode_message(message), body_bytes, flags=Flag.REPLY)


def encode_error(
    opcode: int, request_id: int, code: int, text: str, details: Mapping[str, object] | None = None
) -> bytes:
    """Returns the frame of a refusal. Long texts are cut, and details that do not fit are left out."""
    flags = Flag.REPLY | Flag.ERROR
    text = text[:8192]
    try:
        header = encode_message(ErrorReply(int(code), text, dict(details or {})))
    except (ValueError, TypeError):
        header = encode_message(ErrorReply(int(code), text))
    return encode_frame(opcode, request_id, header, flags=flags)


def parse_head(data: bytes | bytearray | memoryview, any_opcode: bool = False) -> FrameHead:
    """Returns the fixed header in the first 36 bytes of `data`; `any_opcode`: also of a request that is unknown here.

    Raises:
        ProtocolError: the first problem found; nothing after it has been trusted.
    """
    magic, *fields = FRAME_HEADER.unpack_from(data)
    if magic != MAGIC:
        if magic.startswith(TLS_START):
            raise ProtocolError(
                "expected a frame, found the start of TLS: this port speaks without; start the role that listens here "
                "with --tls-dir DIR or ADAMCTL_TLS, or leave both out at the other end"
            )
        raise ProtocolError(
            f"expected a frame that begins with {MAGIC!r}, found {bytes(magic)!r}; is the peer adamctl?"
        )
    head = FrameHead(*fields)
    if not VERSION_LOWEST <= head.version <= VERSION_HIGHEST:
        raise ProtocolError(
            f"expected frame version {VERSION_LOWEST} to {VERSION_HIGHEST}, found {head.version}; update the older side"
        )
    (checksum,) = FRAME_HEADER_CHECKSUM.unpack_from(data, FRAME_HEADER.size)
    found = crc32(memoryview(data)[: FRAME_HEADER.size])
    if checksum != found:
        raise ProtocolError(f"frame header damaged: its checksum says {checksum:#010x}, its bytes give {found:#010x}")
    if head.flags not in _FLAG_SETS_ALLOWED:
        raise ProtocolError(f"unknown flags {head.flags:#04x}")
    limit = _BODY_BYTES_MAX.get(head.opcode)
    if limit is None:
        if not any_opcode or head.flags & _REPLY:
            raise ProtocolError(f"unknown opcode {head.opcode}")
        limit = BODY_BYTES_MAX
    if head.header_bytes > TYPED_HEADER_BYTES_MAX:
        raise ProtocolError(f"typed header of {head.header_bytes} bytes, expected at most {TYPED_HEADER_BYTES_MAX}")
    if head.body_bytes > limit:
        raise ProtocolError(f"body of {head.body_bytes} bytes, a {_name(head.opcode)} may carry {limit} at most")
    return head


def _name(opcode: int) -> str:
    return Opcode(opcode).name if opcode in _BODY_BYTES_MAX else f"request {opcode}"


def check_typed_header(head: FrameHead, typed_header: bytes) -> None:
    """Raises ProtocolError if the typed header is not the one that the fixed header announced."""
    found = crc32(typed_header)
    if found != head.header_checksum:
        raise ProtocolError(
            f"typed header damaged: its checksum says {head.header_checksum:#010x}, its bytes give {found:#010x}"
        )


def decode_message(opcode: int, flags: int, typed_header: bytes) -> Message:
    """Returns the message in a typed header: the request, reply or `ErrorReply` of an opcode.

    Fields appended by a newer peer are ignored; missing ones get their defaults.

    Raises:
        ProtocolError: the header does not hold that message.
        RemoteError: UNKNOWN_OPCODE, a later version's request (see `parse_head`).
    """
    if flags & _ERROR:
        decoder = _ERROR_DECODER
    else:
        try:
            decoder = (_REPLY_DECODERS if flags & _REPLY else _REQUEST_DECODERS)[opcode]
        except KeyError:
            text = f"this process does not know opcode {opcode}; update the older side"
            raise RemoteError(ErrorCode.UNKNOWN_OPCODE, text) from None
    try:
        message: Message = decoder.decode(typed_header)
    except UNREADABLE as error:
        kind = "error reply" if flags & _ERROR else "reply" if flags & _REPLY else "request"
        raise ProtocolError(f"unreadable {Opcode(opcode).name} {kind}: {error}") from error
    return message


__all__ = [
    "BODY_BYTES_MAX",
    "FRAME_HEADER_BYTES",
    "FrameHead",
    "check_typed_header",
    "decode_message",
    "encode_error",
    "encode_frame",
    "encode_message",
    "encode_reply",
    "encode_request",
    "parse_head",
]


def encode_commands(commands: Sequence[Command]) -> bytes:
    """Returns the body of a round or a commit: commands on vectors."""
    return _ENCODER.encode(tuple(commands))


def decode_commands(body: bytes | memoryview) -> tuple[Command, ...]:
    """Returns the commands in a body; whether they can be carried out is checked where it is known what is held.

    Raises:
        ConfigurationError: it holds something else.
    """
    try:
        return _COMMANDS_DECODER.decode(body)
    except UNREADABLE as error:
        raise ConfigurationError(f"expected a list of commands on vectors; found something else: {error}") from error
