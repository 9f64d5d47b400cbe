"""The list of a prepared set's files."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from adamctl.errors import DamagedDataError
from adamctl.roles.data.prepared.layout import Manifest, PreparedFile, block_rows_for, decode_manifest, encode_manifest

EXAMPLES = PreparedFile("train-00000.examples", "examples", "train", 5, 6, 2, (1, 2, 3), "00")
LABELS = PreparedFile("train.labels", "labels", "train", 5, 4, 1024, (4,), "00")
SET = Manifest(1, (2, 3), "uint8", 255.0, ("cat", "dog"), 0, "npz pets", (EXAMPLES, LABELS))


def test_it_is_read_as_it_was_written() -> None:
    assert decode_manifest(encode_manifest(SET), "list") == SET
    assert SET.example_bytes == 6 and SET.of("train", "labels") == [LABELS] and not SET.of("test", "labels")


def test_any_changed_byte_is_found() -> None:
    content = encode_manifest(SET)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        with pytest.raises(DamagedDataError, match="list: expected it as it was written, found a wrong checksum"):
            decode_manifest(bytes(damaged), "list")
    for length in range(0, len(content), 7):
        with pytest.raises(DamagedDataError, match="wrong checksum"):
            decode_manifest(content[:length], "list")


def test_blocks_cover_a_file() -> None:
    assert [EXAMPLES.block_range(block) for block in range(3)] == [(0, 12), (12, 24), (24, 30)]
    assert EXAMPLES.block_lengths() == [2, 2, 1] and EXAMPLES.size_bytes == 30
    assert [block_rows_for("examples", size) for size in (784, 1 << 19, 1 << 30)] == [1024, 2, 1]
    assert block_rows_for("labels", 4) == 65536


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format_version": 2}, "expected format version 1, found 2: a newer adamctl wrote it"),
        ({"example_shape": ()}, "expected examples of some shape"),
        ({"value_max": 0.0}, "expected examples of some shape"),
        ({"example_shape": (7,)}, "train-00000.examples: expected rows of 7 bytes, found 5 of 6"),
        ({"files": (EXAMPLES,)}, "expected as many labels as examples of train, found 0 and 5"),
        (
            {"files": (msgspec.structs.replace(EXAMPLES, name="../x"), LABELS)},
            "names of files in the folder, found '../x'",
        ),
        (
            {"files": (msgspec.structs.replace(EXAMPLES, checksums=(1,)), LABELS)},
            "a checksum for each of its blocks, found 1",
        ),
        (
            {"files": (msgspec.structs.replace(EXAMPLES, block_rows=0), LABELS)},
            "train-00000.examples: expected rows of",
        ),
    ],
)
def test_what_can_be_no_set_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DamagedDataError) as caught:
        decode_manifest(encode_manifest(msgspec.structs.replace(SET, **changes)), "list")
    assert said in str(caught.value)


def test_it_may_be_imported_first() -> None:
    """Readers know it, and it imports what they share."""
    subprocess.run([sys.executable, "-c", "import adamctl.roles.data.prepared.layout"], check=True, timeout=60)
