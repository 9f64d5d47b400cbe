"""Archives of arrays: two sets of names, nothing unpickled, damage named."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.npz import NpzSource, open_npz, peek_npz

IMAGES = np.arange(6 * 2 * 3, dtype=np.uint8).reshape(6, 2, 3)
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    "keys", [("x_train", "y_train", "x_test", "y_test"), ("images", "labels", "test_images", "test_labels")]
)
def test_both_sets_of_names_are_read(tmp_path: Path, keys: tuple[str, ...]) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **dict(zip(keys, (IMAGES, LABELS, IMAGES[:2], LABELS[:2, None]), strict=True)))
    source = open_npz(path, (2, 3, 1))
    assert source.dtype == np.uint8 and source.value_max == 255 and source.classes == ("0", "1", "2")
    out = np.empty((2, 2, 3, 1), np.float32)
    source.load("train", np.array([5, 0]), out)
    np.testing.assert_array_equal(out.reshape(2, 2, 3), IMAGES[[5, 0]])


@pytest.mark.parametrize("bytes_", [False, True])
def test_labels_that_are_texts_are_the_names_of_the_classes(tmp_path: Path, bytes_: bool) -> None:
    path, texts = tmp_path / "data.npz", np.array(["dog", "cat", "öwl", "dog", "cat", "öwl"])
    labels = np.char.encode(texts, "utf-8") if bytes_ else texts
    np.savez(path, x_train=IMAGES, y_train=labels, x_test=IMAGES[:2], y_test=labels[:2])
    for source in (open_npz(path), peek_npz(path, None, 3)):
        assert source.classes == ("cat", "dog", "öwl")
        assert source.labels("train").tolist() == [1, 0, 2, 1, 0, 2] and source.labels("test").tolist() == [1, 0]


def test_labels_that_are_texts_in_one_part_only_are_damage(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS.astype(str))
    with pytest.raises(DamagedDataError, match="expected all labels as texts or all as numbers"):
        open_npz(tmp_path / "data.npz")


def test_weights_that_are_objects_are_damage(tmp_path: Path) -> None:
    weights = np.array([1, "x", 2, 3, 4, 5], object)
    np.savez(tmp_path / "data.npz", x_train=IMAGES, y_train=LABELS, weights=weights)
    source = open_npz(tmp_path / "data.npz")
    assert isinstance(source, NpzSource)
    with pytest.raises(DamagedDataError, match=r"data\.npz: expected an \.npz archive of plain arrays"):
        source.weights("train")


def test_floats_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    images = np.linspace(-1, 1, 12).reshape(4, 3)
    np.savez(path, x_train=images, y_train=[0, 1, 0, 1], x_test=images, y_test=[0, 1, 0, 1])
    source = open_npz(path, (3,))
    assert source.dtype == np.float32 and source.value_max == 1


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    path = tmp_path / "evil.npz"
    np.savez(path, x_train=np.array([Bomb()]), y_train=LABELS, x_test=IMAGES, y_test=LABELS)
    with pytest.raises(DamagedDataError):
        open_npz(path)
    assert not (tmp_path / "exploded").exists()


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x_train=IMAGES, other=LABELS)
    with pytest.raises(ConfigurationError, match=r"y_train.*found x_train, other"):
        open_npz(path)


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS)
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedDataError, match=r"data\.npz"):
            open_npz(path)


def test_garbage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"not an archive at all")
    with pytest.raises(DamagedDataError):
        open_npz(path)


@pytest.mark.parametrize("labels", [LABELS[:5], LABELS.astype(np.float64), LABELS - 1])
def test_labels_must_be_one_whole_number_from_zero_each(tmp_path: Path, labels: np.ndarray) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x_train=IMAGES, y_train=labels, x_test=IMAGES, y_test=LABELS)
    with pytest.raises(DamagedDataError):
        open_npz(path)


def _with_header(path: Path, shape: tuple[int, ...]) -> None:
    """Writes an archive whose training images' header says another shape than there is."""
    arrays = dict(zip(("x_train", "y_train", "x_test", "y_test"), (IMAGES, LABELS, IMAGES, LABELS), strict=True))
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
            header["shape"] = shape if name == "x_train" else array.shape
            np.lib.format.write_array_header_1_0(content, header)
            archive.writestr(f"{name}.npy", content.getvalue() + array.tobytes())


def test_a_header_that_says_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    _with_header(path, (10**12, 2, 3))
    with pytest.raises(DamagedDataError, match=r"x_train is uint8.*6000000000000 bytes by its header; found 36"):
        open_npz(path)


def test_an_archive_larger_than_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x_train=np.zeros((1000, 10)), y_train=np.zeros(1000, int), x_test=IMAGES, y_test=LABELS)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=50_000))
    with pytest.raises(ConfigurationError, match=r"data\.npz: its arrays need .* 50,000 are available here"):
        open_npz(path)


def test_a_single_array_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    content = path.read_bytes().replace(b"(3,)", b"(9000000000000,)")
    path.write_bytes(content)
    for read in (open_npz, lambda path: peek_npz(path, None, 10)):
        with pytest.raises(DamagedDataError, match=r"a\.npz: expected an \.npz archive, found a single array"):
            read(path)


def test_an_archive_that_says_it_is_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS)
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + 8] |= 1  # the flag in the directory's last entry
    path.write_bytes(content)
    with pytest.raises(DamagedDataError, match="is encrypted"):
        open_npz(path)


def test_a_header_that_is_no_python(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    header = b"{'descr': '<f8', 'shape': (3L"
    with zipfile.ZipFile(path, "w") as archive:
        for key in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{key}.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    for read in (open_npz, lambda path: peek_npz(path, None, 10)):
        with pytest.raises(DamagedDataError, match="a header that cannot be read"):
            read(path)
