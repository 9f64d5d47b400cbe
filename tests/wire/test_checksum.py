"""The numbers in files and frames are zlib's, whoever computes them."""

from __future__ import annotations

import builtins
import importlib
import zlib
from typing import Any

import pytest

from adamctl.wire import checksum


@pytest.mark.parametrize("size", [0, 1, 15, 16, 64, 1000, (1 << 20) + 3])
def test_checksums_are_zlibs_also_of_what_comes_in_pieces(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    whole = memoryview(data)[:size]
    expected = zlib.crc32(whole)
    assert checksum.crc32(whole) == expected
    for cut in (0, size // 3, size):
        assert checksum.crc32(whole[cut:], checksum.crc32(whole[:cut])) == expected


def test_zlib_is_used_where_there_is_nothing_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("isal"):
            raise ImportError(name)
        return imports(name, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", without)
        assert importlib.reload(checksum).crc32 is zlib.crc32
    importlib.reload(checksum)
