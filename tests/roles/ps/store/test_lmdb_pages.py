"""LMDB files read page by page: what LMDB wrote is found, and what it would never write is refused."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import lmdb
import pytest

from adamctl.roles.ps.store.lmdb_pages import HEADER_BYTES, DamagedPagesError, check_large, page_bytes_of, values_of

LAST_PAGE_OFFSET = HEADER_BYTES + 120
"""In each root (`META`)."""


def opened(path: Path) -> lmdb.Environment:
    return lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26)


def contents(path: Path) -> dict[bytes, bytes]:
    """What is in a file as `values_of` finds it."""
    data = path.read_bytes()
    with open(path, "rb") as file:
        values = values_of(file.fileno())
        page_bytes = page_bytes_of(file.fileno())
    for value in values:
        if value.pages:
            check_large(value, data[value.offset - HEADER_BYTES : value.offset], page_bytes)
    assert [value.key for value in values] == sorted(value.key for value in values)
    return {value.key: data[value.offset : value.offset + value.size] for value in values}


def damaged(path: Path) -> str:
    with open(path, "rb") as file, pytest.raises(DamagedPagesError) as caught:
        values_of(file.fileno())
    return str(caught.value)


def grown(path: Path, seed: int, steps: int) -> dict[bytes, bytes]:
    """Random puts and deletes, small and large, so that pages split, merge and are freed."""
    chance = Random(seed)
    held: dict[bytes, bytes] = {}
    environment = opened(path)
    for _ in range(steps):
        with environment.begin(write=True) as transaction:
            for _ in range(chance.randrange(60)):
                key = chance.randrange(500).to_bytes(8, "big")
                if held and chance.random() < 0.4:
                    key = chance.choice(sorted(held))
                if held.pop(key, None) is not None:  # a log writes no key twice: LMDB may keep more pages then
                    transaction.delete(key)
                    continue
                held[key] = chance.randbytes(chance.choice([0, 1, 30, 400, 2000, 5000, 70_000]))
                transaction.put(key, held[key])
    environment.close()
    return held


@pytest.mark.parametrize("seed", range(4))
def test_what_lmdb_wrote_is_found(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file"
    held = grown(path, seed, 30)
    assert contents(path) == held


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_what_lmdb_wrote_in_a_long_time_is_found(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file"
    held = grown(path, seed, 400)
    assert contents(path) == held


def test_an_empty_file_of_lmdb_has_nothing(tmp_path: Path) -> None:
    environment = opened(tmp_path / "file")
    environment.close()
    assert contents(tmp_path / "file") == {}


def test_a_compacted_copy_is_read_too(tmp_path: Path) -> None:
    held = grown(tmp_path / "file", 1, 20)
    environment = opened(tmp_path / "file")
    environment.copy(str(tmp_path / "copy"), compact=True)
    environment.close()
    assert contents(tmp_path / "copy") == held


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    held = grown(path, 2, 20)
    whole = path.stat().st_size
    assert held
    for share in (0.5, 0.3, 0.1):  # free pages may be all that lie at its very end
        os.truncate(path, int(whole * share))
        assert damaged(path)


def test_roots_that_name_a_last_page_far_away_are_refused(tmp_path: Path) -> None:
    """Tables would be made for all of its pages, up to terabytes."""
    path = tmp_path / "file"
    grown(path, 4, 3)
    whole = path.read_bytes()
    with open(path, "rb") as file:
        page_bytes = page_bytes_of(file.fileno())
    for bit in range(len(whole).bit_length(), 64):
        data = bytearray(whole)
        for root in (0, page_bytes):
            data[root + LAST_PAGE_OFFSET + bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert "last page" in damaged(path), bit


@pytest.mark.parametrize("content", [b"", b"x" * 50, bytes(8192), b"x" * 20_000])
def test_what_is_no_file_of_lmdb_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert "root" in damaged(tmp_path / "file")


def test_a_page_used_twice_or_listed_as_free_is_refused(tmp_path: Path) -> None:
    """Two pages change places: each has another number than its place says."""
    path = tmp_path / "file"
    grown(path, 3, 20)
    with open(path, "rb") as file:
        page_bytes = page_bytes_of(file.fileno())
        large = [value for value in values_of(file.fileno()) if value.pages]
    data = bytearray(path.read_bytes())
    for number in range(2, len(data) // page_bytes):
        start = number * page_bytes
        if data[start + 10 : start + 12] == b"\2\0":  # a leaf: let its first large node name another's pages
            for offset in range(start + HEADER_BYTES, start + page_bytes - 8):
                if data[offset : offset + 8] == ((large[0].offset - HEADER_BYTES) // page_bytes).to_bytes(8, "little"):
                    data[offset : offset + 8] = ((large[1].offset - HEADER_BYTES) // page_bytes).to_bytes(8, "little")
    path.write_bytes(data)
    assert "twice" in damaged(path)


def test_a_large_value_whose_header_is_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    grown(path, 3, 20)
    with open(path, "rb") as file:
        value = next(value for value in values_of(file.fileno()) if value.pages)
    header = path.read_bytes()[value.offset - HEADER_BYTES : value.offset]
    check_large(value, header, 4096)
    for byte in (0, 10, 12):
        altered = bytearray(header)
        altered[byte] ^= 1
        with pytest.raises(DamagedPagesError, match="large value"):
            check_large(value, altered, 4096)
