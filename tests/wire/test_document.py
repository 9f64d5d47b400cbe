"""docs/formats/wire.md says what the code does: every number, every limit, every field of HELLO."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adamctl.wire.constants import (
    BODY_ALIGNMENT_BYTES,
    BODY_BYTES_MAX,
    FRAME_HEADER_BYTES,
    TYPED_HEADER_BYTES_MAX,
    ErrorCode,
    Flag,
    Opcode,
    UpdateKind,
    body_bytes_max,
)
from adamctl.wire.messages import MESSAGES, Hello, HelloReply

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/formats/wire.md").read_text(encoding="utf-8")
ROWS = {
    (cells[0], cells[1]): cells
    for line in DOCUMENT.splitlines()
    if line.startswith("|") and len(cells := [cell.strip(" `") for cell in line.strip("|").split("|")]) > 1
}


@pytest.mark.parametrize("number", [*Opcode, *ErrorCode, *UpdateKind, *(flag for flag in Flag if flag)])
def test_every_number_is_listed(number: Opcode | ErrorCode | UpdateKind | Flag) -> None:
    assert (str(int(number)), str(number.name)) in ROWS


@pytest.mark.parametrize("opcode", Opcode)
def test_every_opcode_says_its_messages_and_its_longest_body(opcode: Opcode) -> None:
    row = ROWS[str(int(opcode)), opcode.name]
    request, reply = MESSAGES[opcode]
    assert row[2:5] == [request.__name__, reply.__name__, size_text(body_bytes_max(opcode))]


def size_text(size_bytes: int) -> str:
    return {0: "0", 1 << 20: "1 MiB", 32 << 20: "32 MiB"}[size_bytes]


def test_no_number_is_listed_that_does_not_exist() -> None:
    known = {str(int(number)) for kind in (Opcode, ErrorCode, UpdateKind, Flag) for number in kind}
    for number, name in ROWS:
        if re.fullmatch(r"[A-Z_]+", name) and number.isdigit():
            assert number in known, f"{number} {name}"


@pytest.mark.parametrize("message", [Hello, HelloReply])
def test_the_fields_of_hello_are_listed_in_order(message: type[Hello] | type[HelloReply]) -> None:
    section = DOCUMENT.partition(f"\n`{message.__name__}`, from")[2]
    positions = [section.find(f"`{name}`") for name in message.__struct_fields__]
    assert -1 not in positions
    assert positions == sorted(positions)


@pytest.mark.parametrize("size", [FRAME_HEADER_BYTES, BODY_ALIGNMENT_BYTES])
def test_sizes_are_stated(size: int) -> None:
    assert re.search(rf"\b{size} bytes", DOCUMENT)
    assert (TYPED_HEADER_BYTES_MAX, BODY_BYTES_MAX) == (64 << 10, 32 << 20)
    assert "64 KiB" in DOCUMENT
    assert "32 MiB" in DOCUMENT
