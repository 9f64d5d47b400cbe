"""Members of tar files as the standard library writes them, in each of its dialects, and what is damaged."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.tar_headers import BLOCK_BYTES, Member, members, name_at

NAMES = ("a/0001.jpg", "a/0001.cls", f"{'long' * 30}/0002.jpg", f"{'folder/' * 30}é.png", "empty.txt")
DIALECTS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def tar_bytes(files: Sequence[tuple[str, bytes]], dialect: int = tarfile.PAX_FORMAT) -> bytes:
    """Returns a tar file with these files, and a folder before them."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=dialect) as archive:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def content_of(name: str) -> bytes:
    return b"" if name.startswith("empty") else name.encode() * 40


def read(path: Path, links: list[tuple[str, str]] | None = None) -> list[Member]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return list(members(descriptor, path, [] if links is None else links))
    finally:
        os.close(descriptor)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes([(name, content_of(name)) for name in NAMES]))
    return path


@pytest.mark.parametrize("dialect", DIALECTS)
def test_all_members_are_found_in_order(tmp_path: Path, dialect: int) -> None:
    names = [name for name in NAMES if dialect != tarfile.USTAR_FORMAT or len(name) < 150]
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes([(name, content_of(name)) for name in names], dialect))
    found = read(path)
    assert [member.name for member in found] == names
    whole = path.read_bytes()
    for name, offset, size in found:
        assert whole[offset : offset + size] == content_of(name)


def test_the_name_before_a_content(plain: Path) -> None:
    descriptor = os.open(plain, os.O_RDONLY)
    try:
        assert [name_at(descriptor, member.offset) for member in read(plain)[:2]] == list(NAMES[:2])
    finally:
        os.close(descriptor)


def test_a_size_beyond_what_octal_digits_hold(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    header = tarfile.TarInfo("large.npy")
    header.size = 9 << 30
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT))
    with path.open("r+b") as file:  # a hole: it takes no room
        file.truncate(BLOCK_BYTES + header.size + 2 * BLOCK_BYTES)
    assert read(path) == [Member("large.npy", BLOCK_BYTES, 9 << 30)]


@pytest.mark.parametrize("at", [0, 3, 124, 130, 150, 156, 257])
def test_a_damaged_header_is_named_with_its_byte(plain: Path, at: int) -> None:
    content = bytearray(plain.read_bytes())
    start = read(plain)[1].offset - BLOCK_BYTES
    content[start + at] ^= 1
    plain.write_bytes(content)
    with pytest.raises(DamagedDataError, match=rf"x\.tar: byte {start:,}: expected the header.*checksum is wrong"):
        read(plain)


def test_a_file_that_ends_early(plain: Path) -> None:
    content = plain.read_bytes()
    last = read(plain)[2]
    for size, said in (
        (last.offset + 10, r"bytes of .*the end of the file after 10"),
        (last.offset - 100, "expected a header, or zeros at the end, found the end of the file"),
        (read(plain)[1].offset - BLOCK_BYTES, "expected a header, or zeros at the end"),
        (0, "byte 0: expected a header"),
    ):
        plain.write_bytes(content[:size])
        with pytest.raises(DamagedDataError, match=said):
            read(plain)


def test_members_before_the_damage_are_yielded(plain: Path) -> None:
    whole = read(plain)
    plain.write_bytes(plain.read_bytes()[: whole[2].offset])
    descriptor = os.open(plain, os.O_RDONLY)
    found = []
    try:
        with pytest.raises(DamagedDataError):
            for member in members(descriptor, plain, []):
                found.append(member)
    finally:
        os.close(descriptor)
    assert found == whole[:2]


@pytest.mark.parametrize("padding", [0, 1 << 20, (2 << 20) + BLOCK_BYTES])
def test_zeros_at_the_end_may_be_any_number(plain: Path, padding: int) -> None:
    whole = read(plain)
    plain.write_bytes(plain.read_bytes() + bytes(padding))
    assert read(plain) == whole


@pytest.mark.parametrize("padding", [0, 2 << 20])
def test_archives_that_are_joined_by_cat_do_not_end_after_the_first(plain: Path, padding: int) -> None:
    first = plain.read_bytes() + bytes(padding)
    plain.write_bytes(first + tar_bytes([("b.jpg", b"x")]))
    with pytest.raises(DamagedDataError, match=rf"other bytes from byte {len(first):,} on .*tar --concatenate"):
        read(plain)


def test_a_header_of_zeros_in_the_middle_is_no_end(plain: Path) -> None:
    content, third = bytearray(plain.read_bytes()), read(plain)[1].offset - BLOCK_BYTES
    content[third : third + BLOCK_BYTES] = bytes(BLOCK_BYTES)
    plain.write_bytes(content)
    with pytest.raises(DamagedDataError, match=rf"byte {third:,}: expected zeros to the end of the file"):
        read(plain)


def test_a_compressed_file_is_refused_with_what_to_do(plain: Path) -> None:
    plain.write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(ConfigurationError, match=r"compressed with gzip.*gunzip it"):
        read(plain)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_is_told_and_what_follows_is_found(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = kind, "a.jpg"
        archive.addfile(link)
        link.name = "._b.jpg"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("c.jpg"))
    links: list[tuple[str, str]] = []
    assert [member.name for member in read(path, links)] == ["c.jpg"]
    ((name, told),) = links
    assert name == "b.jpg" and "byte 0" in told and "a link, 'b.jpg'; make the archive with --dereference" in told


@pytest.mark.parametrize("records", [b"9 path=x\n", b"x", b"99999999999 path=x\n", b"12 size=-1xx\n", b"0 =\n"])
def test_damaged_records_of_an_extended_header(tmp_path: Path, records: bytes) -> None:
    path = tmp_path / "x.tar"
    extended = tarfile.TarInfo("pax")
    extended.type, extended.size = tarfile.XHDTYPE, len(records)
    content = extended.tobuf(tarfile.USTAR_FORMAT) + records.ljust(BLOCK_BYTES, b"\0")
    path.write_bytes(content + tar_bytes([("a.jpg", b"x")], tarfile.USTAR_FORMAT))
    if records == b"9 path=x\n":
        assert read(path)[0].name == "a.jpg"  # it named the folder, which comes first
        return
    with pytest.raises(DamagedDataError, match="byte 0"):
        read(path)


def test_random_damage_ends_with_members_or_an_error(plain: Path) -> None:
    content, random = plain.read_bytes(), np.random.default_rng(21)
    errors = 0
    for _ in range(300):
        changed = bytearray(content)
        for at in random.integers(0, len(content), 3):
            changed[at] ^= int(random.integers(1, 256))
        plain.write_bytes(changed[: int(random.integers(0, len(content)))] if random.random() < 0.3 else changed)
        try:
            assert all(member.offset + member.size_bytes <= len(content) for member in read(plain))
        except DamagedDataError:
            errors += 1
    assert 50 < errors < 300
