"""Whatever bytes are decoded, what is raised is on the list."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adamctl.wire.unreadable import UNREADABLE


class Described(msgspec.Struct):
    name: str = ""
    numbers: dict[str, int] = {}


class Listed(msgspec.Struct, array_like=True):
    name: str = ""
    numbers: dict[str, int] = {}


@pytest.mark.parametrize("kind", [Any, dict, Described])
@pytest.mark.parametrize("content", [b'{"name": "\xff"}', b'{"numbers": {"\xff": 1}}', b"[" * 100_000, b"", b"{"])
def test_json_that_cannot_be_read(content: bytes, kind: Any) -> None:
    with pytest.raises(UNREADABLE):
        msgspec.json.decode(content, type=kind)


@pytest.mark.parametrize("kind", [Any, list, Listed])
@pytest.mark.parametrize("content", [b"\x91\xa1\xff", b"\x92\xa0\x81\xa1\xff\x01", b"\x91" * 100_000, b"", b"\xc1"])
def test_messagepack_that_cannot_be_read(content: bytes, kind: Any) -> None:
    with pytest.raises(UNREADABLE):
        msgspec.msgpack.decode(content, type=kind)


def test_every_byte_in_every_place_is_read_or_refused() -> None:
    refused = 0
    listed, described = Listed("na\u00efve", {"one": 1}), Described("na\u00efve", {"one": 1})
    for sound, decoder in (
        (msgspec.msgpack.encode(listed), msgspec.msgpack.Decoder(Listed)),
        (msgspec.json.encode(described), msgspec.json.Decoder(Described)),
    ):
        for position in range(len(sound)):
            for value in range(256):
                try:
                    decoder.decode(sound[:position] + bytes([value]) + sound[position + 1 :])
                except UNREADABLE:
                    refused += 1
    assert refused > 256
