"""A copy takes the frames of its blocks and no others; it shows a block when all of it is there."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from adamctl.errors import ProtocolError
from adamctl.kernels.partition.memory import WORD_BYTES, BlockName, SharedLayout, SharedMemory
from adamctl.kernels.partition.stages import cut_network
from adamctl.roles.worker.partition import copies
from adamctl.roles.worker.partition.copies import MemoryCopy
from adamctl.wire.messages import PartDataRequest
from tests.kernels.partition.test_member import BATCH, IMAGES, ROWS_AND_UNITS

FLIGHTS = 2
LAYOUT = SharedLayout(cut_network(IMAGES, ROWS_AND_UNITS, "numpy"), 1, BATCH, FLIGHTS, reader=0)
NAMES = list(LAYOUT.places)


class Copy(MemoryCopy):
    def __init__(self) -> None:
        self.woken = 0
        super().__init__(LAYOUT, FLIGHTS, BATCH, "partition 1 (w1)", self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def take(self, message: PartDataRequest, body: bytes = b"") -> None:
        if body:
            self.place(message, len(body))[:] = body
        self.arrived(message, len(body))

    def everything(self) -> bytes:
        return b"".join(self.memory.array(name).tobytes() for name in NAMES) + self.memory.words.tobytes()


@pytest.fixture
def copy() -> Copy:
    return Copy()


def block_of(kind: str, flight: int) -> tuple[int, int]:
    """Returns the first block of a kind and context, and the bytes of a whole batch of it."""
    number = next(number for number, name in enumerate(NAMES) if (name.kind, name.flight) == (kind, flight))
    return number, LAYOUT.places[NAMES[number]].size_bytes


def test_a_new_copy_stands_before_the_first_flight(copy: Copy) -> None:
    expected = SharedMemory(LAYOUT, np.zeros(LAYOUT.size_bytes, np.uint8))
    expected.begin(FLIGHTS)
    assert copy.memory.words.tolist() == expected.words.tolist()
    assert not copy.memory.word(NAMES[0]).__array_interface__["data"][0] % WORD_BYTES


@pytest.mark.parametrize("kind", ["output", "error", "partial", "sum", "norms"])
def test_a_block_is_shown_when_it_is_whole(copy: Copy, kind: str) -> None:
    number, size = block_of(kind, 1)
    name, body = NAMES[number], Random(1).randbytes(size)
    place = copy.place(PartDataRequest(1, number, 3, BATCH), size)
    assert not copy.memory.word(name)[0] and not copy.woken
    place[:] = body
    copy.arrived(PartDataRequest(1, number, 3, BATCH), size)
    assert copy.memory.word(name)[0] == 3 and copy.woken == 1
    assert copy.memory.array(name).tobytes() == body


def test_fewer_examples_fill_the_beginning(copy: Copy) -> None:
    number, size = block_of("output", 0)
    part = size * 3 // BATCH
    copy.take(PartDataRequest(1, number, 2, 3), b"\x01" * part)
    assert copy.memory.array(NAMES[number]).tobytes() == b"\x01" * part + bytes(size - part)
    assert copy.memory.word(NAMES[number])[0] == 2


def test_a_word_alone_needs_no_body(copy: Copy) -> None:
    number, _ = block_of("free", 1)
    copy.take(PartDataRequest(1, number, 3 + FLIGHTS))
    assert copy.memory.word(BlockName("free", 0, 1))[0] == 3 + FLIGHTS and copy.woken == 1


def test_pieces_may_have_their_places_before_those_before_them_are_counted(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 16)
    number, size = block_of("output", 0)
    for flight in (2, 4):
        body = Random(flight).randbytes(size)
        messages = [PartDataRequest(1, number, flight, BATCH, offset) for offset in range(0, size, 16)]
        pieces = [body[one.offset : one.offset + 16] for one in messages]
        for message, piece in zip(messages, pieces, strict=True):
            copy.place(message, len(piece))[:] = piece
        for message, piece in zip(messages, pieces, strict=True):
            assert copy.memory.word(NAMES[number])[0] == flight - 2
            copy.arrived(message, len(piece))
        assert copy.memory.word(NAMES[number])[0] == flight and copy.woken == flight // 2
        assert copy.memory.array(NAMES[number]).tobytes() == body


OUTPUT, OUTPUT_BYTES = block_of("output", 1)
FREE, _ = block_of("free", 1)


@pytest.mark.parametrize(
    ("message", "size", "why"),
    [
        (PartDataRequest(1, len(NAMES), 3, BATCH), OUTPUT_BYTES, "expected one of"),
        (PartDataRequest(1, -1, 3, BATCH), OUTPUT_BYTES, "expected one of"),
        (PartDataRequest(1, OUTPUT, 4, BATCH), OUTPUT_BYTES, "of context 1; found flight 4"),
        (PartDataRequest(1, OUTPUT, -1, BATCH), OUTPUT_BYTES, "found flight -1"),
        (PartDataRequest(1, OUTPUT, 1, BATCH), OUTPUT_BYTES, "expected a flight after 1, of context 1"),
        (PartDataRequest(1, OUTPUT, 3, BATCH + 1), OUTPUT_BYTES, f"expected 1 to {BATCH} examples"),
        (PartDataRequest(1, OUTPUT, 3, 0), OUTPUT_BYTES, "examples"),
        (PartDataRequest(1, OUTPUT, 3, BATCH), OUTPUT_BYTES - 4, f"expected {OUTPUT_BYTES} bytes at 0"),
        (PartDataRequest(1, OUTPUT, 3, BATCH), OUTPUT_BYTES + 4, f"expected {OUTPUT_BYTES} bytes at 0"),
        (PartDataRequest(1, OUTPUT, 3, BATCH - 1), OUTPUT_BYTES, "bytes at 0"),
        (PartDataRequest(1, OUTPUT, 3, BATCH, 4), OUTPUT_BYTES - 4, "at 4"),
        (PartDataRequest(1, OUTPUT, 3, BATCH), 0, "found 0 at 0"),
        (PartDataRequest(1, FREE, 5), 4, "expected 0 bytes at 0"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(
    copy: Copy, message: PartDataRequest, size: int, why: str
) -> None:
    copy.take(PartDataRequest(1, OUTPUT, 1, BATCH), Random(2).randbytes(OUTPUT_BYTES))
    before = copy.everything()
    with pytest.raises(ProtocolError, match="PART_DATA from partition 1") as caught:
        copy.place(message, size) if size else copy.arrived(message, 0)
    assert why in str(caught.value)
    assert copy.everything() == before
    copy.take(PartDataRequest(1, OUTPUT, 3, BATCH), Random(3).randbytes(OUTPUT_BYTES))
    assert copy.memory.word(NAMES[OUTPUT])[0] == 3, "what is right is still taken"


def test_a_block_is_not_begun_anew_before_it_is_whole(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 16)
    copy.take(PartDataRequest(1, OUTPUT, 1, BATCH), bytes(16))
    for message, why in (
        (PartDataRequest(1, OUTPUT, 1, BATCH), "expected 16 bytes at 16; found 16 at 0"),
        (PartDataRequest(1, OUTPUT, 3, BATCH, 16), "expected flight 1 to go on"),
        (PartDataRequest(1, OUTPUT, 1, BATCH - 1, 16), f"expected {BATCH} examples"),
    ):
        with pytest.raises(ProtocolError) as caught:
            copy.place(message, 16)
        assert why in str(caught.value)
    copy.take(PartDataRequest(1, OUTPUT, 1, BATCH, 16), bytes(16))
