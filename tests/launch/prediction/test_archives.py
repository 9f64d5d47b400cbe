"""Archives are read some rows at a time, and what is wrong with one is said with its name."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.launch.prediction.archives import rows_of


@pytest.mark.parametrize("saved", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 11])
def test_rows_come_in_order_and_in_parts(tmp_path: Path, rows: int, saved: object) -> None:
    values = np.arange(rows * 6, dtype=np.int16).reshape(rows, 2, 3)
    for kept in (values, np.asfortranarray(values), values[:, :, :1], values.astype(bool)):
        saved(tmp_path / "a.npz", kept)  # type: ignore[operator]
        parts = list(rows_of(tmp_path / "a.npz", 4))
        assert [len(part) for part in parts] == [min(4, rows - at) for at in range(0, max(rows, 1), 4)]
        np.testing.assert_array_equal(np.concatenate(parts), kept)
        assert all(part.dtype == kept.dtype for part in parts)


def test_the_array_is_found_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.zeros(3), x_test=np.ones((2, 1)), images=np.zeros((2, 1)))
    assert [part.tolist() for part in rows_of(tmp_path / "a.npz", 9)] == [[[1], [1]]]
    np.savez(tmp_path / "b.npz", y=np.zeros(3), z=np.ones((2, 1)))
    with pytest.raises(ConfigurationError, match=r"b\.npz: expected one array, or one called x, .*; found y, z"):
        next(rows_of(tmp_path / "b.npz", 9))


def test_what_is_no_archive_of_plain_arrays_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, np.array([{}], object))
    contents = {"objects": file.read_bytes(), "text": b"no archive"}
    np.savez(file, np.arange(4000.0).reshape(1000, 4))
    whole = file.read_bytes()
    middle = len(whole) // 2
    contents |= {"changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], "cut": whole[:middle]}
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00")
    contents["without a header"] = (tmp_path / "b.npz").read_bytes()
    with zipfile.ZipFile(file) as given, zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("x.npy", given.read("arr_0.npy")[:-32])
    contents["rows missing"] = (tmp_path / "c.npz").read_bytes()
    np.savez_compressed(file, np.arange(4000.0).reshape(1000, 4))
    packed = file.read_bytes()
    contents["badly compressed"] = packed[:600] + b"\xff" * 200 + packed[800:]
    for what, content in contents.items():
        file.write_bytes(content)
        with pytest.raises(DamagedDataError, match=r"a\.npz: expected an \.npz archive of plain arrays"):
            print(what, len(list(rows_of(file, 10))))
    with pytest.raises(DamagedDataError, match=r"none\.npz"):
        list(rows_of(tmp_path / "none.npz", 10))


def test_parts_are_read_as_they_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", np.zeros((1000, 100)))
    monkeypatch.setattr(np, "load", None)
    parts = rows_of(tmp_path / "a.npz", 10)
    assert next(parts).nbytes == 8000
    parts.close()  # type: ignore[attr-defined]
