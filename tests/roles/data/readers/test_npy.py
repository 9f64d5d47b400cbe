"""Arrays in files: read as they are, nothing unpickled, damage named with file and position."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import AdamctlError, ConfigurationError, DamagedDataError
from adamctl.roles.data.readers import open_source, peek_source
from adamctl.roles.data.readers.npy import open_npy, peek_npy

IMAGES = np.arange(6 * 2 * 3, dtype=np.uint8).reshape(6, 2, 3)
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of six images of bytes, two of them also the test set."""
    for name, values in (("x_train", IMAGES), ("y_train", LABELS), ("x_test", IMAGES[:2]), ("y_test", LABELS[:2])):
        np.save(tmp_path / f"{name}.npy", values)
    return tmp_path


def test_bytes_are_read_as_bytes_and_as_numbers(folder: Path) -> None:
    source = open_source(DataConfig(format="npy", source="."), folder, (2, 3, 1))
    assert source.dtype == np.uint8 and source.value_max == 255 and source.classes == ("0", "1", "2")
    assert source.labels("test").tolist() == [0, 1] and source.resident_bytes == 8 * 4
    for dtype in (np.uint8, np.float32):
        out = np.empty((2, 2, 3, 1), dtype)
        source.load("train", np.array([5, 0]), out)
        np.testing.assert_array_equal(out.reshape(2, 2, 3), IMAGES[[5, 0]])


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_other_numbers_become_floats_whatever_their_order(folder: Path, dtype: str, order: str) -> None:
    values = np.asarray(np.arange(-18, 18).reshape(6, 2, 3), dtype, order)  # type: ignore[call-overload]
    np.save(folder / "x_train.npy", values)
    np.save(folder / "x_test.npy", values[:2])
    source = open_npy(folder, (6,))
    out = np.empty((2, 6), np.float32)
    source.load("train", np.array([3, 1]), out)
    assert source.dtype == np.float32 and source.value_max == 1
    np.testing.assert_array_equal(out.reshape(2, 2, 3), values[[3, 1]])


def test_the_test_set_may_be_missing_but_not_half_of_it(folder: Path) -> None:
    (folder / "x_test.npy").unlink()
    with pytest.raises(ConfigurationError, match=r"expected a folder with x_test\.npy, found no such file"):
        open_npy(folder)
    (folder / "y_test.npy").unlink()
    assert len(open_npy(folder).labels("test")) == 0
    assert len(peek_npy(folder, None, 2).labels("test")) == 0


def test_labels_that_are_texts_are_the_names_of_the_classes(folder: Path) -> None:
    np.save(folder / "y_train.npy", np.array(["dog", "cat", "öwl"] * 2))
    np.save(folder / "y_test.npy", np.array(["dog", "cat"]))
    for source in (open_npy(folder), peek_source(DataConfig(format="npy", source="."), folder, (6,), 3, 1.0)):
        assert source.classes == ("cat", "dog", "öwl") and source.labels("test").tolist() == [1, 0]


def test_a_file_cut_anywhere_is_refused_with_its_name(folder: Path) -> None:
    path = folder / "x_train.npy"
    content = path.read_bytes()
    for length in (*range(0, 128, 5), *range(128, len(content))):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedDataError, match=r"x_train\.npy: expected"):
            open_npy(folder)
    path.write_bytes(content[:-7])
    with pytest.raises(DamagedDataError, match=r"uint8 \[6, 2, 3\], 36 bytes from byte 128 on by its header; found 29"):
        peek_npy(folder, None, 2)
    path.write_bytes(content + b"more")
    with pytest.raises(DamagedDataError, match=r"found 40"):
        open_npy(folder)


def test_a_header_changed_anywhere_ends_in_nothing_but_our_own_errors(folder: Path) -> None:
    path = folder / "x_train.npy"
    content = path.read_bytes()
    refused = 0
    for place in range(128):
        for value in (0, content[place] ^ 1, ord("9"), 0xFF):
            path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                open_npy(folder)
            except AdamctlError:
                refused += 1
    assert refused > 200


@pytest.mark.parametrize("shape", ["(2**70,)", "(9999999999999999999, 9999999999999999999)", "(-6, -6)"])
def test_a_header_that_says_more_than_there_is_takes_no_memory(folder: Path, shape: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    (folder / "x_train.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.encode() + IMAGES.tobytes())
    with pytest.raises(DamagedDataError, match=r"x_train\.npy"):
        open_npy(folder)


def test_objects_are_never_unpickled(folder: Path) -> None:
    np.save(folder / "x_train.npy", np.array([{}, {}], object))
    with pytest.raises(DamagedDataError, match=r"x_train\.npy: .* found Python objects"):
        open_npy(folder)


@pytest.mark.parametrize("labels", [LABELS[:5], LABELS.astype(np.float64), LABELS - 1])
def test_labels_must_be_one_whole_number_from_zero_each(folder: Path, labels: np.ndarray) -> None:
    np.save(folder / "y_train.npy", labels)
    with pytest.raises(DamagedDataError, match=r"y_train\.npy"):
        open_npy(folder)


def test_a_file_cut_while_it_is_read_ends_in_an_error(folder: Path) -> None:
    source = open_npy(folder)
    content = (folder / "x_train.npy").read_bytes()
    (folder / "x_train.npy").write_bytes(content[:100])
    with pytest.raises(DamagedDataError, match=r"x_train\.npy: expected 164 bytes as when it was opened, found 100"):
        source.load("train", np.array([5]), np.empty((1, 2, 3, 1), np.uint8))


@pytest.mark.parametrize("wanted", [range(3000), range(0, 3000, 2)])
def test_bytes_read_are_counted_and_no_page_of_the_file_stays(tmp_path: Path, wanted: range) -> None:
    """Examples that follow one another, and others."""
    values = np.random.default_rng(1).integers(0, 256, (3000, 28, 28), np.uint8)
    np.save(tmp_path / "x_train.npy", values)
    np.save(tmp_path / "y_train.npy", np.zeros(3000, np.int64))
    source = open_npy(tmp_path)
    out = np.empty((len(wanted), 28, 28, 1), np.uint8)
    source.load("train", np.array(wanted), out)
    np.testing.assert_array_equal(out[..., 0], values[wanted.start : wanted.stop : wanted.step])
    assert source.read_bytes == out.nbytes
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("this system does not say what is resident of each mapping")
    maps = smaps.read_text().split("x_train.npy\n")[1:]
    assert maps and all(int(part.split("Rss:")[1].split()[0]) == 0 for part in maps)


def test_a_file_changed_while_it_is_read_is_named(folder: Path) -> None:
    source = open_npy(folder)
    np.save(folder / "x_train.npy", IMAGES + 1)
    os.utime(folder / "x_train.npy", ns=(1, 1))
    with pytest.raises(DamagedDataError, match=r"x_train\.npy: expected the file that was opened, found one changed"):
        source.load("train", np.array([5]), np.empty((1, 2, 3, 1), np.uint8))
