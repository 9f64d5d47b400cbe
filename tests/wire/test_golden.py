"""Frames that earlier versions sent are read and answered today: `tests/golden/capture_wire.py` captured them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Request
from adamctl.wire import codec
from adamctl.wire.constants import FRAME_HEADER_BYTES, VERSION_HIGHEST, VERSION_LOWEST, Flag, Opcode
from adamctl.wire.decoder import Frame, FrameDecoder, discard_target
from adamctl.wire.messages import MESSAGES, ErrorReply, Hello, HelloReply, StatusReply
from tests.golden.capture_wire import main, plain

FOLDER = Path(__file__).parents[1] / "golden" / "wire"
CAPTURES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
FLAGS = {"request": Flag.NONE, "reply": Flag.REPLY, "error": Flag.REPLY | Flag.ERROR}


def captured(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()[1:]]


def parts(frame: bytes) -> tuple[bytes, bytes]:
    """Returns a frame's fixed header and its typed header."""
    return frame[:FRAME_HEADER_BYTES], frame[FRAME_HEADER_BYTES:]


def check_fields(message: msgspec.Struct, fields: dict[str, Any], where: str) -> None:
    """Checks that a message has the captured fields first, in their order and with their values, and defaults after."""
    names = message.__struct_fields__
    assert list(names[: len(fields)]) == list(fields), f"{where}: fields may only be appended"
    defaults = {field.name: field for field in msgspec.structs.fields(type(message))}
    for name in names[len(fields) :]:
        field, value = defaults[name], getattr(message, name)
        assert not field.required, f"{where}.{name}: an appended field has a default"
        assert value == (field.default if field.default is not msgspec.NODEFAULT else field.default_factory()), where
    for name, expected in fields.items():
        check_value(getattr(message, name), expected, f"{where}.{name}")


def check_value(value: Any, expected: Any, where: str) -> None:
    if isinstance(value, msgspec.Struct):
        check_fields(value, expected, where)
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], msgspec.Struct):
        assert len(value) == len(expected), where
        for number, (one, of_it) in enumerate(zip(value, expected, strict=True)):
            check_fields(one, of_it, f"{where}[{number}]")
    else:
        assert plain(value) == expected, where


@pytest.mark.parametrize("name", CAPTURES)
def test_every_captured_frame_is_read_with_its_meaning(name: str) -> None:
    for line in captured(name):
        where = f"{name}: {line['opcode']} {line['kind']}"
        head_bytes, typed = parts(bytes.fromhex(line["frame"]))
        head = codec.parse_head(head_bytes)
        assert (head.opcode, head.flags, head.request_id) == (Opcode[line["opcode"]], FLAGS[line["kind"]], 7), where
        check_fields(codec.decode_message(head.opcode, head.flags, typed), line["fields"], where)


@pytest.mark.parametrize("name", CAPTURES)
def test_all_frames_of_a_capture_are_read_from_one_stream(name: str) -> None:
    """By the decoder of connections, in pieces of any length."""
    lines = captured(name)
    stream = b"".join(bytes.fromhex(line["frame"]) for line in lines)
    for piece in (1, 7, 4096):
        found: list[Frame] = []
        decoder = FrameDecoder(lambda head: discard_target(head.body_bytes))
        for start in range(0, len(stream), piece):
            found += decoder.feed(stream[start : start + piece])
        assert [Opcode(frame.head.opcode).name for frame in found] == [line["opcode"] for line in lines]


@pytest.mark.parametrize("name", CAPTURES)
def test_what_today_sends_is_what_the_captured_version_reads(name: str) -> None:
    """A reader takes the fields it knows and ignores those after them, so its fields come first, bit for bit."""
    for line in captured(name):
        head_bytes, typed = parts(bytes.fromhex(line["frame"]))
        head = codec.parse_head(head_bytes)
        today = codec.encode_message(codec.decode_message(head.opcode, head.flags, typed))
        check_prefix(msgspec.msgpack.decode(today), msgspec.msgpack.decode(typed), f"{name}: {line['opcode']}")


def check_prefix(today: Any, then: Any, where: str) -> None:
    """Checks that every list begins as it did: a struct may have become longer, in any depth."""
    if isinstance(then, list):
        assert isinstance(today, list) and len(today) >= len(then), where
        for one, of_then in zip(today, then, strict=False):
            check_prefix(one, of_then, where)
    else:
        assert today == then, where


@pytest.mark.parametrize("name", CAPTURES)
async def test_a_server_answers_what_the_captured_version_says_on_a_socket(name: str) -> None:
    """HELLO and STATUS byte for byte as they were sent; the answers are read by the fields that were known then."""
    lines = captured(name)
    made_by = json.loads((FOLDER / f"{name}.jsonl").read_text().splitlines()[0])
    hello = Hello(*made_by["wire_versions"], (), "operator", "old-1", 0)
    known = {kind: len(line["fields"]) for line in lines for kind in [(line["opcode"], line["kind"])]}

    def handle(request: Request) -> None:
        request.reply(StatusReply({"role": "ps"}))

    server = await StreamTransport().serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-1"), handle)
    host, _, port = server.addresses[0].removeprefix("tcp://").rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_as_then(Opcode.HELLO, hello, known["HELLO", "request"]))
        (status, *_) = [one["frame"] for one in lines if (one["opcode"], one["kind"]) == ("STATUS", "request")]
        first = await _typed_header(reader)
        writer.write(bytes.fromhex(status))
        second = await _typed_header(reader)
        writer.close()
        await writer.wait_closed()
    finally:
        await server.close()
    version, features, role, node = first[:4]
    assert (version, features, role, node) == (made_by["wire_versions"][1], [], "ps", "ps-1")
    assert len(first) >= known["HELLO", "reply"] and second[0] == {"role": "ps"}


def _as_then(opcode: Opcode, message: msgspec.Struct, fields: int) -> bytes:
    """Returns the frame of a message with as many fields as were known then."""
    typed = msgspec.msgpack.encode([getattr(message, name) for name in message.__struct_fields__[:fields]])
    return bytes(codec.encode_frame(opcode, 1, typed, 0))


async def _typed_header(reader: asyncio.StreamReader) -> list[Any]:
    head = codec.parse_head(await asyncio.wait_for(reader.readexactly(FRAME_HEADER_BYTES), 30))
    found: list[Any] = msgspec.msgpack.decode(await asyncio.wait_for(reader.readexactly(head.header_bytes), 30))
    return found


def test_there_is_a_capture_of_every_version_that_is_spoken() -> None:
    spoken = set(range(VERSION_LOWEST, VERSION_HIGHEST + 1))
    made_by = [json.loads((FOLDER / f"{name}.jsonl").read_text().splitlines()[0]) for name in CAPTURES]
    assert {version for one in made_by for version in one["wire_versions"]} >= spoken
    assert all({"version", "commit"} <= set(one) for one in made_by)


def test_captures_speak_of_most_messages() -> None:
    """All that the newest capture's code had; what was added since is captured before the next release."""
    newest = max(CAPTURES, key=lambda name: len(captured(name)))
    assert {line["opcode"] for line in captured(newest)} <= {opcode.name for opcode in MESSAGES}
    assert len({line["opcode"] for line in captured(newest)}) >= 51
    assert ErrorReply.__name__ == "ErrorReply" and HelloReply.__name__ == "HelloReply"


def test_a_capture_is_never_written_again(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text("as it was")
    with pytest.raises(SystemExit, match="never written again"):
        main(tmp_path / "old.jsonl")
    assert (tmp_path / "old.jsonl").read_text() == "as it was"
    main(tmp_path / "new.jsonl")
    written = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()[1:]]
    assert {line["opcode"] for line in written} == {opcode.name for opcode in MESSAGES}, "it has every message"
