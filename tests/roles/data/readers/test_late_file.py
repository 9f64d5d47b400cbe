"""Files read while a run goes on: at any place, counted, and never as another file than the one that was opened."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from adamctl.errors import DamagedDataError
from adamctl.roles.data.readers.late_file import LateFile, ReadCounter

CONTENT = bytes(range(200))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "values.bin"
    made.write_bytes(CONTENT)
    os.utime(made, ns=(1, 1))
    return made


def test_what_is_read_is_counted(path: Path) -> None:
    counter = ReadCounter()
    file, other = LateFile(path, counter), LateFile(path, counter)
    for one, start, length in ((file, 0, 3), (other, 190, 10), (file, 7, 0)):
        target = bytearray(length)
        one.read_into(memoryview(target), start)
        assert target == CONTENT[start : start + length]
    assert counter.total_bytes == 13


def test_a_file_that_ends_too_early_is_named_with_the_place(path: Path) -> None:
    file = LateFile(path, ReadCounter())
    with pytest.raises(DamagedDataError, match=r"values\.bin: expected 20 bytes from byte 190 on, found 10"):
        file.read_into(memoryview(bytearray(20)), 190)


def _rewritten(path: Path) -> None:
    path.write_bytes(bytes(len(CONTENT)))


def _replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(CONTENT)
    os.utime(other, ns=(1, 1))
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_rewritten, "expected the file that was opened, found one changed since then"),
        (_replaced, "expected the file that was opened, found one changed since then"),
        (lambda path: path.write_bytes(CONTENT[:9]), "expected 200 bytes as when it was opened, found 9"),
        (lambda path: path.unlink(), "expected it as when it was opened: .*No such file"),
    ],
)
def test_a_change_is_noticed_and_the_file_named(path: Path, change: Callable[[Path], None], found: str) -> None:
    file = LateFile(path, ReadCounter())
    file.check()
    change(path)
    with pytest.raises(DamagedDataError, match=rf"values\.bin: {found}"):
        file.check()


def test_a_file_nobody_reads_any_more_is_closed(path: Path) -> None:
    file = LateFile(path, ReadCounter())
    number = file._file
    os.fstat(number)
    del file
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(number)
