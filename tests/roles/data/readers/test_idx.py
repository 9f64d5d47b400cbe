"""IDX files: every spelling is found, every damage is named with what was expected and found."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.idx import open_idx, peek_idx, read_idx
from tests.roles.data.data_examples import idx_bytes


@given(arrays(st.sampled_from([np.uint8, np.int32, np.float32]), array_shapes(max_dims=4, max_side=5)), st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_was_written_is_read(values: NDArray[Any], compress: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values"
        path.write_bytes(gzip.compress(idx_bytes(values)) if compress else idx_bytes(values))
        found = read_idx(path)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, compress: bool) -> None:
    values = np.random.default_rng(1).integers(0, 256, (3, 4, 4)).astype(np.uint8)
    content = gzip.compress(idx_bytes(values)) if compress else idx_bytes(values)
    path = tmp_path / "train-images-idx3-ubyte"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedDataError, match="train-images-idx3-ubyte"):
            read_idx(path)


def test_the_message_names_expected_and_found_bytes(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((2, 4, 4), np.uint8))[:-5]))
    with pytest.raises(DamagedDataError, match=r"expected 48 bytes \(header 16, values 32\), found 43") as caught:
        read_idx(path)
    assert caught.value.exit_code == 5


def test_a_file_with_more_than_its_header_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content in (idx_bytes(np.zeros(7, np.uint8)) + b"!", gzip.compress(idx_bytes(np.zeros(7, np.uint8)) + b"!")):
        path.write_bytes(content)
        with pytest.raises(DamagedDataError, match="found more"):
            read_idx(path)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=200, deadline=None)
def test_garbage_is_refused_or_read_never_a_crash(content: bytes, headed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "garbage"
        path.write_bytes(b"\0\0\x08\x02" + content if headed else content)
        with suppress(DamagedDataError):
            read_idx(path)


def test_a_header_that_claims_gigabytes_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    for content in (b"\0\0\x08\x03" + b"\xff" * 12, gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12 + bytes(100))):
        path.write_bytes(content)
        with pytest.raises(DamagedDataError, match="cut short"):
            read_idx(path)


def test_a_flipped_bit_in_a_gzip_file_is_found(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8)), mtime=0))
    content[len(content) // 2] ^= 4
    path = tmp_path / "flipped"
    path.write_bytes(content)
    with pytest.raises(DamagedDataError):
        read_idx(path)


@pytest.mark.parametrize("compress", [False, True])
def test_a_folder_is_opened(idx_folder: Callable[..., Path], compress: bool) -> None:
    source = open_idx(idx_folder(compress=compress), (4, 4, 1))
    assert len(source.labels("train")) == 50 and len(source.labels("test")) == 20
    assert source.example_shape == (4, 4, 1) and source.dtype == np.uint8 and len(source.classes) == 10
    out = np.empty((3, 4, 4, 1), np.float32)
    source.load("train", np.array([7, 3, 49]), out)
    np.testing.assert_array_equal(out[:, 0, 0, 0], [7, 3, 49])


def test_the_other_spelling_is_opened(idx_folder: Callable[..., Path]) -> None:
    folder = idx_folder(compress=False)
    for path in list(folder.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(open_idx(folder).labels("train")) == 50


def test_a_missing_file_is_named(idx_folder: Callable[..., Path]) -> None:
    folder = idx_folder()
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ConfigurationError, match="t10k-labels-idx1-ubyte"):
        open_idx(folder)


def test_labels_must_fit_the_images(idx_folder: Callable[..., Path]) -> None:
    folder = idx_folder(compress=False)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(49, np.uint8)))
    with pytest.raises(DamagedDataError, match="50 examples"):
        open_idx(folder)


def test_a_model_with_another_input_is_refused_with_both_shapes(idx_folder: Callable[..., Path]) -> None:
    with pytest.raises(ConfigurationError, match=r"\[28, 28, 1\].*\[4, 4, 1\]") as caught:
        open_idx(idx_folder(), (28, 28, 1))
    assert caught.value.exit_code == 2


def test_a_flat_model_sees_images_row_by_row(idx_folder: Callable[..., Path]) -> None:
    assert open_idx(idx_folder(), (16,)).example_shape == (16,)


def test_mnist_is_read(mnist: Path) -> None:
    source = open_idx(mnist, (28, 28, 1))
    assert len(source.labels("train")) == 60000 and len(source.labels("test")) == 10000
    assert source.labels("train")[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.parametrize("content", [b"\x1f\x8b", gzip.compress(bytes.fromhex("00000803" + "80000000" * 3), mtime=0)])
def test_a_look_allocates_no_more_than_a_packed_file_holds(idx_folder: Callable[..., Path], content: bytes) -> None:
    """The length in its last four bytes, modulo 2^32, fits a header of 2^93 values."""
    folder = idx_folder()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DamagedDataError, match="train-images"):
        peek_idx(folder, None, 1000)
